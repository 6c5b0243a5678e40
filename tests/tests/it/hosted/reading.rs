//! Reading a recording on: who calls a function and what it calls, its instructions, single vCPUs,
//! and a line for each sample.

use std::ops::RangeInclusive;

use serde_json::Value;
use unikprof_client::exit_code;

use unikprof_tests::source::lines_of;

use crate::harness::time::{report, rows, script};
use crate::harness::{Client, Guest};

const SHARES: &str = include_str!("../../../guests/hosted/shares.rs");

fn record(client: &Client) -> Value {
    client.record_samples(300, &["-F", "997"]);
    report(client, "run.unikprof", &[])
}

fn function<'r>(report: &'r Value, ending: &'r str) -> &'r Value {
    rows(report, ending).next().unwrap()
}

/// The tree has the function's own figures at its root, and under it all of them again, divided
/// among its callers.
#[test]
fn callers_and_callees_of_a_function_have_all_its_samples() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let whole = record(&client);
    let sixty = function(&whole, "shares::sixty");
    let calls = |option: &str, name: &str| {
        let report = report(&client, "run.unikprof", &[option, name]);
        report["calls"].clone()
    };
    for option in ["--callers", "--callees"] {
        let calls = calls(option, "shares::sixty$");
        let tree = calls["tree"].as_array().unwrap();
        assert_eq!(calls["function"], sixty["name"]);
        assert_eq!(tree[0]["total"], sixty["total"]);
        assert_eq!(tree[0]["total_share"], sixty["total_share"]);
        assert_eq!(tree[0]["total_interval"], sixty["total_interval"]);
        // What ends in no row ends below it.
        let ends = tree.iter().map(|row| row["self"].as_u64().unwrap());
        assert_eq!(ends.sum::<u64>(), sixty["total"].as_u64().unwrap());
    }
    let callers = calls("--callers", sixty["name"].as_str().unwrap());
    let names: Vec<&str> = callers["tree"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert!(names.iter().any(|name| name.contains("shares::morning")), "{names:?}");

    let text = client.report("run.unikprof", &["--callers", "shares::sixty$"]);
    assert!(text.stdout.contains("callers of "), "{}", text.stdout);
    let several = client.report("run.unikprof", &["--callers", "shares::"]);
    let several = several.expect_code(exit_code::USAGE).stderr;
    assert!(several.contains("shares::sixty`") && several.contains("functions"), "{several}");
    let none = client.report("run.unikprof", &["--callees", "no_such_function"]);
    let none = none.expect_code(exit_code::USAGE).stderr;
    assert!(none.contains("no function in the stacks shown"), "{none}");
}

/// The function's samples are at its instructions, and those of the loop that takes its time at the
/// loop's.
#[test]
#[ignore = "full: records a guest"]
fn the_instructions_of_a_hot_loop_hold_its_samples() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let whole = record(&client);
    let sixty = function(&whole, "shares::sixty");
    let words = ["--annotate", "shares::sixty$"];
    let report = report(&client, "run.unikprof", &words);
    let annotation = &report["annotation"];
    assert_eq!(annotation["function"], sixty["name"]);
    assert_eq!(annotation["own_without_inlined"], sixty["self"]);
    for key in ["total", "total_share", "total_interval"] {
        assert_eq!(annotation[key], sixty[key], "{key}");
    }
    let rows = |key: &str| annotation[key].as_array().unwrap();
    let own = |row: &Value| row["self"].as_u64().unwrap();
    let all = own(annotation);
    for key in ["lines", "instructions"] {
        assert_eq!(rows(key).iter().map(own).sum::<u64>(), all, "{key}");
    }
    let is_own =
        |row: &&Value| row["file"].as_str().is_some_and(|file| file.ends_with("hosted/shares.rs"));
    let source: Vec<&str> = SHARES.lines().collect();
    for row in rows("lines").iter().filter(is_own) {
        assert_eq!(row["text"], source[row["line"].as_u64().unwrap() as usize - 1]);
    }
    // From the first instruction of the loop's lines to the last.
    let address = |row: &Value| row["address"].as_u64().unwrap();
    let of_loop = |row: &&Value| inner_loop().contains(&(row["line"].as_u64().unwrap() as usize));
    let instructions = rows("instructions").iter();
    let in_loop = instructions.clone().filter(is_own).filter(of_loop).map(address);
    let (first, last) = (in_loop.clone().min().unwrap(), in_loop.max().unwrap());
    let in_loop = instructions.filter(|row| (first..=last).contains(&address(row)));
    let in_loop: u64 = in_loop.map(own).sum();
    // Beside it are some twenty instructions, of half a million.
    assert!(in_loop + 3 >= all && all > 10, "{in_loop} of {all}");

    let text = client.report("run.unikprof", &words).expect_success().stdout;
    assert!(text.contains("state ^= state << 13;"), "{text}");
    let several = client.report("run.unikprof", &["--annotate", "shares::"]);
    let several = several.expect_code(exit_code::USAGE).stderr;
    assert!(several.contains("shares::sixty`"), "{several}");
}

/// The first and the last line of the loop in `sixty`.
fn inner_loop() -> RangeInclusive<usize> {
    let lines = lines_of("sixty", SHARES).unwrap();
    let at = |text: &str| {
        let mut found =
            lines.clone().filter(|line| SHARES.lines().nth(line - 1).unwrap().contains(text));
        found.next().unwrap()
    };
    at("while left")..=at("left -= 1")
}

/// The lines are the ticks of the accounting, outcome by outcome, and their stacks those of the
/// report.
#[test]
#[ignore = "full: records a guest"]
fn the_script_has_a_line_for_each_tick() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let whole = record(&client);
    let lines = script(&client, "run.unikprof", &[]);
    let with = |outcome: &str| lines.iter().filter(|l| l["outcome"] == *outcome).count() as u64;
    let counters = &whole["counters"];
    assert_eq!(lines.len() as u64, counters["ticks"].as_u64().unwrap());
    assert_eq!(with("recorded") + with("late"), counters["recorded"].as_u64().unwrap());
    assert_eq!(with("idle"), counters["idle"].as_u64().unwrap());
    let sixty = function(&whole, "shares::sixty");
    let holds = |line: &&Value| {
        let stack = line["stack"].as_array();
        stack.is_some_and(|stack| stack.contains(&sixty["name"]))
    };
    assert_eq!(lines.iter().filter(holds).count() as u64, sixty["total"].as_u64().unwrap());
    let times: Vec<u64> = lines.iter().map(|line| line["at_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted());

    let columns = client.run(&["script", "run.unikprof"]).expect_success().stdout;
    assert_eq!(columns.lines().count(), lines.len() + 1);
    let only = |vcpu: &str| {
        let report = report(&client, "run.unikprof", &["--vcpu", vcpu]);
        report["counters"]["ticks"].as_u64().unwrap()
    };
    assert_eq!(only("0"), whole["vcpus"][0]["counters"]["ticks"].as_u64().unwrap());
    let other = client.report("run.unikprof", &["--vcpu", "9"]);
    let other = other.expect_code(exit_code::USAGE).stderr;
    assert!(other.contains("it has 0"), "{other}");
}
