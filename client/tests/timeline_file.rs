//! Recording files with rings: what happened when comes back, a window of it is a profile, and what a crashed
//! guest left is read.
#![allow(clippy::unwrap_used)]

mod peer;

use std::path::Path;

use peer::ring::{self, record};
use peer::{Script, encode};
use unikprof_client::recording::{Reading, Recording, RecordingError};
use unikprof_client::report::{Format, Report, ReportOptions, TimelineView};
use unikprof_client::symbols::Symbolizer;
use unikprof_client::timeline::Window;
use unikprof_proto::file::{BlockHead, FileEnd, FileHeader, preamble};
use unikprof_proto::message::{Epoch, EpochEnd, RingHead};
use unikprof_proto::ring::{kind, outcome};

const SECOND: u64 = 1_000_000_000;

/// Three seconds on vCPU 0 from position `oldest` on: ten samples a second, in the second second of another
/// stack and inside a span.
fn rings(oldest: u64) -> Vec<u8> {
    let mut records = vec![record(kind::BEGAN, 10 * SECOND, 4, 0)];
    for tick in 0..30 {
        let at_ns = 10 * SECOND + tick * SECOND / 10 + 1;
        if tick == 10 {
            records.push(record(kind::SPAN_BEGIN, at_ns - 1, 0, 77));
            records.push(record(kind::COUNTER, at_ns - 1, 1, -5_i64 as u64));
        }
        let stack = if (10..20).contains(&tick) { 2 } else { 1 };
        records.push(record(kind::SAMPLE, at_ns, stack, 1));
        // Another recording's.
        records.push(record(kind::SAMPLE, at_ns, 1, 2));
        if tick == 19 {
            records.push(record(kind::SPAN_END, at_ns + 1, 0, 77));
        }
    }
    records.push(record(kind::NO_SAMPLE, 12 * SECOND + 5, outcome::LOST, 1));
    let head = RingHead {
        now_ns: 13 * SECOND,
        wall_clock_ns: Some(1_700_000_013 * SECOND),
        ..ring::head(0, oldest, records.len() as u64)
    };
    let stacks = ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]]);
    [ring::records(&head, &records), stacks].concat()
}

/// What a crashed guest left: rings, and who the recording is.
fn crash(oldest: u64, heads: bool) -> Vec<u8> {
    let head = Epoch {
        epoch: 1,
        recording: 4,
        lane: 0,
        name: "night",
        mode: 0,
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
    let end = EpochEnd {
        epoch: 1,
        samples: 0,
    };
    [
        preamble(1).to_vec(),
        encode(&FileHeader {
            client: "agent",
            created_unix_ns: 1,
        }),
        peer::welcome(&Script::default(), 1_000).concat(),
        if heads { encode(&head) } else { Vec::new() },
        if heads { encode(&end) } else { Vec::new() },
        ring::names(&["batch", "depth"], 0),
        rings(oldest),
        encode(&FileEnd {
            complete: true,
            reason: "",
        }),
    ]
    .concat()
}

fn read(bytes: &[u8], reading: Reading) -> Result<Recording, RecordingError> {
    Recording::read(bytes, Path::new("crash.unikprof"), reading)
}

fn window(from: u64, to: u64) -> Window {
    Window {
        from_ns: from * SECOND,
        to_ns: to * SECOND,
    }
}

#[test]
fn a_window_of_what_a_crashed_guest_left_is_a_profile() {
    let recording = read(&crash(0, true), Reading::Strict).unwrap();
    let info = recording.profile.recording();
    assert_eq!((info.name.as_str(), info.period_ns), ("night", SECOND / 10));
    assert_eq!(info.started_unix_ns, Some(1_700_000_010 * SECOND));
    let counters = recording.profile.counters();
    assert_eq!(
        (counters.ticks, counters.recorded, counters.lost),
        (31, 30, 1)
    );
    let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
    let cut = |window, span| timeline.profile(&recording.profile, &of, window, span);
    let second = cut(window(11, 12), None);
    let leaves: Vec<_> = second.samples().iter().map(|s| (s.count, s.span)).collect();
    assert_eq!(leaves, [(10, Some(0))]);
    assert_eq!(second.span_names(), ["batch"]);
    assert_eq!(second.recording().elapsed_ns, SECOND);
    let inside = cut(Window::ALL, Some("batch"));
    assert_eq!(inside.counters().ticks, 10);
    assert_eq!(cut(window(50, 60), None).sample_count(), 0);
    let spans = timeline.spans(Window::ALL);
    assert_eq!(spans[0].times.total_ns(), 9 * SECOND / 10 + 2);
    assert_eq!(timeline.counters(Window::ALL)[0].last(), -5);
}

#[test]
fn what_was_evicted_is_told() {
    let recording = read(&crash(123, true), Reading::Strict).unwrap();
    let (timeline, of) = (recording.timeline.unwrap(), recording.span.unwrap());
    let early = timeline.profile(&recording.profile, &of, window(5, 11), None);
    assert_eq!(timeline.held_since(), 10 * SECOND);
    assert_eq!(timeline.rings()[0].evicted, 123);
    assert_eq!(early.sample_count(), 10);
    let slices = timeline.slices(&of, window(9, 11), SECOND);
    assert_eq!([slices[0].is_held, slices[1].is_held], [false, true]);
}

/// Without the recording's head the rings tell its lane; the lane of another is none of its.
#[test]
fn rings_alone_tell_recordings_apart() {
    let recording = read(&crash(0, false), Reading::Strict).unwrap();
    let lanes: Vec<_> = recording.timeline.as_ref().unwrap().recordings();
    let lanes: Vec<_> = lanes.iter().map(|r| (r.recording, r.lane)).collect();
    assert_eq!(lanes, [(Some(4), 0), (None, 1)]);
    let warnings = &recording.profile.recording().warnings;
    assert!(
        warnings.iter().any(|w| w.contains("no counts")),
        "{warnings:?}"
    );
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
    assert_eq!(
        read(cut, Reading::Salvage)
            .unwrap()
            .profile
            .recording()
            .name,
        "night"
    );
    for length in 0..40 {
        assert!(
            read(&block[..length], Reading::Salvage).is_err(),
            "{length}"
        );
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

/// What people see of the seconds, against a checked-in file.
#[test]
fn the_seconds_are_as_blessed() {
    let recording = read(&crash(0, true), Reading::Strict).unwrap();
    let (timeline, of) = (
        recording.timeline.as_ref().unwrap(),
        recording.span.unwrap(),
    );
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
    let found = String::from_utf8(found).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/report_golden/timeline.txt");
    if std::env::var_os("UNIKPROF_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        found, expected,
        "if this is meant: `UNIKPROF_BLESS=1 cargo test -p unikprof-client`"
    );
}
