//! Recording files with rings: what happened when comes back, a window of it is a profile, and what
//! a crashed guest left is read.

use std::io::Read as _;
use std::path::Path;

use crate::peer::ring::{self, record};
use crate::peer::{self, program};
use crate::peer::{Script, encode};
use unikprof_profile::recording::{Reading, Recording, RecordingError};
use unikprof_profile::symbols::Symbolizer;
use unikprof_profile::timeline::{SpanFilter, Window};
use unikprof_proto::code::mode;
use unikprof_proto::file::{BlockHead, FileEnd, FileHeader, preamble};
use unikprof_proto::message::{Epoch, RingHead};
use unikprof_proto::ring::{Record, kind, outcome};
use unikprof_report::report::{Format, Report, ReportOptions, TimelineView};

const SECOND: u64 = 1_000_000_000;

/// Three seconds on vCPU 0 from position `oldest` on: ten samples a second, in the second second of
/// another stack and inside a span.
fn rings(oldest: u64) -> Vec<u8> {
    let mut records = vec![record(kind::BEGAN, 10 * SECOND, 4, 0)];
    for tick in 0..30 {
        let at_ns = 10 * SECOND + tick * SECOND / 10 + 1;
        if tick == 10 {
            records.push(record(kind::SPAN_BEGIN, at_ns - 1, 0, 77));
            records.push(record(kind::COUNTER, at_ns - 1, 1, -5_i64 as u64));
        }
        let stack = ring::stack(if (10..20).contains(&tick) { 2 } else { 1 });
        records.push(record(kind::SAMPLE, at_ns, stack, 1));
        // Another recording's.
        records.push(record(kind::SAMPLE, at_ns, ring::stack(1), 2));
        if tick == 19 {
            records.push(record(kind::SPAN_END, at_ns + 1, 0, 77));
        }
    }
    records.push(record(kind::NO_SAMPLE, 12 * SECOND + 5, outcome::LOST, 1));
    ring_since(oldest, Some(1_700_000_013 * SECOND), &records)
}

/// The ring of vCPU 0 up to 13 s, whose samples name the stacks at 0x1050 and 0x1070 of the image
/// by `ring::stack(1)` and `ring::stack(2)`.
fn one_ring(records: &[Record]) -> Vec<u8> {
    ring_since(0, None, records)
}

/// The same from position `oldest` on, with a date at its end.
fn ring_since(oldest: u64, wall_clock_ns: Option<u64>, records: &[Record]) -> Vec<u8> {
    let head = RingHead {
        now_ns: 13 * SECOND,
        wall_clock_ns,
        ..ring::head(0, oldest, records.len() as u64)
    };
    let stacks = ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]]);
    [ring::records(&head, records), stacks].concat()
}

/// What a crashed guest left: rings, and who the recording is.
fn crash(oldest: u64, heads: bool) -> Vec<u8> {
    file(&rings(oldest), heads)
}

fn file(rings: &[u8], heads: bool) -> Vec<u8> {
    file_of_mode(mode::CPU, rings, heads)
}

fn file_of_mode(mode: u32, rings: &[u8], heads: bool) -> Vec<u8> {
    let header = FileHeader { client: "agent", created_unix_ns: 1_700_000_000 * SECOND };
    file_of_client(&header, Script::default().wall_clock_ns, mode, rings, heads)
}

/// The same, fetched by a client when the guest's monotonic clock and wall clock were at these.
fn file_of_client(
    header: &FileHeader<'_>,
    wall_clock_ns: Option<u64>,
    mode: u32,
    rings: &[u8],
    heads: bool,
) -> Vec<u8> {
    let head = Epoch {
        interval_bytes: 0,
        epoch: 1,
        recording: 4,
        ring_bit: 0,
        name: "night",
        mode,
        flags: 0,
        period_ns: SECOND / 10,
        depth: 64,
        late_threshold_ns: 1,
        recording_started_ns: 10 * SECOND,
        started_ns: 10 * SECOND,
        ended_ns: 13 * SECOND,
        ended_wall_clock_ns: None,
        gaps: 0,
        server_ns: 0,
        vcpus: 0,
        caller_table: None,
    };
    [
        preamble(1).to_vec(),
        encode(header),
        peer::welcome(&Script { wall_clock_ns, ..Script::default() }, 9 * SECOND).concat(),
        if heads { encode(&head) } else { Vec::new() },
        ring::names(&["batch", "depth"], 0),
        rings.to_vec(),
        encode(&FileEnd { complete: true, reason: "" }),
    ]
    .concat()
}

fn read(bytes: &[u8], reading: Reading) -> Result<Recording, RecordingError> {
    Recording::read(bytes, Path::new("crash.unikprof"), reading)
}

fn window(from: u64, to: u64) -> Window {
    Window { from_ns: from * SECOND, to_ns: to * SECOND }
}

#[test]
fn a_window_of_what_a_crashed_guest_left_is_a_profile() {
    let recording = read(&crash(0, true), Reading::Strict).unwrap();
    let info = recording.profile.recording();
    assert_eq!((info.name.as_str(), info.period_ns), ("night", SECOND / 10));
    assert_eq!(info.started_unix_ns, Some(1_700_000_010 * SECOND));
    // The file names its recording, whatever else the rings hold.
    let warnings = info.warnings.join("\n");
    assert!(!warnings.contains("other recordings"), "{warnings}");
    let counters = recording.profile.counters();
    assert_eq!((counters.ticks, counters.recorded, counters.lost), (31, 30, 1));
    let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
    let cut = |window, span| timeline.profile(&recording.profile, &of, window, span);
    let second = cut(window(11, 12), None);
    let leaves: Vec<_> = second.samples().iter().map(|s| (s.count, s.span)).collect();
    assert_eq!(leaves, [(10, Some(0))]);
    assert_eq!(second.span_names(), ["batch"]);
    assert_eq!(second.recording().elapsed_ns, SECOND);
    let inside = cut(Window::ALL, Some(SpanFilter::named("batch")));
    assert_eq!(inside.counters().ticks, 10);
    assert_eq!(cut(window(50, 60), None).sample_count(), 0);
    let spans = timeline.spans(Window::ALL);
    assert_eq!(spans[0].times.total_ns(), 9 * SECOND / 10 + 2);
    assert_eq!(timeline.counters(Window::ALL)[0].last(), -5);
}

/// What waits in a span waits in it, in both modes that tell of waiting.
#[test]
fn blocked_samples_are_labelled_with_their_span() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let records = [
        record(kind::BEGAN, at(0), 4, 0),
        ring::wait(at(1), at(3), ring::stack(1), 2),
        record(kind::SPAN_BEGIN, at(4), 0, 77),
        record(kind::SPAN_BEGIN, at(5), 1, 78),
        ring::wait(at(6), at(10), ring::stack(2), 4),
        record(kind::SPAN_END, at(11), 1, 78),
        ring::wait(at(12), at(13), ring::stack(2), 1),
        record(kind::SPAN_END, at(14), 0, 77),
    ];
    let rings = one_ring(&records);
    for mode in [mode::OFF_CPU, mode::WALL] {
        let recording = read(&file_of_mode(mode, &rings, true), Reading::Strict).unwrap();
        let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
        let profile = timeline.profile(&recording.profile, &of, Window::ALL, None);
        let named = |span: u32| profile.span_names()[span as usize].as_str();
        let mut found: Vec<(Option<&str>, u64)> =
            profile.samples().iter().map(|sample| (sample.span.map(named), sample.count)).collect();
        found.sort();
        let expected = [(None, 2), (Some("batch"), 1), (Some("depth"), 4)];
        assert_eq!(found, expected, "mode {mode}");
    }
}

/// Guards that a wait whose stack the agent gave up counts as one whose stack is known: a window
/// over the whole recording has the recording's counts.
#[test]
fn waits_whose_stacks_are_gone_are_aged() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let records = [
        record(kind::BEGAN, at(0), 4, 0),
        ring::wait(at(1), at(3), ring::stack(1), 2),
        ring::wait(at(6), at(10), 0, 4),
    ];
    let file = file_of_mode(mode::WALL, &one_ring(&records), true);
    let recording = read(&file, Reading::Strict).unwrap();
    let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
    let profile = timeline.profile(&recording.profile, &of, Window::ALL, None);
    let counters = profile.counters();
    assert_eq!((counters.blocks, counters.blocked, counters.blocked_aged), (2, 2, 4));
    let aged = report(&file, &["--from", "500ms"])["functions"].to_string();
    assert!(aged.contains("[aged]"), "{aged}");
}

/// Guards that a span whose end was evicted is taken to be open up to the end, and so a slow one.
#[test]
fn spans_of_unknown_length_are_told() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let sample = |tenths| record(kind::SAMPLE, at(tenths), ring::stack(1), 1);
    let began = [record(kind::BEGAN, at(0), 4, 0), record(kind::SPAN_BEGIN, at(1), 0, 7)];
    let before = [began[0], began[1], sample(2), sample(3)];
    let after = [sample(8), sample(20)];
    let head = RingHead { now_ns: at(30), ..ring::head(0, 0, 12) };
    let runs = [ring::run(0, 0, &before), ring::run(0, 10, &after), ring::end(0, 12)].concat();
    let file = file(&[encode(&head), runs, ring::stacks(0, &[&[0x150, 0x110]])].concat(), true);
    let told = |more: &[&str]| report(&file, &[&["--in-span", "batch"], more].concat());
    assert_eq!(told(&[])["samples"]["recorded"], 1);
    let is_told = |told: &serde_json::Value| {
        told["warnings"].to_string().contains("spans left out: 1, whose ends")
    };
    for more in [["--longer", "500ms"], ["--shorter", "500ms"]] {
        let told = told(&more);
        assert_eq!(told["samples"]["recorded"], 0, "{more:?}");
        assert!(is_told(&told), "{more:?}: {told:#}");
    }
    let long = told(&["--longer", "100ms"]);
    assert!(long["samples"]["recorded"] == 1 && !is_told(&long), "{long:#}");
}

#[test]
fn what_was_evicted_is_told() {
    let recording = read(&crash(123, true), Reading::Strict).unwrap();
    let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
    let early = timeline.profile(&recording.profile, &of, window(5, 11), None);
    assert_eq!(timeline.held_since(), 10 * SECOND);
    assert_eq!(timeline.rings()[0].evicted, 123);
    assert_eq!(early.sample_count(), 10);
    let slices = |window| timeline.slices(&of, window, None, SECOND);
    let found = slices(window(9, 11));
    assert_eq!([found[0].is_held, found[1].is_held], [false, true]);
    // A crumb at the end is no second of its own.
    let crumb = Window { from_ns: 10 * SECOND, to_ns: 12 * SECOND + SECOND / 20 };
    let found = slices(crumb);
    let ticks: Vec<u64> = found.iter().map(|slice| slice.counters.ticks).collect();
    assert_eq!(ticks, [10, 12], "with the lost one");
    assert_eq!(found[1].window.to_ns, crumb.to_ns);
}

/// Guards that the time before a vCPU's ring begins counts as missing samples, where another's ring
/// reaches further back.
#[test]
fn the_time_before_a_ring_begins_lacks_no_samples() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let times = |tenths: u64, running_ns, blocked_ns| {
        [
            record(kind::RAN, at(tenths), running_ns, 0),
            record(kind::WAITED, at(tenths), blocked_ns, 0),
        ]
    };
    // vCPU 0 runs all the time at ten samples a second; its ring begins in the second second. vCPU
    // 1 is blocked.
    let running = |tenths| times(tenths, tenths * SECOND / 10, 0);
    let samples = (10..30).map(|tenths| record(kind::SAMPLE, at(tenths) + 1, ring::stack(1), 1));
    let late: Vec<Record> = running(10).into_iter().chain(samples).chain(running(30)).collect();
    let blocked = [times(0, 0, 0), times(30, 0, 3 * SECOND)].concat();
    let ring = |vcpu, oldest, records: &[Record]| {
        let head =
            RingHead { now_ns: 13 * SECOND, ..ring::head(vcpu, oldest, records.len() as u64) };
        let stacks = ring::stacks(vcpu, &[&[0x150, 0x110]]);
        [ring::records(&head, records), stacks].concat()
    };
    let rings = [ring(0, 5, &late), ring(1, 0, &blocked)].concat();
    let recording = read(&file(&rings, true), Reading::Strict).unwrap();
    let counters = recording.profile.counters();
    assert_eq!((counters.ticks, counters.missing), (20, Some(0)));
}

/// The ring of vCPU 0 in two runs of records, between which so many positions were evicted.
fn ring_with_gap(before: &[Record], evicted: u64, after: &[Record]) -> Vec<u8> {
    let next = before.len() as u64 + evicted;
    let head = RingHead { now_ns: 13 * SECOND, ..ring::head(0, 0, next + after.len() as u64) };
    let runs = [ring::run(0, 0, before), ring::run(0, next, after)].concat();
    let stacks = ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]]);
    [encode(&head), runs, ring::end(0, head.next), stacks].concat()
}

/// Ticks that were evicted are not missing, and the end of a span may be among them: neither it nor
/// a wait goes on for ever.
#[test]
fn what_lies_in_a_gap_is_not_guessed() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let times = |tenths: u64| {
        [
            record(kind::RAN, at(tenths), tenths * SECOND / 10, 0),
            record(kind::WAITED, at(tenths), 0, 0),
        ]
    };
    // The vCPU runs all the time at ten samples a second, in the span for the first half a second.
    let samples = |tenths: std::ops::Range<u64>| {
        tenths.map(|at_tenths| record(kind::SAMPLE, at(at_tenths) + 1, ring::stack(1), 1))
    };
    let before: Vec<Record> = [record(kind::SPAN_BEGIN, at(0), 0, 77)]
        .into_iter()
        .chain(times(0))
        .chain(samples(0..5))
        .chain(times(5))
        .collect();
    let after: Vec<Record> =
        times(15).into_iter().chain(samples(15..30)).chain(times(30)).collect();
    let file = file(&ring_with_gap(&before, 10, &after), true);
    let recording = read(&file, Reading::Strict).unwrap();
    let counters = recording.profile.counters();
    assert_eq!((counters.ticks, counters.missing), (20, Some(0)));
    let warnings = recording.profile.recording().warnings.join("; ");
    assert!(warnings.contains("10 records were evicted"), "{warnings}");
    assert!(warnings.contains("(1 s not covered)"), "{warnings}");
    let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
    let inside =
        timeline.profile(&recording.profile, &of, Window::ALL, Some(SpanFilter::named("batch")));
    assert_eq!(inside.counters().ticks, 5);
    let (told, _) = run(0, &file, "report", &["--accounting"]);
    assert!(told.contains("of the time that the rings cover: without 1 gap"), "{told}");
}

/// Without the recording's head the rings tell its bit; the bit of another is none of its.
#[test]
fn rings_alone_tell_recordings_apart() {
    let recording = read(&crash(0, false), Reading::Strict).unwrap();
    let spans: Vec<_> = recording.timeline.as_ref().unwrap().recordings();
    let spans: Vec<_> = spans.iter().map(|r| (r.recording, r.ring_bit)).collect();
    assert_eq!(spans, [(Some(4), 0), (None, 1)]);
    let warnings = &recording.profile.recording().warnings;
    assert!(warnings.iter().any(|w| w.contains("no counts")), "{warnings:?}");
}

#[test]
fn a_block_of_memory_is_read_whole_or_salvaged() {
    let file = crash(0, true);
    let mut block = BlockHead::of(&file).encode().to_vec();
    block.extend_from_slice(&file);
    block.extend_from_slice(&[0xee; 100]);
    let whole = read(&block, Reading::Strict).unwrap();
    assert_eq!(whole.profile.sample_count(), 30);
    let cut = &block[..block.len() - 150];
    let error = read(cut, Reading::Strict).unwrap_err();
    assert!(matches!(error, RecordingError::Block { .. }), "{error}");
    assert_eq!(read(cut, Reading::Salvage).unwrap().profile.recording().name, "night");
    for length in 0..40 {
        assert!(read(&block[..length], Reading::Salvage).is_err(), "{length}");
    }
}

/// However it is cut, a file is an error or a part of it: never a panic.
#[test]
fn files_with_rings_can_be_cut_anywhere() {
    let file = crash(0, true);
    for length in 0..file.len() {
        assert!(read(&file[..length], Reading::Strict).is_err());
        if let Ok(part) = read(&file[..length], Reading::Salvage) {
            assert!(!part.profile.recording().warnings.is_empty());
        }
    }
}

/// A tenth of a second apart, three seconds of samples, with more records among them.
fn samples_and(more: &[Record], wall_clock_ns: Option<u64>) -> Vec<u8> {
    let mut records = vec![record(kind::BEGAN, 10 * SECOND, 4, 0)];
    records.extend((0..30).map(|tick| {
        let at_ns = 10 * SECOND + tick * SECOND / 10 + SECOND / 20;
        record(kind::SAMPLE, at_ns, 1 + tick / 10 % 2, 1)
    }));
    records.extend(more);
    file(&ring_since(0, wall_clock_ns, &records), true)
}

/// Runs a subcommand on a file with these bytes; answers stdout and stderr.
#[track_caller]
fn run(code: i32, file: &[u8], word: &str, more: &[&str]) -> (String, String) {
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("r.unikprof"), file).unwrap();
    program::run(code, &[&[word, "r.unikprof"], more].concat(), here.path())
}

/// The program's report of these bytes, for programs.
fn report(file: &[u8], more: &[&str]) -> serde_json::Value {
    program::json(&run(0, file, "report", &[&["--json"], more].concat()).0)
}

/// Ten bursts of a hundred samples: which of them, by burst and sample, are of the second of two
/// functions.
fn bursts(is_second: fn(u64, u64) -> bool) -> Vec<u8> {
    const BURSTS: u64 = 10;
    const EACH: u64 = 100;
    let mut records = vec![record(kind::BEGAN, 10 * SECOND, 4, 0)];
    for (burst, sample) in (0..BURSTS * EACH).map(|at| (at / EACH, at % EACH)) {
        let at_ns = 10 * SECOND + burst * SECOND / 3 + sample * SECOND / 10_000 + 1;
        let stack = 1 + u64::from(is_second(burst, sample));
        records.push(record(kind::SAMPLE, at_ns, ring::stack(stack), 1));
    }
    let head =
        RingHead { now_ns: 13 * SECOND + SECOND / 3, ..ring::head(0, 0, records.len() as u64) };
    let stacks = ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]]);
    file(&[ring::records(&head, &records), stacks].concat(), true)
}

/// Guards a judgement by the number of samples alone.
#[test]
fn doctor_calls_no_recording_good_whose_intervals_are_wide() {
    let enough = |code: i32, file: &[u8]| {
        let told = program::json(&run(code, file, "doctor", &["--json"]).0);
        let checks = told["checks"].as_array().unwrap();
        let enough = checks.iter().find(|check| check["name"] == "enough");
        enough.unwrap().clone()
    };
    let found = enough(9, &bursts(|burst, _| burst % 2 == 0));
    assert_eq!(found["verdict"], "bad", "{found:#}");
    let advice = found["advice"].as_str().unwrap();
    assert!(advice.contains("come in bursts"), "{advice}");
    let found = enough(0, &bursts(|_, sample| sample % 10 >= 6));
    assert_eq!(found["verdict"], "good", "{found:#}");
}

/// In each of ten bursts all samples are of one function, so that they tell as much as ten samples
/// do of other recordings, and of this one what a thousand do.
#[test]
fn intervals_are_of_the_recording() {
    for is_second in
        [|burst: u64, _: u64| burst.is_multiple_of(2), |_, sample: u64| sample.is_multiple_of(2)]
    {
        let told = report(&bursts(is_second), &[]);
        let function = &told["functions"][0];
        assert_eq!(function["self_share"], 0.5, "{told:#}");
        let [low, high] = [0, 1].map(|at| function["self_interval"][at].as_f64().unwrap());
        assert!(low > 0.46 && high < 0.54, "{low} to {high}");
    }
}

/// The guest's date is set while it is recorded: samples keep their places, each second has the
/// date that the guest had then, and dates find the time at which they were true.
#[test]
fn a_clock_that_steps_moves_dates_and_no_samples() {
    // 2023-11-14T22:13:20Z at 10 s.
    let began_unix = 1_700_000_000 * SECOND;
    let steps =
        |second: u64, date_ns: u64| record(kind::CLOCK, 10 * SECOND + second * SECOND, date_ns, 0);
    let dates = |told: &serde_json::Value| -> Vec<u64> {
        let seconds = told["seconds"].as_array().unwrap();
        let date = |second: &serde_json::Value| second["unix_ns"].as_u64().unwrap() - began_unix;
        seconds.iter().map(|second| date(second) / SECOND).collect()
    };
    let recorded = |told: &serde_json::Value| told["samples"]["recorded"].as_u64().unwrap();

    let forwards = [steps(0, began_unix), steps(2, began_unix + 3_602 * SECOND)];
    let forwards = samples_and(&forwards, Some(began_unix + 3_603 * SECOND));
    let told = report(&forwards, &["--timeline"]);
    assert_eq!(dates(&told), [0, 1, 3_602]);
    for second in told["seconds"].as_array().unwrap() {
        assert_eq!(second["recorded"], 10, "{second}");
    }
    // Before the step, over it, and after it.
    for (from, to, expected) in [
        ("22:13:20", "22:13:21", 10),
        ("22:13:21", "23:13:22.5", 15),
        ("2023-11-14T23:13:22Z", "2023-11-14T23:13:23Z", 10),
        // Dates that the clock passed over are the moment of the step.
        ("22:30:00", "23:13:23", 10),
        ("1s", "-1s", 10),
    ] {
        let told = report(&forwards, &["--from", from, "--to", to]);
        assert_eq!(recorded(&told), expected, "{from} to {to}");
    }

    let back = [steps(0, began_unix), steps(2, began_unix + SECOND / 2)];
    let back = samples_and(&back, Some(began_unix + 3 * SECOND / 2));
    let told = report(&back, &["--timeline"]);
    assert_eq!(dates(&told), [0, 1, 0]);
    // A date that was twice is the later one of the two; one that was once is found all the same.
    let twice = report(&back, &["--from", "22:13:20.5"]);
    assert_eq!(recorded(&twice), 10);
    let once = report(&back, &["--from", "22:13:20.2", "--to", "1s"]);
    assert_eq!(recorded(&once), 8);

    // Who knows no date says so, and other moments stay.
    let none = samples_and(&[], None);
    let (_, stderr) = run(2, &none, "report", &["--from", "22:13:21"]);
    assert!(stderr.contains("has no wall clock"), "{stderr}");
    assert_eq!(recorded(&report(&none, &["--last", "1s"])), 10);
}

/// Guards against dates of 1970, and against dates that are trusted where the clocks disagree.
#[test]
fn a_guest_without_a_clock_is_dated_by_its_client() {
    // The client connected at 9 s of the guest's clock; the recording began at 10 s.
    const BEGAN: u64 = 1_700_000_001 * SECOND;
    let header = FileHeader { client: "test", created_unix_ns: BEGAN - SECOND };
    let of = |wall_clock_ns| {
        let rings = one_ring(&[
            record(kind::BEGAN, 10 * SECOND, 4, 0),
            record(kind::SAMPLE, 11 * SECOND, ring::stack(1), 1),
        ]);
        file_of_client(&header, wall_clock_ns, mode::CPU, &rings, true)
    };
    let told = report(&of(None), &["--timeline"]);
    assert_eq!(told["recording"]["started_unix_ns"], BEGAN);
    assert_eq!(told["seconds"][0]["unix_ns"], BEGAN);
    let second = report(&of(None), &["--from", "22:13:22", "--to", "22:13:23"]);
    assert_eq!(second["samples"]["recorded"], 1);
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("r.unikprof"), of(None)).unwrap();
    let words = ["report", "r.unikprof", "-o", "r.pb.gz", "-o", "r.profile.json.gz"];
    program::run(0, &words, here.path());
    let unpacked = |name: &str| {
        let file = std::fs::File::open(here.path().join(name)).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
        bytes
    };
    // Field 9, a varint.
    let mut time_nanos = vec![9 << 3];
    prost::encoding::encode_varint(BEGAN, &mut time_nanos);
    assert!(unpacked("r.pb.gz").windows(time_nanos.len()).any(|found| found == time_nanos));
    let firefox: serde_json::Value =
        serde_json::from_slice(&unpacked("r.profile.json.gz")).unwrap();
    assert_eq!(firefox["meta"]["startTime"], (BEGAN / 1_000_000) as f64);

    let warned = |wall_clock_ns| report(&of(wall_clock_ns), &[])["warnings"].to_string();
    let off = warned(Some(BEGAN - 2 * 3_600 * SECOND));
    assert!(off.contains("the guest's clock was 1 h 59 min 59 s behind the client's"), "{off}");
    for near in [None, Some(BEGAN), Some(BEGAN + 600 * SECOND)] {
        assert!(!warned(near).contains("clock"), "{near:?}");
    }
}

/// What a report of such a file tells of the seconds: how many samples each has, how many are
/// shown, and the first function with its share.
fn seconds(file: &[u8], words: &[&str]) -> Vec<(u64, u64, Option<String>, Option<f64>)> {
    let told = report(file, &[&["--timeline", "--step", "1s"], words].concat());
    let second = |second: &serde_json::Value| {
        (
            second["recorded"].as_u64().unwrap(),
            second["shown"].as_u64().unwrap_or(u64::MAX),
            second["top"].as_str().map(ToOwned::to_owned),
            second["top_share"].as_f64(),
        )
    };
    told["seconds"].as_array().unwrap().iter().map(second).collect()
}

const FIRST: &str = "guest.elf+0x1050";
const SECOND_FUNCTION: &str = "guest.elf+0x1070";

/// Three seconds of ten samples each, three of them of the second function; a span holds the first
/// half of the second second.
#[test]
fn the_seconds_show_what_the_filters_leave() {
    let mut records = vec![record(kind::BEGAN, 10 * SECOND, 4, 0)];
    for tick in 0..30 {
        let at_ns = 10 * SECOND + tick * SECOND / 10;
        match tick {
            10 => records.push(record(kind::SPAN_BEGIN, at_ns, 0, 7)),
            15 => records.push(record(kind::SPAN_END, at_ns, 0, 7)),
            _ => {}
        }
        let stack = if tick % 10 < 7 { 1 } else { 2 };
        records.push(record(kind::SAMPLE, at_ns + 1, ring::stack(stack), 1));
    }
    let file = file(&one_ring(&records), true);
    let first = |recorded, shown, share| (recorded, shown, Some(FIRST.into()), Some(share));
    assert_eq!(seconds(&file, &[]), [(); 3].map(|()| first(10, 10, 0.7)));
    let other = (10, 3, Some(SECOND_FUNCTION.into()), Some(0.3));
    for words in [["--focus", "1070"], ["--ignore", "1050"]] {
        assert_eq!(seconds(&file, &words), [(); 3].map(|()| other.clone()));
    }
    let none = (0, 0, None, None);
    let inside = [none.clone(), first(5, 5, 1.0), none];
    assert_eq!(seconds(&file, &["--in-span", "batch"]), inside);
    let (_, refused) = run(2, &file, "report", &["--in-span", "batch", "--focus", "1070"]);
    program::has(&refused, &["leave nothing of 5 samples"]);

    let (_, refused) = run(2, &file, "report", &["--focus", "("]);
    program::has(&refused, &["`(` is no regular expression"]);

    let (told, _) = run(0, &file, "report", &["--timeline", "--focus", "1070"]);
    program::has(
        &told,
        &[
            "max 3 samples/s",
            "shown: 9 of 30 samples (30.0 %), focus \"1070\"; shares are of the total",
            "3/s        -        -   30.0 %  guest.elf+0x1070",
        ],
    );
}

/// In each second the guest waits for 0.8 s in the second function, and in one of running and
/// blocked time is sampled once in the first.
#[test]
fn the_seconds_show_blocked_time() {
    let file = |mode| {
        let mut records = vec![record(kind::BEGAN, 10 * SECOND, 4, 0)];
        for second in 10..13 {
            let at = |tenths| second * SECOND + tenths * SECOND / 10;
            if mode == mode::WALL {
                records.push(record(kind::SAMPLE, at(0) + 1, ring::stack(1), 1));
            }
            let counted = if mode == mode::WALL { 8 } else { 4 * SECOND / 5 };
            records.push(ring::wait(at(1), at(9), ring::stack(2), counted));
        }
        file_of_mode(mode, &one_ring(&records), true)
    };
    let blocked = |counted, share| {
        let top = Some(SECOND_FUNCTION.to_owned());
        [(); 3].map(|()| (counted, counted, top.clone(), Some(share)))
    };
    assert_eq!(seconds(&file(mode::WALL), &[]), blocked(9, 8.0 / 9.0));
    let off_cpu = file(mode::OFF_CPU);
    assert_eq!(seconds(&off_cpu, &[]), blocked(4 * SECOND / 5, 1.0));
    let words = ["--timeline", "--step", "1s", "--accounting"];
    let (told, _) = run(0, &off_cpu, "report", &words);
    assert!(!told.contains("/s  "), "nothing has a rate: {told}");
    program::has(&told, &["max 800 ms", "    800 ms        -        -  100.0 %  guest.elf+0x1070"]);
}

/// Ten samples a second; the ring's records of the time of a wait were evicted, but not its own.
/// Guards against the rate of all of them in the time without the gap.
#[test]
fn a_wait_across_a_gap_is_time_that_is_known() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let sample = |tenths: u64| record(kind::SAMPLE, at(tenths) + 1, ring::stack(1), 1);
    let mark = record(kind::MARK, at(11), 0, 1);
    let before: Vec<Record> = (0..11).map(sample).chain([mark]).collect();
    let wait = ring::wait(at(11), at(25), ring::stack(2), 14);
    let after: Vec<Record> = [wait].into_iter().chain((25..30).map(sample)).collect();
    let file = file_of_mode(mode::WALL, &ring_with_gap(&before, 10, &after), true);
    assert!(seconds(&file, &[]).iter().all(|second| second.0 == 10));
    let (told, _) = run(0, &file, "report", &["--timeline", "--step", "1s"]);
    assert_eq!(told.matches(" 10/s ").count(), 3, "{told}");
    assert!(!told.contains("in part"), "{told}");
}

/// One vCPU's ring holds all three seconds, the other's only the last: shares of both are of the
/// last second, and those of the first vCPU alone are of all.
#[test]
fn shares_of_time_are_of_the_vcpus_that_tell() {
    let told = |second: u64, stolen: u64, blocked: u64| {
        let at_ns = (10 + second) * SECOND;
        let running = second * SECOND - stolen - blocked;
        [record(kind::RAN, at_ns, running, stolen), record(kind::WAITED, at_ns, blocked, 0)]
    };
    let half = |second| told(second, second * SECOND / 2, second * SECOND / 4);
    let began = record(kind::BEGAN, 10 * SECOND, 4, 0);
    let all = [&[began][..], &(0..=3).flat_map(half).collect::<Vec<_>>()].concat();
    let late = [half(2), half(3)].concat();
    let rings: Vec<u8> = [(0, 0, &all), (1, 5, &late)]
        .into_iter()
        .flat_map(|(vcpu, oldest, records)| {
            let head =
                RingHead { now_ns: 13 * SECOND, ..ring::head(vcpu, oldest, records.len() as u64) };
            [ring::records(&head, records), ring::stacks(vcpu, &[&[0x110]])].concat()
        })
        .collect();
    for (words, length) in [(&[][..], 1), (&["--vcpu", "0"], 3)] {
        let words = [&["--timeline", "--step", "1s"], words].concat();
        let told = report(&file(&rings, true), &words);
        let seconds = told["seconds"].as_array().unwrap();
        assert_eq!(seconds.len(), length, "{seconds:?}");
        for second in seconds {
            for (kind, share) in [("stolen", 0.5), ("blocked", 0.25)] {
                // The last record is the first moment behind the last second.
                let found = second[kind].as_f64().unwrap();
                assert!((found - share).abs() < 1e-6, "{second}");
            }
        }
        let warnings = told["warnings"].to_string();
        assert_eq!(warnings.contains("that of vCPU 1 begins last"), length == 1, "{warnings}");
    }
}

/// Two requests side by side, as an event loop serves them. Guards that all samples are charged to
/// the younger one, and that each is said to have the other's.
#[test]
fn requests_side_by_side_have_no_samples_by_time() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let span = |kind, tenths, name, number| record(kind, at(tenths), name, number);
    for begin in [kind::SPAN_BEGIN, kind::ASYNC_SPAN_BEGIN] {
        let file = samples_and(
            &[
                span(begin, 2, 0, 1),
                span(begin, 4, 1, 2),
                span(kind::SPAN_END, 20, 0, 1),
                span(kind::SPAN_END, 25, 1, 2),
            ],
            None,
        );
        let is_async = begin == kind::ASYNC_SPAN_BEGIN;
        for name in ["batch", "depth"] {
            let told = report(&file, &["--in-span", name]);
            assert_eq!(told["samples"]["recorded"], 0, "{name}");
            let warnings = told["warnings"].to_string();
            let why = if is_async {
                "1 of these spans is asynchronous"
            } else {
                "1 of these spans overlapped others"
            };
            assert!(warnings.contains(why), "{warnings}");
        }
        let told = report(&file, &["--from", "0s"]);
        let [depth, batch] = [0, 1].map(|at| &told["spans"][at]);
        assert_eq!([&depth["name"], &batch["name"]], ["depth", "batch"]);
        assert_eq!([&depth["total_ns"], &batch["total_ns"]], [21 * SECOND / 10, 18 * SECOND / 10]);
        let counts = |span: &serde_json::Value| {
            [&span["asynchronous"], &span["overlapped"]].map(serde_json::Value::as_u64)
        };
        let expected = [u64::from(is_async), u64::from(!is_async)].map(Some);
        assert_eq!([counts(depth), counts(batch)], [expected; 2]);
        let (lines, _) = run(0, &file, "script", &["--json"]);
        assert!(lines.lines().count() == 30 && !lines.contains(r#""span":""#), "{lines}");
    }
}

/// Guards samples in pprof that cannot be found from a request's trace.
#[test]
fn pprof_labels_samples_with_the_ids_of_a_distributed_trace() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let file = samples_and(
        &[
            record(kind::SPAN_BEGIN, at(2), 0, 7),
            record(kind::TRACE_HIGH, at(2), 7, 0x0102_0304_0506_0708),
            record(kind::TRACE_LOW, at(2), 7, 0x090a_0b0c_0d0e_0f10),
            record(kind::TRACE_SPAN, at(2), 7, 0x00a2_a3a4_a5a6_a7a8),
            record(kind::SPAN_END, at(4), 0, 7),
        ],
        None,
    );
    let here = tempfile::tempdir().unwrap();
    std::fs::write(here.path().join("r.unikprof"), file).unwrap();
    program::run(0, &["report", "r.unikprof", "--from", "0s", "-o", "r.pb.gz"], here.path());
    let mut bytes = Vec::new();
    let packed = std::fs::File::open(here.path().join("r.pb.gz")).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    for text in ["span_id", "00a2a3a4a5a6a7a8", "trace_id", "0102030405060708090a0b0c0d0e0f10"] {
        let is_there = bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(is_there, "{text}");
    }
}

/// Spans of one name, short ones and long ones, of both kinds. Guards that what is special to the
/// slow ones drowns in the others.
#[test]
fn only_spans_of_a_length_are_shown() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let mut records = vec![record(kind::BEGAN, at(0), 4, 0)];
    let mut samples = |begin: u8, from: u64, to: u64, number: u64| {
        records.push(record(begin, at(from), 0, number));
        for tick in from..to {
            let sampled_ns = at(tick) + SECOND / 20;
            let is_async = begin == kind::ASYNC_SPAN_BEGIN;
            records.extend(is_async.then(|| record(kind::ENTERED, sampled_ns, 0, number)));
            records.push(record(kind::SAMPLE, sampled_ns, ring::stack(1), 1));
        }
        records.push(record(kind::SPAN_END, at(to), 0, number));
    };
    samples(kind::SPAN_BEGIN, 1, 2, 1);
    samples(kind::SPAN_BEGIN, 3, 8, 2);
    samples(kind::ASYNC_SPAN_BEGIN, 9, 12, 3);
    samples(kind::ASYNC_SPAN_BEGIN, 13, 23, 4);
    // Of one whose beginning is not known, and of one that has not ended, the length is not.
    let lost =
        [record(kind::ENTERED, at(24), 0, 5), record(kind::SAMPLE, at(24), ring::stack(1), 1)];
    records.extend(lost);
    records.push(record(kind::SPAN_BEGIN, at(25), 0, 6));
    records.push(record(kind::SAMPLE, at(26), ring::stack(1), 1));
    let file = file(&one_ring(&records), true);
    let inside = |words: &[&str]| {
        let told = report(&file, &[&["--in-span", "batch"], words].concat());
        (told["samples"]["recorded"].as_u64().unwrap(), told["window"].clone())
    };
    assert_eq!(inside(&[]).0, 1 + 5 + 3 + 10 + 1 + 1);
    let (count, window) = inside(&["--longer", "500ms"]);
    assert_eq!(count, 5 + 10 + 1, "that one is open for half a second at least");
    assert_eq!((&window["inside"], &window["longer_ns"]), (&"batch".into(), &500_000_000.into()));
    assert_eq!(inside(&["--shorter", "500ms"]).0, 1 + 3);
    assert_eq!(inside(&["--longer", "300ms", "--shorter", "500ms"]).0, 3);
    let (text, _) = run(0, &file, "report", &["--in-span", "batch", "--longer", "500ms"]);
    assert!(text.contains("inside spans `batch` of at least 500 ms"), "{text}");
    let words = ["--in-span", "batch", "--longer", "50ms", "--shorter", "20ms"];
    let (_, refused) = run(2, &file, "report", &words);
    assert!(refused.contains("--longer must be the shorter time"), "{refused}");
    let (text, _) = run(0, &file, "report", &["--in-span", "batch", "--longer", "1h"]);
    assert!(text.contains("none is known to be of these spans"), "{text}");
    let (_, refused) = run(2, &file, "report", &["--longer", "500ms"]);
    assert!(refused.contains("--in-span"), "{refused}");
}

/// Two requests side by side, of which the guest tells in whose code it is: in a nested span of the
/// younger one, too. Guards that a request has samples of others, or not all of its own.
#[test]
fn requests_have_the_samples_of_code_that_ran_for_them() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let mut records = vec![record(kind::BEGAN, at(0), 4, 0)];
    records.push(record(kind::ASYNC_SPAN_BEGIN, at(2), 0, 1));
    records.push(record(kind::ASYNC_SPAN_BEGIN, at(4), 1, 2));
    for tick in 5..25 {
        // Of four samples two are the older's, one is the younger's and one nobody's.
        let entered = [Some((0, 1)), Some((0, 1)), Some((1, 2)), None][tick as usize % 4];
        let begin = record(kind::SPAN_BEGIN, at(tick), 2, 100 + tick);
        let is_nested = tick % 8 == 6;
        records.extend(is_nested.then_some(begin));
        let sampled_ns = at(tick) + SECOND / 20;
        records.extend(entered.map(|(name, of)| record(kind::ENTERED, sampled_ns, name, of)));
        records.push(record(kind::SAMPLE, sampled_ns, ring::stack(1), 1));
        let end = record(kind::SPAN_END, at(tick + 1) - 1, 2, 100 + tick);
        records.extend(is_nested.then_some(end));
    }
    records.push(record(kind::SPAN_END, at(25), 0, 1));
    records.push(record(kind::SPAN_END, at(26), 1, 2));
    // A wait of the older, after both are known to have ended: its request came late. A tick of the
    // younger comes while it is written.
    records.push(record(kind::ENTERED, at(29), 0, 1));
    records.push(record(kind::ENTERED, at(29) + 1, 1, 2));
    records.push(record(kind::SAMPLE, at(29) + 1, ring::stack(1), 1));
    records.push(ring::wait(at(27), at(29), ring::stack(2), 2));
    let file = file_of_mode(mode::WALL, &one_ring(&records), true);
    let inside = |name: &str| {
        let told = report(&file, &["--in-span", name]);
        assert!(told["warnings"].to_string().contains("1 of these spans is asynchronous"));
        told["samples"]["recorded"].as_u64().unwrap()
    };
    assert_eq!([inside("batch"), inside("depth")], [10 + 2, 5 + 1]);
    let (lines, _) = run(0, &file, "script", &["--json"]);
    let with = |span: &str| lines.lines().filter(|line| line.contains(span)).count();
    let labels =
        [r#""span":"batch""#, r#""span":"depth""#, r#""span":"[name 2]""#, r#""span":null"#];
    assert_eq!(labels.map(with), [11, 3, 3, 5]);
}

/// Spans within one another, without an end, without a beginning, and cut by
/// the window.
#[test]
fn spans_of_a_window_are_counted_as_they_lie() {
    let at = |tenths: u64| 10 * SECOND + tenths * SECOND / 10;
    let begin = |tenths, name, number| record(kind::SPAN_BEGIN, at(tenths), name, number);
    let end = |tenths, name, number| record(kind::SPAN_END, at(tenths), name, number);
    let file = samples_and(
        &[
            begin(2, 0, 1),
            end(28, 0, 1),
            begin(11, 1, 2),
            begin(12, 1, 3),
            end(14, 1, 3),
            end(15, 1, 2),
            begin(18, 1, 4),
            end(27, 1, 4),
            end(14, 1, 77),
        ],
        None,
    );
    let told = report(&file, &["--from", "1s", "--to", "2s"]);
    let [across, around] = &told["spans"].as_array().unwrap()[..] else {
        panic!("{told:#}");
    };
    assert_eq!(across["name"], "depth");
    assert_eq!([&across["count"], &across["unfinished"], &across["cut"]], [2, 1, 1]);
    assert_eq!(across["total_ns"], 6 * SECOND / 10);
    assert_eq!([&across["p50_ns"], &across["max_ns"]], [SECOND / 5, 4 * SECOND / 10]);
    assert_eq!([&around["count"], &around["unfinished"]], [0, 1]);
    let inside = |name, words: &[&str]| {
        let words = [&["--in-span", name], words].concat();
        report(&file, &words)["samples"]["recorded"].as_u64().unwrap()
    };
    // 1.1 to 1.5 s and 1.8 s to 2.7 s; two that overlap count a sample once.
    assert_eq!(inside("depth", &[]), 4 + 9);
    assert_eq!(inside("depth", &["--to", "2s"]), 4 + 2);
    assert_eq!(inside("batch", &["--from", "1s", "--to", "2s"]), 10);
}

/// What a crashed guest left cannot be recorded again, and holds few samples and no counts: that is
/// told, and condemns nothing. What rings do not tell is not judged.
#[test]
fn doctor_of_a_crash_judges_what_there_is() {
    let whole = crash(0, true);
    let (told, _) = run(0, &whole, "doctor", &[]);
    program::has(
        &told,
        &[
            "look  complete        no counts: the file has only the contents of the guest's rings, \
             the last 3 s of the recording",
            "look  rate            unknown: the rings do not contain the vCPUs' running times",
            "look  enough          30 samples",
            "give the agent a larger ring",
        ],
    );
    for words in ["record again", "record for longer", "callers", "overhead", "reachable"] {
        assert!(!told.contains(words), "{words:?} in:\n{told}");
    }
    // The beginning of its last line is all that arrived.
    let (told, _) = run(0, &whole[..whole.len() - 5], "doctor", &[]);
    assert!(told.contains("look  complete "), "{told}");
    assert!(!told.contains("record again"), "{told}");
}

/// What people see of the seconds, against a checked-in file.
#[test]
fn the_seconds_are_as_blessed() {
    let recording = read(&crash(0, true), Reading::Strict).unwrap();
    let (timeline, of) = (recording.timeline.as_ref().unwrap(), recording.span.unwrap());
    let symbolized = Symbolizer::default().resolve(&recording.profile).unwrap();
    let report = Report::new(&symbolized, ReportOptions::default());
    let report = report.with_timeline(TimelineView {
        timeline,
        of,
        window: Window::ALL,
        seconds: true,
        step_ns: Some(SECOND / 2),
    });
    let mut found = Vec::new();
    report.write(Format::Text, &mut found).unwrap();
    let bless = "UNIKPROF_BLESS=1 cargo test -p unikprof-client --test it timeline";
    unikprof_test_kit::golden::check(
        "client/tests/golden/timeline.txt",
        &String::from_utf8(found).unwrap(),
        bless,
    );
}
