//! `serve`: requests in a second over one connection, and memory.

use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::Done;
use super::processes::Guests;

const LASTS: Duration = Duration::from_secs(5);

pub(super) fn measure() -> Done {
    for guests in [100, 1000] {
        let fleet = Guests::start(guests)?;
        let (server, line) = fleet.run("serve", "[serve]\nlisten = \"127.0.0.1:0\"\n")?;
        let (_, address) = line.split_once("http://").ok_or("no address")?;
        let address = address.trim_end_matches('/');
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut connection = BufReader::new(stream);
        // All of them have answered.
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let text = String::from_utf8(get(&mut connection, "/metrics")?)?;
            let up = text
                .lines()
                .filter(|line| line.starts_with("unikprof_up{") && line.ends_with(" 1"));
            if up.count() == guests {
                break;
            }
            if Instant::now() > deadline {
                return Err("not every guest has answered".into());
            }
            thread::sleep(Duration::from_secs(1));
        }
        for path in ["/metrics", "/guests", "/targets"] {
            let (mut requests, mut bytes) = (0_u32, 0);
            let (start, before) = (Instant::now(), server.cpu_seconds());
            while start.elapsed() < LASTS {
                bytes = get(&mut connection, path)?.len();
                requests += 1;
            }
            println!(
                "serve: {guests} guests: {path}: {:.0} a second, {:.2} ms of CPU each, {:.0} KB",
                f64::from(requests) / start.elapsed().as_secs_f64(),
                1000.0 * (server.cpu_seconds() - before) / f64::from(requests),
                bytes as f64 / 1000.0
            );
        }
        println!(
            "serve: {guests} guests: {:.1} MiB at most",
            server.peak_resident_kib() as f64 / 1024.0
        );
    }
    Ok(())
}

/// The body of the answer to a GET request.
fn get(
    connection: &mut BufReader<TcpStream>,
    path: &str,
) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut length = None;
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = Some(value.trim().parse()?);
        }
    }
    let mut body = vec![0; length.ok_or("no length")?];
    connection.read_exact(&mut body)?;
    Ok(body)
}
