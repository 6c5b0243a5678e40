//! Two seconds of other work, once, before anybody came: found by every way there is to ask when.

use serde_json::Value;
use unikprof_tests::lab::Lab;

use super::{FLIGHT, LIVING, RECORDERS, events, under};
use crate::xen_profile::harness::time::{Span, report};
use crate::xen_profile::harness::{Client, Guest, on, wait_until};

/// Waits until it is over; answers it, and all the guest's events.
fn burst(client: &Client) -> (Span, Vec<Value>) {
    wait_until("the burst to be over", || {
        let events = events(client);
        Some((Span::since_recording(&events, "burst")?, events))
    })
}

/// Asserts that a report shows the burst, and nothing of the usual work but what a delivery was
/// late for.
fn assert_is_burst(report: &Value) {
    let (burst, all) = under(report, "burst::burst");
    let (usual, _) = under(report, "hotspots::year");
    assert_eq!(report["counters"]["recorded"], all, "every tick is accounted for");
    // The rest is what the guest's loop does between its turns.
    assert!(burst > 20 && burst * 2 > all, "{report:#}");
    assert!(usual <= 2, "{report:#}");
}

fn dump(client: &Client, file: &str, more: &[&str]) {
    let words = [&["dump", "--name", FLIGHT, "-o", file], more].concat();
    client.must(&words);
}

/// Dumps from a second before the burst on.
fn dump_since(client: &Client, file: &str, burst: &Span) {
    let now = client.connect(&["info", "--json"]).expect_json();
    let ago_ns = now["monotonic_ns"].as_u64().unwrap() - burst.from_ns + 1_000_000_000;
    dump(client, file, &["--last", &format!("{ago_ns}ns")]);
}

/// A client of the guest, which nobody has told to record.
fn client(lab: &Lab) -> Client {
    Guest::of_recording(lab, LIVING).client()
}

#[test]
#[ignore = "full: boots a real Xen"]
fn a_burst_before_anybody_came_is_found() {
    on(&RECORDERS, |lab| {
        let client = client(lab);
        let (burst, _) = burst(&client);
        let (from, to) = (burst.date(0), burst.date(burst.length_ns()));

        // Between two moments.
        dump(&client, "then.unikprof", &["--from", &from, "--to", &to]);
        let then = report(&client, "then.unikprof", &[]);
        assert_is_burst(&then);
        let window = then["window"].as_object().expect("a part is told as one");
        let length = window["to_ns"].as_u64().unwrap() - window["from_ns"].as_u64().unwrap();
        assert_eq!(length, burst.length_ns());

        // Of late: so far back that it holds all of it.
        dump_since(&client, "late.unikprof", &burst);
        assert!(under(&report(&client, "late.unikprof", &[]), "burst::burst").0 > 20);

        // Cut from a file afterwards, by its moments and by its name.
        let cut = ["--from", &from, "--to", &to];
        assert_is_burst(&report(&client, "late.unikprof", &cut));
        assert_is_burst(&report(&client, "late.unikprof", &["--in-span", "burst"]));
    });
}

/// Guards events that are lost, told twice or out of order, those of an upcall above all: it
/// interrupts the loop wherever that is.
#[test]
#[ignore = "full: boots a real Xen"]
fn the_guests_events_are_told_also_from_an_upcall() {
    on(&RECORDERS, |lab| {
        let client = client(lab);
        let (burst, events) = burst(&client);
        let of = |kind: &str, name: &str| -> Vec<&Value> {
            let all = events.iter();
            all.filter(|e| e["kind"] == kind && e["name"] == name).collect()
        };
        let times: Vec<_> = events.iter().map(|e| e["at_ns"].as_u64()).collect();
        assert!(times.is_sorted());
        let due = of("mark", "burst due");
        assert_eq!(due.len(), 1);
        assert!(due[0]["at_ns"].as_u64() <= Some(burst.from_ns));
        let rounds = of("counter", "burst rounds");
        assert_eq!(rounds.len(), 2, "{rounds:#?}");
        assert_eq!(rounds[0]["value"], 0);
        assert!(rounds[1]["value"].as_i64() > Some(0));
        assert!(rounds[1]["at_ns"].as_u64() >= Some(burst.to_ns));

        let upcalls = of("mark", "timer upcall");
        assert!(upcalls.len() > 2, "{upcalls:#?}");
        for (number, mark) in (0_u64..).zip(&upcalls) {
            assert_eq!(mark["value"], 32 * number, "{upcalls:#?}");
        }
        // Other cases have dumped what came before.
        dump_since(&client, "events.unikprof", &burst);
        let told = report(&client, "events.unikprof", &[]);
        let values = told["values"].as_array().unwrap();
        let values = values.iter().find(|v| v["name"] == "burst rounds").unwrap();
        assert_eq!(values["last"], rounds[1]["value"]);
        let spans = told["spans"].as_array().unwrap();
        let span = spans.iter().find(|v| v["name"] == "burst").unwrap();
        assert_eq!(span["total_ns"], burst.length_ns());
    });
}
