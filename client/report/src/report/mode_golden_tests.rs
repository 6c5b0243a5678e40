//! The kinds of time against checked-in files: running and blocked time together, blocked time
//! alone, and samples that came late.

#![allow(clippy::unwrap_used)]

use flate2::read::GzDecoder;
use serde_json::Value;

#[cfg(feature = "svg")]
use super::golden_tests::svg_text;
use super::golden_tests::{FIB, MAIN, PARSE, POLL, check, pprof_text, symbolized, text};
use super::*;
use unikprof_profile::profile::{
    Counters, Distribution, Frame, FromRing, Held, LiveSample, Mapping, Measure, Mode, NodeId,
    Profile, ProfileBuilder, RecordingInfo, Runstate, SpecialFrame, Unwind, VcpuStats,
};

fn profile(info: RecordingInfo, stats: VcpuStats, stacks: &[(u64, &[Frame])]) -> Profile {
    let mut builder = ProfileBuilder::new();
    builder.add_mapping(Mapping {
        start: 0x10_0000,
        end: 0x20_0000,
        path: "/srv/web.elf".into(),
        ..Mapping::default()
    });
    builder.set_recording(RecordingInfo {
        name: "kinds".into(),
        guest_name: "web".into(),
        agent_version: "0.1.0".into(),
        depth: 64,
        elapsed_ns: 10_000_000_000,
        period_ns: 1_000_000,
        late_threshold_ns: 50_000,
        ..info
    });
    builder.add_vcpu(VcpuStats {
        elapsed_ns: 10_000_000_000,
        runstate: Runstate {
            running_ns: Some(2_000_000_000),
            runnable_ns: Some(1_000_000_000),
            blocked_ns: Some(7_000_000_000),
            offline_ns: Some(0),
        },
        ..stats
    });
    for (count, stack) in stacks {
        builder.add_stack(0, *count, stack).unwrap();
    }
    builder.finish()
}

/// 2,000 samples of running time, 5 % of them late, and 7,000 of blocked time.
fn wall() -> Profile {
    let stats = VcpuStats {
        counters: Counters {
            ticks: 2_000,
            recorded: 2_000,
            late: 100,
            by_table: 1_900,
            by_frame_pointer: 100,
            mixed: 40,
            blocks: 3_500,
            blocked: 6_990,
            blocked_overflow: 10,
            missing: Some(0),
            ..Counters::default()
        },
        lateness_ns: Some(Distribution::from_values([(2_000, 1_900), (900_000, 100)])),
        ..VcpuStats::default()
    };
    let info = RecordingInfo {
        mode: Mode::Wall,
        caller_table: Some(7),
        unwind: Unwind::Table,
        ..RecordingInfo::default()
    };
    let blocked = Frame::Special(SpecialFrame::Blocked);
    let late = Frame::Special(SpecialFrame::Late);
    profile(
        info,
        stats,
        &[
            (1_500, &[Frame::leaf(FIB), Frame::caller(MAIN)]),
            (400, &[Frame::leaf(PARSE), Frame::caller(MAIN)]),
            (80, &[late, Frame::leaf(POLL), Frame::caller(MAIN)]),
            (20, &[late, Frame::leaf(FIB), Frame::caller(MAIN)]),
            (6_990, &[blocked, Frame::leaf(POLL), Frame::caller(MAIN)]),
        ],
    )
}

/// 7 s of blocked time under two callers, some of it cut off.
fn off_cpu() -> Profile {
    let stats = VcpuStats {
        counters: Counters {
            blocks: 3_500,
            blocked: 6_900_000_000,
            blocked_overflow: 100_000_000,
            ..Counters::default()
        },
        ..VcpuStats::default()
    };
    let info = RecordingInfo { mode: Mode::OffCpu, ..RecordingInfo::default() };
    profile(
        info,
        stats,
        &[
            (4_000_000_000, &[Frame::leaf(POLL), Frame::caller(FIB), Frame::caller(MAIN)]),
            (2_500_000_000, &[Frame::leaf(POLL), Frame::caller(PARSE), Frame::caller(MAIN)]),
            (400_000_000, &[Frame::leaf(POLL), Frame::Special(SpecialFrame::Broken)]),
        ],
    )
}

/// Allocations of many sizes, some of which are all known.
fn heap(mode: Mode) -> Profile {
    heap_that_dropped(mode, 20, 0)
}

/// The same, with so many samples lost in a full table and in one that was in use.
fn heap_that_dropped(mode: Mode, overflow: u64, lost: u64) -> Profile {
    const INTERVAL: u64 = 64 << 10;
    let stats = VcpuStats {
        counters: Counters {
            ticks: 640,
            recorded: 620,
            overflow,
            lost,
            by_frame_pointer: 620,
            ..Counters::default()
        },
        allocated_bytes: 60 << 20,
        freed_samples: 300,
        ..VcpuStats::default()
    };
    let info =
        RecordingInfo { mode, period_ns: 0, interval_bytes: INTERVAL, ..RecordingInfo::default() };
    let stacks: [(u64, u64, &[Frame]); 4] = [
        (400, 1_000, &[Frame::caller(PARSE), Frame::caller(MAIN)]),
        (100, 24, &[Frame::caller(FIB), Frame::caller(PARSE), Frame::caller(MAIN)]),
        (20, 1 << 20, &[Frame::caller(POLL), Frame::caller(MAIN)]),
        (100, 40_000, &[Frame::caller(POLL), Frame::caller(MAIN)]),
    ];
    let mut builder = ProfileBuilder::new();
    builder.add_mapping(Mapping {
        start: 0x10_0000,
        end: 0x20_0000,
        path: "/srv/web.elf".into(),
        ..Mapping::default()
    });
    builder.set_recording(profile(info, stats.clone(), &[]).recording().clone());
    builder.add_vcpu(VcpuStats { elapsed_ns: 10_000_000_000, ..stats });
    let mut held = Held { at_ns: 10_000_000_000, samples: Vec::new() };
    for (count, size, frames) in stacks {
        let node = frames
            .iter()
            .rev()
            .try_fold(NodeId::ROOT, |node, frame| builder.step(node, *frame))
            .unwrap();
        match mode {
            Mode::Live => held.samples.extend((0..count).map(|at| LiveSample {
                node,
                vcpu: 0,
                size,
                born_ns: at * 20_000_000,
            })),
            _ => builder.count_allocations(0, node, count, size, INTERVAL),
        }
    }
    builder.add_held(held);
    builder.finish()
}

/// The modes differ in words, and measures in numbers: the same stacks are in each.
#[test]
fn allocations_are_as_blessed() {
    for (name, mode, pprof) in [("alloc", Mode::Alloc, "alloc"), ("live", Mode::Live, "inuse")] {
        for (measure, suffix, kind) in
            [(Measure::Bytes, "", "space"), (Measure::Objects, "-objects", "objects")]
        {
            let profile = heap(mode).measured_by(measure);
            let symbolized = symbolized(&profile);
            let report = Report::new(&symbolized, with_accounting());
            check(&format!("{name}{suffix}.txt"), &text(&report, Format::Text));
            check(&format!("alloc{suffix}.folded"), &text(&report, Format::Folded));
            let (default, of_bytes) =
                (format!("default \"{pprof}_{kind}\""), format!("default \"{pprof}_space\""));
            let found = pprof_text(&report);
            assert!(found.contains(&default), "{found}");
            check(&format!("{name}.pprof.txt"), &found.replace(&default, &of_bytes));
            #[cfg(feature = "svg")]
            check(
                &format!("alloc{suffix}.svg.txt"),
                &svg_text(&report).replace(" live, ", " alloc, "),
            );
        }
    }
}

/// Names get room where the table is narrow, beginning with the columns of the own share; a wide
/// one has all.
#[test]
fn tables_of_allocations_leave_room_for_names() {
    for (mode, columns, heading, begin) in [
        (Mode::Alloc, Some(120), "self    share       total", 80),
        (Mode::Live, Some(120), "self       total", 81),
        (Mode::Live, Some(130), "self    share       total", 90),
        (Mode::Alloc, Some(130), "self    share      interval  ", 94),
        (Mode::Live, None, "self    share      interval  ", 104),
    ] {
        let profile = heap(mode);
        let symbolized = symbolized(&profile);
        let options = ReportOptions { columns, ..ReportOptions::default() };
        let text = text(&Report::new(&symbolized, options), Format::Text);
        assert!(text.contains(heading), "{columns:?}: {text}");
        let mut rows = text.lines().filter(|line| line.ends_with("  fib"));
        let found = rows.next().map(|row| row.len() - "fib".len());
        assert_eq!(found, Some(begin), "{columns:?}: {text}");
    }
}

/// What is shown as *at least* has its warnings, also where neither reason alone would have one.
#[test]
fn a_lower_bound_says_why() {
    for (overflow, lost, expected) in [(4, 4, 2), (8, 0, 1), (2, 2, 0), (0, 0, 0)] {
        let profile = heap_that_dropped(Mode::Live, overflow, lost);
        let found = super::heap::warnings(&profile);
        assert_eq!(found.len(), expected, "{found:?}");
        assert_eq!(super::heap::is_lower_bound(&profile), expected > 0);
    }
}

#[test]
fn a_single_sample_is_in_the_singular() {
    let mut builder = ProfileBuilder::new();
    let node = builder.step(NodeId::ROOT, Frame::caller(FIB)).unwrap();
    builder.set_recording(heap(Mode::Alloc).recording().clone());
    builder.add_vcpu(VcpuStats::default());
    builder.count_allocations(0, node, 1, 24, 1024);
    let found = heap::estimated_from(&builder.finish());
    assert_eq!(found, "estimated from 1 sample");
}

/// Two arenas use twice as much as the live samples stand for.
#[test]
fn the_explained_share_is_one_of_the_used_memory() {
    let live = heap(Mode::Live);
    let held = live.heap.as_ref().unwrap().total().bytes.value() as u64;
    let arena = |used| heap::Arena { name: "heap".into(), used, size: None };
    let explained = heap::explained(&live, &[arena(held), arena(held)]).unwrap();
    assert!((explained - 0.5).abs() < 1e-6, "{explained}");
    assert_eq!(heap::explained(&live, &[arena(0)]), None);
    assert_eq!(heap::explained(&heap(Mode::Alloc), &[arena(held)]), None);
}

#[test]
fn an_arena_that_is_fuller_than_its_size_is_remarked_on() {
    for (used, size, is_odd) in
        [(2048, Some(1024), true), (1024, Some(1024), false), (1, None, false)]
    {
        let name = "pool".into();
        let line = heap::Arena { name, used, size }.line();
        assert_eq!(line.contains("more than its size"), is_odd, "{line}");
    }
}

/// Every format can be written, and a sum of bytes is not taken for one of time.
#[test]
fn allocations_are_written_in_every_format() {
    let profile = heap(Mode::Alloc);
    let symbolized = symbolized(&profile);
    let report = Report::new(&symbolized, ReportOptions::default());
    let speedscope: Value = serde_json::from_str(&text(&report, Format::Speedscope)).unwrap();
    assert_eq!(speedscope["profiles"][0]["unit"], "bytes");
    let mut firefox = Vec::new();
    report.write(Format::Firefox, &mut firefox).unwrap();
    let firefox: Value = serde_json::from_reader(GzDecoder::new(&*firefox)).unwrap();
    assert_eq!(firefox["threads"][0]["samples"]["weightType"], "bytes");
    assert!(text(&report, Format::Page).contains("</html>"));
}

/// A copy or a crash dump holds when allocations were sampled. These are samples, and not bytes.
#[test]
fn allocations_from_a_ring_are_shown_as_samples() {
    let info = RecordingInfo {
        mode: Mode::Alloc,
        period_ns: 0,
        interval_bytes: 1024,
        ring: Some(FromRing::default()),
        ..RecordingInfo::default()
    };
    let profile = profile(info, VcpuStats::default(), &[(7, &[Frame::caller(FIB)])]);
    let symbolized = symbolized(&profile);
    let report = Report::new(&symbolized, ReportOptions::default());
    let json: Value = serde_json::from_str(&text(&report, Format::Json)).unwrap();
    assert_eq!(json["recording"]["unit"], "samples");
    assert!(pprof_text(&report).starts_with("types [\"samples/count\""));
    assert!(text(&report, Format::Text).contains(", 7 samples;"));
}

fn with_accounting() -> ReportOptions {
    ReportOptions { accounting: true, ..ReportOptions::default() }
}

fn check_all(name: &str, profile: &Profile) {
    let symbolized = symbolized(profile);
    let report = Report::new(&symbolized, with_accounting());
    for (format, ending) in [(Format::Text, "txt"), (Format::Folded, "folded")] {
        check(&format!("{name}.{ending}"), &text(&report, format));
    }
    check(&format!("{name}.pprof.txt"), &pprof_text(&report));
    #[cfg(feature = "svg")]
    check(&format!("{name}.svg.txt"), &svg_text(&report));
}

fn json(profile: &Profile) -> Value {
    let symbolized = symbolized(profile);
    let report = Report::new(&symbolized, ReportOptions::default());
    serde_json::from_str(&text(&report, Format::Json)).unwrap()
}

#[test]
fn wall_clock_time_is_as_blessed() {
    let profile = wall();
    check_all("wall", &profile);
    let json = json(&profile);
    assert_eq!(json["recording"]["mode"], "wall");
    assert_eq!(json["recording"]["unwind"], "table");
}

#[test]
fn blocked_time_is_as_blessed() {
    let profile = off_cpu();
    check_all("off-cpu", &profile);
    // Measured time has no intervals.
    let json = json(&profile);
    assert_eq!(json["recording"]["unit"], "nanoseconds");
    assert_eq!(json["recording"]["mode"], "off-cpu");
    // What is not known is null, not left out.
    for (of, name) in [
        (&json, "cost_share"),
        (&json, "lateness_ns"),
        (&json["counters"], "missing"),
        (&json["recording"], "caller_table"),
        (&json["recording"], "started_unix_ns"),
    ] {
        assert_eq!(of.get(name), Some(&Value::Null), "{name}");
    }
    let poll = &json["functions"][0];
    assert_eq!((&poll["self"], &poll["self_share"]), (&6_900_000_000_u64.into(), &1.0.into()));
    for function in json["functions"].as_array().unwrap() {
        for interval in ["self_interval", "total_interval"] {
            assert_eq!(function.get(interval), Some(&Value::Null), "{function}");
        }
    }
}
