//! Finding a burst of other work, some seconds ago, by every way there is to ask, and the guest's
//! own events.

use serde_json::Value;

use crate::harness::time::{Span, events, report, script, share, sum};
use crate::harness::{Client, Guest, wait_until};

/// Records until a whole batch has come and gone, and all of the usual work behind it.
fn record(client: &Client) -> Span {
    client.must(&["start", "-F", "997"]);
    wait_until("a batch and the usual work behind it", || {
        let events = events(client);
        let batch = Span::since_recording(&events, "batch")?;
        let is_next = |event: &Value| {
            event["name"] == "batch due" && event["at_ns"].as_u64() > Some(batch.to_ns)
        };
        events.iter().any(is_next).then_some(batch)
    })
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
#[ignore = "full: records a guest"]
fn a_burst_some_seconds_ago_is_found() {
    let guest = Guest::start("burst");
    let client = guest.client();
    // What a dump fetched, later files of its recording do not show again: each way has its own.
    client.must(&["start", "--name", "dumped", "-F", "997"]);
    let batch = record(&client);
    let (from, to) = (batch.date(0), batch.date(batch.length_ns()));
    client.must(&["stop", "--name", "default", "-o", "all.unikprof"]);

    // By a dump of the time between two moments; reports then show just that.
    batch.dump(&client, "then.unikprof");
    let then = report(&client, "then.unikprof", &[]);
    assert_is_burst(&then);
    let window = then["window"].as_object().expect("a part is told as one");
    let length = window["to_ns"].as_u64().unwrap() - window["from_ns"].as_u64().unwrap();
    assert_eq!(length, batch.length_ns());
    let whole = report(&client, "then.unikprof", &["--whole"]);
    // In samples: a share depends on how much CPU time each kind of work got.
    let usual = |report| sum(report, "burst::usual", "self");
    assert!(usual(&whole) > usual(&then) + 10, "{whole:#}");

    // By what is cut from a file afterwards.
    let window = report(&client, "all.unikprof", &["--from", &from, "--to", &to]);
    assert_is_burst(&window);
    let inside = report(&client, "all.unikprof", &["--in-span", "batch"]);
    assert_is_burst(&inside);
    let lines = script(&client, "all.unikprof", &["--in-span", "batch"]);
    assert_eq!(inside["counters"]["ticks"], lines.len());
    assert!(lines.len() < script(&client, "all.unikprof", &[]).len());
    assert!(lines.iter().all(|line| line["span"] == "batch"));

    // By its end: what is left of it then is whole seconds that others do not have.
    let all = client.recording("all.unikprof");
    let recorded = all.span.unwrap().window;
    let (began_ns, end_ns) = (recorded.from_ns, recorded.to_ns);
    let last = format!("{}ns", end_ns - batch.from_ns);
    let last = report(&client, "all.unikprof", &["--last", &last]);
    let burst = |report| sum(report, "burst::burst", "self");
    assert!(burst(&last) >= burst(&window), "{last:#}");
    // The batch may have begun before the recording.
    assert_eq!(
        last["window"]["to_ns"].as_u64().unwrap() - last["window"]["from_ns"].as_u64().unwrap(),
        end_ns - batch.from_ns.max(began_ns)
    );

    // By the seconds.
    let seconds = report(&client, "all.unikprof", &["--timeline", "--step", "500ms"]);
    let mut inside = 0;
    for second in seconds["seconds"].as_array().unwrap() {
        let from_ns = began_ns + second["from_ns"].as_u64().unwrap();
        let to_ns = from_ns + second["length_ns"].as_u64().unwrap();
        if batch.from_ns <= from_ns && to_ns <= batch.to_ns && second["recorded"] != 0 {
            inside += 1;
            assert!(second["top"].as_str().unwrap().ends_with("burst::burst"), "{second}");
        }
    }
    assert!(inside > 0, "{seconds:#}");
    let text = client.report("all.unikprof", &["--timeline"]);
    let text = &text.expect_success().stdout;
    assert!(text.contains("burst::burst") && text.contains("burst::usual"), "{text}");
}

/// A dump without a ring's window is as it was, and the guest's own numbers are in its report.
#[test]
#[ignore = "full: records a guest"]
fn the_guests_own_events_are_told() {
    let guest = Guest::start("burst");
    let client = guest.client();
    record(&client);
    let dump = ["dump", "--last", "1h", "-o", "hour.unikprof"];
    client.must(&dump);
    let told = report(&client, "hour.unikprof", &[]);
    let counter = &told["values"][0];
    assert_eq!((&counter["name"], &counter["min"]), (&"queue depth".into(), &(-7).into()));
    assert_eq!(counter["max"], 3);
    assert_eq!(told["marks"][0]["name"], "batch due");
    let span = &told["spans"][0];
    assert_eq!(span["name"], "batch");
    assert!(span["p50_ns"].as_u64() >= Some(1_900_000_000), "{span}");
    let text = client.report("hour.unikprof", &["--accounting"]);
    let text = &text.expect_success().stdout;
    assert!(text.contains("spans of the guest"), "{text}");
    let folded = client.report("hour.unikprof", &["--format", "folded", "--labels"]);
    let folded = &folded.expect_success().stdout;
    assert!(folded.contains("recording:default;vcpu:0;span:batch;"), "{folded}");
    let none = client.report("hour.unikprof", &["--in-span", "nothing"]);
    let script = client.run(&["script", "hour.unikprof", "--in-span", "nothing"]);
    for none in [none, script] {
        assert_eq!(none.code, Some(2), "{none:?}");
        assert!(none.stderr.contains("`batch`"), "{none:?}");
    }
}
