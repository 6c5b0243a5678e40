//! Every format against a checked-in file, from one small profile with all that is special:
//! recursion, inlined functions, marks, the agent, names that would break a format.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;
use serde_json::{Map, Value};

use super::pprof_messages as pprof;
use super::*;
use unikprof_profile::profile::{
    Cost, Counters, Distribution, Frame, FrameId, Mapping, Profile, ProfileBuilder, RecordingInfo,
    Runstate, SpecialFrame, VcpuStats,
};
use unikprof_profile::symbols::{Function, FunctionKind, Names, Symbol, Symbolized};
use unikprof_test_kit::golden;

fn written(report: &Report<'_>, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    report.write(format, &mut out).unwrap();
    out
}

pub(super) fn text(report: &Report<'_>, format: Format) -> String {
    String::from_utf8(written(report, format)).unwrap()
}

/// One frame for each address below; what they are called is in `names`.
pub(crate) const MAIN: u64 = 0x10_1000;
pub(crate) const POLL: u64 = 0x10_2000;
pub(crate) const PARSE: u64 = 0x10_3000;
pub(crate) const FIB: u64 = 0x10_4000;
const SERVE: u64 = 0x10_5000;
const LIBRARY: u64 = 0x7f00_0000_1234;

pub(super) fn profile() -> Profile {
    let mut builder = ProfileBuilder::new();
    builder.add_mapping(Mapping {
        start: 0x10_0000,
        end: 0x20_0000,
        file_offset: 0x1000,
        build_id: Some("0123456789abcdef".parse().unwrap()),
        path: "/srv/web.elf".into(),
    });
    builder.add_mapping(Mapping {
        start: 0x7f00_0000_0000,
        end: 0x7f00_0001_0000,
        path: "/usr/lib/libc.so.6".into(),
        ..Mapping::default()
    });
    builder.set_recording(RecordingInfo {
        name: "boot".into(),
        guest_name: "web <1>".into(),
        guest_id: "6f1c2d1e".into(),
        agent_version: "0.1.0".into(),
        period_ns: 1_003_009,
        depth: 64,
        started_unix_ns: Some(1_700_000_000_123_456_789),
        elapsed_ns: 30_000_000_000,
        server_ns: 1_200_000,
        late_threshold_ns: 50_000,
        caller_table: Some(0x1234_5678),
        warnings: vec!["the guest was migrated\x1b[2J".into()],
        ..RecordingInfo::default()
    });
    let callers = [Frame::caller(POLL), Frame::caller(MAIN)];
    let mut add = |vcpu: u32, count: u64, leaf: &[Frame]| {
        let stack: Vec<Frame> = leaf.iter().chain(&callers).copied().collect();
        builder.add_stack(vcpu, count, &stack).unwrap();
    };
    add(0, 500, &[Frame::leaf(PARSE)]);
    add(1, 100, &[Frame::leaf(PARSE)]);
    add(0, 40, &[Frame::leaf(FIB), Frame::caller(FIB), Frame::caller(FIB)]);
    add(0, 35, &[Frame::leaf(FIB), Frame::caller(FIB)]);
    add(0, 120, &[Frame::leaf(LIBRARY), Frame::caller(PARSE)]);
    add(1, 9, &[Frame::leaf(SERVE)]);
    builder.add_stack(0, 30, &[Frame::leaf(FIB), Frame::Special(SpecialFrame::Truncated)]).unwrap();
    builder.add_stack(0, 4, &[Frame::Special(SpecialFrame::UnknownCode)]).unwrap();
    builder.add_stack(1, 2, &[]).unwrap();
    builder.add_vcpu(VcpuStats {
        vcpu: 0,
        counters: Counters {
            ticks: 760,
            recorded: 729,
            overflow: 10,
            lost: 3,
            masked: 2,
            idle: 16,
            early: 7,
            late: 1,
            truncated: 30,
            broken: 4,
            by_table: 650,
            by_bytes: 60,
            by_frame_pointer: 19,
            missing: Some(-3),
            ..Counters::default()
        },
        runstate: Runstate {
            running_ns: Some(20_000_000_000),
            runnable_ns: Some(1_000_000_000),
            blocked_ns: Some(9_000_000_000),
            offline_ns: Some(0),
        },
        elapsed_ns: 30_000_000_000,
        cost: Some(Cost {
            cycles_p50: 900,
            cycles_p99: 4_200,
            cycles_max: 91_000,
            cycles_per_second: 3_000_000_000,
            sampling_ns: 3_000_000,
            deliveries: 736,
            delivery_ns: Some(12_400_000),
            deliveries_measured: 16,
        }),
        lateness_ns: Some(Distribution::from_values([
            (900, 40),
            (3_000, 650),
            (20_000, 38),
            (70_000, 1),
        ])),
        ..VcpuStats::default()
    });
    builder.add_vcpu(VcpuStats {
        vcpu: 1,
        counters: Counters {
            ticks: 111,
            recorded: 111,
            by_table: 100,
            by_bytes: 11,
            missing: Some(2),
            ..Counters::default()
        },
        elapsed_ns: 30_000_000_000,
        ..VcpuStats::default()
    });
    builder.finish()
}

pub(crate) fn symbolized(profile: &Profile) -> Symbolized<'_> {
    let mut names = Names::new(profile.frames().len(), profile.mappings().len());
    let image = names.add_image("web.elf", None);
    let mut mapping_of = Vec::new();
    for (at, frame) in profile.frames().iter().enumerate() {
        let id = FrameId(at as u32);
        let begin = names.begin();
        let mut push = |raw_name: &str, line: Option<(&str, u32)>, inlined: bool| {
            let function = names.function(Some(image), raw_name);
            let file = line.map(|(path, _)| names.file(path));
            names.push(Symbol { function, file, line: line.map(|(_, line)| line), inlined });
        };
        let mut mapping = Some(0);
        match frame {
            Frame::Special(mark) => {
                let kind = FunctionKind::Special(*mark);
                let function = names.intern(Function::new(mark.to_string(), None, kind));
                names.push(Symbol { function, file: None, line: None, inlined: false });
                mapping = None;
            }
            Frame::Address { address, .. } => match *address {
                MAIN => push("main", Some(("src/main.c", 12)), false),
                POLL => push("_ZN6Server4pollEi", Some(("src/server.cc", 40)), false),
                PARSE => {
                    push("parse::<[u8; 4]>", Some(("src/parse.rs", 7)), true);
                    push("_RNvNtCs1234_7mycrate6packet4next", Some(("src/packet.rs", 99)), false);
                }
                FIB => push("fib", Some(("src/fib.c", 3)), false),
                SERVE => push("unikprof_agent::server::poll", None, false),
                _ => {
                    let name = "libc.so.6+0x1234".to_owned();
                    let function = names.intern(Function::new(name, None, FunctionKind::Address));
                    names.push(Symbol { function, file: None, line: None, inlined: false });
                    mapping = Some(1);
                }
            },
        }
        names.assign(id, begin);
        if mapping == Some(0) {
            names.note_mapping(0, id);
        }
        mapping_of.push(mapping);
    }
    names.finish(profile, mapping_of)
}

#[track_caller]
pub(super) fn check(name: &str, found: &str) {
    golden(&format!("report/{name}"), found);
}

/// Compares with a file in `client/report/tests/golden`.
#[track_caller]
pub(crate) fn golden(name: &str, found: &str) {
    let path = format!("client/report/tests/golden/{name}");
    golden::check(&path, found, "UNIKPROF_BLESS=1 cargo test -p unikprof-report");
}

pub(super) fn with_report(options: ReportOptions, test: impl FnOnce(&Report<'_>)) {
    let profile = profile();
    let symbolized = symbolized(&profile);
    test(&Report::new(&symbolized, options));
}

fn every_filter() -> ReportOptions {
    ReportOptions {
        labels: false,
        focus: Some("poll".parse().unwrap()),
        accounting: true,
        ignore: Some("^fib$".parse().unwrap()),
        lines: true,
        no_inlines: true,
        top: 2,
        columns: None,
        ..ReportOptions::default()
    }
}

#[test]
fn text_folded_and_json_are_as_blessed() {
    with_report(ReportOptions { accounting: true, ..ReportOptions::default() }, |r| {
        check("report-accounting.txt", &text(r, Format::Text));
    });
    for (format, ending) in [(Format::Text, "txt"), (Format::Folded, "folded")] {
        with_report(ReportOptions::default(), |r| {
            check(&format!("report.{ending}"), &text(r, format));
        });
        with_report(every_filter(), |r| {
            check(&format!("report-filtered.{ending}"), &text(r, format));
        });
    }
    let json = |r: &Report<'_>| text(r, Format::Json);
    with_report(ReportOptions::default(), |all| {
        check("report.json", &json(all));
        let mut whole: Map<String, Value> = serde_json::from_str(&json(all)).unwrap();
        // Filters change these parts and no others.
        with_report(every_filter(), |r| {
            let mut filtered: Map<String, Value> = serde_json::from_str(&json(r)).unwrap();
            let mut parts = Map::new();
            for name in ["filter", "samples", "functions", "warnings"] {
                whole.remove(name);
                parts.insert(name.into(), filtered.remove(name).unwrap());
            }
            assert_eq!(filtered, whole);
            let parts = serde_json::to_string_pretty(&parts).unwrap();
            check("report-filtered.json", &format!("{parts}\n"));
        });
    });
}

#[cfg(feature = "svg")]
#[test]
fn the_svg_is_as_blessed() {
    with_report(ReportOptions::default(), |report| {
        check("report.svg.txt", &svg_text(report));
    });
}

/// Titles, colours and texts; the drawing library's script and style are its own affair.
#[cfg(feature = "svg")]
pub(super) fn svg_text(report: &Report<'_>) -> String {
    let svg = text(report, Format::Svg);
    let mut shown = String::new();
    for piece in svg.split('<') {
        let keeps = ["title>", "text ", "rect "].iter().any(|tag| piece.starts_with(tag));
        if keeps {
            writeln!(shown, "<{}", piece.trim_end()).unwrap();
        }
    }
    shown
}

#[test]
fn the_pprof_file_is_as_blessed() {
    with_report(ReportOptions::default(), |r| {
        check("report.pprof.txt", &pprof_text(r));
    });
    with_report(every_filter(), |r| {
        check("report-filtered.pprof.txt", &pprof_text(r));
    });
}

#[test]
fn equal_profiles_are_equal_files() {
    with_report(ReportOptions::default(), |a| {
        with_report(ReportOptions::default(), |b| {
            for format in Format::all() {
                let is_left_out = match format {
                    Format::Svg => cfg!(not(feature = "svg")),
                    Format::Otlp => cfg!(not(feature = "otlp")),
                    // It is for traces.
                    Format::Chrome => true,
                    _ => false,
                };
                if is_left_out {
                    continue;
                }
                assert_eq!(written(a, format), written(b, format), "{format}");
            }
        });
    });
}

/// `fib` calls itself: 75 samples go through it under `main`, not 75 for each of its frames.
#[test]
fn recursion_counts_once_a_stack() {
    with_report(ReportOptions::default(), |report| {
        let table = report.functions();
        let fib = table.rows.iter().find(|row| row.text == "fib").unwrap();
        assert_eq!((fib.own, fib.total), (40 + 35 + 30, 40 + 35 + 30));
        let main = table.rows.iter().find(|row| row.text == "main").unwrap();
        assert_eq!((main.own, main.total), (0, 804));
        assert_eq!(table.recorded, 840);
    });
}

#[test]
fn filters_that_keep_nothing_say_so() {
    let options =
        ReportOptions { focus: Some("no such".parse().unwrap()), ..ReportOptions::default() };
    with_report(options, |report| {
        assert!(report.functions().rows.is_empty());
        assert!(text(report, Format::Text).contains("shown: 0 of 840 samples (0.0 %)"));
        assert_eq!(text(report, Format::Folded), "");
        #[cfg(feature = "svg")]
        assert!(matches!(
            report.write(Format::Svg, &mut Vec::new()),
            Err(ReportError::Empty { recorded: 840 })
        ));
    });
}

#[test]
fn a_profile_without_samples_is_reported() {
    let profile = ProfileBuilder::new().finish();
    let symbolized = Names::new(0, 0).finish(&profile, Vec::new());
    let report = Report::new(&symbolized, ReportOptions::default());
    assert!(text(&report, Format::Text).contains("no samples: the guest did not run"));
    for format in [Format::Folded, Format::Json, Format::Pprof] {
        written(&report, format);
    }
}

#[test]
fn a_writer_that_fails_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::other("disk full"))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    with_report(ReportOptions::default(), |report| {
        for format in Format::all() {
            assert!(report.write(format, &mut Full).is_err(), "{format}");
        }
    });
}

/// `Profile` as a reader sees it; the writer never has it whole.
#[derive(Clone, PartialEq, Message)]
struct WholeProfile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<pprof::ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<pprof::Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<pprof::Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<pprof::Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<pprof::Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<pprof::ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

fn decoded(pprof: &[u8]) -> WholeProfile {
    let mut bytes = Vec::new();
    GzDecoder::new(pprof).read_to_end(&mut bytes).unwrap();
    WholeProfile::decode(bytes.as_slice()).unwrap()
}

fn locations(sample: &pprof::Sample) -> Vec<u64> {
    let mut left = &*sample.location_id;
    let next = || prost::encoding::decode_varint(&mut left).ok();
    std::iter::from_fn(next).collect()
}

/// Engines take locations' numbers for places in their list, and profiles of equal times for one.
#[test]
fn the_pieces_of_a_profile_have_all_of_it_and_stand_alone() {
    let stacks = |p: &WholeProfile| -> Vec<(Vec<String>, Vec<i64>)> {
        let text = |id: i64| p.string_table[id as usize].clone();
        let function = |line: &pprof::Line| text(p.function[line.function_id as usize - 1].name);
        let of = |s: &pprof::Sample| {
            let locations = locations(s).into_iter().map(|id| &p.location[id as usize - 1]);
            let names = locations.flat_map(|location| location.line.iter().map(function));
            (names.collect(), s.value.clone())
        };
        p.sample.iter().map(of).collect()
    };
    let limits = [(2, usize::MAX), (usize::MAX, 1), (usize::MAX, usize::MAX)];
    with_report(ReportOptions::default(), |report| {
        let whole = stacks(&decoded(&written(report, Format::Pprof)));
        for ((samples, bytes), expected) in limits.into_iter().zip([5, whole.len(), 1]) {
            let limits = PieceLimits { samples, bytes };
            let pieces = report.pprof_pieces(7_000_000..9_000_000, limits).unwrap();
            let pieces: Vec<_> = pieces.iter().map(|piece| decoded(piece)).collect();
            assert_eq!(pieces.len(), expected);
            for (at, piece) in pieces.iter().enumerate() {
                assert!(piece.sample.len() <= samples);
                let ids = piece.location.iter().map(|location| location.id);
                assert!(ids.eq(1..=piece.location.len() as u64));
                let time = (piece.time_nanos, piece.duration_nanos);
                assert_eq!(time, (7_000_000 + 1_000_000 * at as i64, 2_000_000));
            }
            assert_eq!(pieces.iter().flat_map(stacks).collect::<Vec<_>>(), whole);
        }
    });
    let profile = ProfileBuilder::new().finish();
    let symbolized = Names::new(0, 0).finish(&profile, Vec::new());
    let report = Report::new(&symbolized, ReportOptions::default());
    let (samples, bytes) = limits[0];
    let pieces = report.pprof_pieces(0..1, PieceLimits { samples, bytes });
    assert_eq!(pieces.unwrap(), Vec::<Vec<u8>>::new());
}

pub(super) fn pprof_text(report: &Report<'_>) -> String {
    let p = decoded(&written(report, Format::Pprof));
    let text = |id: i64| p.string_table[usize::try_from(id).unwrap()].as_str();
    let kind = |t: &pprof::ValueType| format!("{}/{}", text(t.kind), text(t.unit));
    let mut out = String::new();
    let kinds: Vec<String> = p.sample_type.iter().map(kind).collect();
    writeln!(out, "types {kinds:?}, default {:?}", text(p.default_sample_type)).unwrap();
    let period = p.period_type.as_ref().map(kind);
    writeln!(
        out,
        "period {} {period:?}, time {}, duration {}",
        p.period, p.time_nanos, p.duration_nanos
    )
    .unwrap();
    for comment in &p.comment {
        writeln!(out, "comment {:?}", text(*comment)).unwrap();
    }
    for m in &p.mapping {
        writeln!(
            out,
            "mapping {} {:#x}-{:#x} +{:#x} {:?} {:?} functions {} files {} lines {} inlines {}",
            m.id,
            m.memory_start,
            m.memory_limit,
            m.file_offset,
            text(m.filename),
            text(m.build_id),
            m.has_functions,
            m.has_filenames,
            m.has_line_numbers,
            m.has_inline_frames
        )
        .unwrap();
    }
    for f in &p.function {
        writeln!(
            out,
            "function {} {:?} {:?} {:?}",
            f.id,
            text(f.name),
            text(f.system_name),
            text(f.filename)
        )
        .unwrap();
    }
    for l in &p.location {
        let lines: Vec<_> = l.line.iter().map(|l| (l.function_id, l.line)).collect();
        writeln!(out, "location {} {:#x} mapping {} {lines:?}", l.id, l.address, l.mapping_id)
            .unwrap();
    }
    for s in &p.sample {
        let labels: Vec<_> = s.label.iter().map(|l| (text(l.key), text(l.text))).collect();
        writeln!(out, "sample {:?} {:?} {labels:?}", locations(s), s.value).unwrap();
    }
    assert_eq!(p.string_table[0], "", "the format wants it");
    out
}
