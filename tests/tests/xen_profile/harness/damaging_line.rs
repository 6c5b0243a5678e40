//! A line between client and guest that changes one bit.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Forwards one connection to `guest`, and flips a bit of the byte at `place` on the way to the client; then
/// forwards the connections after it untouched. Answers where it listens; ends with the process.
pub(crate) fn damaging_line(guest: SocketAddr, place: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut damage = Some(place);
        while let Ok((client, _)) = listener.accept() {
            let Ok(upstream) = TcpStream::connect(guest) else {
                continue;
            };
            let (Ok(from_client), Ok(to_guest)) = (client.try_clone(), upstream.try_clone()) else {
                continue;
            };
            let damage = damage.take();
            thread::spawn(move || forward(from_client, to_guest, None));
            thread::spawn(move || forward(upstream, client, damage));
        }
    });
    address
}

fn forward(mut from: TcpStream, mut to: TcpStream, damage: Option<usize>) {
    let mut forwarded = 0;
    let mut buffer = [0; 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if let Some(place) = damage.and_then(|place| place.checked_sub(forwarded))
            && place < length
        {
            buffer[place] ^= 0x10;
        }
        forwarded += length;
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other direction ends by itself if its ends are gone already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
