//! Three recordings at once beside the one from the boot, by their names.

use std::collections::BTreeMap;

use serde_json::Value;
use unikprof_profile::profile::Mode;

use super::{FLIGHT, LIVING, RECORDERS};
use crate::xen_profile::harness::{Client, Guest, counters_add_up, on, wait_until};

/// Functions and their parts of a thousand, as the guest's `hotspots` has them.
const SHARES: [(&str, f64); 6] = [
    ("december", 220.0),
    ("january", 170.0),
    ("february", 130.0),
    ("march", 100.0),
    ("april", 85.0),
    ("may", 65.0),
];
/// Standard deviations: with this many the case fails by chance once in millions of runs.
const SURE: f64 = 6.0;

/// Waits until these have so many samples, or blocks where they count those.
fn wait_for(client: &Client, least: &[(&str, u64)]) {
    wait_until("samples in each recording", || {
        let status = client.connect(&["check", "--json"]).expect_json();
        let all = status["recordings"].as_array().unwrap();
        let has = |(name, least): &(&str, u64)| {
            let one = all.iter().find(|one| one["name"] == *name);
            let count = |what: &str| one.and_then(|one| one["counters"][what].as_u64());
            count("recorded").max(count("blocks")) >= Some(*least)
        };
        least.iter().all(has).then_some(())
    });
}

/// Asserts that the samples in the hot spots have their known shares, and that every tick is
/// accounted for.
fn assert_shares(client: &Client, file: &str, least: u64) {
    let report = client.report(file, &["--json", "--no-inlines"]).expect_json();
    let recorded = counters_add_up(&report);
    assert_eq!(report["counters"]["overflow"], 0, "{file}");
    assert!(recorded >= least, "{file}: {recorded}");
    let mut own = BTreeMap::new();
    for function in report["functions"].as_array().unwrap() {
        let name = function["name"].as_str().unwrap();
        if let Some((_, name)) = name.split_once("::hotspots::") {
            own.insert(name, function["self"].as_u64().unwrap());
        }
    }
    let all: u64 = own.values().sum();
    assert!(all > 0, "{file}: {report:#}");
    let all = all as f64;
    for (name, parts) in SHARES {
        let truth = parts / 1_000.0;
        let share = own.get(name).copied().unwrap_or_default() as f64 / all;
        // A tenth for what the emulator makes of equal instructions.
        let tolerance = SURE * (truth * (1.0 - truth) / all).sqrt() + truth / 10.0;
        assert!((share - truth).abs() < tolerance, "{file}: {name} {share} of {all}: {own:#?}");
    }
}

/// Each by another client: a name is all that one needs.
#[test]
#[ignore = "full: boots a real Xen"]
fn three_at_once_each_by_its_name() {
    on(&RECORDERS, |lab| {
        assert_three(&Guest::of_recording(lab, LIVING));
    });
}

/// The same of a guest with hot spots that records since its boot.
pub(crate) fn assert_three(guest: &Guest<'_>) {
    let first = guest.client_with_image();
    for words in [
        &["start", "--name", "fast", "-F", "997"][..],
        &["start", "--name", "wall", "--mode", "wall", "-F", "331"],
        &["start", "--name", "waits", "--mode", "off-cpu"],
    ] {
        first.must(words);
    }
    // The client that began them is gone; another finds them.
    let other = guest.client_with_image();
    assert_eq!(other.recording_names(), [FLIGHT, "fast", "wall", "waits"]);
    wait_for(&other, &[("fast", 1_000), ("wall", 300), ("waits", 50)]);
    let stop = ["stop", "--name", "fast", "-o", "fast.unikprof"];
    other.must(&stop);
    let fast = other.recording("fast.unikprof");
    assert_eq!(fast.profile.recording().name, "fast");
    assert_eq!(fast.profile.recording().period_ns, 1_003_009);
    assert_shares(&other, "fast.unikprof", 1_000);

    // The others go on.
    let third = guest.client_with_image();
    assert_eq!(third.recording_names(), [FLIGHT, "wall", "waits"]);
    let status = third.connect(&["check", "--json"]).expect_json();
    let one = |name: &str| {
        let all = status["recordings"].as_array().unwrap();
        let one = all.iter().find(|one| one["name"] == name).unwrap();
        let count = |what: &str| one["counters"][what].as_u64().unwrap();
        count("recorded") + count("blocks")
    };
    let least = [FLIGHT, "wall", "waits"].map(|name| (name, one(name) + 20));
    wait_for(&third, &least);
    for name in ["wall", "waits"] {
        let file = format!("{name}.unikprof");
        let stop = ["stop", "--name", name, "-o", &file];
        third.must(&stop);
    }
    assert_eq!(third.recording_names(), [FLIGHT]);

    let wall = third.recording("wall.unikprof");
    assert_eq!(wall.profile.recording().mode, Mode::Wall);
    assert_shares(&third, "wall.unikprof", 300);
    assert_samples_fit(&third.report("wall.unikprof", &["--json"]).expect_json());

    let waits = third.recording("waits.unikprof");
    assert_eq!(waits.profile.recording().mode, Mode::OffCpu);
    let report = third.report("waits.unikprof", &["--json"]).expect_json();
    assert_is_all_that_xen_saw(&report);
}

/// Guards samples of blocked time that are lost, counted twice, or taken for what runs within a
/// block: they are as many as periods that Xen saw the vCPU blocked. Together with those of running
/// time there can be no more than periods.
fn assert_samples_fit(report: &Value) {
    let period = report["recording"]["period_ns"].as_u64().unwrap();
    let count = |what: &str| report["counters"][what].as_u64().unwrap();
    let (blocked, running) = (runstate(report, "blocked_ns"), runstate(report, "running_ns"));
    let (told, truth) = (count("blocked") as f64, (blocked / period) as f64);
    let all = ((blocked + running) / period) as f64;
    let share = truth / all;
    let chance = SURE * (all * share * (1.0 - share)).sqrt();
    assert!((told - truth).abs() <= chance + truth / 20.0, "{report:#}");
    let ticks = count("ticks") as f64;
    assert!(ticks + told <= all * 1.05 + 20.0, "{report:#}");
}

/// Guards blocked time that is not measured as Xen does, or is charged to who does not wait.
fn assert_is_all_that_xen_saw(report: &Value) {
    let blocked = report["counters"]["blocked"].as_u64().unwrap();
    let truth = runstate(report, "blocked_ns");
    assert!(blocked.abs_diff(truth) <= truth / 10, "{report:#}");
    assert_eq!(report["counters"]["ticks"], 0);
    assert_eq!(report["counters"]["blocked_overflow"], 0);
    let functions = report["functions"].as_array().unwrap();
    let waits = functions.iter().find(|f| {
        let name = f["name"].as_str().unwrap();
        name.ends_with("::idle::wait_for_events")
    });
    let waits = waits.unwrap()["total"].as_u64().unwrap();
    assert!(waits >= blocked - blocked / 10, "{report:#}");
}

fn runstate(report: &Value, state: &str) -> u64 {
    report["vcpus"][0]["runstate"][state].as_u64().unwrap()
}
