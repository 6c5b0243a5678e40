//! The page that `report -o run.html` writes, in a real browser: the numbers on the screen are
//! those of the report for programs, for the same part of the recording.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use unikprof_profile::profile::{
    Frame, Mapping, Profile, ProfileBuilder, RecordingInfo, VcpuStats,
};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_report::report::{Format, Report, ReportOptions};
use unikprof_tests::requirement::skip;

use crate::harness::time::{Span, events, report};
use crate::harness::{Client, Guest, RunningClient, wait_until};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../client/report/page");

/// Takes steps in a browser, as `client/report/page/browser/drive.js` describes them; `None` if the case
/// is skipped because there is none.
pub(crate) fn drive(steps: &[Value]) -> Option<Vec<Value>> {
    let mut browser = browser_script("drive.js")?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let steps = serde_json::to_vec(steps).unwrap();
    browser.stdin.take().unwrap().write_all(&steps).unwrap();
    let output = browser.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// One of the programs in `client/report/page/browser`; `None` if the case is skipped because there is no
/// browser.
pub(crate) fn browser_script(name: &str) -> Option<Command> {
    let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".into());
    if !Path::new(&chromium).exists() {
        skip(format!("there is no browser at {chromium}: install chromium, or set CHROMIUM"));
        return None;
    }
    let modules = node_modules()?;
    let mut command = Command::new("node");
    command.arg(modules.with_file_name("browser").join(name)).env("CHROMIUM", chromium);
    Some(command)
}

/// The folder in which npm installed the modules for the page's tests; `None` if the case is
/// skipped because there is none.
pub(crate) fn node_modules() -> Option<PathBuf> {
    let modules = Path::new(PROGRAM).join("node_modules");
    if !modules.exists() {
        skip(format!("run `npm ci` in {PROGRAM}"));
        return None;
    }
    Some(modules)
}

/// A page of a recording, as an address with this fragment.
fn open(client: &Client, fragment: &str) -> Value {
    let path = client.path("run.html");
    json!({ "open": format!("{}#{fragment}", path.display()) })
}

fn write_page(client: &Client, more: &[&str]) {
    let words = [&["-o", "run.html"], more].concat();
    client.report("run.unikprof", &words).expect_success();
}

/// The range in ns that a page's address names.
fn range(hash: &Value, key: &str) -> [u64; 2] {
    let hash = hash.as_str().unwrap().trim_start_matches('#');
    let mut fields = hash.split('&').filter_map(|field| field.split_once('='));
    let (_, range) = fields.find(|(name, _)| *name == key).unwrap();
    let ends: Vec<u64> = range.split('-').map(|end| end.parse().unwrap()).collect();
    ends.try_into().unwrap()
}

/// The words that make a report of the same range.
fn window([from, to]: [u64; 2]) -> [String; 4] {
    ["--from".into(), format!("{from}ns"), "--to".into(), format!("{to}ns")]
}

fn share(share: &Value) -> String {
    match share.as_f64().unwrap() {
        share if share > 0.0 && share < 0.0005 => "<0.1 %".to_owned(),
        share => format!("{:.1} %", share * 100.0),
    }
}

fn interval(ends: &Value) -> String {
    match ends.as_array() {
        Some(ends) => {
            let ends: Vec<String> =
                ends.iter().map(|end| format!("{:.1}", end.as_f64().unwrap() * 100.0)).collect();
            ends.join(" - ")
        }
        None => String::new(),
    }
}

fn grouped(count: &Value) -> String {
    let digits = count.as_u64().unwrap().to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8(groups.join(&b","[..])).unwrap()
}

/// The rows that a page's table has to show for a report of samples, sorted.
fn expected_rows(report: &Value) -> Vec<Vec<String>> {
    let functions = report["functions"].as_array().unwrap().iter();
    let mut rows: Vec<Vec<String>> = functions
        .map(|row| {
            vec![
                grouped(&row["self"]),
                share(&row["self_share"]),
                interval(&row["self_interval"]),
                grouped(&row["total"]),
                share(&row["total_share"]),
                interval(&row["total_interval"]),
                row["name"].as_str().unwrap().to_owned(),
            ]
        })
        .collect();
    rows.sort();
    rows
}

fn sorted_rows(rows: &Value) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = serde_json::from_value(rows.clone()).unwrap();
    rows.sort();
    rows
}

const ROWS: &str = ".functions tbody tr";

/// Whether two cells say the same. The ends of an interval are calculated twice, and may be rounded
/// differently.
fn is_cell(expected: &str, found: &str) -> bool {
    let ends = |cell: &str| -> Option<[f64; 2]> {
        let (low, high) = cell.split_once(" - ")?;
        Some([low.parse().ok()?, high.parse().ok()?])
    };
    match (ends(expected), ends(found)) {
        (Some(a), Some(b)) => a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.11),
        _ => expected == found,
    }
}

/// Asserts that what a page shows of its part is what the report of that part says.
fn assert_same(report: &Value, rows: &Value, ticks: &Value, missing: &Value) {
    let (expected, found) = (expected_rows(report), sorted_rows(rows));
    assert!(found.len() > 3, "{found:?}");
    for (expected, found) in expected.iter().zip(&found) {
        let is_same = expected.len() == found.len()
            && expected.iter().zip(found).all(|(expected, found)| is_cell(expected, found));
        assert!(is_same, "{}: {expected:?}, {found:?}", report["window"]);
    }
    assert_eq!(expected.len(), found.len());
    let counters = &report["counters"];
    let ticks = ticks[0].as_str().unwrap();
    assert!(ticks.starts_with(&grouped(&counters["ticks"])), "{ticks}: {counters:#}");
    assert!(ticks.contains(&format!("recorded {}", grouped(&counters["recorded"]))), "{ticks}");
    let window = &report["window"];
    let length = |window: &Value| Some(window["to_ns"].as_u64()? - window["from_ns"].as_u64()?);
    let is_short = length(window).is_some_and(|ns| ns < 5_000_000_000);
    let count = |name: &str| counters[name].as_u64().unwrap();
    let waited = ["blocked", "blocked_overflow", "blocked_aged"].map(count).iter().sum::<u64>();
    let waited = if counters["missing_blocked"].is_null() { 0 } else { waited };
    let chance = 2.0 * ((count("ticks") + waited) as f64).sqrt();
    let known = match counters["missing"].as_i64() {
        None => "-".to_owned(),
        Some(missing) if missing < 0 && -missing as f64 <= chance => "0".to_owned(),
        Some(missing) if missing < 0 => format!("-{}", grouped(&json!(-missing))),
        Some(missing) => grouped(&json!(missing)),
    };
    let is_unknown = missing[0].as_str().unwrap().starts_with("not known of so short a range");
    // A whole recording may be as short.
    let is_same = missing[0] == known || is_short && is_unknown;
    assert!(is_same, "{missing}: {counters:#}");
}

/// Asserts that a page's bar shows how the vCPUs spent the time, as the report says it.
fn assert_bar(report: &Value, bar: &Value) {
    let states = ["running", "stolen", "blocked", "offline"];
    let fields = ["running_ns", "runnable_ns", "blocked_ns", "offline_ns"];
    let vcpus = report["vcpus"].as_array().unwrap();
    let sums = fields.map(|field| {
        let times = vcpus.iter().map(|vcpu| &vcpu["runstate"][field]);
        times.map(|ns| ns.as_u64().unwrap()).sum::<u64>()
    });
    let whole: u64 = sums.iter().sum();
    let spent = states.iter().zip(sums).filter(|(_, ns)| *ns > 0);
    let expected: Vec<String> = spent
        .map(|(state, ns)| format!("{state} {}", share(&json!(ns as f64 / whole as f64))))
        .collect();
    assert_eq!(*bar, json!(expected), "{vcpus:?}");
}

const TICKS: &str = "[data-fact=ticks] dd";
const BAR: &str = "#bar span";
const MISSING: &str = "[data-fact=missing] dd";

#[test]
fn a_page_shows_the_numbers_of_the_report_for_the_part_that_is_brushed() {
    let guest = Guest::start("service");
    let client = guest.client();
    client.record_samples(1_000, &["-F", "997"]);
    write_page(&client, &[]);
    let read = [
        json!({ "rows": ROWS }),
        json!({ "read": TICKS }),
        json!({ "read": MISSING }),
        json!({ "read": BAR }),
        json!({ "hash": true }),
    ];
    let of_what = [json!({ "read": "#account, #caution" }), json!({ "visible": "#found-in" })];
    let mut steps = vec![open(&client, "view=table&unfold=1")];
    steps.extend_from_slice(&read);
    steps.push(json!({ "drag": "#overlay", "from": [0.3, 0.3], "to": [0.7, 0.3] }));
    steps.extend_from_slice(&read);
    steps.push(open(&client, "view=table&unfold=1&vcpus=1"));
    steps.extend_from_slice(&read);
    steps.extend_from_slice(&of_what);
    steps.push(open(&client, ""));
    steps.extend_from_slice(&of_what);
    let Some(shown) = drive(&steps) else { return };
    let whole = report(&client, "run.unikprof", &[]);
    assert_same(&whole, &shown[1], &shown[2], &shown[3]);
    assert_bar(&whole, &shown[4]);

    let brushed = range(&shown[11], "window");
    let words = window(brushed);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let part = report(&client, "run.unikprof", &words);
    assert!(part["samples"]["recorded"].as_u64() < whole["samples"]["recorded"].as_u64());
    assert_same(&part, &shown[7], &shown[8], &shown[9]);
    assert_bar(&part, &shown[10]);

    let vcpu = report(&client, "run.unikprof", &["--vcpu", "1"]);
    assert_same(&vcpu, &shown[13], &shown[14], &shown[15]);
    assert_bar(&vcpu, &shown[16]);

    // What is said of a part says so, and so does what is said of the whole beside it.
    let words = |at: usize, line: usize| shown[at][line].as_str().unwrap();
    assert!(words(18, 0).starts_with("on vCPU 1: ticks "), "{}", shown[18]);
    assert!(words(18, 1).contains(" about the whole recording: "), "{}", shown[18]);
    assert_eq!((&shown[19], &shown[22]), (&json!([true]), &json!([false])));
    assert!(words(21, 0).starts_with("ticks "), "{}", shown[21]);
    assert!(!words(21, 1).contains("whole recording"), "{}", shown[21]);
}

/// Any of several vCPUs, by the menu and by the address.
#[test]
#[ignore = "full: drives a browser"]
fn a_page_shows_the_vcpus_that_are_chosen() {
    let guest = Guest::start("threads");
    let client = guest.client();
    client.record_samples(1_000, &["-F", "997"]);
    write_page(&client, &[]);
    let mut steps = vec![
        open(&client, "view=table&unfold=1"),
        json!({ "read": "#vcpus-shown" }),
        json!({ "click": "#vcpus summary", "still": true }),
        json!({ "click": "#vcpu-list input[value='0']" }),
        json!({ "click": "#vcpu-list input[value='2']" }),
        json!({ "read": "#vcpus-shown" }),
        json!({ "rows": ROWS }),
        json!({ "read": TICKS }),
        json!({ "read": MISSING }),
        json!({ "hash": true }),
        json!({ "click": "#vcpu-list input[value='0']" }),
        json!({ "click": "#vcpu-list input[value='2']" }),
        json!({ "read": "#vcpus-shown" }),
    ];
    steps.extend(numbers(&client, "view=table&unfold=1&vcpus=0.2"));
    let Some(shown) = drive(&steps) else { return };
    assert_eq!((&shown[1][0], &shown[5][0]), (&json!("all"), &json!("0, 2")));
    let chosen = report(&client, "run.unikprof", &["--vcpu", "0,2"]);
    assert_same(&chosen, &shown[6], &shown[7], &shown[8]);
    assert!(shown[9].as_str().unwrap().contains("vcpus=0.2"), "{}", shown[9]);
    assert_eq!(shown[12][0], "all", "no choice is all");
    assert_same(&chosen, &shown[14], &shown[15], &shown[16]);
}

/// Another recording that ran meanwhile, and each of two that were merged: by the menu and by the
/// address.
#[test]
#[ignore = "full: drives a browser"]
fn a_page_shows_the_recording_that_is_chosen() {
    let guest = Guest::start("shares");
    let client = guest.client();
    client.must(&["start", "--name", "long", "-F", "499"]);
    for (name, file) in [("first", "first.unikprof"), ("second", "second.unikprof")] {
        client.must(&["start", "--name", name, "-F", "997"]);
        client.wait_for_samples_of(&[name], 60);
        client.must(&["stop", "--name", name, "-o", file]);
    }
    client.must(&["stop", "--name", "long", "-o", "run.unikprof"]);
    write_page(&client, &[]);
    let merged = ["first.unikprof", "second.unikprof"];
    client.report(merged[0], &[merged[1], "-o", "merged.html"]).expect_success();
    let of_merged = json!({
        "open": format!("{}#view=table&unfold=1&recording=2", client.path("merged.html").display())
    });
    let mut steps = vec![json!({ "read": "#recording option" })];
    steps.insert(0, open(&client, "view=table&unfold=1"));
    steps.extend(numbers(&client, "view=table&unfold=1&recording=1"));
    steps.push(json!({ "choose": "#recording", "value": "2" }));
    steps.extend_from_slice(&numbers(&client, "")[1..]);
    steps.push(json!({ "hash": true }));
    steps.push(of_merged);
    steps.extend_from_slice(&numbers(&client, "")[1..]);
    let Some(shown) = drive(&steps) else { return };
    let names: Vec<String> = serde_json::from_value(shown[1].clone()).unwrap();
    assert_eq!(names[0], "long (the file's)");
    assert!(names[1].starts_with("recording 2, ") && names.len() == 3, "{names:?}");
    for (name, at) in [("2", 3), ("recording 3", 7)] {
        let expected = report(&client, "run.unikprof", &["--recording", name]);
        assert!(expected["samples"]["recorded"].as_u64() >= Some(60), "{expected:#}");
        assert_same(&expected, &shown[at], &shown[at + 1], &shown[at + 2]);
    }
    assert!(shown[10].as_str().unwrap().contains("recording=2"), "{}", shown[10]);
    let expected = report(&client, merged[0], &[merged[1], "--recording", "second"]);
    assert_same(&expected, &shown[12], &shown[13], &shown[14]);

    let refused = client.report("run.unikprof", &["--recording", "none"]);
    let refused = refused.expect_code(unikprof_client::exit_code::USAGE);
    assert!(refused.stderr.contains("`long`, `recording 2`, `recording 3`"), "{}", refused.stderr);
}

/// Steps that read the table of `open`, in JSON: the rows, then the ticks, then the check on them.
fn numbers(client: &Client, fragment: &str) -> [Value; 4] {
    [
        open(client, fragment),
        json!({ "rows": ROWS }),
        json!({ "read": TICKS }),
        json!({ "read": MISSING }),
    ]
}

/// Blocked time counts in periods, whichever waits they are made of.
#[test]
#[ignore = "full: drives a browser"]
fn a_page_counts_blocked_time_as_the_report_does() {
    let guest = Guest::start("waits");
    let client = guest.client();
    client.must(&["start", "-F", "331", "--mode", "wall"]);
    wait_until("a span of waiting while it was recorded", || {
        Span::since_recording(&events(&client), "waiting")
    });
    client.must(&["stop", "-o", "run.unikprof"]);
    write_page(&client, &[]);
    let brush = [234_567_891, 1_321_987_654];
    let [from, to] = brush;
    let part = format!("view=table&unfold=1&window={from}-{to}");
    let waiting = "view=table&unfold=1&span=0";
    let steps: Vec<Value> =
        ["view=table&unfold=1", &part, waiting].iter().flat_map(|f| numbers(&client, f)).collect();
    let Some(shown) = drive(&steps) else { return };
    let words = window(brush);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for (shown, words) in shown.chunks(4).zip([&[][..], &words, &["--in-span", "waiting"]]) {
        let expected = report(&client, "run.unikprof", words);
        if words.first() != Some(&"--from") {
            let blocked = expected["counters"]["blocked"].as_u64();
            assert!(blocked > Some(0), "{expected:#}");
        }
        assert_same(&expected, &shown[1], &shown[2], &shown[3]);
    }
}

#[test]
#[ignore = "full: drives a browser"]
fn a_page_searches_compares_and_restores_its_address() {
    let guest = Guest::start("service");
    let client = guest.client();
    client.record_samples(1_000, &["-F", "997"]);
    write_page(&client, &[]);
    let whole = report(&client, "run.unikprof", &[]);
    let first = whole["functions"][0]["name"].as_str().unwrap();
    let steps = [
        open(&client, ""),
        json!({ "type": "#query", "text": "note::|core::" }),
        json!({ "read": "#matched" }),
        json!({ "press": "Escape" }),
        json!({ "read": "#matched" }),
        // Two ranges, the second as the base.
        json!({ "drag": "#overlay", "from": [0.6, 0.3], "to": [0.95, 0.3] }),
        json!({ "drag": "#overlay", "from": [0.15, 0.3], "to": [0.5, 0.3], "key": "Control" }),
        json!({ "press": "6", "on": "#tracks" }),
        json!({ "rows": ROWS }),
        json!({ "read": "#shown" }),
        json!({ "hash": true }),
        json!({ "press": "4", "on": "#tracks" }),
        json!({ "rows": ".call" }),
        json!({ "type": "#query", "text": "thread_start|main" }),
        json!({ "read": ".call .match" }),
        json!({ "press": "5", "on": "#tracks" }),
        json!({ "read": "#shown" }),
        // The root's cell, and its function hidden by keys.
        open(&client, "sort=own&unfold=1"),
        json!({ "hover": "#graph", "at": [0.5, 0.01] }),
        json!({ "click": "#view-table" }),
        json!({ "click": ".functions tbody tr:first-child button" }),
        json!({ "read": "#shown" }),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        json!({ "read": "#tip" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let focused = report(&client, "run.unikprof", &["--focus", "note::|core::"]);
    let matched = &focused["samples"]["shown"];
    let part = matched.as_f64().unwrap() / whole["samples"]["recorded"].as_f64().unwrap();
    assert_eq!(shown[2][0], format!("matched {}, {}", grouped(matched), share(&json!(part))));
    assert_eq!(shown[4][0], "", "Escape ends the search");

    let hash = &shown[10];
    let parts = ["window", "base"].map(|key| {
        let words = window(range(hash, key));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        report(&client, "run.unikprof", &words)
    });
    let own = |report: &Value, name: &str| {
        let rows = report["functions"].as_array().unwrap().iter();
        let own =
            rows.filter(|row| row["name"] == name).map(|row| row["self_share"].as_f64().unwrap());
        own.sum::<f64>()
    };
    let rows: Vec<Vec<String>> = serde_json::from_value(shown[8].clone()).unwrap();
    assert!(rows.len() > 3, "{rows:?}");
    for row in &rows {
        let name = &row[9];
        let change = 100.0 * (own(&parts[0], name) - own(&parts[1], name));
        let found: f64 = row[6].replace('−', "-").parse().unwrap();
        assert!((found - change).abs() < 0.051, "{row:?}: {change}");
        assert!(["yes", "no"].contains(&&*row[8]), "{row:?}");
    }
    let compared = shown[9][0].as_str().unwrap();
    assert!(compared.contains("compared with base") && compared.contains("shares"), "{compared}");
    let calls: Vec<Vec<String>> = serde_json::from_value(shown[12].clone()).unwrap();
    assert_eq!(calls[0][3..], ["base share", "change"]);
    assert!(calls.len() > 3, "{calls:?}");
    for call in &calls[1..] {
        let number = |text: &str| {
            let text = text.trim_end_matches(" %").replace('−', "-");
            text.trim_start_matches('<').parse::<f64>().unwrap()
        };
        let [share, base, change] = [1, 3, 4].map(|at| number(&call[at]));
        assert!((share - base - change).abs() < 0.16, "{call:?}");
    }
    let marked = shown[14].as_array().unwrap();
    assert!(!marked.is_empty() && marked.len() < calls.len(), "{marked:?}");
    let sandwich = shown[16][0].as_str().unwrap();
    assert!(sandwich.contains("; in the base "), "{sandwich}");
    let tip = shown[18].as_str().unwrap();
    assert!(
        tip.starts_with("all") && tip.contains(&grouped(&whole["samples"]["recorded"])),
        "{tip}"
    );

    let calls = report(
        &client,
        "run.unikprof",
        &["--callers", &format!("^{}$", regex_lite::escape(first))],
    );
    let total = grouped(&calls["calls"]["total"]);
    let sandwich = shown[21][0].as_str().unwrap();
    assert!(
        sandwich.contains(&format!("callers of {first} above, callees below: {total} ")),
        "{sandwich}"
    );
    let tip = shown[23][0].as_str().unwrap();
    let (_, ends) = tip.split_once("95 % interval ").unwrap();
    let ends = ends.split(" %").next().unwrap();
    let expected = interval(&whole["functions"][0]["total_interval"]);
    assert!(is_cell(&expected, ends), "{expected}: {tip}");

    let down = json!({ "press": "ArrowDown", "on": "#graph", "still": true });
    let again = [
        open(&client, hash.as_str().unwrap().trim_start_matches('#')),
        json!({ "rows": ROWS }),
        json!({ "press": "1", "on": "#tracks" }),
        // What all stacks have may be one cell below the root.
        down.clone(),
        down.clone(),
        down,
        json!({ "read": "#tip" }),
    ];
    // Before the call tree it was the table.
    let table = drive(&again).unwrap();
    let tip = table[6][0].as_str().unwrap();
    assert!(tip.contains("may be chance") || tip.contains("beyond chance"), "{tip}");
    assert_eq!(
        sorted_rows(&table[1]),
        {
            let mut rows = rows;
            rows.sort();
            rows
        },
        "the address restores it"
    );
}

/// The mouse's wheel zooms, and every choice can be made without a mouse.
#[test]
#[ignore = "full: drives a browser"]
fn a_page_is_used_by_keys_alone() {
    let guest = Guest::start("service");
    let client = guest.client();
    client.record_samples(200, &["-F", "997"]);
    write_page(&client, &[]);
    let press = |key: &str, on: &str| json!({ "press": key, "on": on });
    let hash = json!({ "hash": true });
    let steps = [
        open(&client, "color=caller"),
        json!({ "wheel": "#overlay", "at": [0.5, 0.5], "by": -500 }),
        hash.clone(),
        press("Escape", "#tracks"),
        // The first half as the base, what is right of it as the range.
        press("+", "#tracks"),
        press("ArrowLeft", "#tracks"),
        press("b", "#tracks"),
        press("ArrowRight", "#tracks"),
        press("Enter", "#tracks"),
        hash.clone(),
        press("Escape", "#tracks"),
        press("Escape", "#tracks"),
        press("Escape", "#tracks"),
        hash.clone(),
        // The first cell below the root, its callees, and the callers of that function.
        open(&client, "color=caller&unfold=1"),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        json!({ "read": "#tip" }),
        press("Enter", "#graph"),
        hash.clone(),
        press("f", "#graph"),
        press("Escape", "#graph"),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        press("h", "#graph"),
        hash.clone(),
        press("Escape", "#graph"),
        press("5", "#graph"),
        json!({ "press": "ArrowDown", "on": "#callers", "still": true }),
        json!({ "press": "ArrowUp", "on": "#callers", "still": true }),
        press("s", "#callers"),
        hash,
    ];
    let Some(shown) = drive(&steps) else { return };
    let has = |at: usize, key: &str| shown[at].as_str().unwrap().contains(key);
    assert!(has(2, "zoom="), "{}", shown[2]);
    let [base, window] = ["base", "window"].map(|key| range(&shown[9], key));
    assert!(base[0] < window[0] && base[1] < window[1], "{}", shown[9]);
    assert_eq!(shown[13], "#color=caller", "Escape undoes all of it");
    // The root's only callee is the outermost frame of a thread.
    let tip = shown[17][0].as_str().unwrap();
    assert!(tip.contains("caller, mostly: "), "{tip}");
    assert!(has(19, "node="), "{}", shown[19]);
    assert!(has(25, "hide="), "{}", shown[25]);
    assert!(has(31, "view=sandwich") && has(31, "chosen="), "{}", shown[31]);
}

/// A page of a profile that no guest has to have had.
fn page_of(profile: &Profile, symbols: &str, folder: &Path) -> String {
    let names = folder.join("names.txt");
    std::fs::write(&names, symbols).unwrap();
    let mut images = Images::new(ImageOptions::default());
    images.add_symbols(&names).unwrap();
    let symbolizer = Symbolizer::new(images);
    let symbolized = symbolizer.resolve(profile).unwrap();
    let path = folder.join("run.html");
    let mut file = std::fs::File::create(&path).unwrap();
    Report::new(&symbolized, ReportOptions::default()).write(Format::Page, &mut file).unwrap();
    path.display().to_string()
}

pub(crate) const HOSTILE: &str = "</script><img/src=x/onerror=document.title='owned'>";
const TURNING: &str = "turns\u{202e}direction";

/// A page of 64 vCPUs with one stack of 128 frames, whose names are 4 KB, markup, and characters
/// that turn the direction of text; without a ring.
fn hostile_page(folder: &Path) -> String {
    let long = "x".repeat(4_096);
    let mut symbols = format!("1000 T {HOSTILE}\n1100 T {TURNING}\n1200 T {long}\n");
    for at in 3..128 {
        symbols.push_str(&format!("{:x} T function_{at}\n", 0x1000 + at * 0x100));
    }
    let mut builder = ProfileBuilder::new();
    builder.add_mapping(Mapping {
        start: 0,
        end: 0x10_0000,
        path: "/guest.elf".into(),
        ..Mapping::default()
    });
    builder.set_recording(RecordingInfo {
        guest_name: HOSTILE.into(),
        name: TURNING.into(),
        ..RecordingInfo::default()
    });
    let frames: Vec<Frame> = (0..128_u64).map(|at| Frame::leaf(0x1000 + at * 0x100)).collect();
    for vcpu in 0..64 {
        builder.add_stack(vcpu, 1 + u64::from(vcpu), &frames).unwrap();
        builder.add_vcpu(VcpuStats { vcpu, ..VcpuStats::default() });
    }
    page_of(&builder.finish(), &symbols, folder)
}

#[test]
#[ignore = "full: drives a browser"]
fn hostile_names_stay_text_and_large_profiles_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = hostile_page(folder.path());
    let steps = [
        json!({ "open": format!("{path}#view=table&unfold=1") }),
        json!({ "read": "#title" }),
        json!({ "read": ".functions .name" }),
        json!({ "read": "#no-time" }),
        json!({ "read": "img, script:not([type])" }),
        json!({ "read": "#vcpu-list label" }),
        json!({ "press": "1" }),
        json!({ "hover": "#graph", "at": [0.5, 0.999] }),
        json!({ "press": "4" }),
        json!({ "read": ".call .function" }),
        json!({ "open": format!("{path}#view=table&unfold=1&vcpus=63") }),
        json!({ "read": "#count" }),
        // On paper are the numbers, and no buttons.
        json!({ "media": "print" }),
        json!({ "visible": "#facts, #count, .functions" }),
        json!({ "visible": "#view-table, #theme, #span, #query" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let turned = "turns\\u{202e}direction";
    assert_eq!(shown[1][0], format!("{HOSTILE}: {turned}"));
    let names: Vec<String> = serde_json::from_value(shown[2].clone()).unwrap();
    assert_eq!(names.len(), 128);
    for name in [HOSTILE, turned, &"x".repeat(4_096)] {
        assert!(names.iter().any(|found| found == name), "{name}");
    }
    assert!(shown[3][0].as_str().unwrap().contains("the agent had no ring"), "{}", shown[3]);
    assert_eq!(shown[4].as_array().unwrap().len(), 1, "the page's own program alone");
    assert_eq!(shown[5].as_array().unwrap().len(), 64);
    assert!(shown[7].as_str().unwrap().starts_with(HOSTILE), "the leaf: {}", shown[7]);
    assert!(shown[9].as_array().unwrap().len() > 100, "the heaviest way is open: {}", shown[9]);
    assert_eq!(shown[11][0], "64 samples");
    assert_eq!(shown[13], json!([true, true, true]));
    assert_eq!(shown[14], json!([false, false, false, false]));
}

/// The part that all stacks share is one cell until it is clicked, and a call tree keeps the rows
/// that are open and the keyboard's place, in the address too.
#[test]
#[ignore = "full: drives a browser"]
fn what_is_unfolded_and_open_stays_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = hostile_page(folder.path());
    let row = |at: usize| format!(".call:nth-child({at})");
    let rows = json!({ "read": ".call[data-key]" });
    let focused = json!({ "read": ".call:focus .function" });
    let steps = [
        json!({ "open": path }),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        json!({ "press": "ArrowDown", "on": "#graph", "still": true }),
        json!({ "read": "#tip" }),
        json!({ "press": "Enter", "on": "#graph" }),
        json!({ "hash": true }),
        json!({ "press": "Escape" }),
        json!({ "hash": true }),
        json!({ "open": format!("{path}#view=tree&unfold=1") }),
        json!({ "click": row(5) }),
        rows.clone(),
        json!({ "type": "#query", "text": "function" }),
        rows.clone(),
        json!({ "press": "ArrowLeft", "on": row(5), "still": true }),
        focused.clone(),
        json!({ "press": "ArrowLeft", "on": row(4) }),
        rows.clone(),
        focused,
        json!({ "hash": true }),
        json!({ "open": format!("{path}#view=tree&unfold=1&open=0.1.2.3") }),
        rows,
    ];
    let Some(shown) = drive(&steps) else { return };
    let tip = shown[3][0].as_str().unwrap();
    assert!(tip.starts_with("127 frames that nearly all stacks have"), "{tip}");
    assert_eq!([&shown[5], &shown[7]], ["#unfold=1", ""]);
    let count = |at: usize| shown[at].as_array().unwrap().len();
    assert_eq!([count(10), count(12)], [5, 5], "one closed, and searched");
    let name = |at: usize| shown[at][0].as_str().unwrap();
    assert!(name(14).ends_with("function_124"), "{}", name(14));
    assert!(name(17).ends_with("function_124"), "{}", name(17));
    assert_eq!([count(16), count(20)], [4, 4]);
    let hash = shown[18].as_str().unwrap();
    assert!(hash.contains("open=0.1.2.3."), "{hash}");
}

/// A page of 2,160 samples: eight frames that all but ten of them have, two long ways to a function
/// with most of the time, and what that calls.
fn page_of_one_guilty_function(folder: &Path) -> String {
    let mut symbols = String::new();
    let mut name = |at: u64, name: &str| {
        symbols.push_str(&format!("{:x} T {name}\n", 0x1000 + at * 0x100));
        at
    };
    let [first, second] = ["first", "second"].map(|way| {
        let from = if way == "first" { 100 } else { 200 };
        (0..12).map(|at| name(from + at, &format!("shop::{way}::step_{at}"))).collect::<Vec<_>>()
    });
    let shared: Vec<u64> = (0..8).map(|at| name(at, &format!("start::frame_{at}"))).collect();
    let guilty = name(300, "shop::a_module_with_a_rather_long_name::note::is_spam");
    let callees = ["json::parse", "json::number", "json::text"];
    let callees = [0, 1, 2].map(|at| name(301 + at, callees[at as usize]));
    let other = name(400, "start::other");
    let mut builder = ProfileBuilder::new();
    builder.add_mapping(Mapping {
        start: 0,
        end: 0x10_0000,
        path: "/guest.elf".into(),
        ..Mapping::default()
    });
    let mut add = |path: &[u64], count: u64| {
        let frames: Vec<Frame> =
            path.iter().rev().map(|at| Frame::leaf(0x1000 + at * 0x100)).collect();
        builder.add_stack(0, count, &frames).unwrap();
    };
    for (way, count) in [(first, 400), (second, 250)] {
        for callee in callees {
            add(&[&shared[..], &way, &[guilty, callee]].concat(), count);
        }
        add(&[&shared[..], &way].concat(), 100);
    }
    add(&[shared[0], shared[1], other], 10);
    builder.add_vcpu(VcpuStats::default());
    page_of(&builder.finish(), &symbols, folder)
}

/// One stack in 200 is another one; at 900x700 a sandwich shows what calls its function and what it
/// calls, and the function once; a table has the guilty function among its first rows.
#[test]
#[ignore = "full: drives a browser"]
fn what_nearly_all_stacks_have_is_folded_in_every_view() {
    let folder = tempfile::tempdir().unwrap();
    let path = page_of_one_guilty_function(folder.path());
    let view = |view: &str| json!({ "open": format!("{path}#view={view}") });
    let steps = [
        view("sandwich"),
        json!({ "size": [900, 700] }),
        view("sandwich"),
        json!({ "scrolled": "#callers-part" }),
        json!({ "hover": "#callers", "at": [0.1, 0.05] }),
        json!({ "hover": "#callers", "at": [0.1, 0.99] }),
        json!({ "hover": "#graph", "at": [0.1, 0.1] }),
        json!({ "click": "#callers", "at": [0.1, 0.05] }),
        json!({ "hash": true }),
        view("tree"),
        json!({ "read": ".call[data-key] .function" }),
        json!({ "click": ".call[data-key]" }),
        json!({ "read": ".call[data-key] .function" }),
        view("table"),
        json!({ "read": "[aria-sort=descending]" }),
        json!({ "read": ".functions .name" }),
        json!({ "click": ".functions tbody tr:first-child button" }),
        json!({ "read": ".functions .name" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let below = shown[3][2].as_f64().unwrap();
    assert!(below <= -2.0 * 18.0, "the function and what it calls: {}", shown[3]);
    let tip = |at: usize| shown[at].as_str().unwrap();
    assert!(tip(4).starts_with("7 frames that nearly all stacks have"), "{}", tip(4));
    assert!(tip(5).starts_with("shop::first::step_11"), "{}", tip(5));
    assert!(
        tip(6).starts_with("shop::a_module_with_a_rather_long_name::note::is_spam"),
        "{}",
        tip(6)
    );
    assert_eq!(shown[8], "#view=sandwich&unfold=1");
    let first = |at: usize| shown[at][0].as_str().unwrap();
    assert!(first(10).ends_with("to start::frame_6: 7 frames"), "{}", first(10));
    assert!(first(12).ends_with("start::frame_0"), "{}", first(12));
    assert_eq!(first(14), "total");
    assert_eq!(first(15), "[7 functions that nearly all samples share]");
    let names: Vec<String> = serde_json::from_value(shown[15].clone()).unwrap();
    let place = names.iter().position(|name| name.ends_with("::is_spam"));
    assert!(place < Some(10), "{names:?}");
    assert_eq!(shown[17].as_array().unwrap().len(), names.len() + 6);
}

/// Guards names of two letters in the call tree, whose indentation took the width, names that were
/// cut before the function, and names that look alike without their beginnings.
#[test]
#[ignore = "full: drives a browser"]
fn names_are_whole_on_a_narrow_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = page_of_one_guilty_function(folder.path());
    let steps = [
        json!({ "open": format!("{path}#view=tree&unfold=1") }),
        json!({ "size": [390, 6000] }),
        json!({ "seen": ".call[data-key] .function bdi" }),
        json!({ "open": format!("{path}#view=table&unfold=1") }),
        json!({ "seen": ".functions .name bdi" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    for seen in [&shown[2], &shown[4]] {
        let seen = seen.as_array().unwrap();
        assert!(seen.len() > 20 && seen.iter().all(|is_seen| is_seen == true), "{seen:?}");
    }
}

/// A finding is one line with the ends of its names and its share, however narrow the page is, and
/// its names select functions in the view that is shown.
#[test]
#[ignore = "full: drives a browser"]
fn names_in_findings_select_functions() {
    let folder = tempfile::tempdir().unwrap();
    let path = page_of_one_guilty_function(folder.path());
    let name = "#analysis summary .name";
    let is_selected = |view: &str| {
        [
            json!({ "open": format!("{path}#view={view}") }),
            json!({ "click": name }),
            json!({ "read": "#shown" }),
            json!({ "read": "[aria-current] .function, [aria-current] .name" }),
            json!({ "hash": true }),
        ]
    };
    let mut steps = vec![
        json!({ "open": path }),
        json!({ "size": [390, 844] }),
        json!({ "read": name }),
        json!({ "seen": format!("{name} bdi, #analysis summary .share"), "end": true }),
        json!({ "size": [900, 700] }),
    ];
    for view in ["icicle", "flame", "tree", "table"] {
        steps.extend(is_selected(view));
    }
    steps.push(json!({ "read": "#analysis details[open]" }));
    steps.push(json!({ "press": "Escape" }));
    steps.push(json!({ "hash": true }));
    let Some(shown) = drive(&steps) else { return };
    assert!(shown[2][0].as_str().unwrap().ends_with("::is_spam"), "{}", shown[2]);
    assert_eq!(shown[3], json!([true, true]));
    let full = "shop::a_module_with_a_rather_long_name::note::is_spam";
    for (shown, (view, is_row)) in
        shown[5..].chunks(5).zip([("icicle", 0), ("flame", 0), ("tree", 1), ("table", 1)])
    {
        let status = shown[2][0].as_str().unwrap();
        assert!(status.contains(&format!("; selected {full}: 1,950 (")), "{view}: {status}");
        let rows = shown[3].as_array().unwrap();
        assert!(rows.len() >= is_row, "{view}: {rows:?}");
        assert!(rows.iter().all(|row| row.as_str().unwrap().ends_with(full)), "{view}: {rows:?}");
        let hash = shown[4].as_str().unwrap();
        assert!(hash.contains("chosen=") && !hash.contains("sandwich"), "{view}: {hash}");
    }
    assert_eq!(shown[25], json!([]), "a name opens no finding");
    assert_eq!(shown[27], "#view=table", "Escape undoes it");
}

#[test]
#[ignore = "full: drives a browser"]
fn pages_without_samples_and_cut_pages_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = page_of(&ProfileBuilder::new().finish(), "1000 T main\n", folder.path());
    let whole = std::fs::read_to_string(&path).unwrap();
    let cut = folder.path().join("cut.html");
    let (before, data) = whole.split_once("octet-stream\">").unwrap();
    // As if half of the data were lost.
    let (data, after) = data.split_once('<').unwrap();
    let half = &data[..data.len() / 8 * 4];
    std::fs::write(&cut, format!("{before}octet-stream\">{half}<{after}")).unwrap();
    let steps = [
        json!({ "open": path }),
        json!({ "read": "#shown" }),
        json!({ "read": "#warnings li" }),
        json!({ "press": "6" }),
        json!({ "press": "5" }),
        json!({ "fails": cut.display().to_string() }),
    ];
    let Some(shown) = drive(&steps) else { return };
    assert_eq!(shown[1][0], "0 samples: nothing was recorded here");
    assert!(shown[2].to_string().contains("no samples"), "{}", shown[2]);
    let failure = shown[5].as_str().unwrap();
    assert!(failure.contains("The file may be incomplete"), "{failure}");
}

/// The file that `report run.unikprof --open` has opened.
pub(crate) fn opened(client: &Client, words: &[&str]) -> String {
    let tools = client.path("tools");
    std::fs::create_dir_all(&tools).unwrap();
    let opener = tools.join("xdg-open");
    std::fs::write(&opener, "#!/bin/sh\necho \"$1\" > opened\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&opener, mode).unwrap();
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let mut command = client.command();
    command
        .args(["report", "run.unikprof", "--open"])
        .args(words)
        .env("PATH", &path)
        .env("TMPDIR", &tools);
    RunningClient::spawn(&mut command).finish().expect_success();
    let opened = std::fs::read_to_string(client.path("opened")).unwrap();
    opened.trim().to_owned()
}

/// `--open` writes the page and starts what opens files on this machine.
#[test]
#[ignore = "full: drives a browser"]
fn report_opens_the_page_in_a_browser() {
    let guest = Guest::start("shares");
    let client = guest.client();
    client.record_samples(50, &[]);
    assert_eq!(opened(&client, &["-o", "named.html"]), "named.html");
    let temporary = opened(&client, &[]);
    let tools = client.path("tools");
    assert!(
        Path::new(&temporary).starts_with(&tools) && temporary.ends_with(".html"),
        "{temporary}"
    );
    assert!(std::fs::metadata(&temporary).unwrap().len() > 1_000);

    std::fs::remove_file(tools.join("xdg-open")).unwrap();
    let mut command = client.command();
    command.args(["report", "run.unikprof", "--open", "-o", "named.html"]).env("PATH", &tools);
    let finished = RunningClient::spawn(&mut command).finish().expect_code(1);
    assert!(
        finished.stderr.contains("wrote named.html, but no browser could be started"),
        "{}",
        finished.stderr
    );
}

/// Its last change before the recording was missing, and with it the whole lane if there was none
/// in between.
#[test]
#[ignore = "full: drives a browser"]
fn a_counter_has_the_value_that_it_had_before_the_recording() {
    let guest = Guest::start("burst");
    let client = guest.client();
    wait_until("the counter", || {
        let all = events(&client);
        all.iter().any(|event| event["kind"] == "counter").then_some(())
    });
    client.record_samples(20, &[]);
    write_page(&client, &[]);
    let steps = [open(&client, ""), json!({ "hover": "#overlay", "at": [0.1, 0.9] })];
    let Some(shown) = drive(&steps) else { return };
    let tip = shown[1].as_str().unwrap();
    assert!(tip.contains("queue depth = "), "{tip}");
}
