//! `demo`: what somebody sees who tries the profiler for the first time.

use std::collections::HashSet;
use std::fs;
use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::json;
use unikprof_profile::recording::{Completeness, Reading, Recording};

use crate::harness::{Client, RunningClient, SOON};
use crate::hosted::page::drive;

/// The number of samples that shows how varied the work is.
const ENOUGH: u64 = 1_000;

/// The page finds what README tells of.
fn shows_the_mistake(client: &Client, folded: &str, samples: u64) {
    let is_in = |stack: &str| stack.split(';').any(|name| name.ends_with("note::is_spam"));
    let stacks = folded.lines().filter_map(|line| line.rsplit_once(' '));
    let counts = stacks.filter(|(stack, _)| is_in(stack));
    let mistake: u64 = counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum();
    let page = client.path("demo/demo.html");
    let steps = [
        json!({ "open": page }),
        json!({ "size": [900, 700] }),
        json!({ "click": "#view-flame" }),
        json!({ "scrolled": "#graph-part" }),
        json!({ "open": format!("{}#query=note::is_spam$", page.display()) }),
        json!({ "read": "#matched" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let [above, below, outside] = [0, 1, 2].map(|side| shown[3][side].as_f64().unwrap());
    assert!(above > 0.0 && below < 2.0 && outside < 2.0, "the root is seen: {}", shown[3]);
    let matched = shown[5][0].as_str().unwrap().replace(',', "");
    let expected = format!("matched {mistake} ");
    assert!(matched.starts_with(&expected), "{matched}, {expected}of {samples}");
}

#[test]
#[ignore = "full: records a guest"]
fn the_demo_shows_real_work_deep_and_varied() {
    let client = Client::of(([127, 0, 0, 1], 0).into());
    let path = client.path("demo").join("demo.unikprof");
    let run = |duration| {
        let mut command = client.command();
        command.args(["demo", "--duration", duration, "-o", "demo"]);
        let running = RunningClient::spawn(&mut command);
        let finished = running.finish_within(5 * SOON).expect_success();
        let recording = Recording::open(&path, Reading::Strict).unwrap();
        assert_eq!(recording.completeness, Completeness::Complete);
        (finished, recording.profile.sample_count())
    };
    // Longer if others have the processors.
    let mut runs = ["4s", "30s", "120s"].into_iter().map(run);
    let (finished, samples) = runs.find(|(_, samples)| *samples >= ENOUGH).unwrap();
    let read = |name: &str| fs::read(client.path("demo").join(name)).unwrap();
    let text = |name: &str| String::from_utf8(read(name)).unwrap();

    let folded = text("demo.folded");
    let mut stacks = HashSet::new();
    let (mut total, mut own, mut mistake, mut deepest) = (0, 0, 0, 0);
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        total += count;
        let leaf = stack.rsplit(';').next().unwrap();
        if leaf.contains("unikprof_agent") {
            own += count;
        }
        if stack.contains("note::is_spam;") {
            mistake += count;
        }
        deepest = deepest.max(stack.split(';').count());
        assert!(stacks.insert(stack), "twice: {stack}");
    }
    assert_eq!(total, samples);
    assert!(stacks.len() >= 500, "{} different stacks", stacks.len());
    assert!(deepest >= 20, "{deepest} frames at the most");
    // What README tells of: about half of the work is one mistake, and the rest is varied.
    assert!(
        mistake * 4 > samples && mistake * 4 < samples * 3,
        "{mistake} of {samples} samples are in `is_spam`"
    );
    // Blocking and waking are the agent's, and cost what they cost: next to nothing.
    assert!(own * 100 <= samples, "{own} of {samples} samples are the agent's");

    for table in [text("demo.txt"), finished.stdout] {
        assert!(table.contains(" samples; 95 % intervals"), "{table}");
        assert!(!table.contains("unikprof_agent::"), "{table}");
    }
    shows_the_mistake(&client, &folded, samples);
    let svg = text("demo.svg");
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("unikprof_demo_service::"));
    let mut pprof = Vec::new();
    GzDecoder::new(&*read("demo.pb.gz")).read_to_end(&mut pprof).unwrap();
    assert!(pprof.windows(21).any(|bytes| bytes == b"unikprof_demo_service"));
}
