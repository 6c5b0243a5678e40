//! What is printed of a trace.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};

use unikprof_proto::message::{BUCKETS, TraceReady, TraceState, bucket};
use unikprof_proto::ring::{Leave, Record, how};
use unikprof_proto::trace::{FunctionTotals, totals_flag};

use super::*;
use crate::report::page::tests::{assert_offline, parts, read};
use unikprof_profile::timeline::{Ring, Timeline, Window};
use unikprof_profile::trace::{Order, Trace, TracedFunction};
use unikprof_test_kit::calls::{TRACE, enter, leave};

/// One ring, which lost ten records in each gap.
fn timeline(records: Vec<Record>, gaps: Vec<Window>) -> Timeline {
    let overwritten = 10 * gaps.len() as u64;
    let ring = Ring { records, gaps, overwritten, ..Ring::default() };
    Timeline::new(vec![ring], BTreeMap::new(), 0)
}

/// `serve` called `parse` four times, of which one was unwound; then records were lost; one `serve`
/// is open.
fn trace() -> Trace {
    let function = |name: &str, calls, unwound, durations: &[u64]| {
        let mut histogram = vec![0; BUCKETS];
        for duration in durations {
            histogram[bucket(*duration)] += 1;
        }
        TracedFunction {
            name: name.into(),
            totals: FunctionTotals {
                calls,
                unwound,
                total_ns: durations.iter().sum(),
                self_ns: durations.iter().sum(),
                min_ns: durations.iter().copied().min().unwrap_or(0),
                max_ns: durations.iter().copied().max().unwrap_or(0),
                ..FunctionTotals::default()
            },
            histogram,
            callers: [1, calls - 1]
                .map(|calls| CallsFrom { code: 16 + calls as u32, name: "main".into(), calls })
                .into(),
            ..TracedFunction::default()
        }
    };
    let mut parse = function("parse\u{1b}[2J", 4, 1, &[5_000, 5_000, 6_000]);
    parse.totals.flags = totals_flag::REMOVED;
    Trace {
        order: Order { patterns: "serve parse".into(), max_cost_permille: 50, ..Order::default() },
        functions: vec![function("serve", 2, 0, &[50_000]), parse],
        refused: vec![("isr".into(), "it returns from an interrupt".into())],
        ready: Some(TraceReady {
            trace: TRACE.into(),
            number: TRACE.into(),
            probe_cycles: 2_500,
            patience_ns: 30,
        }),
        armed: None,
        state: Some(TraceState {
            trace: TRACE.into(),
            state: unikprof_proto::code::trace_state::STOPPED,
            started_ns: 1_000_000,
            ended_ns: 2_000_000,
            probes: 0,
            traps: 11,
            stale: 0,
            unplaced: 3,
            too_deep: 0,
            mismatched: 0,
            truncated: 0,
            callers_lost: 0,
            cycles: 1,
            cost_permille: 4,
        }),
    }
}

fn options_of(function: &str) -> TraceOptions {
    TraceOptions {
        of: Some(function.parse().unwrap()),
        columns: Some(120),
        ..TraceOptions::default()
    }
}

fn shown(options: TraceOptions, format: Format) -> String {
    shown_of(trace(), options, format)
}

fn shown_of(trace: Trace, options: TraceOptions, format: Format) -> String {
    let at = |us: u64| 1_000_000 + us * 1000;
    let records = vec![
        enter(0, 1, at(100)),
        enter(1, 1, at(101)),
        leave(1, 1, at(106), how::RETURNED),
        enter(1, 1, at(107)),
        leave(1, 1, at(112), how::RETURNED),
        enter(1, 1, at(113)),
        leave(1, 1, at(119), how::UNWOUND),
        leave(0, 1, at(150), how::RETURNED),
        enter(0, 1, at(400)),
        // Records are lost here.
        enter(1, 1, at(700)),
        leave(1, 1, at(705), how::RETURNED),
    ];
    let gap = Window { from_ns: at(400), to_ns: at(700) };
    let timeline = timeline(records, vec![gap]);
    let view = TraceView::new(&trace, Some(&timeline), options);
    let mut out = Vec::new();
    view.write(format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Guards times of a call whose function's probes were removed: nothing tells when it ended, and
/// the agent charges none.
#[test]
fn an_open_call_of_a_removed_function_has_no_time_inside_another_either() {
    let trace = trace();
    let records = vec![
        enter(0, 1, 1_000_000),
        enter(1, 1, 1_010_000),
        leave(1, 1, 1_015_000, how::RETURNED),
        enter(1, 1, 1_020_000),
        leave(1, 1, 1_900_000, how::OPEN),
        leave(0, 1, 1_900_000, how::RETURNED),
    ];
    let timeline = timeline(records, Vec::new());
    let options =
        TraceOptions { inside: Some("serve".parse().unwrap()), ..TraceOptions::default() };
    let view = TraceView::new(&trace, Some(&timeline), options);
    let row = view.rows().into_iter().find(|row| row.function == 1);
    let row = row.unwrap();
    assert_eq!((row.calls, row.returned, row.open), (2, 1, 1));
    assert_eq!((row.total_ns, row.self_ns), (5_000, 5_000));
    let caller = view.rows().into_iter().find(|row| row.function == 0);
    assert_eq!(caller.unwrap().self_ns, 900_000 - 5_000);
}

#[test]
fn sums_add_up_and_what_is_missing_says_so() {
    let options = TraceOptions { slowest: 2, ..TraceOptions::default() };
    let text = shown(options, Format::Text);
    for part in [
        "warning: the trace cost more than 5 % of a CPU (--max-cost), so the counts of parse",
        "10 records were lost in 1 places",
        "3 breakpoints were on a thread or stack that the agent does not know",
        "about 2,500 cycles",
        "cost 0.4 % of a CPU",
        "parse\\u{1b}[2J",
        "6 calls = 4 returned + 1 unwound + 1 still open",
        "not traced (it returns from an interrupt):\n  isr\n",
        "(1 unwound, removed)",
        "serve  (end lost)",
    ] {
        assert!(text.contains(part), "{part}\nin\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no control character reaches the terminal");
}

#[test]
fn options_that_mean_no_traced_function_say_so() {
    let pattern = |text: &str| text.parse().unwrap();
    let options = TraceOptions {
        of: Some(pattern("serv")),
        hide: vec![pattern("parse*"), pattern("lwt*")],
        inside: Some(pattern("srve")),
        ..TraceOptions::default()
    };
    let text = shown(options, Format::Text);
    let warnings: Vec<&str> = text.lines().filter(|it| it.contains("no traced")).collect();
    assert_eq!(
        warnings,
        [
            "warning: --of: no traced function matches `serv`; there is `serve`",
            "warning: --hide: no traced function matches `lwt*`",
            "warning: --in: no traced function matches `srve`; there is `serve`",
        ]
    );
}

#[test]
fn a_trace_of_slow_calls_says_what_is_over_time() {
    let slow = Order { slow_ns: 4_000_000, ..trace().order };
    let text = shown_of(Trace { order: slow, ..trace() }, options_of("serve"), Format::Text);
    for part in [
        "single calls are those that took at least 4 ms, and those inside them",
        "kept calls over time  function",
    ] {
        assert!(text.contains(part), "{part}\nin\n{text}");
    }
}

#[test]
fn formats_of_single_calls_refuse_a_trace_that_kept_none() {
    for format in [Format::Chrome, Format::Firefox, Format::Folded, Format::Svg] {
        let mut trace = trace();
        trace.order.count_only = true;
        let view = TraceView::new(&trace, None, TraceOptions::default());
        let refused = view.write(format, &mut Vec::new()).unwrap_err();
        assert!(refused.to_string().contains("--count"), "{refused}");
    }
}

#[test]
fn callers_are_told() {
    let text = shown(options_of("serve"), Format::Text);
    assert!(text.contains("2 calls from main"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&shown(options_of("serve"), Format::Json)).unwrap();
    let callers = &json["functions"][0]["callers"];
    assert_eq!(*callers, serde_json::json!([{"function": "main", "calls": 2}]));
}

/// The longest are those that nothing shown contains, or of the functions that were asked for.
#[test]
fn the_slowest_calls_are_those_that_are_meant() {
    let slowest = |options: TraceOptions| -> Vec<String> {
        let text = shown(options, Format::Text);
        let lines = text.lines().skip_while(|line| !line.ends_with("  call")).skip(1);
        lines.map(|line| line.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")).collect()
    };
    let some = TraceOptions { slowest: 2, ..TraceOptions::default() };
    let serve =
        ["305 µs 305 µs 0 ns serve (end lost)".to_owned(), "50 µs 34 µs 4.1 µs serve".to_owned()];
    assert_eq!(slowest(some.clone()), serve);
    let hidden = TraceOptions { hide: vec!["serve".parse().unwrap()], ..some.clone() };
    let parse = ["6 µs", "5 µs"];
    let durations = |options: TraceOptions| -> Vec<String> {
        let lines = slowest(options).into_iter().filter(|line| line.contains("parse"));
        lines.map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(durations(hidden), parse);
    let of = TraceOptions { of: Some("parse*".parse().unwrap()), ..some };
    assert_eq!(durations(of), parse);
}

/// What is left out is the parent of nothing.
#[test]
fn single_calls_name_the_call_around_them() {
    let parents = |options: TraceOptions| -> Vec<Option<u64>> {
        let json: serde_json::Value = serde_json::from_str(&shown(options, Format::Json)).unwrap();
        let calls = json["calls"].as_array().unwrap().iter();
        calls.map(|call| call["parent"].as_u64()).collect()
    };
    let all = [None, Some(0), Some(0), Some(0), None, None];
    assert_eq!(parents(TraceOptions::default()), all);
    let hide = vec!["serve".parse().unwrap()];
    assert_eq!(parents(TraceOptions { hide, ..TraceOptions::default() }), [None; 4]);
    let long = TraceOptions { min_ns: 6_000, ..TraceOptions::default() };
    assert_eq!(parents(long), [None, Some(0), None]);
}

/// Each time between two events is a sample, whose weight is its length.
#[test]
fn the_firefox_profile_holds_the_time_of_the_calls() {
    let (trace, timeline) = in_turns(1_000);
    let view = TraceView::new(&trace, Some(&timeline), TraceOptions::default());
    let mut out = Vec::new();
    view.write(Format::Firefox, &mut out).unwrap();
    let json = flate2::read::GzDecoder::new(out.as_slice());
    let profile: serde_json::Value = serde_json::from_reader(json).unwrap();
    let thread = &profile["threads"][0];
    let weights = thread["samples"]["weight"].as_array().unwrap().iter();
    let sum_ms: f64 = weights.map(|it| it.as_f64().unwrap()).sum();
    let own_ns: u64 = trace.functions.iter().map(|it| it.totals.self_ns).sum();
    assert!((sum_ms - own_ns as f64 / 1e6).abs() < 1e-6, "{sum_ms} {own_ns}");
    let names = profile.to_string();
    assert!(names.contains("\"serve\"") && names.contains("\"weightType\":\"tracing-ms\""));
}

#[test]
fn folded_stacks_hold_the_time_of_the_calls() {
    let text = shown(TraceOptions::default(), Format::Folded);
    let sum = |prefix: &str| -> u64 {
        let lines = text.lines().filter(|line| line.starts_with(prefix));
        lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    // The first call of `serve` took 50 µs; the one that is open is known up to the last record.
    assert_eq!(sum("serve"), 50_000 + 300_000 + 5_000 - 5_000, "{text}");
    assert_eq!(sum("serve;parse"), 16_000, "{text}");
    assert_eq!(sum("parse"), 5_000, "{text}");
}

/// The data of the page, and its program.
fn page(options: TraceOptions) -> (serde_json::Value, HashMap<String, Vec<u64>>, String) {
    let (program, data) = parts(&shown(options, Format::Page));
    let (head, columns) = read(&data);
    (head, columns, program)
}

#[test]
fn the_page_has_the_report_and_each_call() {
    let (head, columns, _) = page(TraceOptions::default());
    let mut json: serde_json::Value =
        serde_json::from_str(&shown(TraceOptions::default(), Format::Json)).unwrap();
    for key in ["lost_records", "holes", "calls"] {
        json.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(head["report"], json);
    let numbers = head["numbers"].as_array().unwrap().iter();
    for (number, function) in numbers.zip(json["functions"].as_array().unwrap()) {
        let name = &head["names"][number.as_u64().unwrap() as usize];
        assert_eq!(*name, function["function"]);
    }
    assert_eq!(head["time"]["holes"][0], serde_json::json!([0, 400_000, 700_000]));
    assert_eq!(columns["call_function"], [0, 1, 1, 1, 0, 1]);
    // The last one began after records were lost: its caller is not known, and was open all the
    // time.
    assert_eq!(columns["call_row"], [1, 2, 2, 2, 1, 2]);
    assert_eq!(columns["call_length"], [50_000, 5_000, 5_000, 6_000, 305_000, 5_000]);
    assert_eq!(columns["call_self"][0], 34_000);
    assert_eq!(columns["call_end"], [0, 0, 0, 1, 4, 0]);
    assert_eq!(columns["call_hole"], [0, 0, 0, 0, 1, 0]);
    assert_eq!(columns["call_outermost"], [1; 6]);
}

#[test]
fn what_is_left_out_of_the_page_is_counted_and_not_drawn() {
    let options = TraceOptions {
        hide: vec!["serve".parse().unwrap()],
        min_ns: 5_500,
        ..TraceOptions::default()
    };
    let (_, columns, _) = page(options);
    assert_eq!(columns["call_row"], [0, 0, 0, 1, 0, 0]);
    let options =
        TraceOptions { inside: Some("serve".parse().unwrap()), ..TraceOptions::default() };
    let (head, columns, _) = page(options);
    assert_eq!(columns["call_function"], [0, 1, 1, 1, 0]);
    assert_eq!(head["is_part"], true);
}

/// Names of the guest are in the data alone, which is base64.
#[test]
fn the_page_is_small_and_no_name_of_the_guest_is_markup() {
    let (head, _, program) = page(TraceOptions::default());
    assert_eq!(head["title"], "trace of serve parse");
    assert!(!program.contains("serve"), "a function's name");
    assert!(program.len() <= 70_000, "{} bytes", program.len());
    assert_offline(&program);
}

/// A trace of 1 ms whose `serve` and `parse` are called in turns, `serve` for `serve_ns` and up to
/// 100 ns more, and its rings.
fn in_turns(serve_ns: u64) -> (Trace, Timeline) {
    in_turns_stolen(serve_ns, 0)
}

/// The same, with up to so many times 256 ns more in each call during which its vCPU did not run.
fn in_turns_stolen(serve_ns: u64, most: u64) -> (Trace, Timeline) {
    let mut records = Vec::new();
    let mut random = fastrand::Rng::with_seed(serve_ns);
    let mut trace = trace();
    for function in &mut trace.functions {
        function.totals = FunctionTotals::default();
    }
    for at in (1_000_000..2_000_000).step_by(5_000) {
        let lengths = [serve_ns, 700].map(|ns| ns + random.u64(0..100));
        for ((number, ran_ns), start) in (0..).zip(lengths).zip([at, at + 2_500]) {
            let waited_ns = 256 * random.u64(0..=most);
            let length = ran_ns + waited_ns;
            records.push(enter(number, 1, start));
            let left = leave(number, 1, start + length, how::RETURNED);
            let leave = Leave { waited_ns, ..Leave::from_number(left.first) };
            records.push(Record { first: leave.to_number(), ..left });
            let totals = &mut trace.functions[usize::from(number)].totals;
            totals.calls += 1;
            totals.self_ns += length;
            totals.waited_ns += waited_ns;
        }
    }
    (trace, timeline(records, Vec::new()))
}

fn compared(traces: &[(Trace, Timeline); 2]) -> (String, serde_json::Value) {
    let view = |(trace, timeline)| TraceView::new(trace, Some(timeline), TraceOptions::default());
    let [(base, base_rings), (new, new_rings)] = traces;
    let diff = TraceDiff::of(&[(base, base_rings), (new, new_rings)].map(view));
    let [mut text, mut json] = [Vec::new(), Vec::new()];
    diff.write(0, Some(80), &mut text).unwrap();
    diff.write_json(&mut json).unwrap();
    let text = String::from_utf8(text).unwrap();
    (text, serde_json::from_slice(&json).unwrap())
}

/// Guards against changes that are chance and look like others.
#[test]
fn traces_compare_by_function_and_tell_chance() {
    let (text, json) = compared(&[in_turns(1_000), in_turns(1_200)]);
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
    assert!(row("serve").ends_with("serve  (slower)"), "{text}");
    assert!(row("serve").contains("1.0 µs → 1.3 µs"), "{text}");
    assert!(row("parse").ends_with("[2J"), "{text}");
    assert!(text.lines().skip(3).all(|line| line.chars().count() <= 80), "{text}");
    let ([low, high], is_found) = own_change(&json, "serve");
    assert!(1.15 < low && low < 1.2 && 1.15 < high && high < 1.25 && is_found, "{json:#}");
    assert!(!own_change(&json, "parse").1, "{json:#}");
}

/// The interval of the own time of a function's calls.
fn own_change(json: &serde_json::Value, name: &str) -> ([f64; 2], bool) {
    let functions = json["functions"].as_array().unwrap();
    let row = functions.iter().find(|it| it["function"].as_str().unwrap().contains(name));
    let change = &row.unwrap()["self_per_call_change"];
    let ends = ["low", "high"].map(|key| change[key].as_f64().unwrap());
    (ends, change["significant"].as_bool().unwrap())
}

/// Calls on a host that steals take longer and run as long; one that runs longer is found there.
#[test]
fn stolen_time_is_no_change_of_a_function() {
    let base = in_turns(1_000);
    let (text, json) = compared(&[base.clone(), in_turns_stolen(1_000, 4)]);
    for name in ["serve", "parse"] {
        let ([low, high], is_found) = own_change(&json, name);
        assert!(0.97 < low && low < high && high < 1.03 && !is_found, "{json:#}");
    }
    assert!(text.contains("1.0 µs → 1.0 µs") && text.contains("749 ns → 749 ns"), "{text}");
    let (_, json) = compared(&[base, in_turns_stolen(1_200, 4)]);
    let ([low, high], is_found) = own_change(&json, "serve");
    assert!(1.15 < low && high < 1.25 && is_found, "{json:#}");
    assert!(!own_change(&json, "parse").1, "{json:#}");
}

/// Guards against a change that is the removal of probes: calls of the function end early, and its
/// time becomes its caller's.
#[test]
fn what_the_removal_of_probes_does_is_no_change_of_the_guest() {
    let nested = |removed_at: u64| {
        let (mut trace, _) = in_turns(0);
        for function in &mut trace.functions {
            function.totals = FunctionTotals::default();
        }
        let mut records = Vec::new();
        for at in (1_000_000..2_000_000).step_by(5_000) {
            let is_removed = at >= removed_at;
            let length = 2_000 + at / 1_000 % 97;
            records.push(enter(0, 1, at));
            if !is_removed {
                records.push(enter(1, 1, at + 100));
                records.push(leave(1, 1, at + 1_100, how::RETURNED));
            }
            records.push(leave(0, 1, at + length, how::RETURNED));
            let inside = u64::from(!is_removed);
            for (function, calls, own_ns) in [(0, 1, length - 1_000 * inside), (1, inside, 1_000)] {
                let totals = &mut trace.functions[function].totals;
                totals.calls += calls;
                totals.self_ns += calls * own_ns;
                if is_removed && function == 1 {
                    totals.flags = totals_flag::REMOVED;
                }
            }
        }
        (trace, timeline(records, Vec::new()))
    };
    // Also before anything was counted.
    for removed_at in [1_400_000, 0] {
        let (text, json) = compared(&[nested(u64::MAX), nested(removed_at)]);
        let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap();
        assert!(row("serve").ends_with("serve"), "{text}");
        assert!(text.contains("(removed in NEW)") && !text.contains("fewer"), "{text}");
        let mut functions = json["functions"].as_array().unwrap().iter();
        let parse = functions.find(|it| it["function"] != "serve").unwrap();
        assert!(
            parse["new"]["calls_per_second"].is_null() && parse["calls_change"].is_null(),
            "{json:#}"
        );
    }
}

#[test]
fn traces_without_their_calls_say_that_chance_is_not_known() {
    let (mut counted, timeline) = in_turns(1_000);
    counted.order.count_only = true;
    let (text, json) = compared(&[in_turns(1_000), (counted, timeline)]);
    let why = "NEW keeps no single calls (--count)";
    assert!(text.contains(why), "{text}");
    assert_eq!(json["no_intervals"], why);
    assert!(json["functions"][0]["calls_change"].is_null(), "{json:#}");
}

#[test]
fn functions_that_are_refused_stand_below_their_reason() {
    let refused = |name: &str, reason: &str| (name.to_owned(), reason.to_owned());
    let mut trace = trace();
    let long =
        "core::ptr::drop_in_place<alloc::vec::Vec<u8>>::with::a::very::long::path::to::its::end";
    trace.refused.push(refused(long, "no slot"));
    trace.refused.extend((0..6).map(|number| refused(&format!("f{number}"), "no slot")));
    let lines = |columns, top| -> Vec<String> {
        let options = TraceOptions { columns, top, ..TraceOptions::default() };
        let text = shown_of(trace.clone(), options, Format::Text);
        let lines = text.lines().skip_while(|line| !line.starts_with("not traced"));
        lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let some = lines(Some(80), 30);
    assert_eq!(
        some[..3],
        ["not traced (it returns from an interrupt):", "  isr", "not traced (no slot):"]
    );
    assert!(
        some[3].starts_with("  core::ptr::drop_in_place<…>::") && some[3].len() <= 82,
        "{some:#?}"
    );
    assert_eq!(some[4..], ["  f0", "  f1", "  f2", "  f3", "  and 2 more; --top 0 lists all"]);
    for all in [lines(Some(80), 0), lines(None, 30)] {
        assert_eq!(all.last().unwrap(), "  f5");
    }
    assert_eq!(lines(None, 30)[3], format!("  {long}"));
}
