//! A recording while the guest serves real traffic on another port.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::WORKING;
use crate::xen_profile::harness::{Guest, SOON, counters_add_up, on, wait_until};

/// The message that is sent and comes back, again and again.
const MESSAGE: [u8; 1_000] = [0xa5; 1_000];

/// Someone who talks to the guest's echo service until told to stop.
#[derive(Default)]
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

/// Ends the talk also where an assertion fails.
struct End<'t>(&'t Talk);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_guest_serves_while_it_is_sampled_and_its_profile_fetched() {
    on(&WORKING, |lab| {
        let guest = Guest::of(lab, "working");
        let client = guest.client();
        let talk = Talk::default();
        thread::scope(|scope| {
            let _end = End(&talk);
            scope.spawn(|| talk.run(guest.port(7)));
            client.must(&["start", "-F", "1997"]);
            client.wait_for_samples(1_000);
            // A dump downloads and leaves the recording running: both go on meanwhile.
            let before = talk.rounds();
            client.must(&["dump", "-o", "dump.unikprof"]);
            wait_until("traffic after the download", || (talk.rounds() > before + 2).then_some(()));
            let first = client.recording("dump.unikprof").profile.sample_count();
            client.wait_for_samples(first + 500);
            wait_until("more traffic", || (talk.rounds() > 20).then_some(()));
            // A fast machine spends few samples on either.
            let mut number = 0;
            wait_until("the traffic and the agent's own work in the profile", || {
                number += 1;
                let name = format!("dump-{number}.unikprof");
                client.must(&["dump", "-o", &name]);
                let report = client.report(&name, &["--json"]).expect_json();
                let functions = report["functions"].as_array().unwrap();
                let has = |part: &str| {
                    let mut names = functions.iter().map(|f| f["name"].as_str().unwrap());
                    names.any(|name| name.contains(part))
                };
                ((has("echo::Echo") || has("smoltcp")) && has("[unikprof agent]")).then_some(())
            });
            client.must(&["stop", "-o", "run.unikprof"]);
        });
        let added_up =
            |name: &str| counters_add_up(&client.report(name, &["--json"]).expect_json());
        assert!(added_up("dump.unikprof") >= 200);
        // What came since the last dump may be little.
        added_up("run.unikprof");
    });
}
