//! Several recordings as one: dumps of one recording, another recording, and another run of the
//! guest.

use serde_json::Value;

use crate::harness::{Client, Guest, time};

/// Starts a recording, dumps it twice and stops it: three files. Each holds samples.
fn record_in_three(client: &Client) -> Vec<String> {
    client.must(&["start", "-F", "997"]);
    let file = |at| client.path(&format!("{at}.unikprof")).display().to_string();
    for at in 0..2 {
        client.wait_for_status("samples since the last dump", |status| {
            status["counters"]["recorded"].as_u64() >= Some(200 * (at + 1))
        });
        client.must(&["dump", "-o", &file(at)]);
    }
    client.must(&["stop", "-o", &file(2)]);
    (0..3).map(file).collect()
}

fn json(client: &Client, files: &[String], more: &[&str]) -> Value {
    let mut words = vec!["report".to_owned()];
    words.extend(files.iter().cloned());
    words.extend(["--json".to_owned(), "--image".to_owned()]);
    words.push(Guest::program().display().to_string());
    words.extend(more.iter().map(|word| (*word).to_owned()));
    client.run(&words).expect_json()
}

fn sum(reports: &[Value], of: impl Fn(&Value) -> &Value) -> u64 {
    reports.iter().map(|report| of(report).as_u64().unwrap()).sum()
}

/// Every tick of every file is in the merged report, once; a run of the same program elsewhere in
/// memory adds to the same functions, and the seconds of the rings are those of the counts.
#[test]
fn dumps_and_another_run_are_one_profile() {
    let guest = Guest::start("burst");
    let client = guest.client();
    let mut files = record_in_three(&client);
    let again = Guest::start("burst");
    let of_again = again.client();
    files.extend(record_in_three(&of_again));
    let each: Vec<Value> =
        files.iter().map(|file| json(&client, std::slice::from_ref(file), &[])).collect();
    let all = json(&client, &files, &[]);
    for counter in ["ticks", "recorded", "overflow", "lost", "masked", "idle", "early", "late"] {
        let expected = sum(&each, |report| &report["counters"][counter]);
        assert_eq!(all["counters"][counter], expected, "{counter}");
    }
    let lateness = sum(&each, |report| &report["lateness_ns"]["count"]);
    assert_eq!(all["lateness_ns"]["count"], lateness);
    // A guest may have been in either of its phases all the time.
    let mut work = 0;
    for function in ["burst::usual", "burst::burst"] {
        let own = |report: &Value| time::sum(report, function, "self");
        let expected: u64 = each.iter().map(own).sum();
        assert_eq!(own(&all), expected, "{function}");
        work += expected;
    }
    assert!(work > 0);
    assert_eq!(all["merged"]["runs"], 2);
    assert_eq!(all["merged"]["gaps"].as_array().unwrap().len(), 1);

    let seconds = json(&client, &files, &["--timeline"]);
    let of_seconds: Vec<Value> = seconds["seconds"].as_array().unwrap().clone();
    let recorded = sum(&of_seconds, |second| &second["recorded"]);
    assert_eq!(recorded, all["counters"]["recorded"].as_u64().unwrap());
}
