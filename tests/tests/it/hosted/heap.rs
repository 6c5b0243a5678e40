//! A guest's allocations: which code makes them, what is held, what leaks.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Client, Guest};
use crate::hosted::pprof::{go_tool_pprof, has_go};

/// A mean that gives some thousand samples in a few seconds.
const EVERY: &str = "4KiB";

/// An entry of a table of functions.
fn function<'v>(report: &'v Value, name: &str) -> &'v Value {
    let functions = report["functions"].as_array().unwrap();
    let ends = |one: &&Value| one["name"].as_str().unwrap().ends_with(name);
    functions.iter().find(ends).unwrap_or(&Value::Null)
}

fn report(client: &Client, more: &[&str]) -> Value {
    client.report("run.unikprof", &[&["--json"], more].concat()).expect_json()
}

/// An allocation's function is the one that wants the memory, not the allocator; and the samples
/// add up to what the agent counted byte by byte.
#[test]
#[ignore = "full: records a guest"]
pub(crate) fn allocations_are_those_of_the_code_that_makes_them() {
    let guest = Guest::start("leaking");
    let client = guest.allocating_client();
    client.record_samples(8_000, &["--mode", "alloc", "--every", EVERY]);
    let by_bytes = report(&client, &[]);
    let heap = &by_bytes["heap"];
    assert!(heap["deviations"].as_f64().unwrap() < 5.0, "{heap}");
    // A request of 700 bytes 20 times a round, an entry of 2,000, a leak of 1,000.
    let all = 20.0 * 700.0 + 2_000.0 + 1_000.0;
    for (name, bytes) in
        [("heap::request", 14_000.0), ("heap::entry", 2_000.0), ("heap::leak", 1_000.0)]
    {
        let found = function(&by_bytes, name);
        let share = found["total_share"].as_f64().unwrap();
        let interval = found["total_interval"].as_array().unwrap();
        let width = interval[1].as_f64().unwrap() - interval[0].as_f64().unwrap();
        // An interval reaches two standard deviations to either side: by chance in one of a million
        // runs.
        let off = (share - bytes / all).abs();
        assert!(off < 1.25 * width, "{name}: {found}");
    }
    let by_objects = report(&client, &["--by", "objects"]);
    let mean = function(&by_objects, "heap::request")["mean_size"].as_f64().unwrap();
    assert!((mean / 700.0 - 1.0).abs() < 0.05, "{mean}");
    let text = client.report("run.unikprof", &[]).expect_success().stdout;
    for inner in ["__rust_alloc", "GlobalAlloc", "unikprof_agent"] {
        assert!(!text.contains(inner), "{text}");
    }
    for name in ["out.html", "out.svg", "out.folded", "out.pb.gz"] {
        client.report("run.unikprof", &["-o", name]).expect_success();
    }
    if has_go() {
        let top = go_tool_pprof(&client, &["-top"], "out.pb.gz");
        assert!(top.contains("Type: alloc_space"), "{top}");
        assert!(top.contains("heap::request"), "{top}");
    }
}

/// Requests are freed and the store has a fixed size; most of the rest leaks.
#[test]
#[ignore = "full: records a guest"]
pub(crate) fn what_is_held_has_the_stack_that_allocated_it() {
    let guest = Guest::start("leaking");
    let client = guest.allocating_client();
    client.record_samples(8_000, &["--mode", "live", "--every", EVERY]);
    let held = report(&client, &[]);
    assert_eq!(held["recording"]["mode"], "live");
    // One of them may be held at the moment of the fetch; its sample stands for a few kilobytes.
    let requests = function(&held, "heap::request")["total"].as_f64();
    assert!(requests.unwrap_or(0.0) < 10_000.0, "{held:#}");
    let entry = function(&held, "heap::entry");
    let [low, high] = ends(&held["heap"]["bytes"]["interval"]);
    let bytes = entry["total"].as_f64().unwrap();
    // The store holds 500 entries at most: a million bytes.
    assert!(bytes < 1.5e6, "{entry}");
    assert!(low < high && low < 64e6, "{low} {high}");
    assert!(function(&held, "heap::leak")["mean_age_ns"].as_u64().unwrap() > 100_000_000);
    // What lives for at least as long as the recording is held by the arena as well.
    let arenas = held["heap"]["arenas"].as_array().unwrap();
    assert_eq!(arenas[0]["name"], "objects", "{arenas:?}");
    assert!(held["heap"]["explained_share"].as_f64().unwrap() > 0.0);
    let text = client.report("run.unikprof", &["--accounting"]).expect_success().stdout;
    assert!(text.contains("used of"), "{text}");
    let doctor = client.run(&["doctor", "run.unikprof", "--json"]);
    let doctor: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let frees = checks.iter().find(|check| check["name"] == "frees").unwrap();
    assert_eq!(frees["verdict"], "good", "{frees}");
}

/// The ends of an interval. There is no upper one if samples were dropped: the guest's server lost
/// its processor while it held what samples are counted in.
fn ends(interval: &Value) -> [f64; 2] {
    let low = interval[0].as_f64().unwrap();
    [low, interval[1].as_f64().unwrap_or(f64::INFINITY)]
}

/// A look for leaks in traffic.
struct Look {
    /// Bytes a second of the traffic and of the leak in it.
    traffic: u32,
    leak: u32,
    seconds: u32,
    every: &'static str,
}

/// The bytes leaked in `held.unikprof` by the guest's own books, and the time in seconds.
fn leaked(whole: &Value) -> (f64, f64) {
    let counters = whole["values"].as_array().unwrap();
    let leaked = counters.iter().find(|one| one["name"] == "leaked").unwrap();
    let bytes = leaked["last"].as_f64().unwrap() - leaked["min"].as_f64().unwrap();
    let ns = whole["recording"]["elapsed_ns"].as_f64().unwrap();
    (bytes, ns / 1e9)
}

/// Looks for leaks in a guest with this traffic, whose own books say how much was leaked: again,
/// for longer, if it got so little of its processor that it leaked less than half of what it should
/// have.
fn look(look: &Look) {
    let Look { traffic, leak, seconds, every } = look;
    let numbers = format!("{traffic} {leak} {seconds}");
    let mut command = Command::new(Guest::program());
    command.args(["traffic", "--open"]);
    let guest = Guest::spawn(command.env("UNIKPROF_TEST_TRAFFIC", numbers));
    let client = guest.allocating_client();
    let image = client.image().to_str().unwrap();
    let length = format!("{seconds}s");
    let names = ["--image", image];
    let words = ["--json", "leaks", &length, "--every", every, "-o", "held.unikprof"];
    let found = client.must(&[&words[..], &names].concat()).stdout;
    let found: Value = serde_json::from_str(&found).unwrap();
    let growing = found["growing"].as_array().unwrap();
    let whole = client.report("held.unikprof", &["--json"]).expect_json();
    let (bytes, elapsed) = leaked(&whole);
    if bytes < 0.5 * f64::from(*leak) * f64::from(*seconds) && *seconds < 200 {
        return self::look(&Look { seconds: 2 * seconds, ..*look });
    }
    assert_eq!(growing.len(), usize::from(*leak > 0), "{found:#}");
    let again = client.run(&[&["leaks", "held.unikprof"][..], &names].concat());
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert_eq!(again.stdout.contains("1. grows by"), *leak > 0);
    let Some(growing) = growing.first() else {
        return;
    };
    let mut frames = growing["stack"].as_array().unwrap().iter();
    let is_leak = |frame: &Value| frame["name"].as_str().unwrap().ends_with("traffic::leaking");
    assert!(frames.any(is_leak), "{found:#}");
    let table = &whole["recording"]["caller_table"];
    assert!(table.is_u64(), "the callers were looked up: {table}");
    let a_minute = bytes / elapsed * 60.0;
    let growth = &growing["bytes_per_minute"];
    let value = growth["value"].as_f64().unwrap();
    let [low, high] = ends(&growth["interval"]);
    // An estimate is twice as far from the truth as its interval reaches in one of 10,000 looks.
    let [low, high] = [low, high].map(|end| value + 2.0 * (end - value));
    assert!(low <= a_minute && a_minute <= high, "{a_minute}: {growing:#}");
}

/// The leak is found, with its function and its growth, and nothing else is shown. `UNIKPROF_LONG`
/// takes the rates and the times of docs/evidence/accuracy.md: 24 minutes.
#[test]
#[ignore = "full: records a guest"]
pub(crate) fn a_leak_in_traffic_is_found_and_nothing_else() {
    const KIB: u32 = 1 << 10;
    const MIB: u32 = 1 << 20;
    let is_long = std::env::var_os("UNIKPROF_LONG").is_some();
    let looks: &[(u32, u32, u32, &str)] = if is_long {
        &[
            (5 * MIB, KIB, 120, "4KiB"),
            (50 * MIB, 64 * KIB, 120, "128KiB"),
            (5 * MIB, 0, 600, "4KiB"),
            (50 * MIB, 0, 600, "128KiB"),
        ]
    } else {
        &[(5 * MIB, 64 * KIB, 12, EVERY), (5 * MIB, 0, 12, EVERY)]
    };
    for (traffic, leak, seconds, every) in looks.iter().copied() {
        look(&Look { traffic, leak, seconds, every });
    }
}

/// The same with two dumps of a recording that goes on.
#[test]
#[ignore = "full: records a guest"]
pub(crate) fn two_dumps_show_the_leak() {
    let guest = Guest::start("leaking");
    let client = guest.allocating_client();
    client.must(&["start", "--name", "held", "--mode", "live", "--every", EVERY]);
    client.wait_for_samples(500);
    client.must(&["dump", "--name", "held", "-o", "a.unikprof"]);
    client.wait_for_samples(8_000);
    client.must(&["stop", "--name", "held", "-o", "b.unikprof"]);
    let image = client.image().to_str().unwrap();
    let found = client.run(&["leaks", "a.unikprof", "b.unikprof", "--image", image]);
    assert!(found.stdout.contains("1. grows by"), "{}\n{}", found.stdout, found.stderr);
    assert!(found.stdout.contains("heap::leak  hosted/heap.rs:"), "{}", found.stdout);
    // `top` is about time.
    let refused = client.connect(&["top", "--count", "1", "--mode", "live"]);
    assert!(refused.stderr.contains("top shows recordings of time"), "{}", refused.stderr);
}
