//! A recording while the guest serves real traffic on another port.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::WORKING;
use crate::harness::{Guest, SOON, counters_add_up, on, wait_until};

/// What is sent and comes back, again and again.
const MESSAGE: [u8; 1_000] = [0xa5; 1_000];

/// Someone who talks to the guest's echo service until told to stop.
struct Talk {
    stop: AtomicBool,
    rounds: AtomicU64,
}

impl Talk {
    fn run(&self, address: SocketAddr) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut answer = [0; MESSAGE.len()];
        while !self.stop.load(Ordering::Relaxed) {
            stream.write_all(&MESSAGE).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, MESSAGE);
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

#[test]
fn a_guest_serves_while_it_is_sampled_and_its_profile_fetched() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let client = guest.client();
        let talk = Talk {
            stop: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        };
        thread::scope(|scope| {
            scope.spawn(|| talk.run(guest.port(7)));
            client.must(&["start", "-F", "1997"]);
            client.wait_for_samples(1_000);
            // A dump downloads and leaves the recording running: both go on meanwhile.
            let before = talk.rounds();
            client.must(&["dump", "-o", "dump.unikprof"]);
            wait_until("traffic after the download", || {
                (talk.rounds() > before + 2).then_some(())
            });
            let first = client.recording("dump.unikprof").profile.sample_count();
            client.wait_for_samples(first + 500);
            client.must(&["stop", "-o", "run.unikprof"]);
            talk.stop.store(true, Ordering::Relaxed);
        });
        assert!(talk.rounds() > 20, "{} rounds", talk.rounds());

        for name in ["dump.unikprof", "run.unikprof"] {
            let report = client.report(name, &["--json"]).expect_json();
            assert!(counters_add_up(&report) >= 200);
        }
        // The second half was sampled while the first was downloaded.
        let report = client.report("run.unikprof", &["--json"]).expect_json();
        let functions = report["functions"].as_array().unwrap();
        let total_of = |wanted: &dyn Fn(&serde_json::Value) -> bool| -> u64 {
            let found = functions.iter().filter(|f| wanted(f));
            found
                .map(|f| f["total"].as_u64().unwrap())
                .max()
                .unwrap_or(0)
        };
        assert!(
            total_of(&|f| f["name"].as_str().unwrap().contains("echo::Echo")) > 0
                || total_of(&|f| f["name"].as_str().unwrap().contains("smoltcp")) > 0,
            "the guest's own traffic is in its profile"
        );
        let own = total_of(&|f| f["name"] == "[unikprof agent]");
        assert!(own > 0, "the agent's own work is marked as its own");
    });
}
