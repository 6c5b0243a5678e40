//! A healthy recording, and one ill in each way: every check trips on what it is for, on nothing
//! else, and says what to do.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use unikprof_proto::code::{capability, mode, role, state};
use unikprof_proto::message;

use super::*;
use crate::report::golden_tests::{self, FIB, MAIN, PARSE, POLL, symbolized};
use unikprof_profile::agent_info::CodeMap;
use unikprof_profile::profile::{
    Cost, Counters, Distribution, Frame, Mapping, Mode, ProfileBuilder, RecordingInfo, Runstate,
    SpecialFrame, Unwind, VcpuStats,
};
use unikprof_profile::recorder_status::{RecorderStatus, RecordingStatus};
use unikprof_profile::recording::Completeness;
use unikprof_profile::symbols::Images;

const COLUMNS: usize = 100;

#[track_caller]
fn golden(name: &str, found: &str) {
    golden_tests::golden(&format!("doctor/{name}"), found);
}

/// What a made-up recording consists of; a test spoils a part of it.
struct Parts {
    info: RecordingInfo,
    stats: VcpuStats,
    stacks: Vec<(u64, Vec<Frame>)>,
    agent: AgentInfo,
    completeness: Completeness,
    epochs: u32,
    gaps: u32,
    contradictions: Vec<String>,
}

pub(super) fn agent() -> AgentInfo {
    AgentInfo {
        agent_version: env!("CARGO_PKG_VERSION").into(),
        architecture: "x86_64".into(),
        platform: "xen".into(),
        guest_name: Some("web".into()),
        guest_id: None,
        vcpus: 1,
        monotonic_ns: 3_600_000_000_000,
        wall_clock_ns: Some(1_700_000_000_000_000_000),
        capabilities: capability::RUNSTATE | capability::REACHABLE_WHEN_BUSY,
        min_period_ns: 10_000,
        max_period_ns: 10_000_000_000,
        max_depth: 128,
        max_request: 1_024,
        memory_bytes: 4 << 20,
        instance: 7,
        segments: 8,
        segment_nodes: 4_096,
        caller_rows: 16_384,
        caller_table: None,
        role: 0,
        mappings: mappings(&[1, 2, 3, 4]),
    }
}

fn mappings(build_id: &[u8]) -> CodeMap {
    let mut mappings = CodeMap::default();
    mappings
        .add(&message::Mapping {
            start: 0x10_0000,
            end: 0x20_0000,
            file_offset: 0,
            code_base: 16,
            build_id,
            path: "/srv/web.elf",
        })
        .unwrap();
    mappings
}

/// 20,000 samples of running time, all in order.
fn healthy() -> Parts {
    let main = Frame::caller(MAIN);
    Parts {
        info: RecordingInfo {
            name: "boot".into(),
            guest_name: "web".into(),
            period_ns: 1_000_000,
            depth: 128,
            elapsed_ns: 30_000_000_000,
            server_ns: 3_000_000,
            late_threshold_ns: 50_000,
            caller_table: Some(0xabcd),
            ..RecordingInfo::default()
        },
        stats: VcpuStats {
            counters: Counters {
                ticks: 20_050,
                recorded: 20_000,
                idle: 50,
                early: 3,
                by_table: 18_500,
                by_bytes: 1_000,
                by_frame_pointer: 500,
                missing: Some(-12),
                ..Counters::default()
            },
            runstate: Runstate {
                running_ns: Some(20_000_000_000),
                runnable_ns: Some(100_000_000),
                blocked_ns: Some(9_900_000_000),
                offline_ns: Some(0),
            },
            elapsed_ns: 30_000_000_000,
            cost: Some(Cost {
                sampling_ns: 30_000_000,
                deliveries: 5_000,
                delivery_ns: Some(90_000_000),
                deliveries_measured: 16,
                ..Cost::default()
            }),
            lateness_ns: Some(Distribution::from_values([(2_000, 20_000)])),
            ..VcpuStats::default()
        },
        stacks: vec![
            (12_000, vec![Frame::leaf(FIB), main]),
            (6_000, vec![Frame::leaf(PARSE), Frame::caller(POLL), main]),
            (2_000, vec![Frame::leaf(POLL), main]),
        ],
        agent: agent(),
        completeness: Completeness::Complete,
        epochs: 1,
        gaps: 0,
        contradictions: Vec::new(),
    }
}

impl Parts {
    fn counters(&mut self) -> &mut Counters {
        &mut self.stats.counters
    }

    /// Lets so many of FIB's samples have stacks with this mark: at the leaf or the root.
    fn mark(&mut self, count: u64, mark: SpecialFrame) {
        let mark_frame = Frame::Special(mark);
        self.stacks[0].0 -= count;
        self.stacks.push((
            count,
            match mark {
                SpecialFrame::Late => vec![mark_frame, Frame::leaf(POLL), Frame::caller(MAIN)],
                _ => vec![Frame::leaf(POLL), mark_frame],
            },
        ));
    }

    /// All callers are guessed.
    fn guess(&mut self) {
        let counters = self.counters();
        (counters.by_table, counters.by_bytes) = (0, 0);
        counters.by_frame_pointer = 20_000;
    }

    /// So many more ticks gave no sample.
    fn lose(&mut self, ticks: u64, why: fn(&mut Counters) -> &mut u64) {
        *why(self.counters()) = ticks;
        self.counters().ticks += ticks;
    }

    fn cost(&mut self, total_ns: u64) {
        self.stats.cost.as_mut().unwrap().sampling_ns = total_ns;
    }

    /// So many samples are all there are.
    fn only(&mut self, count: u64) {
        self.stacks.truncate(1);
        self.stacks[0].0 = count;
        *self.counters() = Counters {
            ticks: count,
            recorded: count,
            by_table: count,
            missing: Some(0),
            ..Counters::default()
        };
    }

    fn recording(self) -> Recording {
        let mut builder = ProfileBuilder::new();
        builder.add_mapping(Mapping {
            start: 0x10_0000,
            end: 0x20_0000,
            build_id: Some("01020304".parse().unwrap()),
            path: "/srv/web.elf".into(),
            ..Mapping::default()
        });
        builder.set_recording(self.info);
        builder.add_vcpu(self.stats);
        for (count, stack) in &self.stacks {
            builder.add_stack(0, *count, stack).unwrap();
        }
        Recording {
            timeline: None,
            span: None,
            asked: None,
            profile: builder.finish(),
            agent: self.agent,
            created_unix_ns: 0,
            epochs: self.epochs,
            ended_ns: 0,
            counted: None,
            completeness: self.completeness,
            gaps: self.gaps,
            contradictions: self.contradictions,
            own_warnings: Vec::new(),
            epoch_counts: Vec::new(),
            trace: None,
        }
    }

    fn diagnose(self) -> Diagnosis {
        let recording = self.recording();
        let symbolized = symbolized(&recording.profile);
        judge(&recording, Some(&symbolized), None, None)
    }
}

#[track_caller]
fn only(diagnosis: &Diagnosis, name: &str, verdict: Verdict, words: &[&str]) {
    let text = diagnosis.text(1_000, true);
    let not_good: Vec<_> = diagnosis
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Good)
        .map(|check| (check.name, check.verdict))
        .collect();
    assert_eq!(not_good, [(name, verdict)], "{text}");
    assert_eq!(diagnosis.verdict(), verdict);
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    for check in &diagnosis.checks {
        let is_good = check.verdict == Verdict::Good;
        assert_eq!(check.advice.is_none(), is_good, "{check:?}");
    }
}

#[test]
fn a_healthy_recording_is_good_throughout() {
    let diagnosis = healthy().diagnose();
    assert_eq!(diagnosis.verdict(), Verdict::Good);
    golden("healthy.txt", &diagnosis.text(COLUMNS, true));
    let brief = diagnosis.text(80, false);
    assert!(brief.starts_with("This profile can be trusted\n"), "{brief}");
    assert!(brief.lines().count() < 15, "{brief}");
    let json = diagnosis.json();
    assert_eq!((&json["trustworthy"], &json["verdict"]), (&true.into(), &"good".into()));
    assert_eq!(json["checks"][0]["figures"]["missing"], 0, "fewer by chance are not missing");
}

#[test]
fn a_recording_ill_in_every_way_is_as_blessed() {
    let mut parts = healthy();
    parts.completeness = Completeness::Incomplete("the line broke".into());
    parts.contradictions = vec!["the counts of epoch 3 do not add up\x1b[2J".into()];
    parts.mark(5_000, SpecialFrame::Broken);
    parts.mark(500, SpecialFrame::Truncated);
    parts.mark(2_000, SpecialFrame::Late);
    parts.info.fixed_interval = true;
    parts.info.caller_table = None;
    parts.info.server_ns = 1_800_000_000;
    let counters = parts.counters();
    counters.ticks = 24_000;
    counters.lost = 500;
    counters.overflow = 1_000;
    counters.masked = 2_500;
    counters.idle = 0;
    counters.late = 2_000;
    counters.by_frame_pointer = 20_000;
    counters.by_bytes = 0;
    counters.by_table = 0;
    counters.missing = Some(16_000);
    parts.stats.runstate.runnable_ns = Some(20_000_000_000);
    parts.agent.capabilities = 0;
    let diagnosis = parts.diagnose();
    golden("ill.txt", &diagnosis.text(COLUMNS, true));
    golden("ill.json", &format!("{:#}\n", diagnosis.json()));
}

#[test]
fn blocked_time_has_checks_of_its_own() {
    let mut parts = off_cpu();
    let diagnosis = off_cpu().diagnose();
    assert_eq!(diagnosis.verdict(), Verdict::Good);
    golden("off-cpu.txt", &diagnosis.text(COLUMNS, true));
    parts.counters().blocked_overflow = 300_000_000;
    only(
        &parts.diagnose(),
        "overflow",
        Verdict::Look,
        &["2.9 % of the blocked time", "`on_block`", "more memory"],
    );
    for (missing_ns, verdict, words) in [
        (1_000_000_000, Verdict::Look, "1 s less than the 10.90 s"),
        (9_000_000_000, Verdict::Bad, "9 s less than the 18.90 s"),
    ] {
        let mut parts = off_cpu();
        parts.counters().missing_blocked = Some(missing_ns);
        only(&parts.diagnose(), "blocked", verdict, &[words, "on_block"]);
    }
    // A guest that hardly blocks.
    let mut parts = off_cpu();
    parts.counters().blocked = 20_000_000;
    parts.counters().missing_blocked = Some(10_000_000);
    parts.stacks[0].0 = 20_000_000;
    assert_eq!(parts.diagnose().verdict(), Verdict::Good);
    let mut parts = off_cpu();
    *parts.counters() = Counters::default();
    parts.stacks.clear();
    only(&parts.diagnose(), "enough", Verdict::Bad, &["never blocked"]);
}

fn off_cpu() -> Parts {
    let mut parts = healthy();
    parts.info.mode = Mode::OffCpu;
    parts.stacks = vec![(9_900_000_000, vec![Frame::leaf(POLL), Frame::caller(MAIN)])];
    *parts.counters() = Counters {
        blocks: 1_000,
        blocked: 9_900_000_000,
        missing_blocked: Some(-5_000_000),
        ..Counters::default()
    };
    parts
}

/// A fault of a recording; the check that tells of it, and no other one; its verdict, and words of
/// it.
type Fault = (&'static str, Verdict, &'static [&'static str], fn(&mut Parts));

#[test]
fn each_fault_trips_its_own_check() {
    use Verdict::{Bad, Look};
    let faults: [Fault; 31] = [
        ("complete", Bad, &["the line broke", "`stop`"], |p| {
            p.completeness = Completeness::Incomplete("the line broke".into());
        }),
        ("complete", Bad, &["cut at byte 9"], |p| {
            p.completeness = Completeness::Salvaged("cut at byte 9".into());
        }),
        ("complete", Bad, &["no counts"], |p| p.epochs = 0),
        ("complete", Look, &["resumed once"], |p| p.gaps = 1),
        ("consistent", Bad, &["do not add up", "1 more"], |p| {
            p.contradictions = vec!["the counts of epoch 3 do not add up".into(), "more".into()];
        }),
        ("consistent", Bad, &["20051 ticks"], |p| {
            p.counters().ticks += 1;
        }),
        ("consistent", Bad, &["by table"], |p| {
            p.counters().by_table += 1;
        }),
        ("consistent", Bad, &["stacks add up to 20,001 samples"], |p| {
            p.stacks[0].0 += 1;
        }),
        // Such code has no name either, though its frame is called `[unknown code]`.
        ("names", Look, &["in 100.0 % of", "outside of all"], |p| {
            for (_, stack) in &mut p.stacks {
                stack[0] = Frame::Special(SpecialFrame::UnknownCode);
            }
        }),
        ("frame pointers", Look, &FLAGS, |p| {
            p.mark(400, SpecialFrame::Broken);
        }),
        ("frame pointers", Bad, &["22.5 %"], |p| {
            p.mark(4_500, SpecialFrame::Broken);
        }),
        ("depth", Look, &["128 frames", "--depth"], |p| {
            p.mark(400, SpecialFrame::Truncated);
        }),
        ("callers", Look, &["does not cover that code"], Parts::guess),
        ("callers", Look, &["--image"], |p| {
            p.guess();
            p.info.caller_table = None;
        }),
        ("callers", Look, &["mix the table"], |p| {
            p.guess();
            p.info.unwind = Unwind::Table;
        }),
        ("lost", Look, &["(300)", "less often"], |p| {
            p.lose(300, |c| &mut c.lost);
        }),
        // 667 stacks more for each of the three that fill 4 MiB.
        ("overflow", Bad, &["9.1 %", "2,672 MiB"], |p| {
            p.lose(2_001, |c| &mut c.overflow);
        }),
        ("masked", Look, &["without registers"], |p| {
            p.lose(300, |c| &mut c.masked);
        }),
        ("late", Bad, &LATE, |p| {
            p.counters().late = 1_500;
            p.mark(1_500, SpecialFrame::Late);
        }),
        ("steal", Look, &["20.0 % of the time"], |p| {
            p.stats.runstate.runnable_ns = Some(5_000_000_000);
        }),
        ("steal", Look, &["does not report"], |p| {
            p.stats.runstate.runnable_ns = None;
        }),
        ("rate", Look, &["2,000 fewer", "909.3 Hz of running"], |p| {
            p.counters().missing = Some(2_000);
        }),
        ("rate", Bad, &["10,000 more"], |p| {
            p.counters().missing = Some(-10_000);
        }),
        ("interval", Bad, &["--fixed-interval"], |p| {
            p.info.fixed_interval = true;
        }),
        ("overhead", Look, &["6.00 %", "lower rate"], |p| p.cost(1_200_000_000)),
        ("overhead", Look, &["arming of its timer about 6.00 %", "lower rate"], |p| {
            p.stats.cost.as_mut().unwrap().delivery_ns = Some(1_200_000_000);
        }),
        ("overhead", Look, &["its server took 6.00 %"], |p| {
            p.info.server_ns = 1_800_000_000;
        }),
        ("overhead", Look, &["did not measure"], |p| {
            p.stats.cost = None;
        }),
        ("enough", Bad, &["50 samples", "±"], |p| p.only(50)),
        ("enough", Bad, &["did not run"], |p| p.only(0)),
        ("reachable", Look, &["not while the guest is stuck"], |p| {
            p.agent.capabilities = capability::RUNSTATE;
        }),
    ];
    for (name, verdict, words, spoil) in faults {
        let mut parts = healthy();
        spoil(&mut parts);
        only(&parts.diagnose(), name, verdict, words);
    }
}

const FLAGS: [&str; 4] = [
    "Server::poll(int)",
    "-C force-frame-pointers=yes",
    "-fno-omit-frame-pointer",
    "--unwind table",
];
const LATE: [&str; 3] = ["7.5 %", "Server::poll(int) (100.0 %)", "emulator"];

/// A third of the samples that were due may have been of any function.
#[test]
fn many_missing_samples_widen_the_intervals() {
    let mut parts = healthy();
    parts.counters().missing = Some(10_000);
    let diagnosis = parts.diagnose();
    let text = diagnosis.text(1_000, true);
    for (name, verdict, words) in [
        ("rate", Verdict::Bad, "10,000 fewer"),
        ("enough", Verdict::Look, "the widest interval is ±17."),
    ] {
        let check = diagnosis.checks.iter().find(|check| check.name == name);
        assert_eq!(check.map(|check| check.verdict), Some(verdict), "{text}");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn a_wrong_image_is_bad_and_the_rest_is_judged_all_the_same() {
    let recording = healthy().recording();
    let symbolized = symbolized(&recording.profile);
    let wrong = SymbolError::WrongBuildId {
        path: "other.elf".into(),
        expected: "01020304".parse().unwrap(),
        found: None,
    };
    let diagnosis = judge(&recording, Some(&symbolized), Some(&wrong), None);
    only(&diagnosis, "build-id", Verdict::Bad, &["expected build-id 01020304, found none"]);
}

/// Without any image there is nothing wrong, but nothing has a name.
#[test]
fn code_without_names_is_worth_a_look() {
    let recording = healthy().recording();
    let diagnosis = Diagnosis::of_recording(&recording, &Symbolizer::default());
    let names = diagnosis.checks.iter().find(|c| c.name == "names").unwrap();
    assert_eq!(names.verdict, Verdict::Look);
    assert!(names.finding.contains("100.0 %"), "{names:?}");
    assert!(names.advice.as_ref().unwrap().contains("--image"));
}

#[test]
fn names_from_a_list_are_worth_a_look() {
    let list = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        list.path(),
        "0000000000101000 T main\n0000000000102000 T poll\n0000000000104000 T fib\n\
         0000000000105000 T end\n",
    )
    .unwrap();
    let mut images = Images::default();
    images.add_symbols(list.path()).unwrap();
    let recording = healthy().recording();
    let diagnosis = Diagnosis::of_recording(&recording, &Symbolizer::new(images));
    only(&diagnosis, "build-id", Verdict::Look, &["symbol list"]);
}

/// Guards advice to give a sampling rate, which recordings of allocations reject.
#[test]
fn a_costly_recording_of_allocations_is_not_told_to_lower_its_rate() {
    let mut parts = healthy();
    parts.stats.cost.as_mut().unwrap().sampling_ns = 2_000_000_000;
    parts.info.mode = Mode::Live;
    parts.info.interval_bytes = 4 << 10;
    let diagnosis = parts.diagnose();
    let mut checks = diagnosis.checks.iter();
    let check = checks.find(|check| check.name == "overhead").unwrap();
    let advice = check.advice.as_ref().unwrap();
    assert!(advice.contains("--every above 4 KiB"), "{advice}");
    // Its bytes are as right.
    assert_eq!(check.verdict, Verdict::Look);
    for check in &diagnosis.checks {
        assert!(!check.finding.contains("ticks"), "{}", check.finding);
    }
}

#[test]
fn absurd_recordings_are_judged_without_a_panic() {
    let mut parts = healthy();
    parts.stacks.clear();
    *parts.counters() = Counters {
        ticks: u64::MAX,
        recorded: u64::MAX,
        overflow: u64::MAX,
        late: u64::MAX,
        by_table: u64::MAX,
        by_bytes: u64::MAX,
        blocked: u64::MAX,
        missing: Some(i64::MIN),
        ..Counters::default()
    };
    parts.info.period_ns = 0;
    parts.stats.runstate.running_ns = Some(u64::MAX);
    parts.stats.runstate.runnable_ns = Some(u64::MAX);
    let diagnosis = parts.diagnose();
    assert_eq!(diagnosis.verdict(), Verdict::Bad);
    assert!(!diagnosis.text(0, true).contains("NaN"));
}

fn idle() -> RecorderStatus {
    RecorderStatus {
        recordings: Vec::new(),
        agent: message::Status {
            live_capacity: 0,
            live_used: 0,
            recordings: 0,
            max_recordings: 4,
            now_ns: 605_000_000_000,
            nodes_used: 0,
            nodes_capacity: 32_768,
            ring_capacity: 0,
            sessions: 1,
            peers: message::Peers::default(),
            server_since_ns: 5_000_000_000,
            server_ns: 7_000_000,
            server_longest_ns: 90_000,
            server_share_permille: 100,
            server_deferred_ns: 0,
        },
    }
}

fn nightly() -> RecordingStatus {
    RecordingStatus {
        recording: 4,
        ring_bit: 0,
        name: "nightly".into(),
        state: state::RECORDING,
        mode: 0,
        period_ns: 1_000_000,
        interval_bytes: 0,
        depth: 128,
        flags: 0,
        now_ns: 5_000_000_000,
        started_ns: 1_000_000_000,
        duration_ns: 0,
        max_age_ns: 0,
        max_bytes: 0,
        counters: message::Counters {
            ticks: 4_000,
            recorded: 4_000,
            by_table: 3_900,
            by_bytes: 100,
            ..message::Counters::default()
        },
        overhead: message::Overhead::default(),
        samples_window_ns: Some(60_000_000_000),
        stacks_window_ns: None,
        wants_fetch: false,
        holder: None,
        held_since_ns: 0,
        first_epoch: 0,
        epochs: 0,
    }
}

fn recording() -> RecorderStatus {
    let mut status = idle();
    status.recordings.push(nightly());
    status.agent.nodes_used = 900;
    status
}

fn answers<'a>(agent: &'a AgentInfo, status: &'a RecorderStatus) -> Answers<'a> {
    Answers {
        agent,
        protocol: 1,
        key: None,
        status,
        asked_unix_ns: 1_700_000_000_000_000_000 - 20_000,
        took: Duration::from_micros(300),
        usual_period_ns: 1_003_009,
    }
}

fn ask(agent: &AgentInfo, status: &RecorderStatus) -> Diagnosis {
    Diagnosis::of_agent(&answers(agent, status), None)
}

/// As [`only`], beside the access that is open for everyone.
#[track_caller]
fn agent_trips(diagnosis: &Diagnosis, name: &str, verdict: Verdict, words: &[&str]) {
    let mut without = diagnosis.clone();
    without.checks.retain(|check| check.name != "access");
    only(&without, name, verdict, words);
}

#[test]
fn a_live_agent_is_as_blessed() {
    let diagnosis = ask(&agent(), &idle());
    agent_only_access(&diagnosis);
    golden("agent.txt", &diagnosis.text(COLUMNS, true));
    let diagnosis = ask(&agent(), &recording());
    agent_only_access(&diagnosis);
    golden("agent-recording.txt", &diagnosis.text(COLUMNS, true));
    // A line for each check. Its texts are those above, and ill.json has the shape of the whole.
    let mut document = diagnosis.json();
    let mut checks = document["checks"].take();
    let lines = checks.as_array_mut().unwrap().iter_mut().map(|check| {
        let fields = check.as_object_mut().unwrap();
        let shown = ["finding", "advice"].map(|text| fields.remove(text));
        assert!(shown.iter().all(Option::is_some), "{check}");
        format!("{check}\n")
    });
    let lines = lines.collect::<String>();
    golden("agent-recording.figures", &format!("{document}\n{lines}"));
}

/// A table that is full drops what a recording of mode live asks for; without one it is not looked
/// at.
#[test]
fn a_full_table_of_live_samples_is_worth_a_look() {
    let mut status = recording();
    status.agent.live_capacity = 1_000;
    status.agent.live_used = 700;
    agent_only_access(&ask(&agent(), &status));
    status.recordings[0].mode = mode::LIVE;
    status.recordings[0].period_ns = 0;
    status.recordings[0].interval_bytes = 512 << 10;
    let check = |status: &RecorderStatus| {
        let mut checks = ask(&agent(), status).checks;
        checks.retain(|check| check.name == "live table");
        checks.pop().unwrap()
    };
    let sound = check(&status);
    assert_eq!(sound.verdict, Verdict::Good);
    assert!(sound.finding.contains("700 of 1,000"), "{}", sound.finding);
    status.agent.live_used = 900;
    agent_trips(
        &ask(&agent(), &status),
        "live table",
        Verdict::Look,
        &["900 of 1,000", "`--every` above 512 KiB", "33.2 KiB that hold 1,000 places"],
    );
}

/// What a table dropped is judged against what it holds: beside all samples of a guest that frees
/// much, it seems little.
#[test]
fn what_a_full_table_dropped_may_be_held() {
    let mut status = recording();
    status.agent.live_capacity = 1_000;
    status.agent.live_used = 700;
    let one = &mut status.recordings[0];
    (one.mode, one.period_ns, one.interval_bytes) = (mode::LIVE, 0, 512 << 10);
    one.counters.ticks = 1_000_000;
    one.counters.overflow = 200;
    agent_trips(
        &ask(&agent(), &status),
        "overflow",
        Verdict::Bad,
        &["200 sampled allocations", "beside 700 that are held"],
    );
}

#[track_caller]
fn agent_only_access(diagnosis: &Diagnosis) {
    only(diagnosis, "access", Verdict::Look, &["without a key"]);
}

/// An agent with a key, at whose port strangers have tried everything.
#[test]
fn a_besieged_agent_is_as_blessed() {
    let mut agent = agent();
    agent.role = role::VIEW;
    let mut status = idle();
    status.agent.server_longest_ns = 930_000;
    status.agent.peers = message::Peers {
        malformed: 1,
        timed_out: 2,
        turned_away: 3,
        displaced: 4_000,
        bad_key: 5,
        bad_record: 6,
        not_allowed: 7,
    };
    let answers = Answers { key: Some(KeyId([0x5e; 8])), ..answers(&agent, &status) };
    let diagnosis = Diagnosis::of_agent(&answers, None);
    assert_eq!(diagnosis.verdict(), Verdict::Look);
    golden("agent-besieged.txt", &diagnosis.text(COLUMNS, true));
}

#[test]
fn each_kind_of_stranger_has_its_own_advice() {
    type Spoil = fn(&mut message::Peers);
    let cases: [(&str, Spoil); 7] = [
        ("health check", |p| p.malformed = 1),
        ("timeouts", |p| p.timed_out = 1),
        ("flood", |p| p.turned_away = 1),
        ("flood", |p| p.displaced = 1),
        ("key file", |p| p.bad_key = 1),
        ("faulty network", |p| p.bad_record = 1),
        ("`view` key", |p| p.not_allowed = 1),
    ];
    for (word, spoil) in cases {
        let mut status = idle();
        spoil(&mut status.agent.peers);
        let diagnosis = ask(&agent(), &status);
        agent_trips(&diagnosis, "rejected", Verdict::Look, &[word]);
    }
}

#[test]
fn what_an_agent_lacks_is_told() {
    use Verdict::{Bad, Look};
    type Spoil = fn(&mut AgentInfo);
    let cases: [(&str, Verdict, &str, Spoil); 9] = [
        ("version", Look, "this client is", |a| {
            a.agent_version = "0.0.9".into();
        }),
        ("build-id", Look, "/srv/web.elf", |a| {
            a.mappings = mappings(&[]);
        }),
        ("build-id", Bad, "no mappings", |a| {
            a.mappings = CodeMap::default();
        }),
        ("clock", Look, "no", |a| a.wall_clock_ns = None),
        ("clock", Look, "behind", |a| {
            a.wall_clock_ns = Some(1_600_000_000_000_000_000);
        }),
        ("steal", Look, "does not report", |a| {
            a.capabilities = capability::REACHABLE_WHEN_BUSY;
        }),
        ("reachable", Look, "stuck", |a| {
            a.capabilities = capability::RUNSTATE;
        }),
        ("caller table", Look, "no memory", |a| a.caller_rows = 0),
        ("limits", Look, "-F", |a| a.min_period_ns = 5_000_000_000),
    ];
    for (name, verdict, word, spoil) in cases {
        let mut agent = agent();
        spoil(&mut agent);
        agent_trips(&ask(&agent, &idle()), name, verdict, &[word]);
    }
    let mut small = agent();
    small.segment_nodes = 0;
    agent_trips(&ask(&small, &idle()), "limits", Bad, &["no memory for stacks"]);
}

/// Blocked time is measured: a rate would be that of samples which nobody takes.
#[test]
fn a_recorder_of_blocked_time_has_no_rate() {
    let mut status = recording();
    status.recordings[0].mode = mode::OFF_CPU;
    let text = ask(&agent(), &status).text(COLUMNS, true);
    assert!(text.contains("mode off-cpu, measured"), "{text}");
}

#[test]
fn what_a_recorder_does_is_told() {
    use Verdict::{Bad, Look};
    type Spoil = fn(&mut RecorderStatus);
    let cases: [(&str, Verdict, &str, Spoil); 12] = [
        ("recorder", Look, "`connect ADDR stop --name", |s| {
            s.recordings[0].state = state::FINISHED;
        }),
        ("recorder", Look, "state 77", |s| s.recordings[0].state = 77),
        ("room", Look, "fetch more often", |s| {
            s.agent.nodes_used = 30_000;
        }),
        ("room", Look, "100.0 %", |s| {
            s.agent.nodes_used = s.agent.nodes_capacity;
        }),
        ("aged", Bad, "shorter window", |s| {
            s.recordings[0].counters.aged = 400;
        }),
        ("lost", Look, "(40)", |s| s.recordings[0].counters.lost = 40),
        ("overflow", Bad, "more memory", |s| {
            s.recordings[0].counters.overflow = 400;
        }),
        ("late", Look, "(100)", |s| {
            s.recordings[0].counters.late = 100;
        }),
        ("frame pointers", Bad, "(1,000)", |s| {
            s.recordings[0].counters.broken = 1_000;
        }),
        // Of the time it has served, not of the machine's, which may have been up for much longer.
        ("server", Bad, "in 10 min (5.00 %)", |s| {
            s.agent.server_ns = 30_000_000_000;
        }),
        ("server", Look, "at most 11 ms at once", |s| {
            s.agent.server_longest_ns = 11_000_000;
        }),
        ("rejected", Look, "9 with protocol violations", |s| {
            s.agent.peers.malformed = 9;
        }),
    ];
    for (name, verdict, word, spoil) in cases {
        let mut status = recording();
        spoil(&mut status);
        agent_trips(&ask(&agent(), &status), name, verdict, &[word]);
    }
    // One client's work is a large share of an agent's first seconds.
    let mut young = recording();
    young.agent.server_since_ns = young.agent.now_ns - 10_000_000_000;
    young.agent.server_ns = 1_000_000_000;
    let diagnosis = ask(&agent(), &young);
    let server = diagnosis.checks.iter().find(|c| c.name == "server");
    assert_eq!(server.unwrap().verdict, Verdict::Good);
}
