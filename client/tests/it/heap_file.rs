//! Recordings of allocations: files and fetches, reports, pprof and leaks.

use crate::peer;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::peer::program::{command, has, json, run, signal};
use crate::peer::{PATIENT, Peer, Script};
use unikprof_client::exit_code;
use unikprof_link::record::{self, Request};
use unikprof_profile::profile::{Frame, Mode, Unit};
use unikprof_profile::recording::{Reading, Recording};
use unikprof_proto::code::{frame_code, mode};
use unikprof_proto::live;

const INTERVAL: u64 = 1024;

fn size(bytes: u64) -> u32 {
    frame_code::size(bytes)
}

/// 5 allocations of 4 KiB, which are all known, and 3 samples of 100 bytes.
fn alloc() -> Script {
    Script {
        mode: mode::ALLOC,
        interval_bytes: INTERVAL,
        period_ns: 0,
        vcpus: vec![vec![
            (0, vec![0x130, 0x110], 0),
            (1, vec![size(4096)], 5),
            (1, vec![size(100), 0x150], 3),
        ]],
        allocated_bytes: 23_000,
        ..Script::default()
    }
}

/// Allocations under one stack that stay, another one's that come and go.
fn live(held: Vec<live::Sample>) -> Script {
    Script {
        mode: mode::LIVE,
        interval_bytes: INTERVAL,
        period_ns: 0,
        vcpus: vec![vec![(0, vec![0x130, 0x110], 0), (1, vec![0x150], 0), (1, vec![0x170], 0)]],
        held: vec![held],
        allocated_bytes: 1 << 20,
        freed_samples: 40,
        ..Script::default()
    }
}

fn held(node: u64, size: u64, born_ns: u64) -> live::Sample {
    live::Sample { node, size, born_ns }
}

fn write(directory: &Path, name: &str, script: &Script, epochs: &[u64]) -> PathBuf {
    let path = directory.join(name);
    peer::write_file(&path, script, epochs, &[], None);
    path
}

fn stacks(recording: &Recording) -> Vec<(Vec<Frame>, u64)> {
    let profile = &recording.profile;
    let frames = |sample: &unikprof_profile::profile::Sample| {
        profile.stack(sample.node).map(|id| profile.frame(id)).collect()
    };
    let mut stacks: Vec<_> = profile.samples().iter().map(|s| (frames(s), s.count)).collect();
    stacks.sort();
    stacks
}

fn caller(code: u64) -> Frame {
    Frame::caller(0x10_0000 + code - 0x100)
}

/// What 3 samples of 100 bytes stand for.
fn estimated() -> (f64, f64) {
    let p = 1.0 - (-100.0 / INTERVAL as f64).exp();
    (3.0 * 100.0 / p, 3.0 / p)
}

#[test]
fn sizes_become_bytes_and_not_functions() {
    let directory = tempfile::tempdir().unwrap();
    let path = write(directory.path(), "a.unikprof", &alloc(), &[7]);
    let recording = Recording::open(&path, Reading::Strict).unwrap();
    let info = recording.profile.recording();
    assert_eq!((info.mode, info.unit(), info.interval_bytes), (Mode::Alloc, Unit::Bytes, INTERVAL));
    assert_eq!(info.warnings, Vec::<String>::new());
    assert_eq!(
        stacks(&recording),
        [
            (vec![caller(0x130), caller(0x110)], 5 * 4096),
            (vec![caller(0x150), caller(0x130), caller(0x110)], estimated().0.round() as u64),
        ]
    );
}

#[test]
fn reports_show_bytes_or_objects_with_their_intervals() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a.unikprof", &alloc(), &[7]);
    let (text, _) = run(0, &["report", "a.unikprof", "--accounting"], directory.path());
    has(
        &text,
        &[
            "alloc: what was allocated, sampled by bytes",
            "a sample every 1 KiB on average",
            "samples = recorded + aged + overflow + lost",
            "estimated from 8 samples; 95 % intervals",
            "mean size",
            "22.5 KiB  counted, an independent check",
        ],
    );
    assert!(!text.contains("Hz"), "{text}");
    let (text, _) = run(0, &["report", "a.unikprof", "--json"], directory.path());
    let report = json(&text);
    assert_eq!(report["recording"]["unit"], "bytes");
    assert_eq!(report["recording"]["interval_bytes"], INTERVAL);
    let (bytes, objects) = estimated();
    let all = 5.0 * 4096.0 + bytes;
    assert_eq!(report["heap"]["bytes"]["value"], all as u64);
    assert_eq!(report["heap"]["allocated_bytes"], 23_000);
    let functions = report["functions"].as_array().unwrap();
    let of = |self_: u64| functions.iter().find(|f| f["self"] == self_).unwrap();
    let sampled = of(bytes.round() as u64);
    assert_eq!(sampled["objects"], objects.round() as u64);
    let interval: Vec<f64> = sampled["self_interval"]
        .as_array()
        .unwrap()
        .iter()
        .map(|end| end.as_f64().unwrap())
        .collect();
    let share = bytes / all;
    assert!(interval[0] < share && share < interval[1], "{sampled}");
    let (text, _) =
        run(0, &["report", "a.unikprof", "--by", "objects", "--json"], directory.path());
    let report = json(&text);
    assert_eq!(report["recording"]["unit"], "objects");
    assert_eq!(report["samples"]["recorded"], 5 + objects.round() as u64);
    let (folded, _) =
        run(0, &["report", "a.unikprof", "-o", "-", "--format", "folded"], directory.path());
    has(&folded, &[" 20480\n"]);
}

/// Guards a refusal that names a sampling period of 0 ns, or a request's number, which is all that
/// an agent without the feature can say.
#[test]
fn a_guest_without_the_feature_is_told_what_to_build() {
    let here = tempfile::tempdir().unwrap();
    let peer = Peer::start(Script::default());
    let address = peer.address.to_string();
    let connect = |code, words: &[&str]| {
        let words = [&["connect", &address][..], words].concat();
        run(code, &words, here.path())
    };
    for words in [
        &["record", "1s", "--mode", "alloc"][..],
        &["record", "1s", "--mode", "live"],
        &["start", "--mode", "live"],
        &["leaks", "1s"],
    ] {
        let (_, error) = connect(5, words);
        has(&error, &["feature `heap`", "docs/guide/memory.md"]);
    }
    let (_, error) = connect(5, &["trace", "main", "--for", "1s"]);
    has(&error, &["feature `trace`", "docs/guide/trace.md"]);
    let (info, _) = connect(0, &["info"]);
    has(
        &info,
        &[
            "allocations  not recorded: the guest's allocator",
            "traces       not allowed by the guest",
        ],
    );
    assert!(!peer.log().contains(&"start".to_owned()), "{:?}", peer.log());
}

#[test]
fn what_is_about_time_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a.unikprof", &alloc(), &[7]);
    write(directory.path(), "t.unikprof", &Script::default(), &[7]);
    for (words, expected) in [
        (&["report", "a.unikprof", "--last", "1s"][..], "is shown as a whole"),
        (&["report", "a.unikprof", "--timeline"], "lists samples of time"),
        (&["report", "t.unikprof", "--by", "bytes"], "the recording is of mode cpu"),
        (&["script", "a.unikprof"], "prints samples of time"),
        (&["leaks", "a.unikprof"], "is of mode alloc; leaks are found in recordings of mode live"),
        (&["leaks", "t.unikprof"], "is of mode cpu"),
    ] {
        let (_, error) = run(2, words, directory.path());
        has(&error, &[expected]);
    }
    let (_, error) = run(6, &["diff", "a.unikprof", "a.unikprof"], directory.path());
    has(&error, &["diff compares time"]);
}

#[test]
fn what_is_held_is_that_of_the_last_epoch_with_its_age() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("l.unikprof");
    let early = live(vec![held(2, 5_000, 2_000), held(3, 64, 3_000)]);
    peer::write_file(&path, &early, &[7], &[], None);
    let profile = Recording::open(&path, Reading::Strict).unwrap();
    assert_eq!(profile.profile.recording().warnings, Vec::<String>::new());
    let p = 1.0 - (-64.0 / INTERVAL as f64).exp();
    assert_eq!(
        stacks(&profile),
        [
            (vec![caller(0x150), caller(0x130), caller(0x110)], 5_000),
            (vec![caller(0x170), caller(0x130), caller(0x110)], (64.0 / p).round() as u64),
        ]
    );
    let (text, _) = run(0, &["report", "l.unikprof", "--json"], directory.path());
    let report = json(&text);
    let oldest = report["functions"].as_array().unwrap().iter();
    let oldest = oldest.map(|f| f["oldest_ns"].as_u64().unwrap()).max();
    // The epoch ends at 51,000 ns.
    assert_eq!(oldest, Some(49_000));
    let (text, _) = run(0, &["report", "l.unikprof", "--accounting"], directory.path());
    has(&text, &["       age  function", "held", "freed"]);
}

/// The line breaks after every possible number of bytes, and then often at one place: what is held
/// is never counted twice.
#[test]
fn a_fetch_broken_anywhere_holds_everything_once() {
    let samples = (0..7).map(|at| held(2 + at % 2, 2_000, 1_000 + at)).collect();
    let script = live(samples);
    let directory = tempfile::tempdir().unwrap();
    let greeting = 16 + peer::welcome(&script, 1_000).concat().len();
    let epoch = peer::share(&script, 7, 0, 0, 0).concat().len();
    let cuts = (0..epoch).step_by(7).map(|cut| (cut, 1));
    for (cut, times) in cuts.chain([(epoch - 1, 36)]) {
        let cuts = [vec![greeting + 16 + cut], vec![greeting + cut; times - 1]].concat();
        let peer = Peer::start(Script { cuts, ..script.clone() });
        let path = directory.path().join("r.unikprof");
        let request = Request::Stop { recording: 0 };
        let outcome = record::fetch(&mut peer.session(PATIENT), request, &path, &mut ()).unwrap();
        assert!(outcome.incomplete.is_none(), "cut after {cut}");
        let recording = Recording::open(&path, Reading::Strict).unwrap();
        assert_eq!(recording.profile.sample_count(), 14_000, "cut after {cut}");
        assert_eq!(recording.contradictions, Vec::<String>::new());
    }
}

/// Breaks that together take longer than a line may be lost are repeated, but not without end.
#[test]
fn a_fetch_that_breaks_within_what_is_held_is_repeated_and_gives_up() {
    let samples = (0..7).map(|at| held(2 + at % 2, 2_000, 1_000 + at)).collect();
    let script = live(samples);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.unikprof");
    let greeting = 16 + peer::welcome(&script, 1_000).concat().len();
    let cut = greeting + peer::share(&script, 7, 0, 0, 0).concat().len() - 1;
    // A new connection waits for 100 ms.
    let fetch = |times, path: &Path| {
        let peer = Peer::start(Script { cuts: vec![cut; times], ..script.clone() });
        let mut session = peer.session(Duration::from_millis(200));
        record::fetch(&mut session, Request::Stop { recording: 0 }, path, &mut ()).unwrap()
    };
    assert!(fetch(12, &path).incomplete.is_none());
    let given_up = fetch(100, &path).incomplete.unwrap();
    has(&given_up.to_string(), &["no connection lasted", "--retry"]);
    assert_eq!(exit_code::of_record(&given_up), 3);
    let given_up = fetch(1, Path::new("/dev/null")).incomplete.unwrap();
    has(&given_up.to_string(), &["written to a device cannot be taken back"]);
    assert_eq!(exit_code::of_record(&given_up), 3);
}

/// Guards advice to run what was run: Ctrl-C came before there were two looks.
#[cfg(unix)]
#[test]
fn leaks_that_end_before_a_second_look_say_so() {
    let here = tempfile::tempdir().unwrap();
    let script = Script { ends_by_itself: false, ..live(vec![held(2, 2_000, 1_000)]) };
    for output in [&["-o", "r.unikprof"][..], &[]] {
        let peer = Peer::start(script.clone());
        let address = peer.address.to_string();
        let words = [&["connect", &address, "leaks", "10h"], output].concat();
        let mut command = command(&words, here.path());
        let child = command.env("TMPDIR", here.path()).stderr(Stdio::piped()).spawn().unwrap();
        peer.wait_for("check");
        signal("INT", child.id());
        let ended = child.wait_with_output().unwrap();
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(8), "{told}");
        has(&told, &["too early", "one look"]);
        let place =
            told.split("the recording itself is in ").nth(1).unwrap().split(';').next().unwrap();
        Recording::open(&here.path().join(place), Reading::Strict).unwrap();
    }
}

/// Go's tools know these types, and take the right one by default.
#[test]
fn go_tool_pprof_shows_them_as_it_shows_gos_own() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), "a.unikprof", &alloc(), &[7]);
    write(directory.path(), "l.unikprof", &live(vec![held(2, 5_000, 2_000)]), &[7]);
    for (file, types) in [
        ("a", ["alloc_objects/count", "alloc_space/bytes[dflt]"]),
        ("l", ["inuse_objects/count", "inuse_space/bytes[dflt]"]),
    ] {
        let pprof = format!("{file}.pb.gz");
        run(0, &["report", &format!("{file}.unikprof"), "-o", &pprof], directory.path());
        let go = |words: &[&str]| {
            let mut command = Command::new("go");
            command.args(["tool", "pprof"]).args(words).arg(&pprof);
            command.current_dir(directory.path()).env("HOME", directory.path());
            command.output()
        };
        let Ok(raw) = go(&["-raw"]) else {
            assert!(std::env::var_os("CI").is_none(), "CI has no `go`");
            eprintln!("SKIPPED: there is no `go` on this machine");
            return;
        };
        let raw = String::from_utf8(raw.stdout).unwrap();
        has(&raw, &[&types.join(" "), "PeriodType: space bytes", "Period: 1024"]);
        let top = String::from_utf8(go(&["-top", "-unit=B"]).unwrap().stdout).unwrap();
        let expected = match file {
            "a" => "Type: alloc_space",
            _ => "Type: inuse_space",
        };
        has(&top, &[expected, if file == "a" { "20480B" } else { "5000B" }]);
        let objects = types[0].split('/').next().unwrap();
        let index = format!("-sample_index={objects}");
        let top = String::from_utf8(go(&["-top", &index]).unwrap().stdout).unwrap();
        has(&top, &[&format!("Type: {objects}")]);
    }
}

/// Two dumps: one stack gets more and more, another one's allocations are replaced by new ones.
#[test]
fn leaks_shows_what_stays_and_not_what_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    // A ends at 51,000 ns, B at 1,051,000 ns.
    let fluctuates = |from: u64| (0..30).map(move |at| held(3, 2_000, from + at * 1_600));
    write(directory.path(), "a.unikprof", &live(fluctuates(1_000).collect()), &[7]);
    let stays = (0..40).map(|at| held(2, 3_000, 60_000 + at * 24_000));
    let both = stays.chain(fluctuates(900_000)).collect();
    write(directory.path(), "b.unikprof", &live(both), &[27]);
    let (text, _) = run(0, &["leaks", "a.unikprof", "b.unikprof"], directory.path());
    has(&text, &["survivors  of 2 stacks: allocated since its beginning, older than 62.5 µs,"]);
    has(&text, &["1. grows by", "in 39 objects of 2.9 KiB", "39 samples", "guest.elf+0x104f"]);
    assert!(!text.contains("2. grows"), "{text}");
    let (_, rejected) = text.split_once("\nrejected, by what is held of them\n").unwrap();
    has(rejected, &["58.6 KiB  thins out with age ", "+0x106f", " < guest.elf+0x102f"]);
    let words = ["leaks", "a.unikprof", "b.unikprof", "--json", "--older", "100us"];
    let found = json(&run(0, &words, directory.path()).0);
    assert_eq!(found["stacks"], 2);
    let growing = found["growing"].as_array().unwrap();
    assert_eq!(growing.len(), 1);
    assert_eq!(growing[0]["older_ns"], 100_000);
    assert_eq!(found["rejected"].as_array().unwrap().len(), 1);
    assert!(growing[0]["chance"].as_f64().unwrap() < 1e-6);
    // Every allocation is known: there is nothing to estimate, but for what smaller ones could add.
    let per_minute = growing[0]["bytes_per_minute"]["value"].as_f64().unwrap();
    let expected = growing[0]["objects"].as_f64().unwrap() * 3_000.0 / 900_000.0 * 60e9;
    assert!((per_minute / expected - 1.0).abs() < 1e-9, "{per_minute}, {expected}");

    let (_, error) = run(2, &["leaks", "b.unikprof", "a.unikprof"], directory.path());
    has(&error, &["not later than the first file"]);
    let (_, error) = run(2, &["leaks", "a.unikprof"], directory.path());
    has(&error, &["only once what was held"]);
    let other = Script { recording: 4, ..live(Vec::new()) };
    write(directory.path(), "c.unikprof", &other, &[28]);
    let (_, error) = run(2, &["leaks", "a.unikprof", "c.unikprof"], directory.path());
    has(&error, &["not of the same recording"]);
}

/// Guards a sum at A that lacks the stacks which hold nothing at B.
#[test]
fn leaks_counts_all_that_was_held_at_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let stays = || (0..20).map(|at| held(2, 3_000, 2_000 + at * 1_600));
    let goes = (0..30).map(|at| held(3, 2_000, 1_000 + at * 1_600));
    let before = live(stays().chain(goes).collect());
    write(directory.path(), "a.unikprof", &before, &[7]);
    write(directory.path(), "b.unikprof", &live(stays().collect()), &[27]);
    let words = ["leaks", "a.unikprof", "b.unikprof", "--json"];
    let found = json(&run(0, &words, directory.path()).0);
    assert_eq!(found["held_bytes"], serde_json::json!([20 * 3_000 + 30 * 2_000, 20 * 3_000]));
}

/// A guest without `on_free`, and one whose table is full: doctor and --analyze say so, and say
/// nothing of a good one.
#[test]
fn a_full_table_and_frees_that_are_not_reported_are_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let many = || (0..200).map(|at| held(2, 2_000, 1_000 + at * 200)).collect();
    write(directory.path(), "good.unikprof", &live(many()), &[7]);
    let no_frees = Script { freed_samples: 0, ..live(many()) };
    write(directory.path(), "no-frees.unikprof", &no_frees, &[7]);
    let full = Script { overflow: 30, ..live(many()) };
    write(directory.path(), "full.unikprof", &full, &[7]);
    for (file, check, rule) in [
        ("good.unikprof", None, None),
        ("no-frees.unikprof", Some("frees"), Some("frees not reported")),
        ("full.unikprof", Some("overflow"), Some("live table full")),
    ] {
        let (report, _) = run(0, &["report", file, "--analyze", "--json"], directory.path());
        let report = json(&report);
        let findings = report["analysis"]["findings"].as_array().unwrap().iter();
        let rules: Vec<&str> = findings.map(|f| f["rule"].as_str().unwrap()).collect();
        assert_eq!(rules, Vec::from_iter(rule), "{file}");
        let code = if check.is_some() { 9 } else { 0 };
        let (doctor, _) = run(code, &["doctor", file, "--json"], directory.path());
        let doctor = json(&doctor);
        let checks = doctor["checks"].as_array().unwrap().iter();
        let bad = checks.filter(|one| one["verdict"] == "bad");
        let bad: Vec<&str> = bad.map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(bad, Vec::from_iter(check), "{file}");
    }
}

/// Samples that were dropped seem few beside all samples, and many beside what is held: then `held`
/// has no upper end.
#[test]
fn what_was_dropped_is_judged_against_what_is_held() {
    let directory = tempfile::tempdir().unwrap();
    let many = || (0..200).map(|at| held(2, 2_000, 1_000 + at * 200)).collect();
    for (dropped, is_lower_bound) in [(1, false), (30, true)] {
        let full = Script { overflow: dropped, freed_samples: 100_000, ..live(many()) };
        write(directory.path(), "a.unikprof", &full, &[7]);
        write(directory.path(), "b.unikprof", &full, &[27]);
        let show = |words: &[&str]| run(0, words, directory.path());
        let expect = |text: &str, part: &str| {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(text.contains(part), is_lower_bound, "{part}: {text}");
        };
        let (text, _) = show(&["report", "a.unikprof", "--accounting"]);
        expect(
            &text,
            "at least 390.6 KiB by the samples, one every 1 KiB; 30 that were dropped may be held",
        );
        expect(&text, "30 sampled allocations are not followed");
        let (text, _) = show(&["report", "a.unikprof", "--json"]);
        let interval = &json(&text)["heap"]["bytes"]["interval"];
        assert_eq!(interval[0], 400_000);
        assert_eq!(interval[1].is_null(), is_lower_bound, "{interval}");
        let (text, _) = show(&["report", "a.unikprof", "--analyze"]);
        expect(&text, "beside 200 that are held");
        let (text, errors) = show(&["leaks", "a.unikprof", "b.unikprof"]);
        expect(&text, "at least 390.6 KiB at its beginning");
        expect(&text, "at least 390.6 KiB at its end");
        expect(&text, "nothing grows of what was followed");
        expect(&errors, "30 sampled allocations are not followed");
        let code = if is_lower_bound { 9 } else { 0 };
        let (text, _) = run(code, &["doctor", "a.unikprof"], directory.path());
        expect(&text, "30 sampled allocations are not followed");
    }
}

/// Guards advice to give a mean that samples more often than the recording did, where it samples
/// too often.
#[test]
fn doctor_advises_in_terms_of_the_interval_of_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let full = Script { overflow: 30, ..live(Vec::new()) };
    write(directory.path(), "full.unikprof", &full, &[7]);
    let (doctor, _) = run(9, &["doctor", "full.unikprof", "--json"], directory.path());
    let doctor = json(&doctor);
    let checks = doctor["checks"].as_array().unwrap();
    let advice = |name| {
        let mut named = checks.iter().filter(|one| one["name"] == name);
        named.next().unwrap()["advice"].as_str().unwrap()
    };
    has(advice("enough"), &["--every below 1 KiB"]);
    has(advice("overflow"), &["--every above 1 KiB"]);
    let words = ["report", "full.unikprof", "--analyze"];
    has(&run(0, &words, directory.path()).0, &["--every above 1 KiB"]);
}
