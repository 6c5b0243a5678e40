//! Whoever else reaches the agent's port.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use unikprof_client::recording::Completeness;

use crate::harness::{Guest, wait_until};

/// Sends what no client would, over and over, until told to stop, and counts how often.
fn annoy(agent: SocketAddr, seed: u64, stop: &AtomicBool, visits: &AtomicU64) {
    let mut random = seed;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
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
        visits.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn random_bytes_do_not_disturb_a_recording() {
    let mut guest = Guest::start("shares");
    let client = guest.client();
    let (stop, visits) = (AtomicBool::new(false), AtomicU64::new(0));
    let address = guest.address();
    thread::scope(|scope| {
        let running = client.begin(&["record", "1h", "-o", "run.unikprof", "--json"]);
        // It has its session before the others come, who may take all the rest.
        client.wait_for_status("the recording", |status| status["state"] == "recording");
        for seed in [7, 11] {
            let (stop, visits) = (&stop, &visits);
            scope.spawn(move || annoy(address, seed, stop, visits));
        }
        let disturbed = panic::catch_unwind(AssertUnwindSafe(|| {
            wait_until("visits that disturb", || {
                (visits.load(Ordering::Relaxed) > 100).then_some(())
            });
            // It is ended and fetched among them.
            running.interrupt();
            running.finish()
        }));
        stop.store(true, Ordering::Relaxed);
        let told = disturbed.unwrap().expect_json();
        assert_eq!(told["complete"], true);
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
