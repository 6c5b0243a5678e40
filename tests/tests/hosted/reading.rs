//! Reading a recording on: who calls a function and what it calls, single vCPUs, and a line for each sample.

use serde_json::Value;
use unikprof_client::exit_code;

use crate::harness::time::report;
use crate::harness::{Client, Guest};

fn record(client: &Client) -> Value {
    client.record_samples(300, &["-F", "997"]);
    report(client, "run.unikprof", &[])
}

fn function<'r>(report: &'r Value, ending: &str) -> &'r Value {
    let functions = report["functions"].as_array().unwrap();
    let named = |f: &&Value| f["name"].as_str().unwrap().ends_with(ending);
    functions.iter().find(named).unwrap()
}

/// The tree has the function's own figures at its root, and under it all of them again, divided among its callers.
#[test]
fn callers_and_callees_of_a_function_have_all_its_samples() {
    let guest = Guest::start("burst");
    let client = guest.client();
    let whole = record(&client);
    let usual = function(&whole, "burst::usual");
    let calls = |option: &str, name: &str| {
        let report = report(&client, "run.unikprof", &[option, name]);
        report["calls"].clone()
    };
    for option in ["--callers", "--callees"] {
        let calls = calls(option, "burst::usual$");
        let tree = calls["tree"].as_array().unwrap();
        assert_eq!(calls["function"], usual["name"]);
        assert_eq!(tree[0]["total"], usual["total"]);
        assert_eq!(tree[0]["total_share"], usual["total_share"]);
        assert_eq!(tree[0]["total_interval"], usual["total_interval"]);
        // What ends in no row ends below it.
        let ends = tree.iter().map(|row| row["self"].as_u64().unwrap());
        assert_eq!(ends.sum::<u64>(), usual["total"].as_u64().unwrap());
    }
    let callers = calls("--callers", usual["name"].as_str().unwrap());
    let names: Vec<&str> = callers["tree"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert!(
        names.iter().any(|name| name.contains("burst::run")),
        "{names:?}"
    );

    let text = client.report("run.unikprof", &["--callers", "burst::usual$"]);
    assert!(text.stdout.contains("callers of "), "{}", text.stdout);
    let several = client.report("run.unikprof", &["--callers", "burst::"]);
    let several = several.expect_code(exit_code::USAGE).stderr;
    assert!(
        several.contains("burst::usual`") && several.contains("functions"),
        "{several}"
    );
    let none = client.report("run.unikprof", &["--callees", "no_such_function"]);
    let none = none.expect_code(exit_code::USAGE).stderr;
    assert!(none.contains("no function in the stacks shown"), "{none}");
}

/// The lines are the ticks of the accounting, outcome by outcome, and their stacks those of the report.
#[test]
fn the_script_has_a_line_for_each_tick() {
    let guest = Guest::start("burst");
    let client = guest.client();
    let whole = record(&client);
    let image = Guest::program().display().to_string();
    let words = ["script", "run.unikprof", "--image", &image, "--json"];
    let script = client.run(&words).expect_success().stdout;
    let lines: Vec<Value> = script
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let with = |outcome: &str| lines.iter().filter(|l| l["outcome"] == *outcome).count() as u64;
    let counters = &whole["counters"];
    assert_eq!(lines.len() as u64, counters["ticks"].as_u64().unwrap());
    assert_eq!(
        with("recorded") + with("late"),
        counters["recorded"].as_u64().unwrap()
    );
    assert_eq!(with("idle"), counters["idle"].as_u64().unwrap());
    let usual = function(&whole, "burst::usual");
    let holds = |line: &&Value| {
        let stack = line["stack"].as_array();
        stack.is_some_and(|stack| stack.contains(&usual["name"]))
    };
    assert_eq!(
        lines.iter().filter(holds).count() as u64,
        usual["total"].as_u64().unwrap()
    );
    let times: Vec<u64> = lines
        .iter()
        .map(|line| line["at_ns"].as_u64().unwrap())
        .collect();
    assert!(times.is_sorted());

    let columns = client.run(&words[..4]).expect_success().stdout;
    assert_eq!(columns.lines().count(), lines.len() + 1);
    let only = |vcpu: &str| {
        let report = report(&client, "run.unikprof", &["--vcpu", vcpu]);
        report["counters"]["ticks"].as_u64().unwrap()
    };
    assert_eq!(
        only("0"),
        whole["vcpus"][0]["counters"]["ticks"].as_u64().unwrap()
    );
    let other = client.report("run.unikprof", &["--vcpu", "9"]);
    let other = other.expect_code(exit_code::USAGE).stderr;
    assert!(other.contains("it has 0"), "{other}");
}
