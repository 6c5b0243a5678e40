//! Guests with keys: the client's program against the agent itself.

use unikprof_link::key::Key;
use unikprof_profile::recording::Completeness;

use crate::harness::{Guest, Keyed};

#[test]
fn a_guest_with_keys_is_recorded_under_a_key() {
    let keyed = Keyed::start("shares");
    let owner = keyed.owner();
    let info = owner.connect(&["info", "--json"]).expect_json();
    assert_eq!(info["role"], "control");
    assert_eq!(info["encrypted"], true);
    let id = Key::read(&keyed.control).unwrap().id().to_string();
    assert_eq!(info["key"], id);
    // With an image, so that a caller table of many records goes up as well.
    let image = Guest::program().to_str().unwrap();
    let told = owner.record_until(100, &["-F", "997", "--image", image]);
    assert!(!told.stderr.contains("open"), "{}", told.stderr);
    let recording = owner.recording("run.unikprof");
    assert_eq!(recording.completeness, Completeness::Complete);
    let by_table = recording.profile.counters().by_table;
    assert!(by_table > 0, "the table arrived");
}
