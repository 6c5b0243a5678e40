//! Two recordings of real guests, compared.

use serde_json::{Value, json};

use crate::harness::time::rows;
use crate::harness::{Client, Guest};
use crate::hosted::page::drive;

/// Runs `diff BASE NEW` with the guests' image, and expects this exit code.
fn diff(client: &Client, code: i32, files: [&str; 2], more: &[&str]) -> (String, String) {
    let image = client.image().to_str().unwrap();
    let words = ["diff", files[0], files[1], "--image", image];
    let finished = client.run(&[&words, more].concat());
    assert_eq!(finished.code, Some(code), "{finished:?}");
    (finished.stdout, finished.stderr)
}

fn json(client: &Client, files: [&str; 2], more: &[&str]) -> Value {
    let more = [&["--json"], more].concat();
    serde_json::from_str(&diff(client, 0, files, &more).0).unwrap()
}

fn only<'j>(json: &'j Value, name: &'j str) -> &'j Value {
    rows(json, name).next().unwrap()
}

/// The page has the rows of the JSON in its order, finds functions, and its address restores what
/// it shows.
fn the_page_shows_the_same(client: &Client, files: [&str; 2], found: &Value) {
    diff(client, 0, files, &["--force", "-o", "diff.html"]);
    let path = client.path("diff.html").display().to_string();
    let rows = ".functions tbody tr";
    let steps = [
        json!({ "open": path }),
        json!({ "rows": rows }),
        json!({ "read": "#said" }),
        json!({ "hover": "#graph", "at": [0.5, 0.01] }),
        json!({ "type": "#query", "text": "shares::" }),
        json!({ "read": "#matched" }),
        json!({ "click": "#view-flame" }),
        json!({ "hash": true }),
        json!({ "open": format!("{path}#view=flame&query=shares%3A%3A&sort=name") }),
        json!({ "rows": rows }),
        json!({ "read": "[aria-selected=true]" }),
    ];
    let Some(shown) = drive(&steps) else { return };
    let functions = found["functions"].as_array().unwrap();
    let expected: Vec<[&Value; 2]> =
        functions.iter().map(|f| [&f["verdict"], &f["name"]]).collect();
    let shown_rows = shown[1].as_array().unwrap();
    let rows: Vec<[&Value; 2]> = shown_rows.iter().map(|row| [&row[7], &row[8]]).collect();
    assert_eq!(rows, expected);
    let percent = |share: &Value| format!("{:.1} %", share.as_f64().unwrap() * 100.0);
    for (function, row) in functions.iter().zip(shown_rows) {
        let own = &function["self"];
        assert_eq!([&row[0], &row[1]], [&percent(&own["base"]), &percent(&own["new"])], "{row}");
    }
    let said = shown[2][0].as_str().unwrap();
    for words in ["base", "burst", "new", "shares", "cause"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let tip = shown[3].as_str().unwrap();
    assert!(tip.contains("base 100.0 %, new 100.0 % of all time"), "{tip}");
    // The one recording has only these functions, the other none of them.
    let matched = shown[5][0].as_str().unwrap();
    assert!(matched.starts_with("matched 0.0 % of base, "), "{matched}");
    let hash = shown[7].as_str().unwrap();
    assert!(hash.contains("view=flame") && hash.contains("query=shares"), "{hash}");
    let names: Vec<&str> =
        shown[9].as_array().unwrap().iter().map(|row| row[8].as_str().unwrap()).collect();
    assert!(names.len() >= 3 && names.is_sorted(), "{names:?}");
    assert!(names.iter().all(|name| name.contains("shares::")), "{names:?}");
    assert_eq!(shown[10][0], "Flame graph");
}

/// The work of one guest is gone in the other, and the other way round.
#[test]
#[ignore = "full: records a guest"]
fn what_vanished_and_what_appeared_is_shown() {
    let guest = Guest::start("burst");
    let client = guest.client();
    // More than a burst has: both of the guest's phases.
    client.record_samples(4_000, &["-F", "997"]);
    std::fs::rename(client.path("run.unikprof"), client.path("base.unikprof")).unwrap();
    let other = Guest::start("shares");
    let of_other = other.client();
    of_other.record_samples(2_000, &["-F", "997"]);
    let new = of_other.path("run.unikprof");
    let files = ["base.unikprof", new.to_str().unwrap()];

    let (_, stderr) = diff(&client, 6, files, &[]);
    assert!(stderr.contains("`burst` and `shares`"), "{stderr}");
    let found = json(&client, files, &["--force"]);
    assert_eq!(found["basis"], "blocks", "{found:#}");
    let row = only(&found, "shares::sixty");
    // The time of one function that vanished may be as long as that of one that appeared.
    assert!(row["verdict"] == "new" || row["verdict"] == "moved", "{row:#}");
    assert!(row["chance"].as_f64().unwrap() < 0.001, "{row:#}");
    // A phase that comes once may be missing by chance.
    let row = only(&found, "burst::usual");
    assert!(row["self"]["base"].as_f64() > Some(0.3), "{row:#}");
    assert_eq!(
        (&row["self"]["new"], &row["self"]["factor"]),
        (&json!(0.0), &json!(0.0)),
        "{row:#}"
    );
    the_page_shows_the_same(&client, files, &found);
    // Self time is that of the reports, as far as rings and counts hold the same samples.
    let report = client.report("base.unikprof", &["--json"]).expect_json();
    let share = only(&report, "burst::usual")["self_share"].as_f64().unwrap();
    let compared = only(&found, "burst::usual")["self"]["base"].as_f64().unwrap();
    assert!((share - compared).abs() < 0.01, "{share} and {compared}");
    let name = |of: &Value, name| only(of, name)["name"].as_str().unwrap().to_owned();
    let rename = format!("{}={}", name(&found, "burst::usual"), name(&found, "shares::ten"));
    let renamed = json(&client, files, &["--force", "--rename", &rename]);
    assert_eq!(rows(&renamed, "burst::usual").count(), 0);
    assert_eq!(only(&renamed, "shares::ten")["self"]["base"], compared);
}

/// Calls of the guest's span are the measure of work; equal recordings are equal.
#[test]
#[ignore = "full: records a guest"]
fn time_is_compared_for_each_call() {
    let guest = Guest::start("service");
    let client = guest.client();
    client.record_samples(2_000, &["-F", "997"]);
    let file = "run.unikprof";
    let report = client.report(file, &["--json"]).expect_json();
    let spans = report["spans"].as_array().unwrap();
    let span = spans.iter().max_by_key(|span| span["count"].as_u64()).unwrap();
    let per = span["name"].as_str().unwrap();
    let found = json(&client, [file, file], &["--per", per]);
    let calls = span["count"].as_u64().unwrap() + span["cut"].as_u64().unwrap();
    let work = found["base"]["work"].as_f64().unwrap();
    // Ends behind the last sample are in no block; the blocks have shares of calls.
    assert!(work > 0.0 && work <= calls as f64 + 1e-6, "{work} of {calls}");
    assert_eq!((&found["per"], &found["changed"]), (&per.into(), &0.into()));
    assert_eq!(found["total"]["factor"], 1.0);
    let (text, stderr) =
        diff(&client, 0, [file, file], &["--per", per, "--fail-on", "significant"]);
    assert!(text.contains("no difference: each function has the same in both"), "{text}");
    let line: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    assert_eq!(line["diff"], "passed");
}

/// Runs of one program, each at other addresses, at most three of ten pairs of which may differ by
/// chance: 5 % are expected.
#[test]
#[ignore = "full: records a guest"]
fn runs_of_one_program_are_alike() {
    let client = Guest::start("shares").client();
    let mut flagged = 0;
    for pair in 0..10 {
        let files = [0, 1].map(|side| client.path(&format!("{pair}-{side}.unikprof")));
        for file in &files {
            let guest = Guest::start("shares");
            let of_guest = guest.client();
            of_guest.record_samples(1_000, &["-F", "997"]);
            std::fs::copy(of_guest.path("run.unikprof"), file).unwrap();
        }
        let [base, new] = files.each_ref().map(|file| file.to_str().unwrap());
        let image = client.image().to_str().unwrap();
        let words = ["diff", base, new, "--image", image, "--fail-on", "significant", "--json"];
        let finished = client.run(&words);
        let found: Value = serde_json::from_str(&finished.stdout).unwrap();
        let functions = found["functions"].as_array().unwrap();
        let addresses = functions.iter().filter(|it| it["name"].as_str().unwrap().contains("0x"));
        assert_eq!(addresses.count(), 0, "{found:#}");
        flagged += match finished.code {
            Some(0) => 0,
            Some(13) => 1,
            other => panic!("{other:?} {finished:?}"),
        };
    }
    assert!(flagged <= 3, "{flagged} of 10 pairs differ");
}
