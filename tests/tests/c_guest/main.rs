//! The whole way with a guest in C: gcc, the header, the archive, its own sockets and its own timer.

#![allow(clippy::unwrap_used)]

mod guest;

use std::collections::HashMap;

use guest::{Frames, Guest, SOURCE};
use serde_json::Value;
use unikprof_tests::source::lines_of;

/// The functions that work, with their shares and callers.
const SHARES: [(&str, f64, &str); 3] = [
    ("sixty", 0.6, "morning"),
    ("thirty", 0.3, "evening"),
    ("ten", 0.1, "morning"),
];

/// How far a measured share may be off: six standard deviations of 1,000 samples are 0.093.
const TOLERANCE: f64 = 0.1;

const SAMPLES: u64 = 1_000;

#[test]
fn c_functions_have_their_names_shares_and_lines() {
    let guest = Guest::start(Frames::Kept);
    guest.record_samples(SAMPLES, &[]);
    let report = guest.report(&["--json"]).json();
    let functions = report["functions"].as_array().unwrap();
    for (name, share, _) in SHARES {
        let found = functions.iter().find(|function| function["name"] == name);
        let found = found.unwrap_or_else(|| panic!("no `{name}`: {functions:#?}"));
        let measured = found["self_share"].as_f64().unwrap();
        assert!((measured - share).abs() < TOLERANCE, "{name}: {measured}");
        assert!(
            found["file"].as_str().unwrap().ends_with("work.c"),
            "{found:#}"
        );
        let line = usize::try_from(found["line"].as_u64().unwrap()).unwrap();
        let lines = lines_of(name, SOURCE).unwrap();
        assert!(
            lines.contains(&line),
            "{name}: line {line} is not in {lines:?}"
        );
    }
    let counters = &report["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    let sum: u64 = ["recorded", "overflow", "lost", "masked", "idle"]
        .map(count)
        .iter()
        .sum();
    assert_eq!(count("ticks"), sum, "{counters:#}");
    guest.stop();
}

#[test]
fn callers_in_c_are_the_right_ones() {
    let guest = Guest::start(Frames::Kept);
    guest.record_samples(SAMPLES, &[]);
    let folded = guest.report(&["--format", "folded"]).stdout;
    let mut by_caller: HashMap<(&str, &str), u64> = HashMap::new();
    let mut worked = 0;
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        let frames: Vec<&str> = stack.rsplit(';').collect();
        let [leaf, caller, above @ ..] = &frames[..] else {
            continue;
        };
        if SHARES.iter().any(|(name, ..)| name == leaf) {
            worked += count;
            *by_caller.entry((caller, leaf)).or_default() += count;
            assert_eq!(above[..2.min(above.len())], ["day", "main"], "{line}");
        }
    }
    let right: u64 = SHARES
        .iter()
        .filter_map(|(name, _, caller)| by_caller.get(&(*caller, *name)))
        .sum();
    assert!(worked >= SAMPLES / 2, "{folded}");
    // A sample in a prologue skips its caller; these functions have one prologue in 50,000 iterations.
    assert!(
        right * 100 >= worked * 97,
        "{right} of {worked}: {by_caller:?}"
    );
    guest.stop();
}

/// Without frame pointers, and without a caller table in their place, the leaf is right all the same; the rest
/// is not, and the profile and `doctor` say so, with the flag to set. Unwound by the table all of it is right.
#[test]
fn a_guest_without_frame_pointers_is_told_as_broken() {
    let guest = Guest::start(Frames::Omitted);
    guest.record_samples(SAMPLES, &["--no-caller-table"]);
    let report = guest.report(&["--json"]).json();
    let counters = &report["counters"];
    let count = |name: &str| counters[name].as_u64().unwrap();
    assert!(count("broken") * 2 >= count("recorded"), "{counters:#}");
    let functions = report["functions"].as_array().unwrap();
    let sixty = functions
        .iter()
        .find(|function| function["name"] == "sixty")
        .unwrap();
    let measured = sixty["self_share"].as_f64().unwrap();
    assert!((measured - 0.6).abs() < TOLERANCE, "{measured}");
    let doctor = guest.doctor();
    assert!(doctor.contains("-fno-omit-frame-pointer"), "{doctor}");

    // With the table the leaf's caller is right, and the chain goes on past others without a mark.
    guest.record_samples(SAMPLES, &[]);
    let doctor = guest.doctor();
    assert!(doctor.contains("missing callers"), "{doctor}");
    assert!(doctor.contains("-fno-omit-frame-pointer"), "{doctor}");

    guest.record_samples(SAMPLES, &["--unwind", "table"]);
    let doctor = guest.doctor();
    assert!(!doctor.contains("-fno-omit-frame-pointer"), "{doctor}");
    guest.stop();
}

/// Spans, counters and marks of a guest in C come home beside its samples, and say what ran inside.
#[test]
fn a_guest_tells_of_its_days() {
    let guest = Guest::start(Frames::Kept);
    guest.record_samples(SAMPLES, &[]);
    let report = guest.report(&["--json"]).json();
    let find = |kind: &str, name: &str| {
        let all = report[kind].as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == name);
        found
            .unwrap_or_else(|| panic!("no `{name}`: {all:?}"))
            .clone()
    };
    let day = find("spans", "day");
    let count = day["count"].as_u64().unwrap();
    assert!(count > 10, "{day}");
    assert!(day["p50_ns"].as_u64() <= day["p99_ns"].as_u64(), "{day}");
    // A day has a hundred parts.
    let parts = find("values", "parts done");
    let [min, max] = ["min", "max"].map(|key| parts[key].as_u64().unwrap());
    assert!(max >= min + 1_000 && max % 100 == 0, "{parts}");
    assert!(find("marks", "client")["count"].as_u64() >= Some(1));

    let inside = guest.report(&["--json", "--in-span", "day"]).json();
    let functions = inside["functions"].as_array().unwrap();
    let sixty = functions.iter().find(|one| one["name"] == "sixty").unwrap();
    let share = sixty["self_share"].as_f64().unwrap();
    assert!((share - 0.6).abs() < TOLERANCE, "{share}");
    let shown = |report: &Value| report["samples"]["shown"].as_u64().unwrap();
    assert!(shown(&inside) > 0 && shown(&inside) <= shown(&report));

    let told = guest.connect(&["events", "--json"]).stdout;
    let events: Vec<Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str, name: &str| {
        let it = events
            .iter()
            .filter(|one| one["kind"] == kind && one["name"] == name);
        it.cloned().collect::<Vec<_>>()
    };
    // A fast guest is at the end of its ring while it is read: what is overwritten meanwhile is missing.
    let (begins, ends) = (of("span_begin", "day"), of("span_end", "day"));
    let at = |event: &Value| event["at_ns"].as_u64().unwrap();
    let mut whole = 0;
    for begin in &begins {
        for end in ends.iter().filter(|end| end["number"] == begin["number"]) {
            assert_eq!(end["length_ns"].as_u64(), Some(at(end) - at(begin)));
            whole += 1;
        }
    }
    assert!(whole > 10, "{whole} days");
    assert!(!of("counter", "parts done").is_empty() && !of("mark", "client").is_empty());
    guest.stop();
}

/// What ran before the first client came is there, under the name that the guest gave it.
#[test]
fn a_recording_begins_with_the_guest() {
    let guest = Guest::start_with(Frames::Kept, &["flight"]);
    guest.wait_for_samples(SAMPLES);
    let recordings = guest.connect(&["check", "--json"]).json();
    let names: Vec<&str> = recordings["recordings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["flight"]);
    let info = guest.connect(&["info", "--json"]).json();
    assert_eq!(
        info["server_share_permille"], 250,
        "as profiler.c configures it"
    );
    guest.connect(&["dump", "--name", "flight", "-o", "run.unikprof"]);
    let report = guest.report(&["--json"]).json();
    assert_eq!(report["recording"]["name"], "flight");
    assert!(report["samples"]["recorded"].as_u64() >= Some(SAMPLES));
    guest.stop();
}

/// Without kick: the guest calls `unikprof_deadline` after each poll, and its next tick takes the snapshot.
#[test]
fn a_snapshot_shows_where_a_c_guest_is() {
    let guest = Guest::start(Frames::Kept);
    let words = [
        "--json",
        "snapshot",
        "--wait",
        "60s",
        "--image",
        guest.image(),
    ];
    let shown = guest.connect(&words).json();
    let vcpu = &shown["vcpus"][0];
    assert_ne!(vcpu["state"], "no answer", "{shown:#}");
    let functions = vcpu["frames"].as_array().unwrap();
    let has_main = functions.iter().any(|one| one["function"] == "main");
    assert!(has_main, "{shown:#}");
    guest.stop();
}
