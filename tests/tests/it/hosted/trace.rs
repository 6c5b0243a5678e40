//! `trace`: every call of some functions of a guest that was not built for it.

use std::collections::BTreeMap;

use object::{Object as _, ObjectSymbol as _};
use serde_json::{Value, json};
use unikprof_client::exit_code;
use unikprof_proto::code::message_type::{TRACE_ARM, TRACE_FETCH};

use crate::harness::{Client, Guest, Keyed, Proxy, wait_until};
use crate::hosted::page::{HOSTILE, drive, opened};

fn image() -> &'static str {
    Guest::program().to_str().unwrap()
}

/// The load's own counts, by name: `done NAME NUMBER NAME NUMBER ...`.
fn counted(line: &str) -> BTreeMap<String, u64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let pairs = words.chunks_exact(2);
    pairs.map(|pair| (pair[0].to_owned(), pair[1].parse().unwrap())).collect()
}

/// Traces the load from before its beginning until it has ended; returns what it counted and what
/// the client printed.
pub(crate) fn traced(
    guest: &mut Guest,
    client: &Client,
    words: &[&str],
) -> (BTreeMap<String, u64>, String) {
    let running = client.begin(words);
    running.wait_for_words("tracing until interrupted");
    guest.tell();
    let done = guest.told("done ");
    running.interrupt();
    let finished = running.finish().expect_success();
    let told = "stopping; the calls so far are kept";
    assert!(finished.stderr.contains(told), "{}", finished.stderr);
    guest.assert_alive();
    (counted(&done), finished.stdout)
}

/// The function whose name ends so.
pub(crate) fn function<'v>(trace: &'v Value, name: &str) -> &'v Value {
    let functions = trace["functions"].as_array().unwrap();
    let found = functions.iter().find(|it| it["function"].as_str().unwrap().ends_with(name));
    found.unwrap_or_else(|| panic!("{name} in {trace:#}"))
}

/// `calls = returned + unwound + replaced + open + lost`, for each function.
pub(crate) fn assert_sums(trace: &Value) {
    for function in trace["functions"].as_array().unwrap() {
        let parts = ["returned", "unwound", "replaced", "open", "lost_ends"];
        let sum: u64 = parts.iter().map(|part| function[part].as_u64().unwrap()).sum();
        assert_eq!(function["calls"], sum, "{function:#}");
    }
}

/// The single calls of the functions whose names end so.
pub(crate) fn calls_in(calls: &Value, name: &str) -> u64 {
    let calls = calls.as_array().unwrap().iter();
    calls.filter(|call| call["function"].as_str().unwrap().ends_with(name)).count() as u64
}

const ALL: [&str; 5] = ["outer", "inner", "recursive", "waits", "unwinds"];

/// Calls of a known tree are exact in the table and one by one, those that a panic ends are
/// marked, and no duration is shorter than what the function itself measured.
#[test]
fn calls_of_a_known_tree_are_exact() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = ["trace", "traced::*", "--max-cost", "0", "--image", image(), "-o", "run.unikprof"];
    let (counted, _) = traced(&mut guest, &client, &words);
    let trace = client.run(&["report", "run.unikprof", "--json"]).expect_json();
    assert_sums(&trace);
    assert_eq!(trace["warnings"], Value::Array(vec![]), "{trace:#}");
    for name in ALL {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
        assert_eq!(calls_in(&trace["calls"], &format!("traced::{name}")), counted[name], "{name}");
        assert_eq!(found["open"], 0, "{name}");
        assert_eq!(found["orphans"], 0, "{name}");
    }
    let unwinds = function(&trace, "traced::unwinds");
    assert_eq!(unwinds["unwound"], counted["unwinds"], "each ends by a panic");
    for name in ["outer", "waits"] {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["returned"], counted[name]);
        let total_ns = found["total_ns"].as_u64().unwrap();
        assert!(total_ns >= counted[&format!("{name}_ns")], "{name}: {total_ns} {counted:?}");
    }
    let inner = function(&trace, "traced::inner");
    let callers = inner["callers"].as_array().unwrap();
    assert!(callers.iter().all(|it| it["function"].as_str().unwrap().ends_with("traced::outer")));
    let from: u64 = callers.iter().map(|it| it["calls"].as_u64().unwrap()).sum();
    assert_eq!(from, counted["inner"]);

    // Only what happens within one function, with the rest of it hidden.
    let words = ["report", "run.unikprof", "--json", "--in", "recursive"];
    let part = client.run(&words).expect_json();
    assert_sums(&part);
    assert_eq!(calls_in(&part["calls"], "inner"), 0);
    assert_eq!(function(&part, "recursive")["calls"], counted["recursive"]);
    let words = ["report", "run.unikprof", "--json", "--hide", "outer"];
    let hidden = client.run(&words).expect_json();
    assert_eq!(calls_in(&hidden["calls"], "outer"), 0);
    assert_eq!(calls_in(&hidden["calls"], "inner"), counted["inner"]);

    // The other formats hold the same calls.
    let all: u64 = ALL.iter().map(|name| counted[*name]).sum();
    let words = ["-o", "run.trace.json", "-o", "run.svg", "-o", "run.folded", "-o", "run.txt"];
    let words = [&["report", "run.unikprof", "-o", "run.profile.json.gz"][..], &words].concat();
    client.run(&words).expect_success();
    let text = std::fs::read_to_string(client.path("run.trace.json")).unwrap();
    let chrome: Value = serde_json::from_str(&text).unwrap();
    let events = chrome["traceEvents"].as_array().unwrap().iter();
    let complete = events.filter(|event| event["ph"] == "X").count() as u64;
    assert!(complete >= all, "{complete} {all}");
    let svg = std::fs::read_to_string(client.path("run.svg")).unwrap();
    assert!(svg.contains("traced::inner") && svg.ends_with("</svg>\n"));
    let text = std::fs::read_to_string(client.path("run.txt")).unwrap();
    assert!(text.contains("unwound"), "{text}");
    the_page_shows_the_same(&client, &trace, &text, events_of(&chrome));
    assert!(guest.stop().success());
}

/// A function's name that is markup stays text in the page of a trace, which `report --open` opens.
#[test]
#[ignore = "full: records a guest"]
fn hostile_names_of_functions_stay_text_in_the_page_of_a_trace() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let bytes = std::fs::read(image()).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let mut names = file.symbols().filter_map(|symbol| symbol.name().ok());
    let inner = names.find(|name| name.contains("6traced5inner")).unwrap();
    let copied = std::process::Command::new("objcopy")
        .args(["--strip-debug", "--redefine-sym", &format!("{inner}={HOSTILE}")])
        .args([image(), client.path("hostile").to_str().unwrap()])
        .status()
        .unwrap();
    assert!(copied.success());
    let words = ["trace", "*onerror*", "--max-cost", "0", "--image", "hostile"];
    let words = [&words[..], &["-o", "run.unikprof"]].concat();
    let (counted, _) = traced(&mut guest, &client, &words);
    let page = client.path(&opened(&client, &[]));
    let steps = [
        json!({ "open": page }),
        json!({ "rows": "#list tbody tr" }),
        json!({ "click": "#list tbody tr:first-child button" }),
        json!({ "read": "#chosen" }),
        json!({ "read": "img, script:not([type])" }),
        json!({ "read": "#title" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let rows = shown[1].as_array().unwrap();
    assert_eq!((rows.len(), number(&rows[0][0])), (1, counted["inner"]));
    for place in [&rows[0][7], &shown[3][0]] {
        assert!(place.as_str().unwrap().contains(HOSTILE), "{place}");
    }
    let scripts = shown[4].as_array().unwrap();
    assert_eq!(scripts.len(), 1, "the page's own program alone");
    assert!(shown[5][0].as_str().unwrap().contains("onerror"));
    assert!(guest.stop().success());
}

/// Each call's function and beginning, in ns since the trace began.
fn events_of(chrome: &Value) -> Vec<(String, u64)> {
    let events = chrome["traceEvents"].as_array().unwrap().iter();
    let complete = events.filter(|event| event["ph"] == "X");
    complete
        .map(|event| {
            let name = event["name"].as_str().unwrap().to_owned();
            (name, (event["ts"].as_f64().unwrap() * 1000.0).round() as u64)
        })
        .collect()
}

/// The number at the beginning of a text, with its thousands apart.
fn number(text: &Value) -> u64 {
    let first = text.as_str().unwrap().split_whitespace().next().unwrap();
    first.replace(',', "").parse().unwrap()
}

/// The page's table is that of the text, its histogram that of the JSON; a range has the calls that
/// begin in it, a function is chosen in its lane, and the address restores all of it.
fn the_page_shows_the_same(client: &Client, trace: &Value, text: &str, events: Vec<(String, u64)>) {
    client.run(&["report", "run.unikprof", "-o", "run.html"]).expect_success();
    let path = client.path("run.html").display().to_string();
    let length = trace["ended_ns"].as_u64().unwrap() - trace["started_ns"].as_u64().unwrap();
    let half = length / 2;
    let rows = json!({ "rows": "#list tbody tr" });
    let mut steps = vec![
        json!({ "open": path }),
        rows.clone(),
        json!({ "click": "#list tbody tr:first-child button" }),
        json!({ "rows": "#histogram tbody tr" }),
        json!({ "open": format!("{path}#window=0-{half}") }),
        rows.clone(),
        json!({ "open": path }),
        json!({ "drag": "#overlay", "from": [0.4, 0.03], "to": [0.7, 0.03] }),
        json!({ "hash": true }),
        json!({ "read": "#shown" }),
        rows.clone(),
        json!({ "press": "Escape" }),
        json!({ "type": "#query", "text": "traced::inner$" }),
        json!({ "read": "#matched" }),
        rows.clone(),
        // The lane of the one that matches is the last.
        json!({ "hover": "#overlay", "at": [0.9, 0.97] }),
        json!({ "click": "#overlay", "at": [0.9, 0.97] }),
        json!({ "read": "#chosen" }),
        json!({ "hash": true }),
        // The outermost calls of the stack with most of them.
        json!({ "open": path }),
    ];
    let hovers = steps.len();
    steps.extend(
        (0..50).map(|x| json!({ "hover": "#overlay", "at": [0.1 + 0.018 * f64::from(x), 0.03] })),
    );
    let Some(shown) = drive(&steps) else { return };

    let functions = trace["functions"].as_array().unwrap();
    let table = shown[1].as_array().unwrap();
    assert_eq!(table.len(), functions.len());
    let lines = text.lines().skip_while(|line| !line.ends_with("  function"));
    let lines = lines.skip(1).take_while(|line| !line.contains(" calls = "));
    let lines = lines.filter(|line| !line.contains(" more functions"));
    for ((line, row), function) in lines.zip(table).zip(functions) {
        let name = function["function"].as_str().unwrap();
        assert!(row[7].as_str().unwrap().starts_with(name), "{row}");
        let cells = row.as_array().unwrap()[..7].iter();
        let words = cells.flat_map(|cell| cell.as_str().unwrap().split_whitespace());
        assert!(words.clone().eq(line.split_whitespace().take(words.count())), "{row} in {line}");
    }

    let mut by_power: BTreeMap<u32, u64> = BTreeMap::new();
    for bucket in functions[0]["histogram"].as_array().unwrap() {
        let power = bucket["from_ns"].as_u64().unwrap().max(1).ilog2();
        *by_power.entry(power).or_default() += bucket["calls"].as_u64().unwrap();
    }
    let histogram = shown[3].as_array().unwrap().iter();
    let histogram: Vec<u64> = histogram.map(|row| number(&row[1])).collect();
    let histogram = histogram.into_iter().filter(|calls| *calls > 0);
    assert!(histogram.eq(by_power.into_values()), "{}", shown[3]);

    let calls_in = |from: u64, to: u64| -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (name, _) in events.iter().filter(|(_, at)| (from..to).contains(at)) {
            *counts.entry(name.clone()).or_default() += 1;
        }
        counts
    };
    let calls_of = |rows: &Value| -> BTreeMap<String, u64> {
        // Several functions may have one name.
        let mut counts = BTreeMap::new();
        for row in rows.as_array().unwrap() {
            let name = row[7].as_str().unwrap().split(' ').next().unwrap();
            *counts.entry(name.to_owned()).or_default() += number(&row[0]);
        }
        counts
    };
    assert_eq!(calls_of(&shown[5]), calls_in(0, half));
    let hash = shown[8].as_str().unwrap();
    let window = hash.split_once("window=").unwrap().1;
    let (from, to) = window.split('&').next().unwrap().split_once('-').unwrap();
    let dragged = calls_in(from.parse().unwrap(), to.parse().unwrap());
    assert_eq!(calls_of(&shown[10]), dragged, "{hash}");
    assert_eq!(number(&shown[9][0]), dragged.values().sum::<u64>());

    assert_eq!(shown[13][0], "1 function matches");
    assert_eq!(shown[14].as_array().unwrap().len(), 1);
    let tip = shown[15].as_str().unwrap();
    assert!(tip.contains("traced::inner") && tip.contains(" calls in "), "{tip}");
    let chosen = shown[17][0].as_str().unwrap();
    assert!(chosen.ends_with("traced::inner"), "{chosen}");
    let hash = shown[18].as_str().unwrap();
    assert!(hash.contains("query=traced") && hash.contains("chosen="), "{hash}");
    let tips = shown[hovers..].iter().filter_map(Value::as_str);
    let calls = tips.filter(|tip| tip.contains(" on vCPU ") && tip.contains("traced::")).count();
    assert!(calls > 0, "{:#?}", &shown[hovers..]);
}

/// Subcommands that need samples say that the file is a trace, and how to show it.
#[test]
#[ignore = "full: records a guest"]
fn what_needs_samples_says_that_a_file_is_a_trace() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = ["trace", "traced::outer", "--max-cost", "0", "-o", "run.unikprof"];
    traced(&mut guest, &client, &[&words[..], &["--image", image()]].concat());
    for words in [
        &["doctor", "run.unikprof"][..],
        &["script", "run.unikprof"],
        &["leaks", "run.unikprof"],
        &["view", "run.unikprof", "--no-open"],
        &["report", "run.unikprof", "run.unikprof"],
    ] {
        let refused = client.run(words).expect_code(exit_code::INPUT);
        let text = "run.unikprof is a trace of function calls and has no samples: show it with \
                    `report run.unikprof`";
        assert!(refused.stderr.contains(text), "{words:?}: {}", refused.stderr);
    }
    for words in [
        &["report", "run.unikprof", "--timeline"][..],
        &["report", "run.unikprof", "--from", "1s"],
        &["report", "run.unikprof", "--callers", "main"],
        &["report", "run.unikprof", "--vcpu", "0"],
        &["diff", "run.unikprof", "run.unikprof", "--last", "1s"],
    ] {
        let refused = client.run(words).expect_code(exit_code::USAGE);
        let option = words.iter().find(|word| word.starts_with("--")).unwrap();
        let text = format!("{option} is for recordings of samples");
        assert!(refused.stderr.contains(&text), "{words:?}: {}", refused.stderr);
    }
}

/// Without rings: counts alone.
#[test]
#[ignore = "full: records a guest"]
fn counting_keeps_no_calls() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = ["--json", "trace", "--count", "traced::*", "--max-cost", "0", "--image", image()];
    let (counted, stdout) = traced(&mut guest, &client, &words);
    let trace: Value = serde_json::from_str(&stdout).unwrap();
    assert_sums(&trace);
    for name in ALL {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
    }
    assert!(trace.get("calls").is_none());
}

/// A function's direct callees are traced with it, and the callees of these are not.
#[test]
#[ignore = "full: records a guest"]
fn what_a_function_calls_is_traced_with_it() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = ["--json", "trace", "traced::outer", "--depth", "1"];
    let words = [&words[..], &["--max-cost", "0", "--image", image()]].concat();
    let (counted, stdout) = traced(&mut guest, &client, &words);
    let trace: Value = serde_json::from_str(&stdout).unwrap();
    assert_sums(&trace);
    for name in ["outer", "inner", "recursive", "waits"] {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
    }
    let functions = trace["functions"].as_array().unwrap();
    let is_deeper = |it: &&Value| it["function"].as_str().unwrap().ends_with("traced::unwinds");
    assert_eq!(functions.iter().find(is_deeper), None, "called by a closure");
}

/// Only the calls that took long are kept, with what they called; the counts are of all calls.
#[test]
#[ignore = "full: records a guest"]
fn slow_calls_are_kept_with_what_they_called() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    let words = ["trace", "--slow", "4ms", "traced::outer", "traced::waits", "traced::inner"];
    let words =
        [&words[..], &["--max-cost", "0", "--image", image(), "-o", "run.unikprof"]].concat();
    let (counted, _) = traced(&mut guest, &client, &words);
    let trace = client.run(&["report", "run.unikprof", "--json"]).expect_json();
    assert_sums(&trace);
    for name in ["outer", "waits", "inner"] {
        let found = function(&trace, &format!("traced::{name}"));
        assert_eq!(found["calls"], counted[name], "{name}: {found:#}");
    }
    let calls = trace["calls"].as_array().unwrap().iter();
    for root in calls.filter(|call| call["parent"].is_null()) {
        assert!(root["function"].as_str().unwrap().ends_with("traced::outer"), "{root:#}");
        assert!(root["duration_ns"].as_u64().unwrap() >= 4_000_000, "{root:#}");
    }
    // Each wait takes 5 ms.
    assert_eq!(calls_in(&trace["calls"], "traced::waits"), counted["waits"]);
}

/// A function that is called too often loses its probes, and the report names it.
#[test]
#[ignore = "full: records a guest"]
fn what_costs_too_much_is_removed_and_named() {
    let guest = Guest::start("burst");
    let client = guest.client();
    let words = ["--json", "trace", "burst::usual", "burst::burst", "--for", "2s"];
    let words = [&words[..], &["--max-cost", "0.1%", "--image", image()]].concat();
    // A guest that others keep from its processor makes no calls, which cost nothing.
    let costly = |words: &[&str]| {
        wait_until("functions that cost too much", || {
            let traced = client.connect(words).expect_success();
            let warned = traced.stdout.contains("(--max-cost), so the counts of");
            warned.then_some(traced)
        })
    };
    let trace = costly(&words).expect_json();
    let mut functions = trace["functions"].as_array().unwrap().iter();
    assert!(functions.any(|it| it["removed"] == true), "{trace:#}");
    let warnings = trace["warnings"].to_string();
    assert!(
        warnings.contains("(--max-cost), so the counts of") && warnings.contains("burst"),
        "{warnings}"
    );
    // A file has them too, but nobody may look at it.
    let words = [&words[1..], &["-o", "burst.unikprof", "-o", "burst.txt"]].concat();
    let written = costly(&words);
    let end = "\n\nwrote        burst.unikprof\nwrote        burst.txt\n\
               next         unikprof-client report burst.unikprof --open\n";
    for part in
        ["warning: the trace cost more than", " of a CPU\n", "  function\n", "removed)\n", end]
    {
        assert!(written.stdout.contains(part), "{part}\nin\n{}", written.stdout);
    }
    assert!(!written.stdout.contains("  call\n"), "{}", written.stdout);
    let words = ["report", "burst.unikprof", "-o", "burst.html"];
    let written = client.run(&words).expect_success();
    assert!(written.stderr.contains("warning: the trace cost more than"), "{}", written.stderr);
}

/// Whoever gives up leaves the guest as it was, at once: before the mend, others had to wait for 30
/// s, with all probes set if it was in the trace.
#[test]
#[ignore = "full: records a guest"]
fn giving_up_removes_the_probes_at_once() {
    let guest = Guest::start("traced");
    let words = ["trace", "traced::*", "--for", "1s", "--image", image()];
    // Of two signals of one kind that arrive together only one is seen.
    for (request, signals) in [(TRACE_ARM, &["-INT"][..]), (TRACE_FETCH, &["-INT", "-TERM"])] {
        let proxy = Proxy::to(guest.address());
        proxy.stall_next_at(request);
        let running = Client::of(proxy.address()).begin(&words);
        proxy.wait_for_stall();
        for signal in signals {
            running.signal(signal);
        }
        let ended = running.finish();
        let told = "all probes are removed";
        assert!(ended.stderr.contains(told), "{request}: {}", ended.stderr);
        guest.client().connect(&words).expect_success();
    }
}

/// The client keeps the last counts that it fetched, and tells what becomes of the probes.
#[test]
#[ignore = "full: records a guest"]
fn a_guest_that_is_gone_ends_the_trace() {
    let mut guest = Guest::start("traced");
    let proxy = Proxy::to(guest.address());
    let words = ["--retry", "1s", "trace", "traced::*", "--max-cost", "0", "--image", image()];
    let words = [&words[..], &["-o", "gone.unikprof"]].concat();
    let client = Client::of(proxy.address());
    let running = client.begin(&words);
    running.wait_for_words("tracing until interrupted");
    guest.tell();
    let counted = counted(&guest.told("done "));
    // The answer to the first of two was taken when the second was sent.
    let asked = || proxy.requests(TRACE_FETCH).len();
    let before = asked();
    wait_until("two requests for counts", || (asked() >= before + 2).then_some(()));
    drop(proxy);
    let ended = running.finish().expect_code(exit_code::INCOMPLETE);
    for part in ["the agent removes them itself, 30 s after", "what arrived is in gone.unikprof"] {
        assert!(ended.stderr.contains(part), "{part}\nin\n{}", ended.stderr);
    }
    let trace = client.run(&["report", "gone.unikprof", "--json"]).expect_json();
    for name in ALL {
        assert_eq!(function(&trace, &format!("traced::{name}"))["calls"], counted[name], "{name}");
    }
}

/// A trace whose folder is gone is kept beside it, or where temporary files are.
#[test]
#[ignore = "full: records a guest"]
fn a_trace_whose_folder_is_removed_is_kept() {
    let mut guest = Guest::start("traced");
    let client = guest.client();
    std::fs::create_dir(client.path("here")).unwrap();
    let words = ["trace", "traced::*", "--max-cost", "0", "--image", image()];
    let running = client.begin(&[&words[..], &["-o", "here/run.unikprof"]].concat());
    running.wait_for_words("tracing until interrupted");
    std::fs::remove_dir_all(client.path("here")).unwrap();
    guest.tell();
    let counted = counted(&guest.told("done "));
    running.interrupt();
    let ended = running.finish().expect_code(exit_code::OUTPUT);
    let kept = ended.stderr.split("the recording itself is in ").nth(1).unwrap();
    let kept = kept.split(';').next().unwrap();
    let trace = client.run(&["report", kept, "--json"]).expect_json();
    std::fs::remove_file(client.path(kept)).unwrap();
    for name in ALL {
        assert_eq!(function(&trace, &format!("traced::{name}"))["calls"], counted[name], "{name}");
    }
}

/// A key that may control recordings may not trace.
#[test]
#[ignore = "full: records a guest"]
fn a_key_without_the_role_may_not_trace() {
    let keyed = Keyed::start("traced");
    let client = keyed.owner();
    let refused = client.connect(&["trace", "traced::*", "--for", "1s", "--image", image()]);
    let refused = refused.expect_code(exit_code::KEY);
    assert!(refused.stderr.contains("trace"), "{}", refused.stderr);
}

/// Requests for impossible traces are refused before anything is set.
#[test]
fn what_cannot_be_traced_is_refused() {
    let guest = Guest::start("traced");
    let client = guest.client();
    let refused = client.connect(&["trace", "no_such_function", "--image", image()]);
    let refused = refused.expect_code(exit_code::USAGE);
    assert!(
        refused.stderr.contains("no function matches `no_such_function`"),
        "{}",
        refused.stderr
    );
    let refused = client.connect(&["trace", "traced::otuer", "--image", image()]);
    let refused = refused.expect_code(exit_code::USAGE);
    let similar = "no function matches `traced::otuer`; there is `hosted_guest::traced::outer`";
    assert!(refused.stderr.contains(similar), "{}", refused.stderr);
    // What would show nothing is refused before anything is traced.
    let words = ["trace", "traced::outer", "--for", "1s", "--image", image()];
    let no_function =
        "no function of the trace matches `ouetr`; there is `hosted_guest::traced::outer`";
    for (more, told) in [
        (["--of", "ouetr"], no_function),
        (["--hide", "ouetr"], no_function),
        (["-o", "x.pb.gz"], "a trace cannot be written as pprof"),
    ] {
        let refused = client.connect(&[&words[..], &more].concat());
        let refused = refused.expect_code(exit_code::USAGE);
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
        assert_eq!(std::fs::read_dir(client.path("")).unwrap().count(), 0);
    }
    let refused = client.connect(&["trace", "trace*", "--image", "/bin/ls"]);
    let refused = refused.expect_code(exit_code::INPUT);
    assert!(refused.stderr.contains("build-id"), "{}", refused.stderr);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let libc = paths.find(|path| path.contains("/libc.so")).unwrap();
    let refused = client.connect(&["trace", "malloc", "--image", libc]);
    let refused = refused.expect_code(exit_code::REFUSED);
    assert!(refused.stderr.contains("while signals are blocked"), "{}", refused.stderr);
    let refused = client.connect(&["trace", "unikprof_agent::*", "--image", image()]);
    assert!(
        refused.stderr.contains("handles a breakpoint") || refused.stderr.contains("at most"),
        "{}",
        refused.stderr
    );
    assert_ne!(refused.code, Some(0));
}
