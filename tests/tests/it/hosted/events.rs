//! The guest's events, as the program prints them: each kind that a guest on this machine can
//! cause.

use std::collections::BTreeSet;

use serde_json::Value;
use unikprof_client::exit_code;

use crate::harness::time::{events, lines, report};
use crate::harness::{Guest, wait_until};

fn kinds(events: &[Value]) -> BTreeSet<&str> {
    let kinds = events.iter().map(|event| event["kind"].as_str().unwrap());
    kinds.collect()
}

#[test]
fn every_kind_is_printed() {
    let guest = Guest::start("events");
    assert_eq!(guest.told("refused "), "46");
    let client = guest.client();
    // Waits are noted where a recording counts blocked time.
    let words = ["start", "--name", "a", "--mode", "wall"];
    client.must(&words);
    wait_until("waits, a resume and some spans while it is recorded", || {
        let found = events(&client);
        let began = found.iter().position(|e| e["kind"] == "recording_began")?;
        let since = &found[began..];
        let there = kinds(since);
        let spans = since.iter().filter(|e| e["kind"] == "span_begin").count();
        let all = ["wake", "resumed"].iter().all(|kind| there.contains(kind));
        // Two begin at a time; the first two may be over with nothing behind them.
        (all && spans > 6).then_some(())
    });
    client.must(&["stop", "--name", "a", "-o", "a.unikprof"]);
    let found = events(&client);
    let expected = [
        "counter",
        "mark",
        "recording_began",
        "recording_ended",
        "resumed",
        "span_begin",
        "span_end",
        "wake",
    ];
    let there = kinds(&found);
    assert!(expected.iter().all(|kind| there.contains(kind)), "{there:?}");
    // In order, with their numbers, and dates where the machine has a clock.
    let times: Vec<u64> = found.iter().map(|e| e["at_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted());
    assert!(found.iter().all(|event| event["unix_ns"].is_u64()));
    let marks: Vec<u64> = found
        .iter()
        .filter(|event| event["kind"] == "mark")
        .map(|event| event["value"].as_u64().unwrap())
        .collect();
    assert!(marks.windows(2).all(|pair| pair[1] == pair[0] + 1), "{marks:?}");
    let text = client.connect(&["events", "--only", "block,resumed"]);
    let text = text.expect_success().stdout;
    assert!(text.contains("wake     after "), "{text}");
    assert!(text.contains("resumed  after a suspend"), "{text}");
    assert!(!text.contains("mark "), "{text}");

    // One span within another, one across both, and one that never ends; names that were refused
    // are told.
    let told = report(&client, "a.unikprof", &["--from", "0s"]);
    assert_eq!(told["refused_names"], 46);
    let span = |name: &str| {
        let all = told["spans"].as_array().unwrap();
        all.iter().find(|span| span["name"] == name).unwrap()
    };
    let inner = span("inner");
    assert!(inner["count"].as_u64() > Some(1), "{inner}");
    // The inner one of two that overlap takes 50 ms at least, the other one twice that.
    assert!(inner["p50_ns"].as_u64() >= Some(50_000_000), "{inner}");
    assert!(inner["max_ns"].as_u64() >= Some(100_000_000), "{inner}");
    let text = client.report("a.unikprof", &["--accounting"]).expect_success().stdout;
    assert!(text.contains("rejected 46 event names"), "{text}");
}

/// From the moment when it begins, `--follow` prints nothing twice and leaves nothing out.
#[test]
#[ignore = "full: records a guest"]
fn events_are_followed_as_they_happen() {
    let guest = Guest::start("events");
    let client = guest.client();
    let following = client.begin(&["events", "--follow", "--json", "--only", "mark"]);
    following.wait_for_lines(30);
    following.interrupt();
    let finished = following.finish();
    assert_eq!(finished.code, Some(exit_code::SUCCESS.into()), "{finished:?}");
    let followed: Vec<u64> =
        lines(&finished.stdout).iter().map(|event| event["value"].as_u64().unwrap()).collect();
    assert!(followed.len() > 5, "{followed:?}");
    let expected: Vec<u64> = (followed[0]..).take(followed.len()).collect();
    assert_eq!(followed, expected);
}
