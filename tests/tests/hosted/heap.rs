//! A guest's allocations: which code makes them, what is held, what leaks.

use serde_json::Value;

use crate::harness::{Client, Guest};
use crate::pprof::{go_tool_pprof, has_go};

/// A mean that gives some thousand samples in a few seconds.
const EVERY: &str = "4KiB";

/// An entry of a table of functions.
fn function<'v>(report: &'v Value, name: &str) -> &'v Value {
    let functions = report["functions"].as_array().unwrap();
    let ends = |one: &&Value| one["name"].as_str().unwrap().ends_with(name);
    functions.iter().find(ends).unwrap_or(&Value::Null)
}

fn report(client: &Client, more: &[&str]) -> Value {
    client
        .report("run.unikprof", &[&["--json"], more].concat())
        .expect_json()
}

/// An allocation's function is the one that wants the memory, not the allocator; and the samples add up to what the agent
/// counted byte by byte.
#[test]
pub(crate) fn allocations_are_those_of_the_code_that_makes_them() {
    let guest = Guest::start("leaking");
    let client = guest.client();
    client.record("5s", &["--mode", "alloc", "--every", EVERY]);
    let by_bytes = report(&client, &[]);
    let heap = &by_bytes["heap"];
    assert!(heap["deviations"].as_f64().unwrap() < 5.0, "{heap}");
    // A request of 700 bytes 20 times a round, an entry of 2,000, a leak of 1,000.
    let all = 20.0 * 700.0 + 2_000.0 + 1_000.0;
    for (name, bytes) in [
        ("heap::request", 14_000.0),
        ("heap::entry", 2_000.0),
        ("heap::leak", 1_000.0),
    ] {
        let found = function(&by_bytes, name);
        let share = found["total_share"].as_f64().unwrap();
        let interval = found["total_interval"].as_array().unwrap();
        let width = interval[1].as_f64().unwrap() - interval[0].as_f64().unwrap();
        assert!((share - bytes / all).abs() < width, "{name}: {found}");
    }
    let by_objects = report(&client, &["--by", "objects"]);
    let mean = function(&by_objects, "heap::request")["mean_size"]
        .as_f64()
        .unwrap();
    assert!((mean / 700.0 - 1.0).abs() < 0.05, "{mean}");
    let text = client.report("run.unikprof", &[]).expect_success().stdout;
    for inner in ["__rust_alloc", "GlobalAlloc", "unikprof_agent"] {
        assert!(!text.contains(inner), "{text}");
    }
    for name in ["out.html", "out.svg", "out.folded", "out.pb.gz"] {
        client
            .report("run.unikprof", &["-o", name])
            .expect_success();
    }
    if has_go() {
        let top = go_tool_pprof(&client, &["-top"], "out.pb.gz");
        assert!(top.contains("Type: alloc_space"), "{top}");
        assert!(top.contains("heap::request"), "{top}");
    }
}

/// Requests are freed and the store has a fixed size; most of the rest leaks.
#[test]
pub(crate) fn what_is_held_has_the_stack_that_allocated_it() {
    let guest = Guest::start("leaking");
    let client = guest.client();
    client.record("6s", &["--mode", "live", "--every", EVERY]);
    let held = report(&client, &[]);
    assert_eq!(held["recording"]["mode"], "live");
    assert_eq!(*function(&held, "heap::request"), Value::Null, "{held:#}");
    let entry = function(&held, "heap::entry");
    let [low, high] = bounds(&held);
    let bytes = entry["total"].as_f64().unwrap();
    // The store holds 500 entries at most: a million bytes.
    assert!(bytes < 1.5e6, "{entry}");
    assert!(low < high && high < 64e6, "{low} {high}");
    assert!(
        function(&held, "heap::leak")["mean_age_ns"]
            .as_u64()
            .unwrap()
            > 100_000_000
    );
    // What lives for at least as long as the recording is held by the arena as well.
    let arenas = held["heap"]["arenas"].as_array().unwrap();
    assert_eq!(arenas[0]["name"], "objects", "{arenas:?}");
    assert!(held["heap"]["explained_share"].as_f64().unwrap() > 0.0);
    let text = client.report("run.unikprof", &[]).expect_success().stdout;
    assert!(text.contains("used of"), "{text}");
    let doctor = client.run(&["doctor", "run.unikprof", "--json"]);
    let doctor: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let frees = checks
        .iter()
        .find(|check| check["name"] == "frees")
        .unwrap();
    assert_eq!(frees["verdict"], "good", "{frees}");
}

fn bounds(report: &Value) -> [f64; 2] {
    let interval = report["heap"]["bytes"]["interval"].as_array().unwrap();
    [0, 1].map(|at| interval[at].as_f64().unwrap())
}

/// The leak is found, and named by its function; the store, which gets as much new, is not.
#[test]
pub(crate) fn a_leak_is_found_and_nothing_else() {
    for (load, expected) in [("leaking", Some("heap::leak")), ("sound", None)] {
        let guest = Guest::start(load);
        let client = guest.client();
        let image = client.image().to_str().unwrap();
        let words = [
            "--json",
            "leaks",
            "12s",
            "--every",
            EVERY,
            "--image",
            image,
            "-o",
            "held.unikprof",
        ];
        let found = client.must(&words).stdout;
        let found: Value = serde_json::from_str(&found).unwrap();
        let stacks = found["growing"].as_array().unwrap().iter();
        let stacks: Vec<&Value> = stacks.map(|one| &one["stack"]).collect();
        assert_eq!(
            stacks.len(),
            usize::from(expected.is_some()),
            "{load}: {found:#}"
        );
        if let Some(expected) = expected {
            let mut frames = stacks[0].as_array().unwrap().iter();
            let is_named = |frame: &Value| frame["name"].as_str().unwrap().ends_with(expected);
            assert!(frames.any(is_named), "{found:#}");
        }
        let again = client.run(&["leaks", "held.unikprof", "--image", image]);
        assert_eq!(again.code, Some(0), "{}", again.stderr);
        assert_eq!(
            again.stdout.contains("1. grows by"),
            expected.is_some(),
            "{}",
            again.stdout
        );
    }
}

/// The same with two dumps of a recording that goes on.
#[test]
pub(crate) fn two_dumps_show_the_leak() {
    let guest = Guest::start("leaking");
    let client = guest.client();
    client.must(&[
        "start", "--name", "held", "--mode", "live", "--every", EVERY,
    ]);
    client.wait_for_samples(500);
    client.must(&["dump", "--name", "held", "-o", "a.unikprof"]);
    client.wait_for_samples(8_000);
    client.must(&["stop", "--name", "held", "-o", "b.unikprof"]);
    let image = client.image().to_str().unwrap();
    let found = client.run(&["leaks", "a.unikprof", "b.unikprof", "--image", image]);
    assert!(
        found.stdout.contains("1. grows by"),
        "{}\n{}",
        found.stdout,
        found.stderr
    );
    assert!(found.stdout.contains("heap::leak"), "{}", found.stdout);
    // `top` is about time.
    let refused = client.connect(&["top", "--count", "1", "--mode", "live"]);
    assert!(
        refused.stderr.contains("top shows recordings of time"),
        "{}",
        refused.stderr
    );
}
