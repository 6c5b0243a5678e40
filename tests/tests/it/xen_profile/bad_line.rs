//! Guests on a bad line: frames are lost, doubled, overtaken, and damaged where no checksum finds
//! it.

use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::{Boot, Client, Guest, on, wait_until};

const LOSSY: &str = "lossy";
const DAMAGING: &str = "damaging";

/// Recordings that are tried over the line that damages; it goes on until one of them is whole.
const TRIES: usize = 5;
/// So many that none is whole if every one is refused, and by chance alone in no lifetime of this
/// test.
const MOST_TRIES: usize = 60;

const BAD_LINE: Boot = Boot {
    name: "bad line",
    config: || {
        let guest = |name, faults| profiled_guest(name, &format!("load=30 faults={faults}"));
        Ok(LabConfig {
            guests: vec![
                guest(LOSSY, "loss:5,duplicate:3,reorder:5,seed:1")?,
                guest(DAMAGING, "corrupt:5,loss:1,seed:2")?,
            ],
            ..LabConfig::default()
        })
    },
};

/// Asserts that a recording which calls itself complete is.
fn adds_up(recording: &Recording) {
    let counters = recording.profile.counters();
    assert_eq!(counters.check(), Ok(()), "{counters:?}");
    assert_eq!(recording.profile.sample_count(), counters.recorded);
    assert_eq!(recording.profile.recording().warnings, Vec::<String>::new());
}

#[test]
#[ignore = "full: boots a real Xen"]
fn lost_doubled_and_overtaken_frames_cost_time_and_nothing_else() {
    on(&BAD_LINE, |lab| {
        let client = Guest::of(lab, LOSSY).client();
        for _ in 0..3 {
            client.must(&["start", "-F", "1997"]);
            client.wait_for_samples(800);
            let recording = client.stop("run.unikprof");
            assert_eq!(recording.completeness, Completeness::Complete);
            assert!(recording.profile.sample_count() > 400);
            adds_up(&recording);
        }
    });
}

#[test]
#[ignore = "full: boots a real Xen"]
fn what_comes_over_a_line_that_damages_is_right_or_refused() {
    on(&BAD_LINE, |lab| {
        let client = Guest::of_recording(lab, DAMAGING).client();
        let mut complete = 0;
        let mut refused = Vec::new();
        for tried in 1..=MOST_TRIES {
            if tried > TRIES && complete > 0 {
                break;
            }
            leave_nothing(&client);
            let finished =
                client.begin(&["record", "1s", "-F", "1997", "-o", "run.unikprof"]).finish();
            let path = client.path("run.unikprof");
            if finished.code != Some(0) {
                assert!(finished.stderr.contains("error: "), "{finished:?}");
                refused.push(finished.stderr.clone());
            }
            if path.exists() {
                let recording = Recording::open(&path, Reading::Strict).unwrap();
                match &recording.completeness {
                    Completeness::Complete => {
                        complete += 1;
                        adds_up(&recording);
                    }
                    _ => assert_ne!(finished.code, Some(0), "{finished:?}"),
                }
                std::fs::remove_file(path).unwrap();
            }
        }
        assert!(complete > 0, "one frame in twenty is damaged, not all: {refused:#?}");
    });
}

/// Sees to it that the guest records nothing, however often it must be told.
fn leave_nothing(client: &Client) {
    wait_until("the guest to be idle", || {
        let finished = client.begin(&["check", "--json"]).finish();
        if finished.code == Some(0) && finished.expect_status()["state"] == "idle" {
            return Some(());
        }
        client.begin(&["stop", "-o", "left-over.unikprof"]).finish();
        None
    });
}
