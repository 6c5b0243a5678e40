//! Whoever else reaches the agent's port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use unikprof_client::recording::Completeness;

use crate::harness::Guest;

/// Sends what no client would, over and over, until told to stop; answers how often.
fn annoy(agent: SocketAddr, seed: u64, stop: &AtomicBool) -> u64 {
    let mut random = seed;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut visits = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut bytes = Vec::new();
        if next() % 2 == 0 {
            bytes.extend(b"unikprof\x01\0\x01\0\0\0\0\0");
        }
        let length = 1 + next() % 3_000;
        bytes.extend((0..length).map(|_| next() as u8));
        // The agent may have closed already, or have no session left: both are its right.
        if let Ok(mut stream) = TcpStream::connect(agent) {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 256]);
        }
        visits += 1;
    }
    visits
}

#[test]
fn random_bytes_do_not_disturb_a_recording() {
    let mut guest = Guest::start("shares");
    let client = guest.client();
    let stop = AtomicBool::new(false);
    let address = guest.address();
    thread::scope(|scope| {
        let running = client.begin(&["record", "2s", "-o", "run.unikprof", "--json"]);
        // It has its session before the others come, who may take all the rest.
        client.wait_for_status("the recording", |status| status["state"] == "recording");
        let visitors = [7, 11].map(|seed| {
            scope.spawn({
                let stop = &stop;
                move || annoy(address, seed, stop)
            })
        });
        let finished = running.finish();
        stop.store(true, Ordering::Relaxed);
        let visits: u64 = visitors.map(|visitor| visitor.join().unwrap()).iter().sum();
        let told = finished.expect_json();
        assert_eq!(told["complete"], true);
        assert!(visits > 20, "{visits} visits disturb nobody");
    });
    let recording = client.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.profile.recording().warnings, Vec::<String>::new());
    assert!(recording.profile.sample_count() > 0);
    let status =
        client.wait_for_status("the visitors to be gone", |status| status["sessions"] == 1);
    assert!(
        status["peers"]["malformed"].as_u64() > Some(10),
        "{status:#}"
    );
    guest.assert_alive();
}
