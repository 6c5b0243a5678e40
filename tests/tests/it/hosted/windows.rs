//! Windows of recordings that count blocked time, as reports and as lines: a guest waits for two
//! seconds and works for two.

use serde_json::Value;

use crate::harness::time::{Span, events, report, script, sum};
use crate::harness::{Client, Guest, wait_until};

/// What the functions with this name hold themselves or below, in the mode's unit.
fn total(report: &Value, function: &str) -> u64 {
    sum(report, function, "total")
}

/// Records until a whole span of waiting, and the work after it, have come and gone; answers the
/// span and how long the work took, which is at least some tenths of a second of the processor.
fn record(client: &Client, mode: &str) -> (Span, u64) {
    client.must(&["start", "-F", "331", "--mode", mode]);
    wait_until("a span of waiting and the work after it", || {
        let events = events(client);
        let span = Span::since_recording(&events, "waiting")?;
        let begins = events.iter().filter(|event| event["kind"] == "span_begin");
        let mut begins = begins.filter_map(|begin| begin["at_ns"].as_u64());
        let next = begins.find(|at_ns| *at_ns >= span.to_ns)?;
        let worked_ns = next - span.to_ns;
        Some((span, worked_ns))
    })
}

/// The reports of the time in which the guest waited, of that in which it worked, and of the span
/// within both.
fn parts(client: &Client, span: &Span, worked_ns: u64) -> [Value; 3] {
    let name = "all.unikprof";
    let moments = [0, span.length_ns(), span.length_ns() + worked_ns].map(|at| span.date(at));
    let [began, ended, worked] = &moments;
    [
        report(client, name, &["--from", began, "--to", ended]),
        report(client, name, &["--from", ended, "--to", worked]),
        report(client, name, &["--in-span", "waiting", "--from", began, "--to", worked]),
    ]
}

/// The blocked time of all lines, in ns; each is a wait below the function that waits.
fn waited_ns(lines: &[Value]) -> u64 {
    // On a loaded machine the guest also waits elsewhere, which mode `wall` tells without a stack.
    let is_told = |line: &&Value| line["outcome"] == "blocked" && line["stack"].is_array();
    let waits = lines.iter().filter(is_told);
    let ns = waits.map(|line| {
        let stack = line["stack"].as_array().unwrap();
        let is_wait = |frame: &Value| frame.as_str().unwrap().ends_with("waits::wait");
        assert!(stack.iter().any(is_wait), "{line}");
        assert_eq!(line["span"], "waiting");
        line["blocked_ns"].as_u64().unwrap()
    });
    ns.sum()
}

#[test]
#[ignore = "full: records a guest"]
fn blocked_time_is_measured_within_a_window() {
    let guest = Guest::start("waits");
    let client = guest.client();
    let (span, worked_ns) = record(&client, "off-cpu");
    // By a dump of the window alone, and by what is cut out of the whole afterwards.
    let told = span.dump(&client, "waited.unikprof");
    assert!(told.contains("window"), "{told}");
    let dumped = report(&client, "waited.unikprof", &[]);
    client.must(&["stop", "-o", "all.unikprof"]);
    let [waited, worked, inside] = parts(&client, &span, worked_ns);
    assert_eq!(waited["counters"], dumped["counters"], "cut before and after");
    let blocked = |report: &Value| report["counters"]["blocked"].as_u64().unwrap();
    // Two seconds of naps; a loaded machine wakes the guest late, which is stolen and not blocked.
    assert!(blocked(&waited) > span.length_ns() / 4, "{waited:#}");
    assert!(blocked(&waited) <= span.length_ns(), "{waited:#}");
    assert_eq!(total(&waited, "waits::wait"), blocked(&waited), "{waited:#}");
    assert_eq!(total(&waited, "waits::work"), 0);
    assert_eq!(waited["counters"]["ticks"], 0, "nothing is sampled");
    assert_eq!(blocked(&worked), 0, "{worked:#}");
    assert_eq!(blocked(&inside), blocked(&waited), "the span alone");

    let inside = ["--in-span", "waiting"];
    let of_span = report(&client, "all.unikprof", &inside);
    let lines = script(&client, "all.unikprof", &inside);
    assert!(lines.iter().all(|line| line["outcome"] == "blocked"));
    assert_eq!(waited_ns(&lines), blocked(&of_span), "each wait has a line");
    // What was counted of a long wait before it ended has a line of its own.
    assert!(lines.len() as u64 >= of_span["counters"]["blocks"].as_u64().unwrap());
    let [began, half] = [0, span.length_ns() / 2].map(|at| span.date(at));
    let window = ["--from", &began, "--to", &half];
    let first_half = report(&client, "all.unikprof", &window);
    assert_eq!(waited_ns(&script(&client, "all.unikprof", &window)), blocked(&first_half));
}

#[test]
#[ignore = "full: records a guest"]
fn a_window_on_the_walls_clock_holds_both_kinds_of_time() {
    let guest = Guest::start("waits");
    let client = guest.client();
    let (span, worked_ns) = record(&client, "wall");
    client.must(&["stop", "-o", "all.unikprof"]);
    let [waited, worked, inside] = parts(&client, &span, worked_ns);
    let due = span.length_ns() * 331 / 1_000_000_000;
    let blocked = waited["counters"]["blocked"].as_u64().unwrap();
    // Intervals are random: the number has a deviation of a third of its root.
    assert!(blocked > due / 4 && blocked <= due + due / 12, "{blocked} of {due}");
    assert!(total(&waited, "waits::wait") >= blocked, "{waited:#}");
    assert_eq!(total(&waited, "waits::work"), 0, "{waited:#}");
    assert_eq!(worked["counters"]["blocked"], 0, "{worked:#}");
    let recorded = worked["counters"]["recorded"].as_u64().unwrap();
    assert!(recorded > 10, "{worked:#}");
    assert!(total(&worked, "waits::work") * 10 > recorded * 9, "{worked:#}");
    assert_eq!(inside["counters"]["blocked"], blocked);

    let of_span = report(&client, "all.unikprof", &["--in-span", "waiting"]);
    let lines = script(&client, "all.unikprof", &["--in-span", "waiting"]);
    let (counters, period_ns) = (&of_span["counters"], &of_span["recording"]["period_ns"]);
    let periods = waited_ns(&lines) / period_ns.as_u64().unwrap();
    assert_eq!(counters["blocked"], periods, "a sample for each period");
    let ticks = lines.iter().filter(|line| line["outcome"] != "blocked");
    assert_eq!(counters["ticks"], ticks.count());
    let all = script(&client, "all.unikprof", &[]);
    let work = |line: &&Value| {
        let stack = line["stack"].as_array();
        let is_work = |frame: &Value| frame.as_str().unwrap().ends_with("waits::work");
        stack.is_some_and(|stack| stack.iter().any(is_work))
    };
    let whole = report(&client, "all.unikprof", &[]);
    assert_eq!(all.iter().filter(work).count() as u64, total(&whole, "waits::work"));
    assert_eq!(lines.iter().filter(work).count(), 0, "no work is in the span");
}

/// Guards that times are told only when a client asks: the seconds in between would then be alike,
/// or unknown.
#[test]
#[ignore = "full: records a guest"]
fn seconds_tell_their_times_though_nobody_asks() {
    let guest = Guest::start("waits");
    let client = guest.client();
    client.must(&["start", "-F", "331"]);
    // Phases that are over say nothing of the recording.
    guest.forget_lines();
    guest.told("worked");
    guest.told("waited");
    guest.told("worked");
    client.must(&["stop", "-o", "all.unikprof"]);
    let told = report(&client, "all.unikprof", &["--timeline", "--step", "500ms"]);
    let shares: Vec<f64> = told["seconds"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|second| second["blocked"].as_f64())
        .collect();
    assert!(shares.len() >= 6, "{told:#}");
    assert!(shares.iter().any(|share| *share > 0.5), "{shares:?}");
    assert!(shares.iter().any(|share| *share < 0.2), "{shares:?}");
}
