//! A recording that began with its guest.

use super::{FLIGHT, LIVING, RECORDERS, events};
use crate::xen_profile::harness::{Guest, counters_add_up, on};

/// Guards a recording that begins with its first client, or is not there for it.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_recording_from_boot_is_there_for_the_first_client() {
    on(&RECORDERS, |lab| {
        let client = Guest::of_recording(lab, LIVING).client();
        let info = client.connect(&["info", "--json"]).expect_json();
        let came_ns = info["monotonic_ns"].as_u64().unwrap();
        let told = ["check", "--name", FLIGHT, "--json"];
        let told = client.connect(&told).expect_json();
        let flight = &told["recordings"][0];
        assert_eq!(flight["max_age_ns"], 300_000_000_000_u64, "{told:#}");
        let started_ns = flight["started_ns"].as_u64().unwrap();
        assert!(started_ns < came_ns, "{told:#}");
        // The guest's network comes after its recording.
        let events = events(&client);
        let first = events.iter().find(|e| e["kind"] == "recording_began");
        assert_eq!(first.unwrap()["recording"], flight["recording"]);

        // It has been sampled all along: in the time before the client came there are samples.
        let dump = ["dump", "--name", FLIGHT, "-o", "so-far.unikprof"];
        client.must(&dump);
        let before = format!("{}ns", came_ns - started_ns);
        let words = ["--json", "--from", "0s", "--to", &before];
        let before = client.report("so-far.unikprof", &words).expect_json();
        assert!(counters_add_up(&before) > 0, "{before:#}");
        let names = client.recording("so-far.unikprof");
        assert_eq!(names.profile.recording().name, FLIGHT);
        // And it goes on.
        let told = client.connect(&["check", "--json"]).expect_json();
        let goes_on =
            |one: &serde_json::Value| one["name"] == FLIGHT && one["state"] == "recording";
        assert!(told["recordings"].as_array().unwrap().iter().any(goes_on));
    });
}
