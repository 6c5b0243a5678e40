//! Whether a profile says what the guest did: a load whose functions have known shares.

use std::collections::HashMap;

use serde_json::Value;
use unikprof_tests::lab::LabConfig;
use unikprof_tests::profiled::profiled_guest;

use crate::xen_profile::harness::time::expect_line_of;
use crate::xen_profile::harness::{Boot, Client, Guest, counters_add_up, on};

const SOURCE: &str = include_str!("../../../guests/xen-guest/src/hotspots.rs");

const HOT: Boot = Boot {
    name: "hot",
    config: || Ok(LabConfig::with_guest(profiled_guest("hot", "hotspots=80")?)),
};

/// Caller, function and parts of a thousand, as the guest's source has them.
const SPOTS: [(&str, &str, f64); 14] = [
    ("winter", "december", 220.0),
    ("winter", "january", 170.0),
    ("winter", "february", 130.0),
    ("spring", "march", 100.0),
    ("spring", "april", 85.0),
    ("spring", "may", 65.0),
    ("spring", "equinox", 45.0),
    ("summer", "june", 50.0),
    ("summer", "july", 40.0),
    ("summer", "august", 30.0),
    ("autumn", "september", 25.0),
    ("autumn", "october", 15.0),
    ("autumn", "november", 10.0),
    ("autumn", "equinox", 15.0),
];

/// So few that one recording has them soon on a busy machine.
const SAMPLES: u64 = 1_000;
/// Samples in the hot spots that tell them apart, and the most recordings to get them: on a busy
/// machine most of the time goes into the guest's own polling and into the hypercalls with which it
/// answers this client.
const ENOUGH: u64 = 2_000;
const MOST_RECORDINGS: usize = 80;
/// Standard deviations: with this many the cases fail by chance once in millions of runs.
const SURE: f64 = 6.0;

/// At a rate at which an upcall is short beside a period, in an emulator too: otherwise all samples
/// are late.
fn record(client: &Client, words: &[&str]) {
    client.record_samples(SAMPLES, &[&["-F", "499"], words].concat());
}

/// The last part of a function's path.
fn short(name: &str) -> &str {
    name.rsplit("::").next().unwrap()
}

/// Makes as many recordings as it takes for [`ENOUGH`] samples by (caller, function), of the
/// functions of [`SPOTS`] alone.
fn hot_samples(client: &Client, words: &[&str]) -> HashMap<(String, String), u64> {
    let mut found = HashMap::new();
    for _ in 0..MOST_RECORDINGS {
        record(client, words);
        for (pair, count) in samples_by_caller(client) {
            *found.entry(pair).or_default() += count;
        }
        if found.values().sum::<u64>() >= ENOUGH {
            return found;
        }
    }
    panic!("{MOST_RECORDINGS} recordings of {SAMPLES} samples found {found:#?}");
}

/// The same of the last recording.
fn samples_by_caller(client: &Client) -> HashMap<(String, String), u64> {
    let mut found = HashMap::new();
    for (stack, count) in client.folded(&["--no-inlines"]) {
        let mut frames = stack.rsplit(';').map(short);
        let (leaf, caller) = (frames.next().unwrap(), frames.next().unwrap_or("nobody"));
        if SPOTS.iter().any(|(_, function, _)| *function == leaf) {
            let pair = (caller.to_owned(), leaf.to_owned());
            *found.entry(pair).or_default() += count;
        }
    }
    found
}

#[test]
#[ignore = "full: boots a real Xen"]
fn hot_functions_have_their_shares_order_and_callers() {
    on(&HOT, |lab| {
        assert_shares(&Guest::of(lab, "hot").client(), &[]);
    });
}

/// Asserts the shares of a guest with `hotspots` on its command line, recorded with these words.
pub(crate) fn assert_shares(client: &Client, words: &[&str]) {
    let found = hot_samples(client, words);
    let all = found.values().sum::<u64>() as f64;
    let share = |(caller, function, _): &(&str, &str, f64)| {
        let pair = ((*caller).to_owned(), (*function).to_owned());
        found.get(&pair).copied().unwrap_or_default() as f64 / all
    };
    for spot in &SPOTS {
        let expected = spot.2 / 1_000.0;
        let deviation = (expected * (1.0 - expected) / all).sqrt();
        // A tenth for what the emulator makes of equal instructions.
        let tolerance = SURE * deviation + expected / 10.0;
        let measured = share(spot);
        assert!((measured - expected).abs() < tolerance, "{spot:?}: {measured} of {all}");
    }
    for a in &SPOTS {
        for b in &SPOTS {
            let (pa, pb) = (a.2 / 1_000.0, b.2 / 1_000.0);
            if pa - pb > SURE * ((pa + pb) / all).sqrt() + pa / 10.0 {
                assert!(share(a) > share(b), "{a:?} before {b:?}: {found:#?}");
            }
        }
    }
    // A sample in a prologue skips its caller; these functions have one prologue in a thousand
    // turns.
    let right: f64 = SPOTS.iter().map(share).sum();
    assert!(right > 0.98, "{right} have their right callers: {found:#?}");
}

#[test]
#[ignore = "full: boots a real Xen"]
fn names_files_and_lines_are_those_of_the_source() {
    on(&HOT, |lab| {
        assert_names_and_lines(&Guest::of(lab, "hot").client());
    });
}

/// Asserts the names and lines of a guest with `hotspots` on its command line.
pub(crate) fn assert_names_and_lines(client: &Client) {
    // Until each of them has a sample.
    let mut recordings = (0..MOST_RECORDINGS).map(|_| {
        record(client, &[]);
        samples_by_caller(client)
    });
    let looked_at = ["equinox", SPOTS[0].1, SPOTS[1].1, SPOTS[2].1];
    let found = recordings.find(|found| {
        let mut looked_at = looked_at.iter();
        looked_at.all(|name| found.keys().any(|(_, leaf)| leaf == name))
    });
    assert!(found.is_some(), "no samples of each of {looked_at:?}");
    let report = client.report("run.unikprof", &["--json", "--no-inlines"]).expect_json();
    counters_add_up(&report);
    let expect_line = |row: &Value, name| expect_line_of(row, name, "src/hotspots.rs", SOURCE);
    for (_, name, _) in &SPOTS[..3] {
        expect_line(named(&report, name), name);
    }
    // Only `equinox` has its work inlined, from `step`: told apart, that is a frame of its own.
    let report = client.report("run.unikprof", &["--json"]).expect_json();
    let (step, equinox) = (named(&report, "step"), named(&report, "equinox"));
    assert!(step["total"].as_u64() > Some(0), "{step:#}");
    assert!(step["total"].as_u64() <= equinox["total"].as_u64(), "{equinox:#}");
    expect_line(step, "step");
}

fn named<'r>(report: &'r Value, name: &str) -> &'r Value {
    let name = format!("xen_guest::hotspots::{name}");
    let mut functions = report["functions"].as_array().unwrap().iter();
    let found = functions.find(|function| function["name"] == *name);
    found.unwrap_or_else(|| panic!("no {name} in {report:#}"))
}
