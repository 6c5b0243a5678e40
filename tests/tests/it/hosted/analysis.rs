//! `report --analyze`: what is wrong with one guest is found in its recording, and nothing in that
//! of another.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::time::report;
use crate::harness::{Client, Guest, wait_until};
use crate::hosted::page::drive;

/// The rules that other programs on this machine can trigger in any guest.
const OF_THE_HOST: [&str; 3] = ["stolen", "masked", "burst"];

fn record(guest: &Guest) -> Client {
    let client = guest.client();
    client.record_samples(2_000, &["-F", "997"]);
    client
}

/// Records the ailing guest until its report has all that ails it: if the guest stands still for a
/// while, its counter does not rise meanwhile.
fn analyze(guest: &Guest) -> (Client, Value) {
    wait_until("all findings", || {
        let client = record(guest);
        let analyzed = report(&client, "run.unikprof", &["--analyze"]);
        let is_found = |rule: &&str| findings(&analyzed).iter().any(|it| it["rule"] == **rule);
        let rules = ["memory", "slow span", "rising counter"];
        rules.iter().all(is_found).then_some((client, analyzed))
    })
}

fn findings(report: &Value) -> &[Value] {
    report["analysis"]["findings"].as_array().unwrap()
}

fn of_rule<'r>(report: &'r Value, rule: &str) -> &'r Value {
    let found = findings(report).iter().find(|found| found["rule"] == rule);
    found.unwrap_or_else(|| panic!("no {rule}: {:#}", report["analysis"]))
}

#[test]
#[ignore = "full: records a guest"]
fn a_healthy_guest_has_nothing_to_look_at() {
    let guest = Guest::start("healthy");
    let client = record(&guest);
    let report = report(&client, "run.unikprof", &["--analyze"]);
    let found = findings(&report).iter().map(|found| &found["rule"]);
    let found: Vec<&Value> =
        found.filter(|rule| !OF_THE_HOST.iter().any(|host| rule == host)).collect();
    assert!(found.is_empty(), "{:#}", report["analysis"]);
}

#[test]
#[ignore = "full: records a guest"]
fn what_ails_a_guest_is_found_with_its_evidence_and_the_next_step() {
    let guest = Guest::start("ailing");
    let (client, analyzed) = analyze(&guest);

    let memory = of_rule(&analyzed, "memory");
    assert!(memory["figures"]["share"].as_f64() > Some(0.5), "{memory:#}");
    assert!(memory["functions"][0].as_str().unwrap().ends_with("health::copy"), "{memory:#}");

    let slow = of_rule(&analyzed, "slow span");
    assert!(slow["finding"].as_str().unwrap().contains("`request`"), "{slow:#}");
    let compact = "health::compact";
    assert!(slow["functions"][0].as_str().unwrap().ends_with(compact), "{slow:#}");
    // The next step is a command as it stands.
    let next = slow["next"].as_str().unwrap();
    let command = next.split('`').nth(1).unwrap().strip_prefix("report ").unwrap();
    let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
    let longest = report(&client, "run.unikprof", &words);
    assert_eq!(longest["window"]["inside"], "request", "{command}");

    let rising = of_rule(&analyzed, "rising counter");
    assert!(rising["finding"].as_str().unwrap().starts_with("`held` only rises"), "{rising:#}");

    let text = client.report("run.unikprof", &["--analyze"]);
    let text = &text.expect_success().stdout;
    for words in ["findings of ", "slow span", "-> pass references", "nothing found by: "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let svg = client.report("run.unikprof", &["--analyze", "-o", "run.svg"]);
    assert_eq!(svg.code, Some(2), "{}", svg.stderr);
    assert!(svg.stderr.contains("--analyze makes text"), "{}", svg.stderr);
}

/// The page has the same findings; its buttons show when, its names where.
#[test]
#[ignore = "full: records a guest"]
fn the_page_begins_with_the_findings() {
    let guest = Guest::start("ailing");
    let (client, analyzed) = analyze(&guest);
    client.report("run.unikprof", &["-o", "run.html"]).expect_success();
    let path = client.path("run.html");
    let details = "#analysis details[data-rule='slow span']";
    let slow = of_rule(&analyzed, "slow span");
    let function = slow["functions"][0].as_str().unwrap();
    let steps = [
        json!({ "open": path.display().to_string() }),
        json!({ "read": "#analysis summary" }),
        json!({ "read": "section:first-of-type h2" }),
        json!({ "click": format!("{details} summary"), "still": true }),
        json!({ "read": format!("{details} .evidence") }),
        json!({ "click": format!("{details} button") }),
        json!({ "hash": true }),
        // In that time alone the guest may not have got the processor at all.
        json!({ "press": "w", "on": "#tracks" }),
        json!({ "click": format!("{details} a[title='select {function}']") }),
        json!({ "read": "#shown" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let expected: BTreeSet<String> = findings(&analyzed)
        .iter()
        .map(|found| {
            let parts = ["rule", "finding"].map(|key| text(&found[key]));
            format!("{}{} {}", found["score"], parts[0], parts[1])
        })
        .collect();
    let summaries: Vec<String> = serde_json::from_value(shown[1].clone()).unwrap();
    assert_eq!(summaries.into_iter().collect::<BTreeSet<String>>(), expected);
    let head = shown[2][0].as_str().unwrap();
    assert!(head.starts_with("Analysis of the guest: "), "{head}");
    // The page shows names as buttons, without marks around them.
    assert_eq!(shown[4].to_string(), slow["evidence"].to_string().replace('`', ""));
    let window = &slow["windows"][0];
    let range = format!("window={}-{}", window["from_ns"], window["to_ns"]);
    assert!(text(&shown[6]).contains(&range), "{}: {range}", shown[6]);
    let selected = shown[9][0].as_str().unwrap();
    assert!(selected.contains(&format!("; selected {function}: ")), "{selected}");
}
