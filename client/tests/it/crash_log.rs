//! The log of a console after a crash, as it is kept and as it is damaged: what there is of the dump
//! tells the last moments, with their stacks.
#![allow(unsafe_code)]

#[path = "../../../agent/tests/it/fake/mod.rs"]
mod fake;

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::atomic::Ordering;

use fake::conversation::InProcess;
use fake::platform::TwoVcpus;
use fake::stacks::{Random, any_stack};
use flate2::Compression;
use flate2::write::GzEncoder;
use unikprof_agent::{Agent, Config, MAX_DEPTH, live_bytes, minimum_bytes, ring_bytes};
use unikprof_client::exit_code;
use unikprof_profile::profile::{Frame, Profile, SpecialFrame};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_profile::recover::{Remains, Search};
use unikprof_profile::timeline::{What, Window};
use unikprof_proto::code::mode;
use unikprof_proto::console::{Lines, REPEATED};
use unikprof_proto::file::BlockHead;
use unikprof_proto::message::Start;

use crate::peer::program::{self, has};

const PERIOD_NS: u64 = 1_000_000;
const TIME: Start<'_> = Start::running_time("measured", PERIOD_NS);
/// Ticks on each vCPU, each with a mark before it: all of them fit the ring.
const TICKS: usize = 150;
const RECORDS: usize = 400;
/// Lines at the beginning, which describe the guest and its last moments.
const BEGINNING: usize = 16 << 10;

/// Addresses, leaf first, and how often they were sampled; by vCPU.
type Stacks = HashMap<(u32, Vec<u64>), u64>;

/// A guest that crashed on its last vCPU.
struct Crash {
    vcpus: u32,
    block: Vec<u8>,
    /// Of a guest whose last vCPU goes on meanwhile.
    going_on: Vec<u8>,
    /// Of a block that is too small for all.
    small: Vec<u8>,
    all: Stacks,
}

impl Crash {
    fn new(seed: u64) -> Crash {
        Crash::of(seed, 2, Some(TIME), 0)
    }

    /// One of so many vCPUs with this recording, so many ns ago.
    fn of(seed: u64, vcpus: u32, recording: Option<Start<'_>>, ago_ns: u64) -> Crash {
        let config = Config { vcpus, guest_name: Some("web"), ..fake::CONFIG };
        let bytes = minimum_bytes(vcpus as usize, 1) + 250_000 * vcpus as usize;
        let mut memory = vec![MaybeUninit::uninit(); bytes];
        let mut ring = vec![MaybeUninit::uninit(); ring_bytes(vcpus as usize, RECORDS)];
        let agent = Agent::new(TwoVcpus::new(MAX_DEPTH), config, &mut memory).unwrap();
        let mut live = vec![MaybeUninit::uninit(); live_bytes(1_000)];
        let agent = agent.with_ring(&mut ring).with_live_memory(&mut live);
        let name = agent.event_name("request").unwrap();
        let address = |number| std::ptr::without_provenance(0x1000 * (number + 1));
        agent.on_alloc(address(0), 1);
        if let Some(recording) = recording {
            InProcess::connect(&agent).unwrap().start_as(&recording).unwrap();
        }
        agent.platform().wall_clock_ns.fetch_sub(ago_ns, Ordering::Relaxed);
        let (platform, mut random) = (agent.platform(), Random::new(seed));
        let mut all = Stacks::new();
        for number in 0..TICKS * vcpus as usize {
            let vcpu = number as u32 % vcpus;
            platform.switch_to(vcpu);
            platform.fake.advance(2 * PERIOD_NS);
            agent.mark(name, number as u64);
            let stack = any_stack(&mut random);
            agent.on_alloc_from(address(number), 1 << 20, || platform.fake.stack().lay(&stack));
            agent.on_tick(Some(&platform.fake.stack().lay(&stack)));
            *all.entry((vcpu, stack.0)).or_default() += 1;
        }
        let mut block = vec![0; 1 << 20];
        let length = agent.crash_dump_into(&mut block).unwrap();
        let mut small = vec![0; length / 3];
        let used = agent.crash_dump_into(&mut small).unwrap();
        small.truncate(used);
        block.truncate(length);
        let mut file = Vec::new();
        agent.crash_dump(&mut |bytes| {
            file.extend_from_slice(bytes);
            agent.mark(name, u64::from(vcpus) - 1);
        });
        let going_on = [&BlockHead::of(&file).encode()[..], &file].concat();
        Crash { vcpus, block, going_on, small, all }
    }

    fn lines(&self) -> Vec<String> {
        Lines::of(&self.block).map(|line| format!("(d7) [12.5] {line}")).collect()
    }

    /// How many marks and samples a recording has of each vCPU; each must be one of this guest's,
    /// with its own stack.
    fn told(&self, remains: &Remains) -> Vec<usize> {
        let read = Recording::read(&remains.file[..], Path::new("log"), Reading::Strict);
        let recording = read.unwrap();
        assert_eq!(recording.completeness == Completeness::Complete, remains.missing.is_none());
        assert_eq!(recording.agent.guest_name.as_deref(), Some("web"));
        let mut told = vec![0; 2 * self.vcpus as usize];
        let Some(timeline) = &recording.timeline else {
            return told;
        };
        for event in timeline.events(Window::ALL) {
            if let What::Mark { value, .. } = event.what {
                let vcpus = u64::from(self.vcpus);
                assert!(value < TICKS as u64 * vcpus && value % vcpus == u64::from(event.vcpu));
                told[event.vcpu as usize] += 1;
            }
        }
        let profile =
            timeline.profile(&recording.profile, &recording.span.unwrap(), Window::ALL, None);
        for ((vcpu, stack), count) in stacks(&profile) {
            let real = self.all.get(&(vcpu, stack));
            assert!(real.is_some_and(|real| count <= *real), "not the stack of a sample");
            told[(self.vcpus + vcpu) as usize] += count as usize;
        }
        told
    }
}

/// The samples whose stacks are there.
fn stacks(profile: &Profile) -> Stacks {
    let mut stacks = Stacks::new();
    for sample in profile.samples() {
        let mut frames: Vec<Frame> =
            profile.stack(sample.node).map(|id| profile.frame(id)).collect();
        frames.retain(|frame| *frame != Frame::Special(SpecialFrame::Late));
        let addresses = frames.iter().map(|frame| match frame {
            Frame::Address { address, .. } => Some(*address),
            Frame::Special(_) => None,
        });
        if let Some(addresses) = addresses.collect() {
            *stacks.entry((sample.vcpu, addresses)).or_default() += sample.count;
        }
    }
    stacks
}

fn find(log: &[u8]) -> Vec<Remains> {
    let mut search = Search::default();
    search.read(log).unwrap();
    search.finish()
}

/// A log that was rotated meanwhile has only a part of what an earlier run found.
#[test]
fn a_part_of_a_crash_does_not_replace_all_of_it() {
    let here = tempfile::tempdir().unwrap();
    let recover = |code: u8, words: &[&str]| {
        program::run(code.into(), &[&["recover"], words].concat(), here.path())
    };
    let lines = Crash::new(3).lines();
    let log = here.path().join("web.log");
    let part = || fs::write(&log, lines[..lines.len() / 2].join("\n")).unwrap();
    part();
    recover(exit_code::INCOMPLETE, &["web.log"]);
    fs::write(&log, lines.join("\n")).unwrap();
    recover(exit_code::SUCCESS, &["web.log"]);
    let whole = fs::read(here.path().join("web.log.unikprof")).unwrap();
    part();
    let (_, error) = recover(exit_code::OUTPUT, &["web.log"]);
    has(&error, &["web.log.unikprof holds more of this crash", "not replaced", "-o"]);
    assert_eq!(fs::read(here.path().join("web.log.unikprof")).unwrap(), whole);
    recover(exit_code::INCOMPLETE, &["web.log", "-o", "part.unikprof"]);

    fs::write(&log, lines[..lines.len() / 3].join("\n")).unwrap();
    recover(exit_code::OUTPUT, &["web.log", "-o", "part.unikprof"]);
    part();
    recover(exit_code::INCOMPLETE, &["web.log", "-o", "part.unikprof"]);
    // What another crash left, here an earlier one, complete or not.
    let other = Crash::of(4, 2, Some(TIME), 1_000_000_000).lines();
    fs::write(&log, [&lines[..], &other].concat().join("\n")).unwrap();
    for name in ["web.log.unikprof", "part.unikprof"] {
        let words = ["web.log", "--crash", "2", "-o", name];
        let (_, error) = recover(exit_code::OUTPUT, &words);
        has(&error, &["holds another recording", "not replaced", "-o"]);
    }
    assert_eq!(fs::read(here.path().join("web.log.unikprof")).unwrap(), whole);
}

/// A reader of stdout that has had enough, or a full disk behind it, hides that something is missing.
#[cfg(target_os = "linux")]
#[test]
fn what_is_missing_is_told_wherever_the_output_goes() {
    let here = tempfile::tempdir().unwrap();
    let lines = Crash::new(3).lines();
    fs::write(here.path().join("part.log"), lines[..lines.len() / 2].join("\n")).unwrap();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into();
    let closed = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        std::process::Stdio::from(writer)
    };
    let incomplete = exit_code::INCOMPLETE;
    for (output, stdout, code, told) in [
        ("s.unikprof", closed(), incomplete, &["what arrived is in s.unikprof"][..]),
        ("s.unikprof", full(), incomplete, &["No space", "what arrived is in s.unikprof"]),
        ("-", std::process::Stdio::null(), incomplete, &[]),
        ("-", closed(), incomplete, &[]),
        ("-", full(), exit_code::OUTPUT, &["No space"]),
    ] {
        let mut recover = program::command(&["recover", "part.log", "-o", output], here.path());
        let ended = recover.stdout(stdout).output().unwrap();
        let error = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(code.into()), "{output}: {error}");
        has(&error, &[&["not in the log"], told].concat());
        assert!(!error.contains("is in -"), "{error}");
    }
}

/// Guards advice that fails because of a blank or a dash in a file's name.
#[test]
fn the_next_command_works_whatever_the_files_name() {
    let here = tempfile::tempdir().unwrap();
    let lines = Crash::new(3).lines();
    let follow = |words: &str| {
        let script = format!("\"$0\" {words}");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_unikprof-client")]);
        program::finished(0, shell.current_dir(here.path())).0
    };
    for name in ["my log", "-dash.log", "it's"] {
        fs::write(here.path().join(name), lines.join("\n")).unwrap();
        let (_, error) = program::run(6, &["report", "--", name], here.path());
        let recover = error.split('`').find_map(|part| part.strip_prefix("unikprof-client "));
        let told = follow(recover.unwrap());
        let next = told.lines().find_map(|line| line.strip_prefix("next         unikprof-client "));
        follow(&next.unwrap().replace("--image GUEST.ELF", ""));
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_dump_is_whole_in_a_log_of_any_kind() {
    let (crash, other) = (Crash::new(3), Crash::new(4));
    let file = BlockHead::file(&crash.block).unwrap();
    let lines = crash.lines();
    let with = |end: &str| lines.iter().map(|line| format!("{line}{end}")).collect::<String>();
    let reversed: Vec<String> = lines.iter().rev().cloned().collect();
    let wrapped = |columns: usize, stamp: &str| {
        let lines = lines.iter().map(|line| {
            let parts: Vec<&str> =
                line.as_bytes().chunks(columns).map(|part| str::from_utf8(part).unwrap()).collect();
            parts.join(&format!("\n{stamp}")) + "\n"
        });
        lines.collect::<String>()
    };
    let utf_16 = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        with("\r\n").encode_utf16().flat_map(order).collect()
    };
    // Two copies, of which each lacks a third of the lines.
    let lacking = |third: usize| -> String {
        let lines = lines.iter().enumerate().filter(|(at, _)| at % 3 != third);
        lines.map(|(_, line)| format!("{line}\n")).collect()
    };
    let halves = with("\n");
    let (before, after) = halves.split_at(halves.len() / 180 * 90);
    for (kind, log) in [
        ("other lines between", with("\r\nnetfront: unikprof: a word\r\n").into_bytes()),
        ("escapes and zeros", with("\x1b[0m\0\0\n").into_bytes()),
        ("the end first", reversed.join("\n").into_bytes()),
        ("twice", [with("\n"), with("\n")].concat().into_bytes()),
        ("JSON in one line", with("\\r\\n\"},{\"log\":\"").into_bytes()),
        ("returns alone", with("\r").into_bytes()),
        ("wrapped at 80 columns", wrapped(80, "").into_bytes()),
        ("wrapped at 80 columns before the stamps", wrapped(80, "(d7) [2.5] ").into_bytes()),
        ("wrapped in the mark", wrapped(16, "").into_bytes()),
        ("UTF-16", utf_16(u16::to_le_bytes)),
        ("UTF-16, the other order", utf_16(u16::to_be_bytes)),
        ("gzip", gzip(&with("\n"))),
        ("gzip of a rotation in the wrong order", [gzip(after), gzip(before)].concat()),
        ("copies that lack lines", [lacking(0), lacking(1)].concat().into_bytes()),
    ] {
        let found = find(&log);
        assert_eq!(found.len(), 1, "{kind}");
        assert!(found[0].missing.is_none() && found[0].file == file, "{kind}");
    }
    let both = lines.iter().zip(other.lines()).map(|(one, other)| format!("{one}\n{other}\n"));
    let mut both: String = both.collect();
    both += &other.lines().join("\n");
    both += &lines.join("\n");
    let found = find(both.as_bytes());
    assert!(found.iter().all(|one| one.missing.is_none()));
    assert_eq!((found.len(), &found[0].file[..]), (2, file));
    assert_eq!(found[1].file, BlockHead::file(&other.block).unwrap());
    assert_eq!(crash.told(&found[0]), [TICKS; 4]);
}

/// A line that is lost costs the records or stacks in it and those that depend on them, on one vCPU.
#[test]
fn what_is_missing_costs_what_it_held() {
    let crash = Crash::new(3);
    let lines = crash.lines();
    let count = lines.len() - REPEATED as usize;
    let mut cost = 0;
    for lost in (20..count).step_by(count / 40) {
        let log: Vec<&str> =
            lines.iter().filter(|line| **line != lines[lost]).map(String::as_str).collect();
        let found = find(log.join("\n").as_bytes());
        assert!(found[0].missing.is_some(), "{lost}");
        let told = crash.told(&found[0]);
        assert!(told.iter().all(|told| *told >= TICKS - 64), "{lost} of {count}: {told:?}");
        cost += told.len() * TICKS - told.iter().sum::<usize>();
    }
    // A line has parts of two frames, each with up to 16 records, or with stacks of more.
    assert!(cost < 600, "{cost}");
    let going_on: Vec<String> = Lines::of(&crash.going_on).map(|line| line.to_string()).collect();
    let found = find(going_on[..going_on.len() - REPEATED as usize - 50].join("\n").as_bytes());
    assert!(crash.told(&found[0])[1] > TICKS - 64);
}

/// Guards against a part taken for nothing: a console loses the end of a dump, and a buffer its
/// beginning. In 16 KiB of either there are the last moments of all vCPUs.
#[test]
fn either_end_tells_the_last_moments() {
    let crash = Crash::new(3);
    let text = crash.lines().join("\r\n");
    let mut before = [vec![0; 4], vec![0; 4]];
    for length in (BEGINNING..text.len()).step_by(text.len() / 20) {
        for (end, log) in [&text[..length], &text[text.len() - length..]].into_iter().enumerate() {
            let found = find(log.as_bytes());
            let told = crash.told(&found[0]);
            let mut both = told.iter().zip(&before[end]);
            assert!(both.all(|(now, before)| now >= before.max(&1)));
            before[end] = told;
        }
    }
    let gzip = gzip(&text);
    let told = crash.told(&find(&gzip[..gzip.len() / 2])[0]);
    assert!(told.iter().all(|told| *told > 0), "{told:?}");
    // With more vCPUs, and with events alone.
    for (vcpus, recording) in [(8, Some(TIME)), (10, None)] {
        let crash = Crash::of(3, vcpus, recording, 0);
        let text = crash.lines().join("\r\n");
        for log in [&text[..BEGINNING], &text[text.len() - BEGINNING..]] {
            let mut told = crash.told(&find(log.as_bytes())[0]);
            told.truncate(if recording.is_some() { usize::MAX } else { vcpus as usize });
            assert!(told.iter().all(|told| *told > 0), "{vcpus} vCPUs: {told:?}");
        }
    }
}

/// Guards against a crash that hides another: the newer one is complete or cut, before or after the
/// other in the log.
#[test]
fn of_several_crashes_the_newest_by_its_own_time_is_taken() {
    const DAY_NS: u64 = 86_400_000_000_000;
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (newer, older) = (Crash::new(3), Crash::of(4, 2, Some(TIME), DAY_NS));
    let write =
        |log: [&[String]; 2]| fs::write(directory.join("log"), log.concat().join("\n")).unwrap();
    let (lines, others) = (newer.lines(), older.lines());
    write([&lines, &others]);
    let (told, _) = program::run(exit_code::SUCCESS.into(), &["recover", "log"], directory);
    has(&told, &["> 1  2027-01-15T08:00:00Z  web", "complete", "  2  2027-01-14T08:00:00Z  web"]);
    let written = || fs::read(directory.join("log.unikprof")).unwrap();
    assert_eq!(written(), newer.block[BlockHead::LENGTH..]);
    fs::remove_file(directory.join("log.unikprof")).unwrap();
    write([&others, &lines[..lines.len() / 2]]);
    let (told, _) = program::run(exit_code::INCOMPLETE.into(), &["recover", "log"], directory);
    has(&told, &["> 2  2027-01-15T08:00:00Z  web", "incomplete, 6"]);
    let older_one = ["recover", "log", "--crash", "1", "-o", "older"];
    program::run(exit_code::SUCCESS.into(), &older_one, directory);
    let written = fs::read(directory.join("older")).unwrap();
    assert_eq!(written, older.block[BlockHead::LENGTH..]);
}

/// Guards against advice that fails, and against a crash without a recording whose guest and events
/// are out of reach.
#[test]
fn the_next_command_shows_what_is_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (crash, events) = (Crash::new(3), Crash::of(3, 2, None, 0));
    let (lines, of_events) = (crash.lines(), events.lines());
    let small: Vec<String> = Lines::of(&crash.small).map(|line| line.to_string()).collect();
    let cut = &lines[..lines.len() / 2];
    let heap = |mode| Crash::of(3, 2, Some(Start::heap("measured", mode, 64)), 0).lines();
    let (alloc, live) = (heap(mode::ALLOC), heap(mode::LIVE));
    for (name, log, code, said) in [
        ("whole", &lines[..], exit_code::SUCCESS, ["request", "300  request"]),
        ("cut", cut, exit_code::INCOMPLETE, ["request", "not in the log"]),
        ("events", &of_events, exit_code::SUCCESS, ["request", "300  request"]),
        ("small", &small, exit_code::SUCCESS, ["request", "or not dumped"]),
        ("alloc", &alloc, exit_code::SUCCESS, ["alloc", "alloc"]),
        ("live", &live, exit_code::SUCCESS, ["live", "live"]),
    ] {
        fs::write(directory.join(name), log.join("\r\n")).unwrap();
        let (told, _) = program::run(code.into(), &["recover", name], directory);
        let next = told.lines().find_map(|line| line.strip_prefix("next         unikprof-client "));
        let next = next.unwrap().replace(" --image GUEST.ELF", "");
        let words: Vec<&str> = next.split(' ').collect();
        let (report, _) = program::run(exit_code::SUCCESS.into(), &words, directory);
        has(&report, &["web", said[0], said[1]]);
    }
    // No command replaces what it reads.
    fs::write(directory.join("names.json"), "0000000000001000 T main\n").unwrap();
    let words = ["report", "whole.unikprof", "--symbols", "names.json", "-o", "names.json"];
    let (_, error) = program::run(exit_code::USAGE.into(), &words, directory);
    has(&error, &["is read"]);
}
