//! The page of the fleet in a browser.

use serde_json::{Value, json};

use super::{entry, folder};
use crate::harness::{Fleet, Guest};
use crate::hosted::page::drive;

/// The page's text for a share.
fn share(share: &Value) -> String {
    match share.as_f64() {
        None => "-".into(),
        Some(share) if share > 0.0 && share < 0.0005 => "<0.1 %".into(),
        Some(share) => format!("{:.1} %", share * 100.0),
    }
}

/// The cells that the page must show of a guest, up to those that tell ages.
fn cells(guest: &Value) -> Vec<String> {
    let busy = match guest["running_vcpus"].as_f64() {
        None => "-".into(),
        Some(running) => format!("{running:.2} of {}", guest["vcpus"]),
    };
    let hottest = &guest["hottest"];
    let hottest = match hottest["function"].as_str() {
        None => "-".into(),
        Some(function) => format!("{} {function}", share(&hottest["share"])),
    };
    let rate = format!("{:.0} Hz", guest["rate_hz"].as_f64().unwrap());
    let up = if guest["up"] == true { "up" } else { "down" };
    let name = format!("{}|", guest["name"].as_str().unwrap());
    let stolen = share(&guest["stolen_share"]);
    vec![name, up.into(), rate, format!("|{busy}"), stolen, hottest]
}

/// Each of the page's rows says what the server answered.
fn expect_rows(found: &Value) -> Vec<Vec<String>> {
    let rows: Vec<Vec<String>> = serde_json::from_value(found["rows"].clone()).unwrap();
    let guests = found["answer"]["guests"].as_array().unwrap();
    assert_eq!(rows.len(), guests.len());
    for (row, guest) in rows.iter().zip(guests) {
        let mut shown = row[..6].to_vec();
        shown[5] = row[5].split('|').next().unwrap().to_owned();
        assert_eq!(shown, cells(guest), "{guest}");
    }
    rows
}

#[test]
#[ignore = "full: drives a browser"]
fn a_click_records_and_opens_what_was_recorded() {
    let guests = [Guest::start_recording("shares", "flight"), Guest::start("idle")];
    // A name that would be an element if it were not text.
    let rest = entry("<img>", guests[1].address()) + &entry("shares", guests[0].address());
    // Fast enough for samples on a busy machine, too.
    let rest = rest + "rate = 997\n";
    let fleet = Fleet::start(folder(), "", &rest);
    let picture = fleet.path("fleet.png");
    let steps = [
        json!({ "open": format!("{}/", fleet.url) }),
        json!({ "until": "#guests tr:nth-child(1) .state", "says": "up" }),
        json!({ "until": "#guests tr:nth-child(2) .busy", "says": " of " }),
        json!({ "answer": "/guests" }),
        json!({ "click": "#seconds", "count": 3, "still": true }),
        json!({ "type": "#seconds", "text": "5", "still": true }),
        json!({ "click": "#guests tr:nth-child(2) .record", "still": true }),
        json!({ "until": ".result", "says": "recording of 5 s" }),
        json!({ "tab": 1 }),
        json!({ "read": "#title" }),
        json!({ "tab": 0 }),
        json!({ "until": ".hottest", "says": "recorded here" }),
        json!({ "until": "#guests tr:nth-child(2) .recent:not(:disabled)",
                "says": "Last minutes" }),
        json!({ "answer": "/guests" }),
        json!({ "click": "#guests tr:nth-child(2) .recent", "still": true }),
        json!({ "until": ".result", "says": "last 5 min" }),
        json!({ "tab": 2 }),
        json!({ "read": "#title" }),
        json!({ "tab": 0 }),
        json!({ "until": ".hottest", "says": "copied from recording flight" }),
        json!({ "answer": "/guests" }),
        json!({ "read": "#guests tr:nth-child(1) .recent:disabled" }),
        json!({ "type": "#query", "text": "shares", "still": true }),
        json!({ "read": "#guests td.name b" }),
        json!({ "screenshot": picture }),
    ];
    let Some(found) = drive(&steps) else { return };
    let before = expect_rows(&found[3]);
    assert_eq!(before[0][0], "<img>|");
    let titles = [&found[9], &found[17]].map(|titles| titles[0].as_str().unwrap());
    assert!(titles[0].contains("serve-"), "{titles:?}");
    assert!(titles[1].contains("flight"), "{titles:?}");
    for (at, source) in [(13, "cpu, 5"), (20, "copied from recording flight")] {
        let rows = expect_rows(&found[at]);
        // The load's shares are its functions' names.
        assert!(rows[1][5].contains("sixty"), "{rows:?}");
        assert!(rows[1][5].contains(source), "{rows:?}");
    }
    assert_eq!(found[21], json!(["Last minutes"]), "it has no recording");
    assert_eq!(found[23], json!(["shares"]));
    assert_eq!(guests[1].client().recording_names(), [""; 0]);
    let left = guests[0].client().recording_names();
    assert_eq!(left, ["flight"], "a copy and a recording change nothing");
    fleet.end();
}
