//! Whoever else reaches the agent's port.

use std::sync::atomic::{AtomicU64, Ordering};

use unikprof_client::recording::Completeness;
use unikprof_tests::soak::peers::{Peer, among};
use unikprof_tests::soak::random::Random;
use unikprof_tests::soak::target::Target;

use crate::harness::{Guest, wait_until};

#[test]
#[ignore = "full: records a guest"]
fn random_bytes_do_not_disturb_a_recording() {
    let mut guest = Guest::start("shares");
    let client = guest.client();
    let target = Target { address: guest.address(), keys: None };
    let running = client.begin(&["record", "1h", "-o", "run.unikprof", "--json"]);
    // It has its session before the others come, who may take all the rest.
    client.wait_for_samples(1);
    let visits = AtomicU64::new(0);
    let choose = |random: &mut Random| random.pick(&[Peer::ForeignBytes, Peer::WrongChecksums]);
    let judge = |_, _: &[_]| _ = visits.fetch_add(1, Ordering::Relaxed);
    let told = among(&target, 2, choose, judge, || {
        wait_until("visits that disturb", || (visits.load(Ordering::Relaxed) > 100).then_some(()));
        // It is ended and fetched among them.
        running.interrupt();
        running.finish().expect_json()
    });
    assert_eq!(told["complete"], true);
    let recording = client.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    assert_eq!(recording.profile.recording().warnings, Vec::<String>::new());
    assert!(recording.profile.sample_count() > 0);
    let status =
        client.wait_for_status("the visitors to be gone", |status| status["sessions"] == 1);
    assert!(status["peers"]["malformed"].as_u64() > Some(10), "{status:#}");
    guest.assert_alive();
}
