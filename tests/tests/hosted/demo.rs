//! `demo`: what somebody sees who tries the profiler for the first time.

use std::collections::HashSet;
use std::fs;
use std::io::Read as _;

use flate2::read::GzDecoder;
use unikprof_client::recording::{Completeness, Reading, Recording};

use crate::harness::{Client, RunningClient};

#[test]
fn the_demo_shows_real_work_deep_and_varied() {
    let client = Client::of(([127, 0, 0, 1], 0).into());
    let mut command = client.command();
    command.args(["demo", "--duration", "4s", "-o", "demo"]);
    let finished = RunningClient::spawn(&mut command).finish().expect_success();
    let read = |name: &str| fs::read(client.path("demo").join(name)).unwrap();
    let text = |name: &str| String::from_utf8(read(name)).unwrap();

    let path = client.path("demo").join("demo.unikprof");
    let recording = Recording::open(&path, Reading::Strict).unwrap();
    assert_eq!(recording.completeness, Completeness::Complete);
    let samples = recording.profile.sample_count();
    assert!(samples > 500, "{samples}");

    let folded = text("demo.folded");
    let mut stacks = HashSet::new();
    let (mut total, mut own, mut deepest) = (0, 0, 0);
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        total += count;
        let leaf = stack.rsplit(';').next().unwrap();
        if leaf.contains("unikprof_agent") {
            own += count;
        }
        deepest = deepest.max(stack.split(';').count());
        assert!(stacks.insert(stack), "twice: {stack}");
    }
    assert_eq!(total, samples);
    assert!(stacks.len() >= 500, "{} different stacks", stacks.len());
    assert!(deepest >= 20, "{deepest} frames at the most");
    // Blocking and waking are the agent's, and cost what they cost: next to nothing.
    assert!(
        own * 100 <= samples,
        "{own} of {samples} samples are the agent's"
    );

    // The most work is in the libraries that the service calls.
    for table in [&text("demo.txt"), &finished.stdout] {
        let names = ["unikprof_demo_service::", "blake3::", "miniz_oxide::"];
        assert!(names.iter().any(|name| table.contains(name)), "{table}");
        assert!(!table.contains("unikprof_agent::"), "{table}");
    }
    let svg = text("demo.svg");
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("unikprof_demo_service::"));
    let mut pprof = Vec::new();
    GzDecoder::new(&*read("demo.pb.gz"))
        .read_to_end(&mut pprof)
        .unwrap();
    assert!(
        pprof
            .windows(21)
            .any(|bytes| bytes == b"unikprof_demo_service")
    );
}
