//! The soak in small: everything at once for some seconds. What it says of time is not looked at.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use unikprof_tests::soak::events::EVENTS;
use unikprof_tests::soak::keeper::DOWNLOADS;
use unikprof_tests::soak::latency::all_measured;
use unikprof_tests::soak::others::OTHERS;
use unikprof_tests::soak::phase::Phase;
use unikprof_tests::soak::proxy::FAULTS;
use unikprof_tests::soak::rightful::CLIENTS;
use unikprof_tests::soak::run::{PEERS, Plan, run};

fn soak(keyed: bool) {
    let folder = TempDir::with_prefix("unikprof-soak-").unwrap();
    let outcome = run(Plan {
        duration: Duration::from_secs(20),
        seed: 1,
        keyed,
        guest: PathBuf::from(env!("CARGO_BIN_EXE_hosted-guest")),
        client: PathBuf::from(env!("CARGO_BIN_EXE_hosted-client")),
        folder: folder.path().into(),
    })
    .unwrap();
    assert_eq!(outcome.problems, Vec::<String>::new(), "\n{outcome}");
    // That it tried something, and that the guest was measured all the while.
    for subject in [PEERS, FAULTS, CLIENTS, DOWNLOADS, OTHERS, EVENTS] {
        assert!(outcome.ledger.total(subject) > 0, "{subject}\n{outcome}");
    }
    assert!(all_measured(&outcome.latencies), "\n{outcome}");
    assert!(outcome.entries.of(Phase::Attack).0 > 0, "\n{outcome}");
    assert!(!outcome.recordings.is_empty(), "\n{outcome}");
    let samples: u64 = outcome.recordings.iter().map(|(_, sum)| sum.samples).sum();
    assert!(samples > 0, "\n{outcome}");
    assert!(!outcome.others.is_empty(), "\n{outcome}");
    assert!(outcome.followed.events > 0, "\n{outcome}");
    let last = outcome.samples.last().unwrap();
    assert!(last.peers.connections() > 0, "\n{outcome}");
}

/// Guards all of it together: whatever is lost uncounted, a peer that gets in, a client kept out, a
/// guest that ends.
#[test]
#[ignore = "full: runs for a time"]
fn a_guest_with_keys_among_faults_and_hostile_peers() {
    soak(true);
}

/// The same where nobody needs a key: who is connected may be many, but nothing is lost.
#[test]
#[ignore = "full: runs for a time"]
fn an_open_guest_among_faults_and_hostile_peers() {
    soak(false);
}
