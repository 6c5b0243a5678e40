//! The cost of keys for the guest: a handshake, and an encrypted download compared with an
//! unencrypted one.
//!
//! ```text
//! cargo bench -p unikprof-agent --features noise --bench keyed
//! ```
//!
//! Only the agent's side is timed, within one process and without a network. The client is `snow`.
#![allow(clippy::unwrap_used)]

#[path = "../tests/it/client/mod.rs"]
mod client;
#[path = "../tests/it/fake_guest/mod.rs"]
mod fake_guest;
mod harness;
#[path = "../tests/it/keyed/mod.rs"]
mod keyed;

use std::time::{Duration, Instant};

use client::{encoded, frames, read, whole};
use fake_guest::{FakeAgent, FakeService, agent, tick};
use keyed::{CONTROL, Client, OTHER, connect, exchange};
use unikprof_agent::{Access, Service, SessionId};
use unikprof_proto::message::{Fetch, Pending, Start, Stop};
use unikprof_proto::preamble;

const HANDSHAKES: usize = 2000;
const DOWNLOADS: usize = 41;
const TICKS: u64 = 60_000;

fn main() {
    if !harness::asked_to_measure() {
        return;
    }
    handshakes();
    let (mut plain, mut sealed) = (plain_download(), sealed_download());
    // In turns, so that other work on the machine affects both equally.
    let (mut by_plain, mut by_sealed): (Vec<f64>, Vec<f64>) =
        (0..DOWNLOADS).map(|_| (plain(), sealed())).unzip();
    let [plain, sealed] = [&mut by_plain, &mut by_sealed].map(|rates| {
        rates.sort_unstable_by(f64::total_cmp);
        rates[DOWNLOADS / 2]
    });
    println!("download in the clear      {plain:8.0} MB/s in the median");
    println!("download under a key       {sealed:8.0} MB/s, {:.3} of it", sealed / plain);
}

fn handshakes() {
    let (guest, mut service) = keyed::service();
    for (name, key) in [("a handshake", CONTROL), ("one with an unknown key", OTHER)] {
        let mut times: Vec<Duration> = (0..HANDSHAKES)
            .map(|_| {
                let shaking = connect(&mut service, key);
                guest.platform().idle(5_000_000);
                assert_eq!(service.receive(shaking.session, &shaking.first), shaking.first.len());
                let mut buffer = [0; 512];
                let start = Instant::now();
                let length = service.transmit(shaking.session, &mut buffer);
                let took = start.elapsed();
                assert!(length > 0);
                service.close(shaking.session);
                took
            })
            .collect();
        times.sort_unstable();
        let at = |part: usize| times[HANDSHAKES * part / 100].as_nanos();
        println!(
            "{name:<26} {:>8} ns in the median, {} ns at 99 %, {} ns at most",
            at(50),
            at(99),
            times[HANDSHAKES - 1].as_nanos()
        );
    }
}

/// A recording that has ended, and the request to fetch it.
fn start() -> Vec<u8> {
    encoded(&Start::running_time("measured", 1_000_000))
}

fn fetch(pending: &[u8]) -> Fetch {
    let pending: Pending = read(&frames(pending)[0]);
    whole(pending.first_epoch)
}

fn fill(guest: &FakeAgent) {
    for n in 0..TICKS {
        assert!(tick(guest, &[n % 251, n / 251]));
    }
}

/// The rate of one download in MB per second on the wire.
fn download(
    service: &mut FakeService,
    session: SessionId,
    request: &[u8],
    mut judge: impl FnMut(&[u8]),
) -> f64 {
    let mut buffer = vec![0; 16 << 10];
    let (mut bytes, mut took) = (0, Duration::ZERO);
    assert_eq!(service.receive(session, request), request.len());
    loop {
        let start = Instant::now();
        let length = service.transmit(session, &mut buffer);
        took += start.elapsed();
        if length == 0 {
            break;
        }
        bytes += length;
        judge(&buffer[..length]);
    }
    assert!(bytes > 100 << 10, "{bytes} bytes are no download");
    bytes as f64 / 1e6 / took.as_secs_f64()
}

fn plain_download() -> impl FnMut() -> f64 {
    let guest = agent(1, 8 << 20);
    let mut service = Service::new(guest, Access::Open).unwrap();
    let session = service.open().unwrap();
    exchange(&mut service, session, &preamble::encode(preamble::OPEN));
    exchange(&mut service, session, &start());
    fill(guest);
    let pending = exchange(&mut service, session, &encoded(&Stop { recording: 0 }));
    let request = encoded(&fetch(&pending));
    move || download(&mut service, session, &request, |_| {})
}

fn sealed_download() -> impl FnMut() -> f64 {
    let (guest, mut service) = keyed::service();
    let mut client = Client::new(&mut service, CONTROL);
    let mut ask = |service: &mut FakeService, bytes: &[u8]| {
        let record = client.seal(bytes);
        let answer = exchange(service, client.session, &record);
        client.open(&answer)
    };
    ask(&mut service, &start());
    fill(guest);
    let pending = ask(&mut service, &encoded(&Stop { recording: 0 }));
    let request = encoded(&fetch(&pending));
    move || {
        let record = client.seal(&request);
        download(&mut service, client.session, &record, |bytes| {
            client.open(bytes);
        })
    }
}
