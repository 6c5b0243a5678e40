//! What happened when: a burst of other work, some seconds ago, is found by every way there is to ask, and the
//! guest's own events are told.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use unikprof_client::timeline::WallClock;

use crate::harness::{Client, Guest, wait_until};

/// A batch of the guest's, on its clock: from its beginning to its end.
struct Batch {
    from_ns: u64,
    to_ns: u64,
    clock: WallClock,
}

fn events(client: &Client) -> Vec<Value> {
    let told = client.connect(&["events", "--json"]);
    let told = &told.expect_success().stdout;
    let lines = told.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Records until a whole batch has come and gone.
fn record(client: &Client) -> Batch {
    client.connect(&["start", "-F", "997"]).expect_success();
    wait_until("a batch that began and ended while it was recorded", || {
        let events = events(client);
        let is = |event: &Value, kind: &str| event["kind"] == kind;
        let began = events.iter().position(|e| is(e, "recording_began"))?;
        let batch = |e: &&Value, kind: &str| is(e, kind) && e["name"] == "batch";
        let first = events[began..].iter().find(|e| batch(e, "span_begin"))?;
        let mut ends = events.iter().filter(|e| batch(e, "span_end"));
        let end = ends.find(|e| e["number"] == first["number"])?;
        let from_ns = first["at_ns"].as_u64()?;
        let to_ns = end["at_ns"].as_u64()?;
        assert_eq!(end["length_ns"], to_ns - from_ns);
        Some(Batch {
            from_ns,
            to_ns,
            clock: WallClock::new([(from_ns, first["unix_ns"].as_u64()?)]),
        })
    })
}

impl Batch {
    /// A moment so many ns after the beginning, as a date.
    fn date(&self, after_ns: u64) -> String {
        let unix_ns = self.clock.unix_ns(self.from_ns + after_ns).unwrap();
        let date = UNIX_EPOCH + Duration::from_nanos(unix_ns);
        humantime::format_rfc3339_nanos(date).to_string()
    }

    fn length_ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

/// The report for programs.
fn json(client: &Client, name: &str, more: &[&str]) -> Value {
    client
        .report(name, &[&["--format", "json"], more].concat())
        .expect_json()
}

/// The share of a function's own samples.
fn share(report: &Value, function: &str) -> f64 {
    let functions = report["functions"].as_array().unwrap();
    let found = functions
        .iter()
        .filter(|f| f["name"].as_str().unwrap().ends_with(function));
    found.map(|f| f["self_share"].as_f64().unwrap()).sum()
}

fn assert_is_burst(report: &Value) {
    let recorded = report["samples"]["recorded"].as_u64().unwrap();
    assert!(recorded > 10, "{recorded} samples");
    assert!(share(report, "burst::burst") > 0.9, "{report:#}");
    assert!(share(report, "burst::usual") < 0.05, "{report:#}");
    let ticks = &report["counters"];
    assert_eq!(ticks["recorded"], recorded, "every tick is accounted for");
}

#[test]
fn a_burst_some_seconds_ago_is_found() {
    let guest = Guest::start("burst");
    let client = guest.client();
    let batch = record(&client);
    let (from, to) = (batch.date(0), batch.date(batch.length_ns()));

    // By a dump of the time between two moments; reports then show just that.
    let between = [
        "dump",
        "--begin",
        &from,
        "--end",
        &to,
        "-o",
        "then.unikprof",
    ];
    client.connect(&between).expect_success();
    let then = json(&client, "then.unikprof", &[]);
    assert_is_burst(&then);
    let window = then["window"].as_object().expect("a part is told as one");
    let length = window["to_ns"].as_u64().unwrap() - window["from_ns"].as_u64().unwrap();
    assert_eq!(length, batch.length_ns());
    let whole = json(&client, "then.unikprof", &["--whole"]);
    assert!(share(&whole, "burst::usual") > 0.1, "{whole:#}");

    // By what is cut from a file afterwards.
    client
        .connect(&["stop", "-o", "all.unikprof"])
        .expect_success();
    assert_is_burst(&json(
        &client,
        "all.unikprof",
        &["--from", &from, "--to", &to],
    ));
    assert_is_burst(&json(&client, "all.unikprof", &["--in-span", "batch"]));

    // By its end: what is left of it then is whole seconds that others do not have.
    let all = client.recording("all.unikprof");
    let end_ns = all.span.unwrap().window.to_ns;
    let last = format!("{}ns", end_ns - batch.from_ns);
    let last = json(&client, "all.unikprof", &["--last", &last]);
    assert!(share(&last, "burst::burst") > 0.1, "{last:#}");
    assert_eq!(
        last["window"]["to_ns"].as_u64().unwrap() - last["window"]["from_ns"].as_u64().unwrap(),
        end_ns - batch.from_ns
    );

    // By the seconds.
    let seconds = json(&client, "all.unikprof", &["--timeline", "--step", "500ms"]);
    let began_ns = all.span.unwrap().window.from_ns;
    let mut inside = 0;
    for second in seconds["seconds"].as_array().unwrap() {
        let from_ns = began_ns + second["from_ns"].as_u64().unwrap();
        let to_ns = from_ns + second["length_ns"].as_u64().unwrap();
        if batch.from_ns <= from_ns && to_ns <= batch.to_ns && second["recorded"] != 0 {
            inside += 1;
            assert!(
                second["top"].as_str().unwrap().ends_with("burst::burst"),
                "{second}"
            );
        }
    }
    assert!(inside > 0, "{seconds:#}");
    let text = client.report("all.unikprof", &["--timeline"]);
    let text = &text.expect_success().stdout;
    assert!(
        text.contains("burst::burst") && text.contains("burst::usual"),
        "{text}"
    );
}

/// A dump without a ring's window is as it was, and the guest's own numbers are in its report.
#[test]
fn the_guests_own_events_are_told() {
    let guest = Guest::start("burst");
    let client = guest.client();
    record(&client);
    let dump = ["dump", "--last", "1h", "-o", "hour.unikprof"];
    client.connect(&dump).expect_success();
    let report = json(&client, "hour.unikprof", &[]);
    let counter = &report["values"][0];
    assert_eq!(
        (&counter["name"], &counter["min"]),
        (&"queue depth".into(), &(-7).into())
    );
    assert_eq!(counter["max"], 3);
    assert_eq!(report["marks"][0]["name"], "batch due");
    let span = &report["spans"][0];
    assert_eq!(span["name"], "batch");
    assert!(span["p50_ns"].as_u64() >= Some(1_900_000_000), "{span}");
    let text = client.report("hour.unikprof", &[]);
    let text = &text.expect_success().stdout;
    assert!(text.contains("spans of the guest's own"), "{text}");
    let folded = client.report("hour.unikprof", &["--format", "folded", "--labels"]);
    let folded = &folded.expect_success().stdout;
    assert!(
        folded.contains("recording:default;vcpu:0;span:batch;"),
        "{folded}"
    );
    let none = client.report("hour.unikprof", &["--in-span", "nothing"]);
    assert_eq!(none.code, Some(2), "{none:?}");
    assert!(none.stderr.contains("`batch`"), "{none:?}");
}
