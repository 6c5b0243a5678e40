//! What happened when, over the wire: what is asked for, agents without rings, and agents that lie
//! about theirs.

use std::process::Command;

use crate::peer::program::{connect, has, is_empty, json, run};
use crate::peer::ring::{self, head, record};
use crate::peer::{Peer, Ring, Script, encode, program};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_profile::timeline::Window;
use unikprof_proto::code::mode;
use unikprof_proto::message::{EventName, RingHead, RingRun, StacksEnd};
use unikprof_proto::ring::{Record, Wait, kind};

/// One vCPU, whose samples are those of `Script::default`.
fn script(ring: Ring) -> Script {
    let usual = Script::default();
    Script { vcpus: usual.vcpus[..1].to_vec(), ends_by_itself: false, ring: Some(ring), ..usual }
}

/// Eight samples, a span around the fourth to sixth of them, and a counter.
fn eight() -> Vec<Record> {
    let mut records = vec![record(kind::BEGAN, 1_000, 3, 0)];
    for tick in 1..=8 {
        let at_ns = 1_000 + tick * 100;
        if tick == 4 {
            records.push(record(kind::SPAN_BEGIN, at_ns - 1, 0, 7));
            records.push(record(kind::COUNTER, at_ns - 1, 1, -5_i64 as u64));
        }
        let stack = ring::stack(if (4..=6).contains(&tick) { 2 } else { 1 });
        records.push(record(kind::SAMPLE, at_ns, stack, 1));
        if tick == 6 {
            records.push(record(kind::SPAN_END, at_ns + 1, 0, 7));
        }
    }
    records
}

fn answers(head: &RingHead, records: &[Record]) -> Ring {
    Ring {
        names: ring::names(&["batch", "depth"], 2),
        records: vec![ring::records(head, records)],
        stacks: vec![ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]])],
        closes_after: None,
        live: None,
        goes_on: None,
    }
}

fn honest() -> Ring {
    let records = eight();
    answers(&head(0, 0, records.len() as u64), &records)
}

#[test]
fn an_agent_without_a_ring_says_so_and_its_counts_are_left_alone() {
    let here = tempfile::tempdir().unwrap();
    let without = Script { ends_by_itself: false, ..Script::default() };
    let peer = Peer::start(without);
    for words in [
        &["events"][..],
        &["events", "--follow"],
        &["dump", "--last", "30s"],
        &["dump", "--from", "1s", "--to", "2s"],
    ] {
        let (_, stderr) = connect(5, &peer, words, here.path());
        assert!(stderr.contains("because it has no ring"), "{words:?}: {stderr}");
    }
    assert!(!peer.log().contains(&"dump".to_owned()), "{:?}", peer.log());
    is_empty(here.path());
    let (check, _) = connect(0, &peer, &["check"], here.path());
    has(&check, &["none: no memory was given for it"]);
    let (info, _) = connect(0, &peer, &["info"], here.path());
    assert!(info.contains("samples have no times"), "{info}");
    connect(0, &peer, &["dump", "-o", "r.unikprof"], here.path());
    for words in [&["--timeline"][..], &["--last", "1s"], &["--in-span", "x"]] {
        let (_, stderr) = run(2, &[&["report", "r.unikprof"], words].concat(), here.path());
        assert!(stderr.contains("holds counts alone"), "{words:?}: {stderr}");
    }
}

/// Guards that a window which cannot be costs a dump: its counts would be cleared for nothing.
#[test]
fn a_window_that_cannot_be_is_refused_before_anything_is_dumped() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(script(honest()));
    for (words, said) in [
        (&["--from", "900ns", "--to", "100ns"][..], "from 900 ns to 100 ns is empty"),
        (&["--from", "1h"], "from 1 h to the end is outside of what is recorded, 0 s to 1 µs"),
        (&["--to", "-1h"], "from the beginning to 1 h before the end is outside"),
        (&["--last", "0"], "is empty; recorded is 0 s to 1 µs"),
        (&["--from", "1h", "--to", "2h"], "from 1 h to 2 h is outside"),
        (&["--from", "soon"], "invalid time `soon`"),
        (&["--from", "12"], "invalid time `12`"),
        (&["--last", "1s", "--to", "2s"], "cannot be used with"),
    ] {
        let (_, stderr) = connect(2, &peer, &[&["dump"], words].concat(), here.path());
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }
    assert!(!peer.log().contains(&"dump".to_owned()), "{:?}", peer.log());
    is_empty(here.path());
}

/// Guards that `events` and `copy` read a window as `dump` and `report` do.
#[test]
fn every_subcommand_reads_a_window_alike() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(script(honest()));
    // It is 2,000 now; a span begins at 1,399 and ends at 1,601, and a counter is told at 1,399.
    let kinds = |words: &[&str]| {
        let words = [&["events", "--json", "--only", "span,counter"], words].concat();
        let (text, _) = connect(0, &peer, &words, here.path());
        let kinds = text.lines().map(|line| json(line)["kind"].to_string());
        kinds.collect::<Vec<_>>().join(" ")
    };
    let all = r#""span_begin" "counter" "span_end""#;
    assert_eq!(kinds(&[]), all);
    assert_eq!(kinds(&["--last", "1us"]), all);
    assert_eq!(kinds(&["--from", "-500ns"]), r#""span_end""#);
    assert_eq!(kinds(&["--last", "500ns"]), r#""span_end""#);
    let window = ["--from", "-700ns", "--to", "-500ns"];
    assert_eq!(kinds(&window), r#""span_begin" "counter""#);
    assert_eq!(kinds(&["--from", "2023-11-14T00:00:00+01:00"]), all);
    for (words, said) in [
        (&["--from", "12s"][..], "no single recording"),
        (&["--from", "soon"], "invalid time"),
        (
            &["--from", "-1ns", "--to", "-1us"],
            "from 1 ns before the end to 1 µs before the end is empty",
        ),
        (&["--from", "2023-11-15"], "from 2023-11-15T00:00:00Z to the end is outside"),
        (&["--follow", "--to", "-1ns"], "cannot be used with"),
    ] {
        let (_, stderr) = connect(2, &peer, &[&["events"], words].concat(), here.path());
        assert!(stderr.contains(said), "{words:?}: {stderr}");
    }

    let words = ["copy", "--from", "300ns", "--to", "600ns", "-o", "c.unikprof"];
    connect(0, &peer, &words, here.path());
    let copied = Recording::open(&here.path().join("c.unikprof"), Reading::Strict).unwrap();
    let expected = Window { from_ns: 1_300, to_ns: 1_600 };
    assert_eq!(copied.asked, Some(expected));
}

/// Names that the agent refused, what is sampled in spans, and the values of counters reach the
/// reports.
#[test]
fn a_dump_holds_what_happened_when() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(script(honest()));
    connect(0, &peer, &["dump", "-o", "r.unikprof"], here.path());
    let (text, _) = run(0, &["report", "r.unikprof", "--accounting"], here.path());
    has(&text, &["batch", "depth", "rejected 2 event names"]);
    let report = |more: &[&str]| {
        let words = [&["report", "r.unikprof", "--json"], more].concat();
        json(&run(0, &words, here.path()).0)
    };
    let cut = report(&["--from", "350ns", "--to", "650ns"]);
    assert_eq!(cut["samples"]["recorded"], 3);
    assert_eq!(cut["window"]["from_ns"], 350);
    assert_eq!(report(&["--in-span", "batch"])["samples"]["recorded"], 3);
    // The value that the counter had when the window began.
    let late = report(&["--from", "700ns"]);
    assert_eq!(late["values"][0]["last"], -5);
    assert_eq!(report(&[])["refused_names"], 2);
}

#[test]
fn the_bounds_of_a_recording_bound_what_is_fetched() {
    let here = tempfile::tempdir().unwrap();
    let asked = |keeps, words: &[&str]| {
        let peer = Peer::start(Script { keeps, ..script(honest()) });
        let words = [&["dump", "-o", "r.unikprof"], words].concat();
        connect(0, &peer, &words, here.path());
        std::fs::remove_file(here.path().join("r.unikprof")).unwrap();
        let last = *peer.asked_rings().last().unwrap();
        (last.position, last.since_ns)
    };
    // Twelve records; the recording began at 1,000, and it is 2,000 now.
    assert_eq!(asked((0, 0), &[]), (0, 0), "with some time before it");
    assert_eq!(asked((400, 0), &[]), (0, 1_600));
    assert_eq!(asked((0, 5 * 16), &[]), (12 - 5, 0));
    assert_eq!(asked((400, 5 * 16), &[]), (12 - 5, 1_600));
    // A window is fetched whole, with some time before it.
    assert_eq!(asked((400, 5 * 16), &["--last", "100ns"]), (0, 0));
}

/// Guards that the end of a recording which has ended is looked for before now, where it may hold
/// nothing.
#[test]
fn the_last_seconds_of_a_recording_that_has_ended_are_before_its_end() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script {
        ends_by_itself: true,
        looked_at_ns: 90_000_000_000,
        ..script(honest())
    });
    let words = ["dump", "--last", "10us", "-o", "r.unikprof"];
    connect(0, &peer, &words, here.path());
    let recording = Recording::open(&here.path().join("r.unikprof"), Reading::Strict).unwrap();
    // The last epoch's end.
    let to_ns = 51_000;
    let expected = Window { from_ns: to_ns - 10_000, to_ns };
    assert_eq!(recording.asked, Some(expected));
}

#[test]
fn check_tells_how_full_rings_are_and_what_was_asked_for() {
    let here = tempfile::tempdir().unwrap();
    let records = eight();
    let peer = Peer::start(Script {
        keeps: (300_000_000_000, 512 << 10),
        ..script(answers(&head(0, 4_321, records.len() as u64), &records))
    });
    let (text, _) = connect(0, &peer, &["check"], here.path());
    has(&text, &["5 min, 512 KiB", "vCPU 0 holds 12 (1.2 %), 4,321 older ones evicted"]);
    let (told, _) = connect(0, &peer, &["check", "--json"], here.path());
    let told = json(&told);
    assert_eq!(told["rings"][0]["evicted"], 4_321);
    assert_eq!(told["rings"][0]["held"], 12);
    assert_eq!(told["recordings"][0]["max_bytes"], 512 << 10);
}

/// What breaks the protocol ends `events`, and leaves a dump with its counts, which stay in the
/// guest.
#[test]
fn rings_that_lie_are_refused() {
    let records = eight();
    let count = records.len() as u64;
    let run_of = |first, records: &[Record]| ring::run(0, first, records);
    let lying_count =
        |count| encode(&RingRun { vcpu: 0, first: 0, count, base_ns: 0, payload: &[0; 3] });
    let bytes = |parts: &[&[u8]]| parts.concat();
    let start = encode(&head(0, 0, count));
    let end = ring::end(0, count);
    let whole = run_of(0, &records);
    for (what, sent) in [
        ("records before their head", bytes(&[&whole, &start, &end])),
        ("an end alone", end.clone()),
        ("two heads", bytes(&[&start, &start, &end])),
        ("another vCPU's head", bytes(&[&encode(&head(1, 0, count)), &ring::end(1, count)])),
        ("another vCPU's end", bytes(&[&start, &whole, &ring::end(1, count)])),
        ("records twice", bytes(&[&start, &whole, &whole, &end])),
        ("records beyond the head's", bytes(&[&start, &run_of(5, &records), &end])),
        ("a count of many", bytes(&[&start, &lying_count(9), &end])),
        ("a count of few", bytes(&[&start, &lying_count(1), &end])),
        ("a count of none", bytes(&[&start, &lying_count(0), &end])),
        ("stacks among them", bytes(&[&start, &ring::stacks(0, &[&[0x150]]), &end])),
    ] {
        let lie = Ring { records: vec![sent], ..honest() };
        expect_refused(what, lie, true);
    }
    for (what, names) in [
        (
            "a name twice",
            bytes(&[&encode(&EventName { id: 0, name: "b" }), &ring::names(&["a"], 0)]),
        ),
        ("an id that no name has", encode(&EventName { id: 256, name: "a" })),
        ("records", bytes(&[&start, &whole, &end])),
    ] {
        let lie = Ring { names, ..honest() };
        expect_refused(what, lie, false);
    }
    for (what, stacks) in [
        ("another vCPU's stacks", ring::stacks(1, &[&[0x150]])),
        // What follows a whole answer belongs to the next one, which it is not.
        ("two answers", bytes(&[&ring::stacks(0, &[&[0x150]]), &ring::stacks(0, &[&[0x150]])])),
        ("records for stacks", bytes(&[&start, &whole, &end])),
        ("another vCPU's end of stacks", encode(&StacksEnd { vcpu: 1, oldest: 0, known: 0 })),
    ] {
        let lie = Ring { stacks: vec![stacks], ..honest() };
        // Events need no stacks.
        expect_refused(what, lie, false);
    }
}

fn expect_refused(what: &str, lie: Ring, events_too: bool) {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(script(lie));
    if events_too {
        let (_, stderr) = connect(4, &peer, &["events"], here.path());
        assert!(stderr.contains("violated the protocol"), "{what}: {stderr}");
    }
    let (_, stderr) = connect(8, &peer, &["dump", "-o", "r.unikprof"], here.path());
    assert!(
        stderr.contains("violated the protocol") || stderr.contains("expected"),
        "{what}: {stderr}"
    );
    assert_eq!(peer.asked("acknowledge"), 0, "{what}: the guest keeps its counts");
    let kept = Recording::open(&here.path().join("r.unikprof"), Reading::Strict).unwrap();
    assert_eq!(kept.profile.sample_count(), 15, "{what}");
}

/// Numbers that are allowed and make no sense are shown, and neither end the program nor fill the
/// screen.
#[test]
fn absurd_rings_are_survived() {
    let last = u64::MAX;
    let absurd = [
        record(kind::BEGAN, 0, 3, 0),
        record(kind::BEGAN, last, 3, last),
        record(kind::SAMPLE, last, last, last),
        record(kind::SAMPLE, 0, 9, 1),
        record(kind::NO_SAMPLE, last - 1, last, 1),
        Record { third: last, ..record(kind::WAIT, 5, last, last) },
        Record { third: last - 1, ..record(kind::WAIT, last, last, last) },
        Record { third: 1, ..record(kind::WAIT, 3, 0, last) },
        record(kind::RAN, last, last, 0),
        record(kind::WAITED, 0, last, last),
        record(kind::RAN, 0, 0, 0),
        record(kind::WAITED, last, 0, 0),
        record(kind::CLOCK, 7, last, 0),
        record(kind::CLOCK, last, 1, 0),
        record(kind::STOLEN, 9, last, last),
        record(kind::SPAN_END, last, 0, 7),
        record(kind::SPAN_BEGIN, 0, 0, 7),
        record(kind::SPAN_BEGIN, last, 250, 7),
        record(kind::COUNTER, last, last, last),
        record(kind::COUNTER, 0, last, i64::MIN as u64),
        record(kind::COUNTER, 1, last, i64::MAX as u64),
        record(kind::MARK, last, last, last),
        record(kind::ENDED, 0, last, last),
        record(kind::NOTHING, 4, last, last),
        record(13, 1_500, last, last),
        record(31, last, last, last),
    ];
    let count = absurd.len() as u64;
    let usual = head(0, 0, count);
    for head in [
        usual,
        RingHead { capacity: 0, now_ns: last, wall_clock_ns: Some(last), ..usual },
        RingHead {
            capacity: last,
            oldest: last - count,
            next: last,
            now_ns: 0,
            wall_clock_ns: Some(0),
            ..usual
        },
    ] {
        let here = tempfile::tempdir().unwrap();
        let ring =
            Ring { names: ring::names(&["\x1b[2J\nname", ""], last), ..answers(&head, &absurd) };
        let peer = Peer::start(script(ring));
        connect(0, &peer, &["check"], here.path());
        let (text, _) = connect(0, &peer, &["events"], here.path());
        assert!(!text.contains('\x1b'), "{text}");
        let (lines, _) = connect(0, &peer, &["events", "--json"], here.path());
        assert!(lines.lines().all(|line| json(line).is_object()), "{lines}");
        for dump in [&["dump"][..], &["dump", "--last", "500ns"]] {
            let words = [dump, &["-o", "r.unikprof"]].concat();
            connect(0, &peer, &words, here.path());
            for words in [
                &["--timeline"][..],
                &["--timeline", "--step", "1us", "--json"],
                &["--from", "0s", "--format", "folded", "--labels"],
                &["--last", "1h", "-o", "r.pb.gz"],
            ] {
                let words = [&["report", "r.unikprof"], words].concat();
                let (text, _) = run(0, &words, here.path());
                assert!(!text.contains('\x1b'), "{text}");
                assert!(text.len() < 1 << 20, "{} bytes", text.len());
            }
            std::fs::remove_file(here.path().join("r.unikprof")).unwrap();
        }
    }
}

#[test]
fn a_line_that_is_cut_within_a_ring_leaves_no_half_of_it() {
    let here = tempfile::tempdir().unwrap();
    let length = honest().records[0].len();
    for closes_after in [0, 1, length / 2, length - 1] {
        let peer = Peer::start(script(Ring { closes_after: Some(closes_after), ..honest() }));
        let words = ["--retry", "0s", "dump", "-o", "r.unikprof"];
        let (_, stderr) = connect(8, &peer, &words, here.path());
        assert!(stderr.contains("incomplete"), "{stderr}");
        let kept = Recording::open(&here.path().join("r.unikprof"), Reading::Strict).unwrap();
        assert_eq!(kept.profile.sample_count(), 15);
        assert_eq!(kept.timeline, None);
        std::fs::remove_file(here.path().join("r.unikprof")).unwrap();
        let code = if closes_after == 0 { 3 } else { 4 };
        connect(code, &peer, &["--retry", "0s", "events"], here.path());
    }
}

/// Guards advice that ends a flight recorder: a copy has changed nothing in the guest.
#[test]
fn a_copy_that_breaks_is_to_be_made_again() {
    let here = tempfile::tempdir().unwrap();
    let length = honest().records[0].len();
    let peer = Peer::start(script(Ring { closes_after: Some(length / 2), ..honest() }));
    let words = ["--retry", "0s", "copy", "-o", "r.unikprof"];
    let (_, stderr) = connect(8, &peer, &words, here.path());
    assert!(stderr.contains("Nothing in the guest has changed: try again"), "{stderr}");
    assert!(!stderr.contains("stop"), "{stderr}");
}

/// Ctrl-C is how following ends: in good order also where the agent owes an answer.
#[cfg(unix)]
#[test]
fn following_ends_well_while_an_answer_is_on_its_way() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(script(Ring { records: vec![Vec::new()], ..honest() }));
    let child = Command::new(env!("CARGO_BIN_EXE_unikprof-client"))
        .args(["connect", &peer.address.to_string(), "events", "--follow"])
        .current_dir(here.path())
        .spawn()
        .unwrap();
    peer.wait_for("ring 0");
    program::signal("INT", child.id());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}

/// Guards that events are missing without a word: a ring that laps a slow answer evicts what lies
/// between two runs.
#[test]
fn events_tell_of_records_that_were_evicted_while_they_were_fetched() {
    let here = tempfile::tempdir().unwrap();
    let mark = |at_ns, value| record(kind::MARK, at_ns, 0, value);
    let records = [
        encode(&head(0, 10, 8)),
        ring::run(0, 10, &[mark(100, 1), mark(200, 2)]),
        ring::run(0, 15, &[mark(300, 6)]),
        ring::run(0, 17, &[mark(400, 8)]),
        ring::end(0, 18),
    ];
    let ring = Ring { records: vec![records.concat()], ..honest() };
    let peer = Peer::start(script(ring));
    let (lines, stderr) = connect(0, &peer, &["events"], here.path());
    assert_eq!(lines.lines().count(), 4, "{lines}");
    // Ten before the head, three between the first runs, and one between the last.
    assert!(stderr.contains("14 records were evicted"), "{stderr}");
}

/// Which events are wanted is said by kind; a wake tells how long its wait was, of which a record
/// may have told a part before.
#[test]
fn events_of_some_kinds_alone() {
    let here = tempfile::tempdir().unwrap();
    let part = |is_first, is_last, at_ns, length_ns| {
        let wait = Wait { is_first, is_last, length_ns, ..Wait::default() };
        Record { third: wait.to_number(), ..record(kind::WAIT, at_ns, 0, 0) }
    };
    let records = [
        record(kind::BEGAN, 100, 3, 0),
        part(true, false, 400, 200),
        part(false, true, 500, 100),
        part(true, true, 550, 35_000_000),
        record(kind::MARK, 600, 0, 42),
        record(kind::STOLEN, 700, 12_000_000, 0),
        record(kind::RESUMED, 800, 0, 0),
        record(kind::BAD_KEY, 900, 0, 0),
        record(kind::ENDED, 950, 3, 0),
        record(kind::SAMPLE, 960, 1, 1),
    ];
    let ring = answers(&head(0, 0, records.len() as u64), &records);
    let peer = Peer::start(script(ring.clone()));
    let (all, _) = connect(0, &peer, &["events"], here.path());
    let words: Vec<&str> =
        all.lines().map(|line| line.split_once("vcpu 0").unwrap().1.trim()).collect();
    assert_eq!(
        words,
        [
            "began    recording 3 `default`",
            "wake     after 300 ns",
            "wake     after 35 ms",
            "mark     batch 42",
            "stolen   another domain had the CPU for 12 ms",
            "resumed  after a suspend",
            "rejected a client's handshake failed",
            "ended    recording 3 `default`",
        ]
    );
    let kinds = |only: &str| {
        let words = ["events", "--only", only, "--json"];
        let (lines, _) = connect(0, &peer, &words, here.path());
        let kind = |line| json(line)["kind"].as_str().unwrap().to_owned();
        lines.lines().map(kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds("block"), ["wake", "wake"]);
    // The one recording there is samples running time alone.
    let (_, stderr) = connect(0, &peer, &["events", "--only", "block"], here.path());
    assert!(stderr.contains("--mode off-cpu"), "{stderr}");
    let waits = Peer::start(Script { mode: mode::OFF_CPU, ends_by_itself: false, ..script(ring) });
    let (_, stderr) = connect(0, &waits, &["events", "--only", "block"], here.path());
    assert!(!stderr.contains("off-cpu"), "{stderr}");
    assert_eq!(kinds("resumed,stolen,bad-key"), ["stolen", "resumed", "bad_key"]);
    assert_eq!(kinds("recording"), ["recording_began", "recording_ended"]);
    let (_, stderr) = connect(2, &peer, &["events", "--only", "all"], here.path());
    assert!(stderr.contains("stolen"), "{stderr}");
}
