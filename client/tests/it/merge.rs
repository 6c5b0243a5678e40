//! Several recording files as one profile: what each of them holds counts once, and files that do
//! not belong together are refused.

use crate::peer;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::peer::program::has;
use crate::peer::ring::{self, record};
use crate::peer::{Script, program};
use flate2::read::GzDecoder;
use prost::Message as _;
use unikprof_profile::profile::{Counters, TimeSpan};
use unikprof_profile::recording::{Reading, Recording, RecordingError};
use unikprof_profile::timeline::{SpanFilter, Window};
use unikprof_proto::code::mode;
use unikprof_proto::message::RingHead;
use unikprof_proto::ring::{Record, kind};

const MS: u64 = 1_000_000;

/// The first epoch of a scripted agent; one takes 50 µs.
const FIRST: u64 = 7;

fn write(folder: &Path, name: &str, script: &Script, epochs: &[u64], rings: &[u8]) -> PathBuf {
    let path = folder.join(name);
    peer::write_file(&path, script, epochs, rings, None);
    path
}

fn merge(files: &[&PathBuf]) -> Result<Recording, RecordingError> {
    let files: Vec<PathBuf> = files.iter().map(|file| (*file).clone()).collect();
    Recording::open_all(&files, Reading::Strict)
}

fn refused(files: &[&PathBuf]) -> String {
    merge(files).unwrap_err().to_string()
}

#[test]
fn dumps_add_up_whatever_their_order_and_their_gap_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::default();
    let dump = |epoch| {
        let name = format!("{epoch}.unikprof");
        write(folder.path(), &name, &script, &[epoch], &[])
    };
    let (first, second, last) = (dump(FIRST), dump(FIRST + 1), dump(FIRST + 200));
    let one = Recording::open(&first, Reading::Strict).unwrap().profile;
    let all = merge(&[&last, &first, &second]).unwrap();
    let profile = &all.profile;
    assert_eq!(all.epochs, 3);
    assert_eq!(profile.sample_count(), 3 * script.samples());
    let three = one.counters().plus(&one.counters()).plus(&one.counters());
    let sums = |counters: Counters| Counters { missing: None, ..counters };
    assert_eq!(sums(profile.counters()), sums(three), "every tick adds up");
    let missing = one.counters().missing.map(|missing| 3 * missing);
    assert_eq!(profile.counters().missing, missing);
    assert_eq!(profile.samples().len(), one.samples().len());
    assert_eq!(profile.recording().elapsed_ns, 3 * one.recording().elapsed_ns);
    let lateness = |profile: &unikprof_profile::profile::Profile| {
        profile.lateness_ns().map(|distribution| distribution.count())
    };
    assert_eq!(lateness(profile), lateness(&one).map(|count| 3 * count));
    let merged = profile.recording().merged.as_ref().unwrap();
    assert_eq!((merged.files, merged.runs, merged.recordings), (3, 1, 1));
    let gaps: Vec<u64> = merged.gaps.iter().map(TimeSpan::length_ns).collect();
    assert_eq!(gaps, [198 * 50_000]);
    assert_eq!(merged.time.length_ns(), 201 * 50_000);
    assert_eq!(profile.recording().warnings, Vec::<String>::new());
}

#[test]
fn an_epoch_in_two_files_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::default();
    let first = write(folder.path(), "1.unikprof", &script, &[FIRST, FIRST + 1], &[]);
    let next = write(folder.path(), "2.unikprof", &script, &[FIRST + 1, FIRST + 2], &[]);
    let copy = folder.path().join("copy.unikprof");
    fs::copy(&first, &copy).unwrap();
    let all = merge(&[&copy, &first, &next]).unwrap().profile;
    assert_eq!(all.sample_count(), 3 * script.samples());
    let one = write(folder.path(), "one.unikprof", &script, &[FIRST], &[]);
    let one = Recording::open(&one, Reading::Strict).unwrap().profile;
    assert_eq!(all.counters().ticks, 3 * one.counters().ticks);
    assert_eq!(all.recording().elapsed_ns, 3 * 50_000);
    assert_eq!(all.recording().merged.as_ref().unwrap().repeated_epochs, 3);
}

/// A cut file's part of an epoch and the whole of it would count samples twice.
#[test]
fn an_epoch_that_was_cut_does_not_count_beside_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let whole = write(folder.path(), "2.unikprof", &Script::default(), &[FIRST, FIRST + 1], &[]);
    let bytes = fs::read(&whole).unwrap();
    let cut = folder.path().join("1.unikprof");
    // Within the last frames, far behind the first counts of the last epoch.
    fs::write(&cut, &bytes[..bytes.len() - 60]).unwrap();
    let error = Recording::open_all(&[cut, whole], Reading::Salvage).unwrap_err();
    let error = error.to_string();
    has(&error, &["1.unikprof and", "2.unikprof"]);
    assert!(error.contains("omit the first"), "{error}");
}

#[test]
fn files_that_do_not_belong_together_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file =
        |name: &str, script: &Script, epoch| write(folder.path(), name, script, &[epoch], &[]);
    let script = || Script { instance: 0xbeef, ..Script::default() };
    let first = file("a.unikprof", &Script::default(), FIRST);
    let wall = Script { mode: mode::WALL, ..script() };
    let slow = Script { period_ns: 4_000, ..script() };
    let (start, end, offset, _) = Script::default().mapping;
    let other = Script { mapping: (start, end, offset, &[0xcd; 20]), ..script() };
    let nameless = Script { mapping: (start, end, offset, &[]), ..script() };
    for (name, script, why) in [
        ("wall.unikprof", wall, "mode cpu, the other of mode wall"),
        ("slow.unikprof", slow, "the first was sampled at 1000000.0 Hz, the other at 250000.0 Hz"),
        ("other.unikprof", other, "its build-id is abab"),
        ("nameless.unikprof", nameless, "has no build-id"),
    ] {
        let error = refused(&[&file(name, &script, FIRST + 100), &first]);
        has(&error, &["a.unikprof", name, why]);
    }
    let missing = folder.path().join("missing.unikprof");
    assert!(refused(&[&first, &missing]).contains("missing.unikprof"));
}

/// One recording after the other is a profile; two that ran at once would count the same time
/// twice.
#[test]
fn recordings_that_ran_at_once_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, recording, epochs: std::ops::Range<u64>| {
        let script = Script { recording, ..Script::default() };
        let epochs: Vec<u64> = epochs.collect();
        write(folder.path(), name, &script, &epochs, &[])
    };
    // An epoch takes 50 µs; what is shorter than a millisecond is no overlap.
    let first = of("a.unikprof", 3, FIRST..FIRST + 100);
    let after = of("b.unikprof", 4, FIRST + 100..FIRST + 200);
    let all = merge(&[&after, &first]).unwrap().profile;
    assert_eq!(all.sample_count(), 200 * Script::default().samples());
    let merged = all.recording().merged.as_ref().unwrap();
    assert_eq!((merged.runs, merged.recordings), (1, 2));
    let within = of("c.unikprof", 4, FIRST + 40..FIRST + 200);
    let error = refused(&[&within, &first]);
    has(
        &error,
        &[
            "a.unikprof",
            "c.unikprof",
            "two recordings that ran at the same time",
            "3 ms would count twice",
        ],
    );
}

/// Every format of the merged files has what the files have one by one; in numbers of samples that
/// no float of 32 bits and no integer of 24 can tell from their neighbours.
#[test]
fn every_format_of_merged_files_adds_up_what_the_files_have() {
    const MANY: u64 = 1 << 24;
    let folder = tempfile::tempdir().unwrap();
    let file = |epoch: u64, counts: [u64; 2]| {
        let script = Script {
            vcpus: vec![vec![(0, vec![0x130, 0x110], counts[0]), (1, vec![0x150], counts[1])]],
            ..Script::default()
        };
        let name = format!("{epoch}.unikprof");
        write(folder.path(), &name, &script, &[epoch], &[])
    };
    let files = [file(FIRST, [MANY + 1, 5]), file(FIRST + 1, [MANY, 2 * MANY + 3])];
    let folded = |file: &str| {
        let words = ["report", file, "--format", "folded"];
        let (text, _) = program::run(0, &words, folder.path());
        let line = |line: &str| {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            (stack.to_owned(), count.parse().unwrap())
        };
        text.lines().map(line).collect::<BTreeMap<String, u64>>()
    };
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for file in &files {
        for (stack, count) in folded(file.to_str().unwrap()) {
            *expected.entry(stack).or_default() += count;
        }
    }
    let counts: Vec<u64> = expected.values().copied().collect();
    assert_eq!(counts.iter().sum::<u64>(), 4 * MANY + 9);
    assert!(counts.contains(&(2 * MANY + 1)), "{counts:?}");
    assert_eq!(folded("."), expected);

    let report = |name: &str| {
        program::run(0, &["report", ".", "-o", name], folder.path());
        fs::read(folder.path().join(name)).unwrap()
    };
    let json: serde_json::Value = serde_json::from_slice(&report("all.json")).unwrap();
    assert_eq!(json["samples"]["recorded"], 4 * MANY + 9);
    let functions = json["functions"].as_array().unwrap();
    let own = functions.iter().map(|function| function["self"].as_u64().unwrap());
    assert_eq!(own.sum::<u64>(), 4 * MANY + 9);
    let svg = String::from_utf8(report("all.svg")).unwrap();
    has(&svg, &["67,108,873", "33,554,433"]);
    let mut pprof = Vec::new();
    let bytes = report("all.pb.gz");
    GzDecoder::new(&bytes[..]).read_to_end(&mut pprof).unwrap();
    let samples = Pprof::decode(&pprof[..]).unwrap().samples;
    let mut values: Vec<u64> = samples.iter().map(|it| it.values[0] as u64).collect();
    values.sort_unstable();
    let mut counts = counts;
    counts.sort_unstable();
    assert_eq!(values, counts);
}

/// What a reader of pprof profiles needs for the first value of each sample.
#[derive(Clone, PartialEq, prost::Message)]
struct Pprof {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<PprofSample>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofSample {
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
}

/// The same program runs again, elsewhere in memory and with its clock at zero.
#[test]
fn another_run_of_the_same_build_has_the_same_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let first = Script::default();
    let (start, end, offset, build) = first.mapping;
    let second = Script {
        instance: 0xbeef,
        mapping: (start + 0x70_0000, end + 0x70_0000, offset, build),
        ..Script::default()
    };
    let a = write(folder.path(), "a.unikprof", &first, &[FIRST], &[]);
    let b = write(folder.path(), "b.unikprof", &second, &[FIRST + 100], &[]);
    let one = Recording::open(&a, Reading::Strict).unwrap().profile;
    let all = merge(&[&b, &a]).unwrap().profile;
    assert_eq!(all.frames(), one.frames());
    assert_eq!(all.sample_count(), 2 * one.sample_count());
    let merged = all.recording().merged.as_ref().unwrap();
    assert_eq!((merged.runs, merged.recordings), (2, 2));
    assert_eq!((merged.gaps.len(), merged.overlaps.len()), (1, 0));
    // Side by side: two guests of one build.
    let epochs: Vec<u64> = (FIRST..FIRST + 40).collect();
    let a = write(folder.path(), "a.unikprof", &first, &epochs, &[]);
    let c = write(folder.path(), "c.unikprof", &second, &epochs, &[]);
    let both = merge(&[&a, &c]).unwrap().profile;
    assert_eq!(both.sample_count(), 80 * one.sample_count());
    assert_eq!(both.recording().merged.as_ref().unwrap().overlaps.len(), 1);
}

/// A ring of vCPU 0 that holds the records from a position on.
fn ring_of(records: &[Record], oldest: usize, now_ns: u64) -> Vec<u8> {
    let records = &records[oldest..];
    let head = RingHead {
        now_ns,
        wall_clock_ns: Some(1_700_000_000_000_000_000 - 1_000 + now_ns),
        ..ring::head(0, oldest as u64, records.len() as u64)
    };
    let stacks = ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]]);
    [ring::names(&["batch"], 0), ring::records(&head, records), stacks].concat()
}

/// A sample every 100 µs of each kind of stack by turns, and a span about the middle ones.
fn samples(from_ns: u64, count: u64) -> Vec<Record> {
    let mut records = Vec::new();
    for at in 0..count {
        let at_ns = from_ns + at * MS / 10;
        if at == count / 4 {
            records.push(record(kind::SPAN_BEGIN, at_ns - 1, 0, 5));
        }
        records.push(record(kind::SAMPLE, at_ns, ring::stack(1 + at % 2), 1));
        if at == count / 2 {
            records.push(record(kind::SPAN_END, at_ns + 1, 0, 5));
        }
    }
    records
}

/// Each dump's ring still holds what the one before told: a record counts once, and a window may
/// reach over the files.
#[test]
fn the_timeline_goes_on_from_file_to_file() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script { epoch_ns: 5 * MS, ..Script::default() };
    let records = samples(2_000, 200);
    let file = |name: &str, epochs: &[u64], records: &[Record], oldest, now_ns| {
        let rings = ring_of(records, oldest, now_ns);
        write(folder.path(), name, &script, epochs, &rings)
    };
    let first = file("1.unikprof", &[FIRST, FIRST + 1], &records[..100], 0, 10 * MS);
    let second = file("2.unikprof", &[FIRST + 2, FIRST + 3], &records, 40, 20 * MS);
    let all = merge(&[&second, &first]).unwrap();
    let (timeline, of) = (all.timeline.as_ref().unwrap(), all.span.unwrap());
    let window = |from_ns, to_ns| {
        let window = Window { from_ns, to_ns };
        let part = timeline.profile(&all.profile, &of, window, None);
        part.counters().recorded
    };
    assert_eq!(window(0, u64::MAX), 200, "each once");
    assert_eq!(window(2_000 + 5 * MS, 2_000 + 15 * MS), 100);
    let spans = timeline.spans(Window::ALL);
    assert_eq!((spans[0].times.count(), spans[0].unfinished), (1, 0));
    assert_eq!(timeline.rings()[0].overwritten, 0);

    // What is missing between two dumps is told, also where a ring still has records of it.
    let late = file("3.unikprof", &[FIRST + 3], &records, 40, 20 * MS);
    let all = merge(&[&first, &late]).unwrap();
    let (timeline, of) = (all.timeline.as_ref().unwrap(), all.span.unwrap());
    let part = timeline.profile(&all.profile, &of, Window::ALL, None);
    assert_eq!(part.counters().ticks, 150, "those of the epochs that the files hold");
    let held = Window { from_ns: 1_000, to_ns: 1_000 + 20 * MS };
    let ends: Vec<u64> = timeline.rings()[0].covered(held).iter().map(Window::length_ns).collect();
    assert_eq!(ends, [10 * MS, 5 * MS]);
    let late = file("3.unikprof", &[FIRST + 3], &records, 150, 20 * MS);
    let all = merge(&[&first, &late]).unwrap();
    let timeline = all.timeline.as_ref().unwrap();
    assert_eq!(timeline.rings()[0].overwritten, 50);
    let lines = ["--timeline", "--step", "1ms", "--last", "1h"];
    let words = [&["report", "1.unikprof", "3.unikprof"][..], &lines].concat();
    let (text, _) = program::run(0, &words, folder.path());
    assert!(text.contains("no recording"), "{text}");
    has(&text, &["50 records are in none of the files"]);
    assert!(!text.contains("  evicted"), "{text}");
    let (json, _) = program::run(0, &[&words[..], &["--json"]].concat(), folder.path());
    let json = program::json(&json);
    let seconds = json["seconds"].as_array().unwrap();
    assert_eq!((&seconds[0]["held"], &seconds[0]["covered"]), (&true.into(), &true.into()));
    let uncovered = seconds.iter().filter(|second| second["covered"] == false);
    // Those that are covered in part have the rate of that part.
    let empty = text.matches(" no recording  ").count();
    assert_eq!(uncovered.filter(|second| second["recorded"] == 0).count(), empty);
    has(&text, &["the rings cover 1 of these lines in part"]);
}

/// The second run's clock, positions, stacks and spans begin anew.
#[test]
fn the_timeline_goes_on_in_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, instance, epoch, from_ns| {
        let script = Script { instance, epoch_ns: 10 * MS, ..Script::default() };
        let rings = ring_of(&samples(from_ns, 100), 0, from_ns + 11 * MS);
        write(folder.path(), name, &script, &[epoch], &rings)
    };
    let first = file("1.unikprof", 1, FIRST, 2_000);
    let second = file("2.unikprof", 2, FIRST + 2, 2_000 + 20 * MS);
    let all = merge(&[&second, &first]).unwrap();
    let (timeline, of) = (all.timeline.as_ref().unwrap(), all.span.unwrap());
    let part = timeline.profile(&all.profile, &of, Window::ALL, None);
    assert_eq!(part.counters().recorded, 200);
    let inside = timeline.profile(&all.profile, &of, Window::ALL, Some(SpanFilter::named("batch")));
    assert_eq!(inside.counters().recorded, 2 * 26, "the spans of both runs");
    let spans = timeline.spans(Window::ALL);
    assert_eq!((spans[0].times.count(), spans[0].cut), (2, 0));
}

/// A wait that lasts beyond the end of its recording is cut there. Guards that the cut part belongs
/// to no span although the guest told which it waits for.
#[test]
fn a_wait_that_is_cut_stays_in_the_span_it_is_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, instance, epoch, at_ns: u64, records: &[Record]| {
        let script = Script { instance, mode: mode::WALL, epoch_ns: 20 * MS, ..Script::default() };
        let begin = record(kind::ASYNC_SPAN_BEGIN, at_ns, 0, 5);
        let records = [&[begin][..], records].concat();
        write(folder.path(), name, &script, &[epoch], &ring_of(&records, 0, at_ns + 20 * MS))
    };
    let waits = |from_ns: u64, to_ns: u64| {
        [record(kind::ENTERED, to_ns, 0, 5), ring::wait(from_ns, to_ns, ring::stack(1), 100)]
    };
    let first = file("1.unikprof", 1, FIRST, 2_000, &waits(2_000, 25 * MS));
    let second = file("2.unikprof", 2, FIRST + 1, 20 * MS, &waits(21 * MS, 22 * MS));
    let all = merge(&[&first, &second]).unwrap();
    let (timeline, of) = (all.timeline.as_ref().unwrap(), all.span.unwrap());
    let counted = |inside| timeline.profile(&all.profile, &of, Window::ALL, inside).sample_count();
    assert!(counted(None) > 100, "{}", counted(None));
    assert_eq!(counted(Some(SpanFilter::named("batch"))), counted(None));
}

/// Lines are made of times: counts alone have none.
#[test]
fn a_script_of_counts_alone_is_an_error_that_says_what_lacks() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.unikprof", &Script::default(), &[FIRST], &[]);
    for more in [&[][..], &["--in-span", "batch"], &["--last", "1s"]] {
        let words = [&["script", "a.unikprof"], more].concat();
        let (out, error) = program::run(2, &words, folder.path());
        assert_eq!(out, "");
        assert!(error.contains("the recording has no times"), "{error}");
        assert!(error.contains("`ring`"), "{error}");
    }
}

#[test]
fn a_folder_is_all_its_recordings() {
    let folder = tempfile::tempdir().unwrap();
    let script = Script::default();
    for epoch in [FIRST, FIRST + 1] {
        let name = format!("{epoch}.unikprof");
        write(folder.path(), &name, &script, &[epoch], &[]);
    }
    fs::write(folder.path().join("notes.txt"), "not a recording").unwrap();
    let (report, _) = program::run(0, &["report", ".", "--accounting"], folder.path());
    has(&report, &["merged      2 files of 1 recording, 2023-11-14"]);
    let (json, _) = program::run(0, &["report", ".", "--json"], folder.path());
    let json = program::json(&json);
    assert_eq!(json["merged"]["files"], 2);
    assert_eq!(json["samples"]["recorded"], 2 * script.samples());
}

/// For docs/evidence/benchmarks.md: a day of dumps, one every 15 s, each with a ring of 15,000
/// samples.
#[test]
#[ignore = "by hand: writes some hundred MB and takes minutes unless optimised"]
fn a_day_of_dumps_is_read() {
    const FILES: u64 = 5_760;
    const SAMPLES: u64 = 15_000;
    let folder = tempfile::tempdir().unwrap();
    let script = Script { epoch_ns: 15_000 * MS, ..Script::default() };
    for at in 0..FILES {
        let from_ns = 1_000 + at * 15_000 * MS;
        let samples: Vec<Record> = (0..SAMPLES)
            .map(|sample| {
                let stack = ring::stack(1 + sample % 2);
                record(kind::SAMPLE, from_ns + sample * MS, stack, 1)
            })
            .collect();
        let head = RingHead {
            capacity: 1 << 20,
            now_ns: from_ns + 15_000 * MS,
            ..ring::head(0, at * SAMPLES, SAMPLES)
        };
        let mut rings = vec![ring::names(&[], 0), peer::encode(&head)];
        for (run, records) in samples.chunks(1_000).enumerate() {
            rings.push(ring::run(0, head.oldest + 1_000 * run as u64, records));
        }
        rings.push(ring::end(0, head.next));
        rings.push(ring::stacks(0, &[&[0x150, 0x110], &[0x170, 0x110]]));
        let name = format!("{at:05}.unikprof");
        write(folder.path(), &name, &script, &[FIRST + at], &rings.concat());
    }
    let began = Instant::now();
    let (report, _) = program::run(0, &["report", ".", "--json"], folder.path());
    let took = began.elapsed();
    let json = program::json(&report);
    assert_eq!(json["counters"]["recorded"], FILES * script.samples());
    let began = Instant::now();
    program::run(0, &["report", ".", "--last", "1h", "--json"], folder.path());
    println!("whole: {took:?}; the last hour: {:?}", began.elapsed());
}
