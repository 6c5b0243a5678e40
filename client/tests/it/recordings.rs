//! Several recordings in one guest, by their names, as a user finds them.

use crate::peer;
use std::process::Command;

use crate::peer::program::{connect, has, is_empty};
use crate::peer::{Peer, Script};
use unikprof_proto::code::start_flag;

const OTHER: u64 = 5;

fn three() -> Script {
    Script {
        others: vec![(OTHER, "nightly"), (6, "a b")],
        ends_by_itself: false,
        ..Script::default()
    }
}

#[test]
fn check_lists_all_or_tells_of_one() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(three());
    let (all, _) = connect(0, &peer, &["check"], here.path());
    has(&all, &["default", "nightly", "a b", "997 Hz", "3 of at most 4"]);
    let (one, _) = connect(0, &peer, &["check", "--name", "nightly"], here.path());
    assert!(one.contains("5 `nightly`") && !one.contains("default"), "{one}");
    let (json, _) = connect(0, &peer, &["check", "--json"], here.path());
    let json = peer::program::json(&json);
    let names: Vec<_> =
        json["recordings"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["default", "nightly", "a b"]);
    assert_eq!((&json["max_recordings"], &json["sessions"]), (&4.into(), &1.into()));
    let (json, _) = connect(0, &peer, &["check", "--json", "--name", "a b"], here.path());
    let json = peer::program::json(&json);
    assert_eq!(json["recordings"].as_array().unwrap().len(), 1);
}

/// Guards that a name given is the one that is ended, and not whichever comes first.
#[test]
fn dump_and_stop_take_the_one_that_is_named() {
    let here = tempfile::tempdir().unwrap();
    for word in ["dump", "stop"] {
        let peer = Peer::start(three());
        connect(
            0,
            &peer,
            &[word, "--name", "nightly", "-o", &format!("{word}.unikprof")],
            here.path(),
        );
        assert!(peer.log().contains(&format!("{word} {OTHER}")), "{:?}", peer.log());
    }
}

#[test]
fn where_it_is_not_clear_which_one_is_meant_the_names_are_told() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(three());
    for words in [&["stop"][..], &["dump"], &["copy"], &["stop", "--discard"]] {
        let (_, stderr) = connect(11, &peer, words, here.path());
        has(&stderr, &["`default`", "`nightly`", "`a b`", "--name"]);
    }
    let (_, stderr) = connect(11, &peer, &["stop", "--name", "weekly"], here.path());
    has(&stderr, &["`weekly`", "`default`, `nightly`, `a b`"]);
    assert!(peer.log().iter().all(|word| ["hello", "check"].contains(&word.as_str())));
    is_empty(here.path());

    let empty = Peer::start(Script { is_empty: true, ..Script::default() });
    for words in [&["stop"][..], &["dump", "--name", "gone"]] {
        let (_, stderr) = connect(11, &empty, words, here.path());
        assert!(stderr.contains("no recording"), "{stderr}");
    }
}

#[test]
fn to_throw_away_must_be_said_and_fetches_nothing() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(three());
    let words = ["stop", "--name", "nightly", "--discard"];
    let (stdout, _) = connect(0, &peer, &words, here.path());
    has(&stdout, &["`nightly`", "its data was dropped"]);
    assert_eq!(peer.log(), ["hello", "check", "stop 5", "acknowledge 7"]);
    is_empty(here.path());
    let both = ["stop", "--discard", "-o", "r.unikprof"];
    connect(2, &peer, &both, here.path());
}

/// An empty file would look like a guest that did nothing.
#[test]
fn a_recording_whose_delay_is_not_over_gives_no_file() {
    let here = tempfile::tempdir().unwrap();
    for (word, said) in [("dump", "has not begun"), ("stop", "is stopped, but")] {
        let peer =
            Peer::start(Script { is_delayed: true, ends_by_itself: false, ..Script::default() });
        let words = [word, "-o", "r.unikprof"];
        let (_, stderr) = connect(5, &peer, &words, here.path());
        assert!(stderr.contains(said), "{stderr}");
        assert!(peer.log().iter().any(|asked| asked == word));
        is_empty(here.path());
    }
}

#[test]
fn presets_and_what_is_said_beside_them_are_sent() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let minute = 60_000_000_000;
    for (words, period_ns, max_age_ns, max_bytes) in [
        (&[][..], 1_003_009, 0, 0),
        (&["--preset", "profile"], 1_003_009, 0, 0),
        (&["--preset", "default"], 10_309_278, 5 * minute, 512 << 10),
        (&["--preset", "default", "-F", "50", "--max-age", "1m"], 20_000_000, minute, 512 << 10),
        (&["--max-size", "2MiB", "--interval", "1ms"], 1_000_000, 0, 2 << 20),
        (&["--preset", "default", "--max-age", "0", "--max-size", "0"], 10_309_278, 0, 0),
    ] {
        connect(0, &peer, &[&["start", "--name", "n"], words].concat(), here.path());
        let asked = peer.starts().pop().unwrap();
        assert_eq!(
            (asked.period_ns, asked.max_age_ns, asked.max_bytes, &*asked.name),
            (period_ns, max_age_ns, max_bytes, "n"),
            "{words:?}"
        );
    }
    connect(2, &peer, &["start", "--max-size", "many"], here.path());
    connect(2, &peer, &["start", "--preset", "best"], here.path());
}

/// Two clients that record at once must not meet under one name, nor throw away what another one
/// has.
#[test]
fn record_has_a_name_of_its_own_and_discards_nothing() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    for file in ["a.unikprof", "b.unikprof"] {
        connect(0, &peer, &["record", "1s", "-o", file], here.path());
    }
    connect(0, &peer, &["record", "1s", "--name", "mine", "-o", "c.unikprof"], here.path());
    let starts = peer.starts();
    assert_ne!(starts[0].name, starts[1].name);
    assert!(starts[0].name.starts_with("record-"), "{}", starts[0].name);
    assert_eq!(starts[2].name, "mine");
    assert!(starts.iter().all(|asked| asked.flags == 0), "{starts:?}");
}

#[test]
fn a_finished_recording_is_replaced_only_if_asked() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    connect(0, &peer, &["start", "--replace"], here.path());
    let asked = peer.starts().pop().unwrap();
    assert_eq!(asked.flags, start_flag::REPLACE);
    let (_, stderr) = connect(2, &peer, &["start", "--discard"], here.path());
    assert!(stderr.contains("--discard"), "{stderr}");
}

/// A count from the network is no length to loop for.
#[test]
fn an_agent_that_tells_of_too_many_recordings_breaks_the_protocol() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script { others: vec![(9, "x"); 64], ..Script::default() });
    let (_, stderr) = connect(4, &peer, &["check"], here.path());
    assert!(stderr.contains("65 recordings"), "{stderr}");
}

#[test]
fn doctor_judges_each_recording_by_its_name() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(three());
    let output = Command::new(env!("CARGO_BIN_EXE_unikprof-client"))
        .args(["doctor", "--all", &peer.address.to_string()])
        .current_dir(here.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    has(&text, &["`default`: ", "`nightly`: ", "`a b`: ", "recording `nightly` for"]);
}
