//! Two clients and one recording: the second one learns who fetches it, and copies.

use crate::peer::program::{connect, has, is_empty, json};
use crate::peer::{Peer, Ring, Script, ring};
use serde_json::Value;
use unikprof_profile::recording::{Reading, Recording};
use unikprof_proto::code::{message_type as types, refusal, start_flag};
use unikprof_proto::ring::kind;

const HOLDER: &str = "unikprof-client 0.1.0";
const HELD: &str = "`unikprof-client 0.1.0` fetches recording 3 `default` since 12 s";

#[test]
fn a_recording_that_another_client_fetches_is_refused_with_the_way_out() {
    for (word, request) in [
        (&["stop"][..], types::STOP),
        (&["dump"], types::DUMP),
        // The agent lets everybody stop, but only the holder take what waits.
        (&["stop"], types::ACKNOWLEDGE),
        (&["stop", "--discard"], types::ACKNOWLEDGE),
    ] {
        let here = tempfile::tempdir().unwrap();
        let peer = Peer::start(Script {
            refuses: Some((request, refusal::LEASED, HELD)),
            ends_by_itself: false,
            ..Script::default()
        });
        // A file with everything that waited is a success.
        let code = if word == ["stop"] && request == types::ACKNOWLEDGE { 0 } else { 12 };
        let (_, stderr) = connect(code, &peer, word, here.path());
        assert!(stderr.contains(HELD), "{word:?}: {stderr}");
        assert!(!stderr.contains("--discard"), "{word:?}: {stderr}");
        if word.contains(&"--discard") {
            has(&stderr, &["the recording has ended; "]);
        }
        if code == 12 {
            has(&stderr, &[HELD, "`copy`"]);
            is_empty(here.path());
        }
    }
}

/// A client that was killed keeps its lease for a moment.
#[test]
fn a_dump_waits_for_the_lease_of_a_client_that_is_gone() {
    let here = tempfile::tempdir().unwrap();
    let script = Script {
        refuses: Some((types::DUMP, refusal::HOLDER_GONE, HELD)),
        refusals: 2,
        ends_by_itself: false,
        ..Script::default()
    };
    let peer = Peer::start(script.clone());
    let (text, stderr) = connect(0, &peer, &["dump", "-o", "r.unikprof"], here.path());
    assert!(text.contains("18 samples"), "{text}");
    assert_eq!((peer.asked("refused"), stderr.matches(HELD).count()), (2, 1), "{stderr}");
    let words = ["dump", "--retry", "0s", "-o", "other.unikprof"];
    let (_, stderr) = connect(12, &Peer::start(script), &words, here.path());
    has(&stderr, &[HELD]);
}

#[test]
fn copy_takes_what_waits_and_changes_nothing() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script {
        refuses: Some((types::DUMP, refusal::LEASED, HELD)),
        waiting: 1,
        holder: Some(HOLDER),
        ..Script::default()
    });
    let (text, _) = connect(0, &peer, &["copy", "-o", "r.unikprof"], here.path());
    assert!(text.contains("18 samples"), "{text}");
    let changes = |word: &str| ["stop", "dump", "acknowledge"].iter().any(|w| word.starts_with(w));
    let log = peer.log();
    assert!(!log.iter().any(|word| changes(word)), "{log:?}");
}

/// Of a recording that goes on nothing may wait, but the rings tell of its last seconds.
#[test]
fn copy_of_a_recording_that_goes_on_holds_what_the_rings_hold() {
    let here = tempfile::tempdir().unwrap();
    let records = [
        ring::record(kind::BEGAN, 1_000, 3, 0),
        ring::record(kind::SAMPLE, 1_100, ring::stack(1), 1),
        ring::record(kind::SAMPLE, 1_200, 0, 1),
        ring::record(kind::SAMPLE, 1_300, ring::stack(2), 1),
    ];
    let usual = Script::default();
    let peer = Peer::start(Script {
        vcpus: usual.vcpus[..1].to_vec(),
        ends_by_itself: false,
        holder: Some(HOLDER),
        ring: Some(Ring {
            names: ring::names(&[], 0),
            records: vec![ring::records(&ring::head(0, 0, 4), &records)],
            stacks: vec![ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]])],
            ..Ring::default()
        }),
        ..usual
    });
    connect(0, &peer, &["copy", "-o", "r.unikprof"], here.path());
    let log = peer.log();
    assert!(!log.iter().any(|word| word.starts_with("fetch")), "{log:?}");
    let kept = Recording::open(&here.path().join("r.unikprof"), Reading::Strict).unwrap();
    let info = kept.profile.recording();
    assert_eq!((info.name.as_str(), info.period_ns), ("default", 1_003_009));
    // A sample whose stack was given up is one that aged.
    let counters = kept.profile.counters();
    assert_eq!((counters.ticks, counters.recorded, counters.aged), (3, 2, 1));
    assert_eq!(kept.profile.sample_count(), 3);
    let warnings = info.warnings.join("\n");
    assert!(warnings.contains("no counts"), "{warnings}");
}

/// The client that holds the lease acknowledges the epoch before the copy has it: the rings are
/// copied all the same.
#[test]
fn copy_beside_a_client_that_drains_is_no_error() {
    let here = tempfile::tempdir().unwrap();
    let records = [ring::record(kind::BEGAN, 1_000, 3, 0), ring::record(kind::SAMPLE, 1_100, 0, 1)];
    let peer = Peer::start(Script {
        refuses: Some((types::FETCH, refusal::NO_EPOCH, "it was acknowledged")),
        waiting: 1,
        vcpus: Script::default().vcpus[..1].to_vec(),
        ends_by_itself: false,
        holder: Some(HOLDER),
        ring: Some(Ring {
            names: ring::names(&[], 0),
            records: vec![ring::records(&ring::head(0, 0, 2), &records)],
            stacks: vec![ring::stacks(0, &[&[0x150, 0x110]])],
            ..Ring::default()
        }),
        ..Script::default()
    });
    connect(0, &peer, &["copy", "-o", "r.unikprof"], here.path());
    let kept = Recording::open(&here.path().join("r.unikprof"), Reading::Strict).unwrap();
    assert_eq!(kept.profile.counters().ticks, 1);
}

#[test]
fn check_and_info_show_who_holds_a_recording_and_what_the_memory_holds() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script {
        holder: Some("unikprof-client 0.1.0\x1b[2J"),
        windows: (Some(62_000_000_000), None),
        ends_by_itself: false,
        ..Script::default()
    });
    let (all, _) = connect(0, &peer, &["check"], here.path());
    has(
        &all,
        &["HOLDS", "samples 1 min 02 s", "unikprof-client 0.1.0\\u{1b}[2J has been fetching for"],
    );
    let (one, _) = connect(0, &peer, &["check", "--name", "default"], here.path());
    has(&one, &["enough for 1 min 02 s of samples and an unknown time of new stacks", "for 1 µs"]);
    let (info, _) = connect(0, &peer, &["info"], here.path());
    has(&info, &["`default`: recording, unikprof-client 0.1.0"]);
    assert!(info.contains("may use up to 10 % of a CPU"), "{info}");
    for text in [&all, &one, &info] {
        assert!(!text.contains('\x1b'), "{text}");
    }
    let (told, _) = connect(0, &peer, &["check", "--json"], here.path());
    let one = &json(&told)["recordings"][0];
    assert_eq!(one["samples_window_ns"], 62_000_000_000_u64);
    assert_eq!(one["stacks_window_ns"], Value::Null);
    assert_eq!(one["holder"]["held_ns"], 1_000);
    let (told, _) = connect(0, &peer, &["info", "--json"], here.path());
    let told = json(&told);
    assert_eq!(told["instance"], "000000000000feed");
    assert_eq!(told["server_share_permille"], 100);
    assert_eq!(told["recordings"][0]["holder"]["held_ns"], 1_000);
}

#[test]
fn a_preset_or_an_option_says_what_is_kept_where_memory_runs_short() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    for (words, newest) in [
        (&["start"][..], false),
        (&["start", "--preset", "profile"], false),
        (&["start", "--preset", "default"], true),
        (&["start", "--preset", "default", "--keep", "all"], false),
        (&["start", "--keep", "newest"], true),
        (&["record", "1s", "--keep", "newest", "-o", "r.unikprof"], true),
        (&["record", "1s", "-o", "other.unikprof"], false),
    ] {
        connect(0, &peer, words, here.path());
        let flags = peer.starts().pop().unwrap().flags;
        assert_eq!(flags & start_flag::KEEP_NEWEST != 0, newest, "{words:?}");
    }
    connect(2, &peer, &["start", "--keep", "some"], here.path());
}
