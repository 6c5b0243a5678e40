//! `trace`: every call of some functions of a guest that was not built for it.

use std::collections::BTreeMap;

use serde_json::Value;
use unikprof_client::exit_code;

use crate::harness::{Client, Guest, Keyed};

fn image() -> &'static str {
    Guest::program().to_str().unwrap()
}

/// What a load counted itself, by name: `done NAME NUMBER NAME NUMBER ...`.
fn counted(line: &str) -> BTreeMap<String, u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap()))
        .collect()
}

/// Traces the load from before its beginning until it has ended; returns what it counted and what the client printed.
pub(crate) fn traced(
    guest: &mut Guest,
    client: &Client,
    words: &[&str],
) -> (BTreeMap<String, u64>, String) {
    let running = client.begin(words);
    running.wait_for_words("tracing until interrupted");
    guest.tell();
    let done = guest.told("done ");
    running.interrupt();
    let finished = running.finish().expect_success();
    guest.assert_alive();
    (counted(&done), finished.stdout)
}

/// The function whose name ends so.
pub(crate) fn function<'v>(trace: &'v Value, name: &str) -> &'v Value {
    let functions = trace["functions"].as_array().unwrap();
    let found = functions
        .iter()
        .find(|it| it["function"].as_str().unwrap().ends_with(name));
    found.unwrap_or_else(|| panic!("{name} in {trace:#}"))
}

/// `calls = returned + unwound + replaced + open + lost`, for each function.
pub(crate) fn assert_sums(trace: &Value) {
    for function in trace["functions"].as_array().unwrap() {
        let parts = ["returned", "unwound", "replaced", "open", "lost_ends"];
        let sum: u64 = parts
            .iter()
            .map(|part| function[part].as_u64().unwrap())
            .sum();
        assert_eq!(function["calls"], sum, "{function:#}");
    }
}

/// All calls in trees.
pub(crate) fn calls_in(trees: &Value, name: &str) -> u64 {
    let trees = trees.as_array().unwrap().iter();
    trees
        .map(|tree| {
            let is_it = tree["function"].as_str().unwrap().ends_with(name);
            let own = if is_it {
                tree["times"].as_u64().unwrap()
            } else {
                0
            };
            own + calls_in(&tree["inside"], name)
        })
        .sum()
}

const ALL: [&str; 5] = ["outer", "inner", "recursive", "waits", "unwinds"];

/// Calls of a known tree are exact in the table and in the tree, those that a panic ends are marked, and no duration is
/// shorter than what the function itself measured.
#[test]
fn calls_of_a_known_tree_are_exact() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = [
        "trace",
        "traced::*",
        "--max-cost",
        "0",
        "--image",
        image(),
        "-o",
        "run.unikprof",
    ];
    let (counted, _) = traced(&mut guest, &client, &words);
    let trace = client
        .run(&["report", "run.unikprof", "--json"])
        .expect_json();
    assert_sums(&trace);
    assert_eq!(trace["warnings"], Value::Array(vec![]), "{trace:#}");
    for name in ALL {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
        assert_eq!(
            calls_in(&trace["tree"], &format!("traced::{name}")),
            counted[name],
            "{name}"
        );
        assert_eq!(found["open"], 0, "{name}");
        assert_eq!(found["orphans"], 0, "{name}");
    }
    let unwinds = function(&trace, "traced::unwinds");
    assert_eq!(
        unwinds["unwound"], counted["unwinds"],
        "each ends by a panic"
    );
    for name in ["outer", "waits"] {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["returned"], counted[name]);
        let total_ns = found["total_ns"].as_u64().unwrap();
        assert!(
            total_ns >= counted[&format!("{name}_ns")],
            "{name}: {total_ns} {counted:?}"
        );
    }
    let inner = function(&trace, "traced::inner");
    let callers = inner["callers"].as_array().unwrap();
    assert!(
        callers
            .iter()
            .all(|it| it["function"].as_str().unwrap().ends_with("traced::outer"))
    );
    let from: u64 = callers.iter().map(|it| it["calls"].as_u64().unwrap()).sum();
    assert_eq!(from, counted["inner"]);

    // Only what happens within one function, with the rest of it hidden.
    let words = ["report", "run.unikprof", "--json", "--in", "recursive"];
    let part = client.run(&words).expect_json();
    assert_sums(&part);
    assert_eq!(calls_in(&part["tree"], "inner"), 0);
    assert_eq!(function(&part, "recursive")["calls"], counted["recursive"]);
    let words = ["report", "run.unikprof", "--json", "--hide", "outer"];
    let hidden = client.run(&words).expect_json();
    assert_eq!(calls_in(&hidden["tree"], "outer"), 0);
    assert_eq!(calls_in(&hidden["tree"], "inner"), counted["inner"]);

    // The other formats hold the same calls.
    let all: u64 = ALL.iter().map(|name| counted[*name]).sum();
    let words = [
        "-o",
        "run.trace.json",
        "-o",
        "run.svg",
        "-o",
        "run.folded",
        "-o",
        "run.txt",
    ];
    let words = [
        &["report", "run.unikprof", "-o", "run.profile.json.gz"][..],
        &words,
    ]
    .concat();
    client.run(&words).expect_success();
    let text = std::fs::read_to_string(client.path("run.trace.json")).unwrap();
    let chrome: Value = serde_json::from_str(&text).unwrap();
    let events = chrome["traceEvents"].as_array().unwrap().iter();
    let complete = events.filter(|event| event["ph"] == "X").count() as u64;
    assert!(complete >= all, "{complete} {all}");
    let svg = std::fs::read_to_string(client.path("run.svg")).unwrap();
    assert!(svg.contains("traced::inner") && svg.ends_with("</svg>\n"));
    let text = std::fs::read_to_string(client.path("run.txt")).unwrap();
    assert!(text.contains("unwound"), "{text}");
    assert!(guest.stop().success());
}

/// Without rings: counts alone.
#[test]
fn counting_keeps_no_calls() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = [
        "--json",
        "trace",
        "--count",
        "traced::*",
        "--max-cost",
        "0",
        "--image",
        image(),
    ];
    let (counted, stdout) = traced(&mut guest, &client, &words);
    let trace: Value = serde_json::from_str(&stdout).unwrap();
    assert_sums(&trace);
    for name in ALL {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
    }
    assert!(trace.get("tree").is_none());
}

/// What a function calls directly is traced with it, and what these call is not.
#[test]
fn what_a_function_calls_is_traced_with_it() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = ["--json", "trace", "traced::outer", "--depth", "1"];
    let words = [&words[..], &["--max-cost", "0", "--image", image()]].concat();
    let (counted, stdout) = traced(&mut guest, &client, &words);
    let trace: Value = serde_json::from_str(&stdout).unwrap();
    assert_sums(&trace);
    for name in ["outer", "inner", "recursive", "waits"] {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
    }
    let functions = trace["functions"].as_array().unwrap();
    let is_deeper = |it: &&Value| {
        it["function"]
            .as_str()
            .unwrap()
            .ends_with("traced::unwinds")
    };
    assert_eq!(
        functions.iter().find(is_deeper),
        None,
        "called by a closure"
    );
}

/// Only the calls that took long are in the tree, with what they called; the counts are of all calls.
#[test]
fn slow_calls_are_kept_with_what_they_called() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = [
        "trace",
        "--slow",
        "4ms",
        "traced::outer",
        "traced::waits",
        "traced::inner",
    ];
    let words = [
        &words[..],
        &["--max-cost", "0", "--image", image(), "-o", "run.unikprof"],
    ]
    .concat();
    let (counted, _) = traced(&mut guest, &client, &words);
    let trace = client
        .run(&["report", "run.unikprof", "--json"])
        .expect_json();
    assert_sums(&trace);
    for name in ["outer", "waits", "inner"] {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
    }
    let tree = trace["tree"].as_array().unwrap();
    for root in tree {
        assert!(
            root["function"]
                .as_str()
                .unwrap()
                .ends_with("traced::outer"),
            "{root:#}"
        );
        assert!(
            root["duration_ns"].as_u64().unwrap() >= 4_000_000,
            "{root:#}"
        );
    }
    // Each wait takes 5 ms.
    assert_eq!(calls_in(&trace["tree"], "traced::waits"), counted["waits"]);
    let words = ["report", "run.unikprof", "--json", "--slowest", "2"];
    let slowest = client.run(&words).expect_json();
    let slowest = slowest["slowest"].as_array().unwrap();
    let durations: Vec<u64> = slowest
        .iter()
        .map(|it| it["duration_ns"].as_u64().unwrap())
        .collect();
    assert_eq!(durations.len(), 2);
    assert!(durations[0] >= durations[1], "{durations:?}");
}

/// A function that is called too often loses its probes, and the report names it.
#[test]
fn what_costs_too_much_is_removed_and_named() {
    let guest = Guest::start("burst");
    let client = guest.client();
    let words = [
        "--json",
        "trace",
        "burst::usual",
        "burst::burst",
        "--for",
        "5s",
    ];
    let words = [&words[..], &["--max-cost", "0.1%", "--image", image()]].concat();
    let trace = client.connect(&words).expect_json();
    let removed: Vec<bool> = trace["functions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["removed"] == true)
        .collect();
    assert!(removed.contains(&true), "{trace:#}");
    let warnings = trace["warnings"].to_string();
    assert!(
        warnings.contains("removed the probes of") && warnings.contains("burst"),
        "{warnings}"
    );
}

/// A key that may control recordings may not trace.
#[test]
fn a_key_without_the_role_may_not_trace() {
    let keyed = Keyed::start("traced");
    let client = keyed.owner();
    let refused = client.connect(&["trace", "traced::*", "--for", "1s", "--image", image()]);
    let refused = refused.expect_code(exit_code::KEY);
    assert!(refused.stderr.contains("trace"), "{}", refused.stderr);
}

/// What cannot be traced says so before anything is set.
#[test]
fn what_cannot_be_traced_is_refused() {
    let guest = Guest::start("traced");
    let client = guest.client();
    let refused = client.connect(&["trace", "no_such_function", "--image", image()]);
    let refused = refused.expect_code(exit_code::USAGE);
    assert!(
        refused
            .stderr
            .contains("no function matches `no_such_function`"),
        "{}",
        refused.stderr
    );
    let refused = client.connect(&["trace", "trace*", "--image", "/bin/ls"]);
    let refused = refused.expect_code(exit_code::INPUT);
    assert!(refused.stderr.contains("build-id"), "{}", refused.stderr);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let libc = paths.find(|path| path.contains("/libc.so")).unwrap();
    let refused = client.connect(&["trace", "malloc", "--image", libc]);
    let refused = refused.expect_code(exit_code::REFUSED);
    assert!(
        refused.stderr.contains("while signals are blocked"),
        "{}",
        refused.stderr
    );
    let refused = client.connect(&["trace", "unikprof_agent::*", "--image", image()]);
    assert!(
        refused.stderr.contains("handles a breakpoint") || refused.stderr.contains("at most"),
        "{}",
        refused.stderr
    );
    assert_ne!(refused.code, Some(0));
}
