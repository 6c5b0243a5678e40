//! The Firefox profiler's processed format, in gzip: a track for each vCPU with samples, markers
//! and counters.
//!
//! What was counted has its time if the ring holds it. The rest is a track of its own for each
//! vCPU: stacks follow each other in the order of their functions' names, each for as long as it
//! was counted, and the track's name says so. The categories tell apart what ran, what was blocked
//! and what was stolen. The accounting and the warnings are in the profile's information.
//!
//! `fxprof-processed-profile` makes the file but for the samples, their stacks and what these refer
//! to, which `tables` writes: the library's frames have no files and lines and no inlined functions
//! at an address, and its stacks take many times the memory.

mod marker;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};

use flate2::GzBuilder;
use fxprof_processed_profile as fx;
use serde_json::{Value, json};

use super::moments::{Counted, Moment, Moments, UNTIMED};
use super::{COMPRESSION, Report, ReportError, text, title};
use marker::Markers;
pub use tables::library_key;
use unikprof_profile::profile::{NodeId, SpecialFrame, Unit};
use unikprof_profile::symbols::{FunctionKind, Symbol};
use unikprof_profile::timeline::Window;

/// The categories of samples and markers.
#[derive(Debug, Clone, Copy)]
struct Categories {
    running: fx::CategoryHandle,
    blocked: fx::CategoryHandle,
    stolen: fx::CategoryHandle,
    agent: fx::CategoryHandle,
    guest: fx::CategoryHandle,
}

impl Categories {
    fn add_to(profile: &mut fx::Profile) -> Categories {
        Categories {
            running: profile.add_category("Running", fx::CategoryColor::Blue),
            blocked: profile.add_category("Blocked", fx::CategoryColor::LightBlue),
            stolen: profile.add_category("Stolen", fx::CategoryColor::Red),
            agent: profile.add_category("Profiler", fx::CategoryColor::Yellow),
            guest: profile.add_category("Guest's events", fx::CategoryColor::Green),
        }
    }

    /// Of code that runs.
    fn of(&self, report: &Report<'_>, symbol: &Symbol) -> fx::CategoryHandle {
        match report.symbolized.function(symbol.function).kind {
            FunctionKind::Named | FunctionKind::Address => self.running,
            FunctionKind::Agent | FunctionKind::Special(SpecialFrame::AgentWork) => self.agent,
            FunctionKind::Special(SpecialFrame::Blocked) => self.blocked,
            FunctionKind::Special(_) => fx::CategoryHandle::OTHER,
        }
    }
}

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> Result<(), ReportError> {
    // No time and no name in the header: equal profiles are equal files.
    let gzip = GzBuilder::new().write(out, COMPRESSION);
    let mut buffer = BufWriter::with_capacity(1 << 16, gzip);
    write_json(report, &mut buffer)?;
    let gzip = buffer.into_inner().map_err(io::IntoInnerError::into_error)?;
    gzip.finish()?.flush()?;
    Ok(())
}

/// Writes the profile as JSON.
fn write_json(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let info = report.symbolized.profile().recording();
    let view = report.view.as_ref();
    let window = view.map(|view| view.timeline.bounded(&view.of, view.window));
    let clock = view.map(|view| view.timeline.wall_clock());
    let began = window.zip(clock);
    let began = began.and_then(|(window, clock)| clock.unix_ns(window.from_ns));
    let began_ms = began.or(info.started_unix_ns).unwrap_or(0) as f64 / 1e6;
    let mut profile = fx::Profile::new(
        &title(report),
        fx::ReferenceTimestamp::from_millis_since_unix_epoch(began_ms),
        // An interval of zero is not allowed; waits are measured to the ns.
        fx::SamplingInterval::from_nanos(info.period_ns.max(1)),
    );
    profile.set_symbolicated(true);
    let categories = Categories::add_to(&mut profile);
    let moments = Moments::of(report);
    let window = window.unwrap_or(Window::new(0, info.elapsed_ns));
    let mut tracks = Tracks::new(report, profile, window, &moments);
    for moment in moments.timed.iter().flat_map(parts) {
        let since_ns = moment.at_ns.saturating_sub(window.from_ns);
        tracks.add((moment.vcpu, false), &moment, since_ns);
    }
    let mut end_ns = window.length_ns();
    for (vcpu, counted) in &moments.untimed {
        end_ns = end_ns.max(tracks.add_counts(*vcpu, counted));
    }
    if let Some(view) = view {
        let timed = tracks.threads.iter().filter(|((_, is_untimed), _)| !is_untimed);
        let timed = timed.map(|((vcpu, _), thread)| (*vcpu, *thread)).collect();
        Markers::new(&mut tracks.profile, &timed, categories, window).add(
            view,
            tracks.process,
            info.mode,
        );
    }
    // Without these the front end shows the time of the samples only, and no marker before or after
    // it.
    let meta = [
        ("extra", extra(report)),
        ("profilingStartTime", json!(0)),
        ("profilingEndTime", json!(end_ns as f64 / 1e6)),
    ];
    let Tracks { profile, samples, .. } = tracks;
    tables::write(report, &profile, categories, samples, &meta, out)
}

/// The longest part of a wait that is one sample: the front end shows a sample's whole weight at one
/// moment.
const LONGEST_PART_NS: u64 = 100_000_000;

/// The most parts of one wait.
const MOST_PARTS: u64 = 10_000;

/// A moment, or the parts of a long wait, each with its part of what was counted.
fn parts(moment: &Moment) -> impl Iterator<Item = Moment> {
    let moment = *moment;
    let wait_ns = moment.wait_ns.unwrap_or(0);
    let parts = wait_ns.div_ceil(LONGEST_PART_NS).clamp(1, MOST_PARTS);
    let part = move |of: u64, at: u64| {
        let until = u128::from(of) * u128::from(at) / u128::from(parts);
        u64::try_from(until).unwrap_or(of)
    };
    (0..parts).map(move |at| Moment {
        at_ns: moment.at_ns.saturating_add(part(wait_ns, at)),
        count: part(moment.count, at + 1) - part(moment.count, at),
        wait_ns: moment.wait_ns.map(|ns| part(ns, at + 1) - part(ns, at)),
        ..moment
    })
}

/// What the front end shows as information about the profile.
fn extra(report: &Report<'_>) -> Value {
    let entry =
        |label: &str, value: &str| json!({ "label": label, "format": "string", "value": value });
    let lines = text::accounting_lines(report);
    let entries = lines.iter().map(|line| {
        let (label, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        entry(label.trim_end_matches(':'), value.trim_start())
    });
    let entries: Vec<Value> = entries.collect();
    json!([{ "label": "Accounting", "entries": entries }])
}

/// The profile's threads: for each vCPU one in time, and one for what has no times.
struct Tracks<'r> {
    report: &'r Report<'r>,
    profile: fx::Profile,
    process: fx::ProcessHandle,
    threads: BTreeMap<Track, fx::ThreadHandle>,
    samples: BTreeMap<Track, Vec<Sample>>,
}

/// A sample of a thread.
struct Sample {
    since_ns: u64,
    stack: NodeId,
    /// In the mode's unit.
    count: u64,
    is_wait: bool,
}

/// A vCPU, and whether its samples have no times.
type Track = (u32, bool);

impl<'r> Tracks<'r> {
    fn new(
        report: &'r Report<'r>,
        mut profile: fx::Profile,
        window: Window,
        moments: &Moments,
    ) -> Tracks<'r> {
        let begin = fx::Timestamp::from_nanos_since_reference(0);
        let end = fx::Timestamp::from_nanos_since_reference(window.length_ns());
        let process = profile.add_process(&title(report), 1, begin);
        profile.set_process_end_time(process, end);
        let info = report.symbolized.profile();
        let counted = info.vcpus().iter().map(|vcpu| vcpu.vcpu);
        let sampled = info.samples().iter().map(|sample| sample.vcpu);
        let rings = report.view.iter().flat_map(|view| view.timeline.rings());
        let vcpus: BTreeSet<u32> =
            counted.chain(sampled).chain(rings.map(|ring| ring.vcpu)).collect();
        let is_timed = report.view.is_some();
        let tracks = vcpus.iter().flat_map(|vcpu| [(*vcpu, false), (*vcpu, true)]);
        let tracks = tracks.filter(|(vcpu, is_untimed)| match is_untimed {
            false => is_timed,
            true => !is_timed || moments.untimed.contains_key(vcpu),
        });
        let mut threads = BTreeMap::new();
        for (at, (vcpu, is_untimed)) in tracks.enumerate() {
            // Threads of one beginning are put in the order of their names, which has 10 before 2.
            let begin = fx::Timestamp::from_nanos_since_reference(at as u64);
            let thread = profile.add_thread(process, vcpu, begin, false);
            let order = if is_untimed { UNTIMED } else { "" };
            profile.set_thread_name(thread, &format!("vCPU {vcpu}{order}"));
            profile.set_thread_end_time(thread, end);
            profile.set_thread_show_markers_in_timeline(thread, true);
            profile.add_initial_visible_thread(thread);
            threads.insert((vcpu, is_untimed), thread);
        }
        if let Some(first) = threads.values().next() {
            profile.add_initial_selected_thread(*first);
        }
        let samples = threads.keys().map(|track| (*track, Vec::new())).collect();
        Tracks { report, profile, process, threads, samples }
    }

    /// Stacks without times: one after the other. Returns when the last one ends, in ns.
    fn add_counts(&mut self, vcpu: u32, counted: &Counted) -> u64 {
        let info = self.report.symbolized.profile().recording();
        let each = match info.unit() {
            Unit::Samples => info.period_ns,
            Unit::Nanoseconds | Unit::Bytes | Unit::Objects => 1,
        };
        let mut at_ns: u64 = 0;
        for &(stack, count) in counted {
            let length_ns = count.saturating_mul(each);
            let moment = Moment {
                at_ns,
                vcpu,
                stack,
                count,
                wait_ns: (info.unit() == Unit::Nanoseconds).then_some(length_ns),
                span: None,
            };
            self.add((vcpu, true), &moment, at_ns);
            at_ns = at_ns.saturating_add(length_ns);
        }
        at_ns
    }

    fn add(&mut self, track: Track, moment: &Moment, since_ns: u64) {
        let Moment { stack, count, wait_ns, .. } = *moment;
        if let Some(samples) = self.samples.get_mut(&track) {
            samples.push(Sample { since_ns, stack, count, is_wait: wait_ns.is_some() });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::report::golden_tests::with_report;
    use crate::report::{Format, ReportOptions};
    use unikprof_profile::profile::{Frame, Mode, ProfileBuilder, RecordingInfo};
    use unikprof_profile::symbols::{Images, Symbolizer};

    /// A wait of seconds is shown while it lasts, and not in its last second.
    #[test]
    fn a_long_wait_is_spread_over_its_time() {
        let wait = |wait_ns| Moment {
            at_ns: 5,
            vcpu: 0,
            stack: NodeId::ROOT,
            count: 7,
            wait_ns,
            span: None,
        };
        assert_eq!(parts(&wait(None)).collect::<Vec<_>>(), [wait(None)]);
        let short = wait(Some(LONGEST_PART_NS));
        assert_eq!(parts(&short).collect::<Vec<_>>(), [short]);
        let long: Vec<Moment> = parts(&wait(Some(5 * LONGEST_PART_NS / 2))).collect();
        let counts: Vec<u64> = long.iter().map(|part| part.count).collect();
        assert_eq!(counts, [2, 2, 3]);
        assert_eq!(long[2].at_ns, 5 + 5 * LONGEST_PART_NS / 3);
        let huge: Vec<Moment> = parts(&wait(Some(u64::MAX))).collect();
        assert_eq!(huge.len() as u64, MOST_PARTS);
        assert_eq!(huge.iter().map(|part| part.count).sum::<u64>(), 7);
    }

    fn file(report: &Report<'_>) -> Value {
        let mut packed = Vec::new();
        report.write(Format::Firefox, &mut packed).unwrap();
        let mut text = String::new();
        let mut gzip = GzDecoder::new(&*packed);
        gzip.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn numbers(column: &Value) -> Vec<usize> {
        let numbers = column.as_array().unwrap().iter();
        numbers.map(|n| n.as_u64().unwrap() as usize).collect()
    }

    /// The frames of a thread from the root to the leaf, as `function file:line +depth`, for each
    /// of its stacks.
    fn stacks(thread: &Value) -> Vec<String> {
        let text = |at: &Value| {
            let at = at.as_u64();
            at.map_or("", |at| thread["stringArray"][at as usize].as_str().unwrap())
        };
        let (frames, functions) = (&thread["frameTable"], &thread["funcTable"]);
        let describe = |frame: usize| {
            let function = frames["func"][frame].as_u64().unwrap() as usize;
            let name = text(&functions["name"][function]);
            let file = text(&functions["fileName"][function]);
            let (line, depth) = (&frames["line"][frame], &frames["inlineDepth"][frame]);
            format!("{name} {file}:{line} +{depth}")
        };
        let table = &thread["stackTable"];
        let path = |leaf: &Value| {
            let mut path = Vec::new();
            let mut next = leaf.as_u64();
            while let Some(at) = next {
                path.push(describe(table["frame"][at as usize].as_u64().unwrap() as usize));
                next = table["prefix"][at as usize].as_u64();
            }
            path.reverse();
            path.join(" > ")
        };
        let stacks = thread["samples"]["stack"].as_array().unwrap().iter();
        stacks.map(path).collect()
    }

    #[test]
    fn frames_have_files_lines_and_inlined_functions() {
        with_report(ReportOptions::default(), |report| {
            let file = file(report);
            let thread = &file["threads"][0];
            let stacks = stacks(thread);
            let weights = numbers(&thread["samples"]["weight"]);
            let inlined = "main src/main.c:12 +0 > Server::poll(int) src/server.cc:40 +0 > \
                           mycrate::packet::next src/packet.rs:99 +0 > parse::<[u8; 4]> \
                           src/parse.rs:7 +1";
            let at = stacks.iter().position(|stack| stack == inlined).unwrap();
            assert_eq!(weights[at], 500);
            let sum: usize = weights.iter().sum();
            assert_eq!(sum, 729, "every sample of the vCPU is there");
            let second = &file["threads"][1];
            assert_eq!(second["name"], "vCPU 1 (no times: stacks by name)");
            assert_eq!(file["libs"][0]["codeId"], "0123456789abcdef");
            // The offset in the file, as the mapping tells it.
            let addresses = numbers_or_none(&thread["frameTable"]["address"]);
            assert!(addresses.contains(&Some(0x4000)), "{addresses:x?}");
            assert!(addresses.contains(&None), "a mark is nowhere");
        });
    }

    fn numbers_or_none(column: &Value) -> Vec<Option<u64>> {
        column.as_array().unwrap().iter().map(Value::as_u64).collect()
    }

    #[test]
    fn columns_are_as_long_as_their_tables_and_their_indices_lie_inside() {
        with_report(ReportOptions::default(), |report| {
            let file = file(report);
            for thread in file["threads"].as_array().unwrap() {
                let length = |table: &str| thread[table]["length"].as_u64().unwrap() as usize;
                for table in [
                    "frameTable",
                    "funcTable",
                    "resourceTable",
                    "nativeSymbols",
                    "stackTable",
                    "samples",
                ] {
                    for (name, column) in thread[table].as_object().unwrap() {
                        if let Some(column) = column.as_array() {
                            assert_eq!(column.len(), length(table), "{table}.{name}");
                        }
                    }
                }
                let strings = thread["stringArray"].as_array().unwrap().len();
                let inside = |table: &str, column: &str, bound: usize| {
                    let column = thread[table][column].as_array().unwrap().iter();
                    column.filter_map(Value::as_u64).all(|at| (at as usize) < bound)
                };
                assert!(inside("frameTable", "func", length("funcTable")));
                assert!(inside("funcTable", "name", strings));
                assert!(inside("funcTable", "fileName", strings));
                assert!(inside("funcTable", "resource", length("resourceTable")));
                assert!(inside("resourceTable", "lib", file["libs"].as_array().unwrap().len()));
                assert!(inside("stackTable", "frame", length("frameTable")));
            }
        });
    }

    fn of_one_stack(mode: Mode, count: u64) -> Value {
        let mut builder = ProfileBuilder::new();
        builder.set_recording(RecordingInfo {
            mode,
            period_ns: 1_000_000,
            ..RecordingInfo::default()
        });
        builder.add_stack(3, count, &[Frame::leaf(0x10)]).unwrap();
        let profile = builder.finish();
        let symbolized = Symbolizer::new(Images::default()).resolve(&profile).unwrap();
        file(&Report::new(&symbolized, ReportOptions::default()))
    }

    #[test]
    fn a_recording_of_nothing_is_an_error() {
        let profile = ProfileBuilder::new().finish();
        let symbolized = Symbolizer::new(Images::default()).resolve(&profile).unwrap();
        let report = Report::new(&symbolized, ReportOptions::default());
        let written = report.write(Format::Firefox, &mut Vec::new());
        assert!(matches!(written, Err(ReportError::Empty { recorded: 0 })));
    }

    #[test]
    fn counts_beyond_the_librarys_weights_are_kept() {
        let file = of_one_stack(Mode::Cpu, 10_000_000_000);
        let samples = &file["threads"][0]["samples"];
        assert_eq!(samples["weight"], json!([10_000_000_000_u64]));
        assert_eq!(samples["weightType"], "samples");
        // A hostile recording may count any number.
        of_one_stack(Mode::Cpu, u64::MAX);
    }

    /// Guards markers outside of the time of the samples, to which the front end limits itself
    /// without being told the range.
    #[test]
    fn the_whole_time_is_shown() {
        let meta = &of_one_stack(Mode::Cpu, 3)["meta"];
        let range = ["profilingStartTime", "profilingEndTime"].map(|end| meta[end].as_f64());
        assert_eq!(range, [Some(0.0), Some(3.0)]);
    }

    #[test]
    fn blocked_time_is_in_ms_and_a_category() {
        let file = of_one_stack(Mode::OffCpu, 1_500_000);
        let thread = &file["threads"][0];
        assert_eq!(thread["samples"]["weight"], json!([1.5]));
        assert_eq!(thread["samples"]["weightType"], "tracing-ms");
        assert_eq!(thread["samples"]["threadCPUDelta"], json!([0]));
        let category = thread["frameTable"]["category"][0].as_u64().unwrap();
        assert_eq!(file["meta"]["categories"][category as usize]["name"], "Blocked");
    }
}
