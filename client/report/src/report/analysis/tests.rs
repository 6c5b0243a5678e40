//! Each rule beside a recording that triggers it and one that does not.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;
use unikprof_proto::ring::{Record, SAMPLE_LATE, kind};

use super::*;
use crate::report::uncertainty::LongRun;
use crate::report::{Calls, Direction, Format, FunctionName, Report, ReportOptions, SortBy};
use unikprof_profile::profile::{
    Distribution, Frame, FrameId, Interval, Mode, NodeId, ProfileBuilder, Runstate, SpecialFrame,
    Unit, Unwind, VcpuStats,
};
use unikprof_profile::symbols::{Function, FunctionKind, Names, Symbol, Symbolized};
use unikprof_profile::timeline::{RecordingSpan, Ring};

const SECOND: u64 = 1_000_000_000;
const PERIOD: u64 = SECOND / 1_000;
/// When the recording began.
const BEGAN: u64 = 50 * SECOND;

/// A guest of one vCPU that was recorded for 20 s.
struct Guest {
    /// Moment, whether late, and the functions' names, the innermost first.
    samples: Vec<(u64, bool, Vec<&'static str>)>,
    events: Vec<Record>,
    names: Vec<String>,
    counters: Counters,
    runstate: Runstate,
    /// If true, all that is stolen is stolen in the last second, and the ring lacks the first ns.
    steals_last: bool,
    unwind_table: bool,
    has_ring: bool,
    mode: Mode,
}

impl Guest {
    /// One that is busy for a little less than half of the time, in four functions, a request after
    /// the other at random moments; requests and a queue are told.
    fn healthy() -> Guest {
        let mut guest = Guest::idle();
        let mut random = Rng::with_seed(11);
        let mut at = BEGAN;
        let mut number = 0;
        while at < BEGAN + 20 * SECOND {
            let length = random.u64(2_000_000..9_000_000);
            number += 1;
            guest.counter(at, 1, random.i64(0..9));
            guest.span(at, length, 0, number);
            guest.run(&mut random, at, length, 1.0, &[]);
            at += length + random.u64(..14_000_000);
        }
        guest
    }

    /// One that does nothing.
    fn idle() -> Guest {
        Guest {
            samples: Vec::new(),
            events: Vec::new(),
            names: ["request", "queue", "held"].map(str::to_owned).into(),
            counters: Counters::default(),
            runstate: Runstate {
                running_ns: Some(9 * SECOND),
                runnable_ns: Some(SECOND / 10),
                blocked_ns: Some(11 * SECOND - SECOND / 10),
                offline_ns: Some(0),
            },
            steals_last: false,
            unwind_table: true,
            has_ring: true,
            mode: Mode::Cpu,
        }
    }

    /// Runs from a moment on, for a part of the time; in `inner` below `main`, or in one of four
    /// functions.
    fn run(&mut self, random: &mut Rng, from: u64, length: u64, part: f64, inner: &[&'static str]) {
        let mut at = from;
        loop {
            // Between nothing and twice the period, as the agent draws.
            at += random.u64(..2 * PERIOD);
            if at >= from + length {
                return;
            }
            if random.f64() >= part {
                continue;
            }
            let usual = ["read", "parse", "find", "render"];
            let mut stack = match inner {
                [] => vec![usual[random.usize(..4)]],
                inner => inner.to_vec(),
            };
            stack.extend(["serve", "main"]);
            self.samples.push((at, false, stack));
        }
    }

    fn event(&mut self, kind: u8, at_ns: u64, first: u64, second: u64) {
        self.events.push(Record { kind, at_ns, first, second, third: 0 });
    }

    fn span(&mut self, at: u64, length: u64, name: u64, number: u64) {
        self.event(kind::SPAN_BEGIN, at, name, number);
        self.event(kind::SPAN_END, at + length, name, number);
    }

    fn counter(&mut self, at: u64, name: u64, value: i64) {
        self.event(kind::COUNTER, at, name, value as u64);
    }

    /// What is found, and whatever else a test looks at in the report.
    fn analyze<T>(mut self, look: impl FnOnce(&Analysis, &Report<'_>) -> T) -> T {
        self.samples.sort_by_key(|(at, ..)| *at);
        let mut builder = ProfileBuilder::new();
        let mut known: Vec<&'static str> = Vec::new();
        let mut ring = Ring {
            read_at_ns: BEGAN + 20 * SECOND,
            held_since_ns: if self.steals_last { BEGAN + 1 } else { 0 },
            records: self.events,
            told: vec![(BEGAN, [0; 4]), (BEGAN + 20 * SECOND, times(&self.runstate))],
            ..Ring::default()
        };
        // Told about once a second, as an agent does.
        for second in 1..20 {
            let part = |at: usize| times(&self.runstate)[at] / 20 * second;
            let stolen = if self.steals_last { 0 } else { part(1) };
            ring.told.push((BEGAN + second * SECOND, [part(0), stolen, part(2), part(3)]));
        }
        let mut numbers: HashMap<NodeId, u64> = HashMap::new();
        for (at_ns, is_late, stack) in &self.samples {
            let mut node = NodeId::ROOT;
            for (depth, name) in stack.iter().enumerate().rev() {
                let at = known.iter().position(|k| k == name).unwrap_or_else(|| {
                    known.push(name);
                    known.len() - 1
                });
                let address = 0x1000 * (at as u64 + 1);
                let frame = match *name {
                    "[truncated]" => Frame::Special(SpecialFrame::Truncated),
                    "[broken]" => Frame::Special(SpecialFrame::Broken),
                    "[blocked]" => Frame::Special(SpecialFrame::Blocked),
                    _ if depth == 0 => Frame::leaf(address),
                    _ => Frame::caller(address + 1),
                };
                node = builder.step(node, frame).unwrap();
            }
            if *is_late {
                node = builder.step(node, Frame::Special(SpecialFrame::Late)).unwrap();
            }
            builder.count(0, node, 1);
            let next = numbers.len() as u64 + 1;
            let number = *numbers.entry(node).or_insert(next);
            ring.records.push(Record {
                kind: kind::SAMPLE,
                at_ns: *at_ns,
                first: number,
                second: 1 | if *is_late { SAMPLE_LATE } else { 0 },
                third: 0,
            });
        }
        ring.stacks = numbers.into_iter().map(|(node, number)| (number, node)).collect();
        ring.stacks.sort_unstable();
        let all = self.samples.len() as u64;
        let by_table = (all - self.counters.blocked).saturating_sub(self.counters.by_frame_pointer);
        builder.add_vcpu(VcpuStats {
            counters: Counters {
                ticks: all - self.counters.blocked + self.counters.masked,
                recorded: all - self.counters.blocked,
                late: self.samples.iter().filter(|(_, is_late, _)| *is_late).count() as u64,
                by_table,
                ..self.counters
            },
            runstate: self.runstate,
            elapsed_ns: 20 * SECOND,
            lateness_ns: Some(Distribution::from_values([(3_000, all)])),
            ..VcpuStats::default()
        });
        builder.set_recording(RecordingInfo {
            mode: self.mode,
            period_ns: PERIOD,
            depth: 64,
            elapsed_ns: 20 * SECOND,
            late_threshold_ns: 50_000,
            caller_table: self.unwind_table.then_some(7),
            unwind: Unwind::FramePointers,
            ..RecordingInfo::default()
        });
        let profile = builder.finish();
        let names: BTreeMap<u32, String> = (0..).zip(self.names).collect();
        let timeline = Timeline::new(vec![ring], names, 0);
        let of = RecordingSpan {
            recording: Some(1),
            ring_bit: 0,
            window: Window::new(BEGAN, BEGAN + 20 * SECOND),
        };
        let symbolized = symbolized(&profile, &known);
        let report = Report::new(&symbolized, ReportOptions::default());
        let report = report.with_timeline(self.has_ring.then_some(TimelineView {
            timeline: &timeline,
            of,
            window: of.window,
            seconds: false,
            step_ns: None,
        }));
        look(&Analysis::of(&report), &report)
    }

    /// The one finding, of this rule.
    #[track_caller]
    fn finds(self, rule: &str) -> Finding {
        self.analyze(|analysis, _| {
            let rules: Vec<&str> = analysis.findings.iter().map(|f| f.rule).collect();
            assert_eq!(rules, [rule], "{analysis:#?}");
            analysis.findings[0].clone()
        })
    }

    #[track_caller]
    fn finds_nothing(self) {
        self.analyze(|analysis, _| {
            assert_eq!(analysis.findings, []);
            assert_eq!(analysis.unchecked, []);
            assert_eq!(analysis.quiet.len(), RULES.len());
        });
    }
}

fn times(runstate: &Runstate) -> [u64; 4] {
    [runstate.running_ns, runstate.runnable_ns, runstate.blocked_ns, runstate.offline_ns]
        .map(Option::unwrap_or_default)
}

fn symbolized<'p>(profile: &'p Profile, known: &[&'static str]) -> Symbolized<'p> {
    let mut names = Names::new(profile.frames().len(), 0);
    let image = names.add_image("web.elf", None);
    for id in profile.frame_ids() {
        let begin = names.begin();
        let function = match profile.frame(id) {
            Frame::Special(mark) => {
                let kind = FunctionKind::Special(mark);
                names.intern(Function::new(mark.to_string(), None, kind))
            }
            Frame::Address { address, .. } => {
                names.function(Some(image), known[(address / 0x1000) as usize - 1])
            }
        };
        names.push(Symbol { function, file: None, line: None, inlined: false });
        names.assign(id, begin);
    }
    names.finish(profile, vec![None; profile.frames().len()])
}

#[track_caller]
fn has(finding: &Finding, words: &str) {
    let all = format!("{}\n{}\n{}", finding.finding, finding.evidence.join("\n"), finding.next);
    assert!(all.contains(words), "{words:?} in:\n{all}");
}

#[test]
fn a_healthy_guest_triggers_nothing() {
    Guest::healthy().finds_nothing();
}

#[test]
fn scores_rise_from_notable_by_way_of_severe_to_a_hundred() {
    let scores = [0.1, 0.3, 0.5, 1.0, 1e9].map(|value| score(value, 0.1, 0.5));
    assert_eq!(scores, [25, 50, 75, 88, 100]);
    // Whatever a hostile file holds.
    assert_eq!(score(f64::NAN, 0.1, 0.5), 0);
    assert_eq!(score(f64::INFINITY, 0.1, 0.5), 100);
}

#[test]
fn stolen_time_is_found_from_a_tenth_on() {
    let stolen = |ns| {
        let mut guest = Guest::healthy();
        guest.runstate.runnable_ns = Some(ns);
        guest
    };
    stolen(9 * SECOND / 10).finds_nothing();
    let found = stolen(6 * SECOND).finds("stolen");
    has(&found, "40.0 % of the time the guest wanted to run was stolen");
    has(&found, "work takes 1.7 times as long");
    has(&found, "most of all from");
    assert_eq!(found.windows.len(), 1);
}

/// Guards `from 0.00 s to 1.00 s` where all of it is stolen in the last second.
#[test]
fn the_last_second_counts_where_it_is_not_whole() {
    let mut guest = Guest::healthy();
    guest.steals_last = true;
    guest.runstate = Runstate {
        running_ns: Some(2 * SECOND),
        runnable_ns: Some(9 * SECOND / 10),
        blocked_ns: Some(0),
        offline_ns: Some(0),
    };
    guest.analyze(|analysis, _| {
        let found = analysis.findings.iter().find(|finding| finding.rule == "stolen").unwrap();
        has(found, "most of all from 19.00 s to 20.00 s: 90.0 %");
    });
}

#[test]
fn a_platform_that_tells_no_stolen_time_is_said_so() {
    let mut guest = Guest::healthy();
    guest.runstate.runnable_ns = None;
    guest.analyze(|analysis, _| {
        assert_eq!(analysis.findings, []);
        assert_eq!(analysis.unchecked.len(), 1);
        assert_eq!(analysis.unchecked[0].rule, "stolen");
    });
}

#[test]
fn masked_time_is_found_where_more_than_a_hundredth_waited() {
    let masked = |late_of: usize, masked| {
        let mut guest = Guest::healthy();
        for sample in guest.samples.iter_mut().step_by(late_of) {
            sample.1 = true;
            sample.2 = vec!["irq_restore", "main"];
        }
        guest.counters.masked = masked;
        guest
    };
    // About 9,000 samples: 0.5 %, and then 4 % and another 1 %.
    masked(200, 0).finds_nothing();
    let found = masked(25, 90).finds("masked");
    has(&found, "of the running time interrupts had to wait");
    has(&found, "came while events were masked");
    has(&found, "arrived in irq_restore (100.0 %)");
    assert!(found.score >= 70, "{found:?}");
}

#[test]
fn load_in_lockstep_is_found_by_its_period() {
    let pulses = |random_phase: bool| {
        let mut guest = Guest::idle();
        let mut random = Rng::with_seed(4);
        for pulse in 0..100 {
            let jitter = if random_phase { random.u64(..SECOND / 5) } else { 0 };
            let at = BEGAN + pulse * SECOND / 5 + jitter;
            guest.run(&mut random, at, SECOND / 20, 1.0, &[]);
        }
        guest
    };
    let found = pulses(false).finds("lockstep");
    has(&found, "of the load comes in one half of every 200");
    has(&found, "the vCPUs have work for");
    // The same load at random moments; it must not be a burst either.
    pulses(true).finds_nothing();
}

/// A load of a hundredth in lockstep harms nobody.
#[test]
fn a_small_load_in_lockstep_is_not_worth_a_word() {
    let mut guest = Guest::idle();
    let mut random = Rng::with_seed(4);
    for pulse in 0..100 {
        guest.run(&mut random, BEGAN + pulse * SECOND / 5, SECOND / 20, 0.15, &[]);
    }
    guest.finds_nothing();
}

#[test]
fn truncated_stacks_are_found_with_what_recurs() {
    let truncated = |every: usize| {
        let mut guest = Guest::healthy();
        for sample in guest.samples.iter_mut().step_by(every) {
            sample.2 = vec!["walk", "walk", "walk", "step", "walk", "[truncated]"];
            guest.counters.truncated += 1;
        }
        guest
    };
    truncated(150).finds_nothing();
    let found = truncated(20).finds("callers");
    has(
        &found,
        "stacks deeper than 64 frames, whose outer frames are cut, in 5.0 % of the samples",
    );
    has(&found, "`walk` is on such a stack 4 times: it calls itself");
}

#[test]
fn guessed_callers_are_found_from_a_tenth_on() {
    let guessed = |part: u64| {
        let mut guest = Guest::healthy();
        guest.counters.by_frame_pointer = guest.samples.len() as u64 * part / 100;
        guest.unwind_table = false;
        guest
    };
    guessed(9).finds_nothing();
    let found = guessed(97).finds("callers");
    has(&found, "no caller table: 9");
    has(&found, "use --image, not --no-caller-table");
    assert!(found.score > 75, "{found:?}");
}

#[test]
fn a_burst_is_found_with_its_time_and_what_runs_in_it() {
    let with_burst = |length| {
        let mut guest = Guest::healthy();
        let mut random = Rng::with_seed(2);
        guest.run(&mut random, BEGAN + 12 * SECOND, length, 1.0, &["merge", "compact"]);
        guest
    };
    let found = with_burst(3 * SECOND / 2).finds("burst");
    has(&found, "12.0");
    has(&found, "`merge` has");
    assert_eq!(found.functions, ["merge"]);
    let [window] = found.windows[..] else {
        panic!("{found:?}");
    };
    assert!((11 * SECOND..=12 * SECOND + SECOND / 4).contains(&window.from_ns), "{window:?}");
    assert!((13 * SECOND..=14 * SECOND).contains(&window.to_ns), "{window:?}");
    // What is too short to matter.
    with_burst(SECOND / 50).finds_nothing();
}

/// The load stays the same, but for a while all of it is one function.
#[test]
fn a_function_that_displaces_others_for_a_while_is_a_burst() {
    let mut guest = Guest::healthy();
    let during = BEGAN + 5 * SECOND..BEGAN + 7 * SECOND;
    for (at, _, stack) in &mut guest.samples {
        if during.contains(at) {
            *stack = vec!["sweep", "collect", "main"];
        }
    }
    let found = guest.finds("burst");
    has(&found, "`sweep` has 0.4");
    has(&found, "100.0 % of the samples in them, 0.0 % elsewhere");
}

/// What serves requests has most of the time in a guest that is as it should be.
#[test]
fn an_event_loop_is_no_dominating_function() {
    let mut guest = Guest::healthy();
    let mut random = Rng::with_seed(3);
    for (.., stack) in &mut guest.samples {
        *stack = match random.u32(..10) {
            0 => vec!["poll_timers", "main"],
            1 => vec!["poll_network", "main"],
            _ => {
                let leaf = stack[0];
                vec![leaf, "handle", "serve", "main"]
            }
        };
    }
    guest.finds_nothing();
}

#[test]
fn a_span_with_a_long_tail_is_found_with_what_runs_in_it() {
    let tail = |slow_of: u64, length: u64| {
        let mut guest = Guest::healthy();
        let mut random = Rng::with_seed(2);
        for number in 0..400 {
            let at = BEGAN + number * SECOND / 20;
            let is_slow = number % slow_of == slow_of / 2;
            let length = if is_slow { length } else { random.u64(200_000..400_000) };
            guest.span(at, length, 2, 10_000 + number);
            if is_slow {
                guest.samples.retain(|(sampled, ..)| !(at..at + length).contains(sampled));
                guest.run(&mut random, at, length, 1.0, &["fsync", "flush"]);
            }
        }
        guest
    };
    // 2 %, thirty times as long.
    let found = tail(50, 9_000_000).finds("slow span");
    has(&found, "the p99 of `held` is 9 ms");
    has(&found, "8 of 400 took at least 20 times the p50");
    has(&found, "what runs in the slow ones: `fsync` 100.0 %");
    has(&found, "`fsync` has 100.0 % of their samples, and 0.0 % of the others'");
    has(&found, "--in-span 'held'");
    assert_eq!(found.windows.len(), 8);
    // As long as that, but half of a hundredth; and 2 %, ten times as long.
    tail(200, 9_000_000).finds_nothing();
    tail(50, 3_000_000).finds_nothing();
}

/// Requests of one kind are served side by side: the time in which two of them are open passes
/// once, and only code that ran for them is theirs.
#[test]
fn slow_spans_that_overlap_have_the_code_that_ran_for_them() {
    let found = |enters: bool| {
        let mut guest = Guest::idle();
        let mut random = Rng::with_seed(5);
        for number in 0..400 {
            let at = BEGAN + number * SECOND / 20;
            let is_slow = number % 50 == 25;
            guest.span(at, if is_slow { 9_000_000 } else { 300_000 }, 2, number);
            if is_slow {
                for other in 1..4 {
                    guest.span(at + other, 9_000_000, 2, 1_000 * other + number);
                }
                let before = guest.samples.len();
                guest.run(&mut random, at, 9_000_000, 1.0, &[]);
                for ran in before..guest.samples.len() {
                    let at = guest.samples[ran].0;
                    if enters && ran % 2 == 0 {
                        guest.event(kind::ENTERED, at, 2, 2_000 + number);
                    }
                }
            }
        }
        guest.analyze(|analysis, _| {
            let found = analysis.findings.iter().find(|f| f.rule == "slow span");
            found.unwrap().clone()
        })
    };
    let unknown = found(false);
    has(&unknown, "what runs in the slow ones is not known");
    assert!(!unknown.figures.contains_key("running_share"));
    let Figure::Real(share) = found(true).figures["running_share"] else {
        panic!("{:?}", found(true));
    };
    assert!((0.35..0.65).contains(&share), "{share}");
}

/// Each address would be a function of its own.
#[test]
fn without_names_no_rule_judges_functions() {
    let mut builder = ProfileBuilder::new();
    for address in 0..10 {
        let stack = [Frame::leaf(0x1000 + address), Frame::caller(0x2000)];
        builder.add_stack(0, 1_000, &stack).unwrap();
    }
    let profile = builder.finish();
    let symbolizer =
        unikprof_profile::symbols::Symbolizer::new(unikprof_profile::symbols::Images::default());
    let symbolized = symbolizer.resolve(&profile).unwrap();
    let analysis = Analysis::of(&Report::new(&symbolized, ReportOptions::default()));
    assert_eq!(analysis.findings, []);
    let unnamed = analysis.unchecked.iter().filter(|u| u.why == NO_NAMES);
    let rules: Vec<&str> = unnamed.map(|u| u.rule).collect();
    assert_eq!(rules, ["dominating function", "memory"]);
}

#[test]
fn a_function_with_most_of_the_time_is_found() {
    let with = |part: f64, stack: &[&'static str]| {
        let mut guest = Guest::healthy();
        let mut random = Rng::with_seed(2);
        for (.., of) in &mut guest.samples {
            if random.f64() < part {
                *of = stack.to_vec();
            }
        }
        guest
    };
    let own = ["spin", "serve", "main"];
    let found = with(0.7, &own).finds("dominating function");
    has(&found, "`spin` itself takes 7");
    // By what it calls in a library, which is spread over many functions there.
    let in_library =
        ["regex::compile", "regex::new", "shop::is_spam", "shop::moderate", "serve", "main"];
    let mut guest = with(0.6, &in_library);
    let mut random = Rng::with_seed(3);
    for (.., stack) in &mut guest.samples {
        if stack[0] == "regex::compile" {
            stack[0] = ["regex::compile", "regex::escape", "regex::optimize"][random.usize(..3)];
        }
    }
    let found = guest.finds("dominating function");
    has(&found, "`shop::is_spam` and what it calls take 6");
    has(&found, "most of it is in `regex::new`");
    assert_eq!(found.functions, ["shop::is_spam"]);
    with(0.45, &own).finds_nothing();
}

/// A guest in wall mode, whose `flush` waits in so many of a hundred samples, and whose main loop
/// waits for work in 35 others.
fn waiting(percent: usize) -> Guest {
    let mut guest = Guest::healthy();
    guest.mode = Mode::Wall;
    for (at, (.., stack)) in guest.samples.iter_mut().enumerate() {
        match at % 100 {
            at if at < percent => {
                *stack = vec!["[blocked]", "__nanosleep", "std::thread::sleep", "disk::flush"];
                stack.extend(["handle", "serve", "main"]);
            }
            at if at < percent + 35 => *stack = vec!["[blocked]", "poll", "serve", "main"],
            _ => {}
        }
    }
    guest
}

/// Guards an accusation of whoever waits: threads wait for work, and schedulers for all of them.
#[test]
fn no_function_is_guilty_of_waits() {
    waiting(60).finds_nothing();
}

/// Guards rows and findings that are taken for the way to the work because most stacks lack their
/// outer frames.
#[test]
fn what_truncated_stacks_have_in_common_is_no_way_to_the_work() {
    let mut guest = Guest::healthy();
    for (at, (.., stack)) in guest.samples.iter_mut().enumerate() {
        *stack = match at % 100 {
            at if at < 10 => vec!["parse", "handle", "main"],
            at if at < 70 => vec!["hash", "shop::is_spam", "[truncated]"],
            _ => vec!["parse", "handle", "[truncated]"],
        };
    }
    guest.analyze(|_, report| {
        let table = report.functions();
        let (shared, _) = table.in_order(SortBy::Total, |_| false);
        let shared: Vec<&str> = shared.iter().map(|row| &*row.text).collect();
        assert!(!shared.contains(&"shop::is_spam"), "{shared:?}");
    });
}

/// Guards a table by self that begins with functions that do nothing themselves.
#[test]
fn nothing_is_folded_by_self() {
    let mut guest = Guest::healthy();
    for (.., stack) in &mut guest.samples {
        stack.extend(["run", "boot"]);
    }
    guest.analyze(|_, report| {
        let shared = |sort| report.functions().in_order(sort, |_| false).0.len();
        assert_ne!(shared(SortBy::Total), 0);
        assert_eq!(shared(SortBy::Own), 0);
    });
}

/// Guards a headline of a function with 0.0 % where only waits are shown.
#[test]
fn what_is_shown_of_waits_alone_is_called_blocked() {
    waiting(0).analyze(|_, report| {
        let focus = Some("blocked".parse().unwrap());
        let options = ReportOptions { focus, ..ReportOptions::default() };
        let mut text = Vec::new();
        Report::new(report.symbolized, options).write(Format::Text, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("what takes the time\n  blocked for 35.1 % ("), "{text}");
    });
}

/// Guards advice that cannot be pasted: a shell would take parts of a name as its own signs.
#[test]
fn advice_names_the_function_as_a_shell_takes_it() {
    for (name, argument) in [
        ("shop::is_spam", "shop::is_spam"),
        ("<a::B as c::D>::e", "'<a::B as c::D>::e'"),
        ("it's", "'it'\\''s'"),
    ] {
        let mut guest = Guest::healthy();
        for (.., stack) in &mut guest.samples {
            *stack = vec![name, "serve", "main"];
        }
        let found = guest.finds("dominating function");
        has(&found, &format!("`report --annotate {argument}`"));
        has(&found, &format!("`report --callers {argument}`"));
    }
}

/// Guards two shares of one recording: its broken stacks are a part of all samples, waits included,
/// in the report's warnings as in `doctor`.
#[test]
fn broken_stacks_are_a_share_of_all_samples() {
    let mut guest = waiting(0);
    for (.., stack) in guest.samples.iter_mut().skip(40).step_by(50) {
        *stack = vec!["parse", "[broken]"];
    }
    // Of ticks, as the agent counts; waits are none.
    let all = guest.samples.len() as u64;
    guest.counters.blocked = all / 2;
    guest.counters.broken = all / 50;
    guest.analyze(|_, report| {
        let warnings = report.warnings();
        let told = warnings.iter().find(|it| it.starts_with("broken stacks")).unwrap();
        assert!(told.contains("in 2.0 % of the samples"), "{told}");
        let mut text = Vec::new();
        report.write_in_full(Format::Text, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find(|line| line.starts_with("  broken ")).unwrap();
        assert!(line.contains("  2.0 %  "), "{line}");
    });
}

/// Guards a function that is not found because two libraries share what it calls, and a thread's
/// start that is found instead where stacks lack their outer frames.
#[test]
fn what_a_function_calls_may_be_in_several_libraries() {
    let with = |percent: usize, samples: usize| {
        let mut guest = Guest::healthy();
        guest.samples.truncate(samples);
        for (at, (.., stack)) in guest.samples.iter_mut().enumerate() {
            let library = ["serde::parse", "serde::parse", "regex::find"][at % 3];
            if at % 100 < percent {
                *stack = vec![library, "shop::is_spam", "shop::moderate"];
            }
            let outer = match at % 10 {
                0 => &["[truncated]"][..],
                _ => &["run::serve", "std::thread::start"],
            };
            stack.extend(outer);
        }
        guest
    };
    let found = with(60, usize::MAX).analyze(|analysis, _| {
        let found = analysis.findings.iter().find(|found| found.rule == "dominating function");
        found.unwrap().clone()
    });
    has(&found, "`shop::is_spam` and what it calls take ");
    // Half of the samples, but maybe not of the time; also where half is in one function that it
    // calls.
    let mut chained = with(54, 500);
    for (.., stack) in &mut chained.samples {
        if let Some(at) = stack.iter().position(|name| *name == "shop::is_spam") {
            stack.insert(at, "serde::visit_map");
        }
    }
    for guest in [with(52, 500), chained] {
        guest.analyze(|analysis, report| {
            assert!(analysis.findings.iter().all(|it| it.rule != "dominating function"));
            let mut text = Vec::new();
            analysis.write_answer(report, &[], &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("most is in `shop::is_spam` and what it calls: 5"), "{text}");
        });
    }
}

#[test]
fn memory_that_takes_a_quarter_of_the_time_is_found() {
    let with = |part: f64, inner: &[&'static str]| {
        let mut guest = Guest::healthy();
        let mut random = Rng::with_seed(2);
        for (.., stack) in &mut guest.samples {
            if random.f64() < part {
                let outer = std::mem::take(stack);
                *stack = inner.iter().copied().chain(outer).collect();
            }
        }
        guest
    };
    let copies = ["__memcpy_avx_unaligned_erms", "core::slice::copy_from_slice"];
    let found = with(0.35, &copies).finds("memory");
    has(&found, "copying and clearing memory takes 3");
    has(&found, "by `__memcpy_avx_unaligned_erms` 100.0 %");
    has(&found, "for `");
    let allocation = ["_int_malloc", "malloc", "alloc::raw_vec::finish_grow"];
    let found = with(0.35, &allocation).finds("memory");
    has(&found, "allocating and freeing memory takes 3");
    has(&found, "by `malloc` 100.0 %");
    assert!(!found.functions[0].starts_with("alloc::"), "{found:?}");
    with(0.2, &copies).finds_nothing();
    with(0.2, &allocation).finds_nothing();
    // A copy as a part of an allocation counts once.
    let growing = ["memcpy", "realloc", "alloc::raw_vec::finish_grow"];
    has(&with(0.35, &growing).finds("memory"), "allocating");
}

#[test]
fn a_counter_that_only_rises_is_found() {
    let counted = |value: fn(i64) -> i64| {
        let mut guest = Guest::healthy();
        for step in 0..100 {
            guest.counter(BEGAN + step as u64 * SECOND / 5, 2, value(step));
        }
        guest
    };
    let found = counted(|step| 40 + step * 3).finds("rising counter");
    has(&found, "`held` only rises: from 40 to 337 in 20.0 s");
    has(&found, "rises by 14.8 a second, 99 times in all");
    assert_eq!(found.score, 25, "it never stands above a function");
    // One that falls once, one that has risen and stays, and one that rises seldom.
    counted(|step| if step == 70 { 0 } else { step }).finds_nothing();
    counted(|step| step.min(60)).finds_nothing();
    counted(|step| step / 20).finds_nothing();
}

/// Guards a function with nearly all samples that is not found, since each is of something inlined
/// into it.
#[test]
fn what_is_inlined_into_a_function_is_its_own_work() {
    let mut builder = ProfileBuilder::new();
    for (address, count) in [(0x1000, 300), (0x1010, 690), (0x2000, 10)] {
        let stack = [Frame::leaf(address), Frame::caller(0x3000)];
        builder.add_stack(0, count, &stack).unwrap();
    }
    let profile = builder.finish();
    let mut names = Names::new(profile.frames().len(), 0);
    for (at, frame) in profile.frames().iter().enumerate() {
        let begin = names.begin();
        let symbols: &[&str] = match frame.lookup_address() {
            Some(0x1000) => &["core::iter::fold", "checksum"],
            Some(0x1010) => &["<u64>::wrapping_add", "checksum"],
            Some(0x2000) => &["print"],
            _ => &["main"],
        };
        for (depth, name) in symbols.iter().enumerate() {
            let function = names.function(None, name);
            let inlined = depth + 1 < symbols.len();
            names.push(Symbol { function, file: None, line: None, inlined });
        }
        names.assign(FrameId(at as u32), begin);
    }
    let symbolized = names.finish(&profile, vec![None; profile.frames().len()]);
    let analysis = Analysis::of(&Report::new(&symbolized, ReportOptions::default()));
    let found = &analysis.findings[0];
    assert!(found.finding.starts_with("`checksum` itself takes 99.0 % ("), "{found:?}");
}

/// Guards `requests served` above the function that takes the time.
#[test]
fn a_counter_of_work_that_was_done_is_no_finding() {
    for (name, is_found) in [("requests served", false), ("queue_length", true)] {
        let mut guest = Guest::healthy();
        guest.names[2] = name.to_owned();
        for step in 0..100 {
            guest.counter(BEGAN + step as u64 * SECOND / 5, 2, step);
        }
        guest.analyze(|analysis, _| {
            assert_eq!(!analysis.findings.is_empty(), is_found, "{name}: {analysis:#?}");
        });
    }
}

/// Guards a false alarm for a counter whose rate is constant, in steps of one or many.
#[test]
fn a_counter_of_work_is_found_where_its_rate_changes() {
    let found = |seed: u64, batch: i64, pause: fn(u64) -> u64| {
        let mut guest = Guest::idle();
        guest.names[2] = "requests served".to_owned();
        let mut random = Rng::with_seed(seed);
        let (mut at, mut value) = (0, 0);
        loop {
            // Exponential, so that the counts are Poisson's.
            at += (-random.f64().max(1e-9).ln() * pause(at) as f64) as u64;
            if at >= 20 * SECOND {
                let is_it = |found: &&Finding| found.rule == "rising counter";
                return guest.analyze(|analysis, _| -> Vec<Finding> {
                    analysis.findings.iter().filter(is_it).cloned().collect()
                });
            }
            value += random.i64(1..=batch);
            guest.counter(BEGAN + at, 2, value);
        }
    };
    for seed in 0..40 {
        for batch in [1, 1_000] {
            assert_eq!(found(seed, batch, |_| SECOND / 50), [], "{seed}, {batch}");
        }
        // Seldom, and now and then.
        assert_eq!(found(seed, 1, |_| 2 * SECOND), [], "{seed}");
    }
    let slower = found(1, 1, |at| if at < 13 * SECOND { SECOND / 100 } else { SECOND / 25 });
    let [slower] = &slower[..] else { panic!("{slower:#?}") };
    has(slower, "`requests served` rises by 25.5 a second since 13.3 s, by 97.0 before");
    assert_eq!(slower.score, 25, "it never stands above a function");
    let begun = found(1, 1, |at| if at < 8 * SECOND { SECOND } else { SECOND / 100 });
    assert_eq!(begun.len(), 1, "{begun:#?}");
}

/// What takes the time comes first, a line each; a recording without such a function names the one
/// with the most.
#[test]
fn the_answer_is_at_most_three_lines() {
    let answer = |guest: Guest, warnings: &[String]| {
        guest.analyze(|analysis, report| {
            let mut text = Vec::new();
            // Of the page and JSON, too.
            assert!(analysis.findings.is_sorted_by_key(|finding| !finding.is_of_code()));
            let options = ReportOptions { columns: Some(80), ..ReportOptions::default() };
            let narrow = Report::new(report.symbolized, options);
            analysis.write_answer(&narrow, warnings, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        })
    };
    let healthy = answer(Guest::healthy(), &[]);
    assert!(healthy.contains("the most of its own has `"), "{healthy}");
    let spinning = || {
        let mut guest = Guest::healthy();
        guest.runstate.runnable_ns = Some(40 * SECOND);
        for (at, (.., stack)) in guest.samples.iter_mut().enumerate() {
            if at % 5 != 0 {
                *stack = vec!["the_guest::a_module::of_many_more::a_function_that_spins", "main"];
            }
        }
        guest
    };
    let text = answer(spinning(), &[]);
    let [_, _, function, stolen] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
    assert!(function.contains("a_function_that_spins` itself takes 80.0 % ("), "{text}");
    assert!(function.chars().count() <= 80, "{text}");
    assert!(stolen.ends_with("stolen"), "{text}");
    let name = function.split('`').nth(1).unwrap();
    spinning().analyze(|_, report| {
        let options = ReportOptions { columns: Some(80), ..ReportOptions::default() };
        let mut text = Vec::new();
        Report::new(report.symbolized, options).write(Format::Text, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(&format!("  {name}\n")), "the table has another name: {text}");
    });
    // A warning tells it.
    let warnings = spinning().analyze(|_, report| report.warnings());
    assert_eq!(answer(spinning(), &warnings).lines().count(), 3, "{warnings:?}");
}

#[test]
fn what_cannot_be_checked_is_said_with_its_reason() {
    let mut guest = Guest::healthy();
    guest.has_ring = false;
    guest.analyze(|analysis, _| {
        let rules: Vec<&str> = analysis.unchecked.iter().map(|u| u.rule).collect();
        assert_eq!(rules, ["lockstep", "burst", "slow span", "rising counter"]);
        assert!(analysis.unchecked[0].why.contains("give the agent memory for a ring"));
        let mut text = Vec::new();
        analysis.write(Some(1000), None, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches("not checked: ").count(), 1, "one reason: {text}");
        assert!(
            text.contains("not checked: lockstep, burst, slow span, rising counter: "),
            "{text}"
        );
    });
    Guest::idle().analyze(|analysis, _| {
        assert_eq!(analysis.findings, []);
        let empty = analysis.unchecked.iter().filter(|u| [FEW, EMPTY].contains(&u.why));
        assert_eq!(empty.count(), 7, "{analysis:#?}");
    });
    let mut guest = Guest::healthy();
    guest.mode = Mode::OffCpu;
    guest.analyze(|analysis, _| {
        let why = analysis.unchecked.iter().filter(|u| u.why == NOT_SAMPLED);
        assert_eq!(why.count(), 3, "{analysis:#?}");
    });
}

/// Names of the guest must not write to the terminal, nor into a command that a reader copies.
#[test]
fn hostile_names_are_shown_as_text() {
    let mut guest = Guest::healthy();
    guest.names[2] = "a\x1b[2J'; halt \u{202e}".to_owned();
    for number in 0..200 {
        let length = if number % 20 == 0 { 9_000_000 } else { 100_000 };
        guest.span(BEGAN + number * SECOND / 10, length, 2, 10_000 + number);
        guest.counter(BEGAN + number * SECOND / 10, 2, number as i64);
    }
    for (.., stack) in &mut guest.samples {
        if stack[0] == "read" || stack[0] == "find" || stack[0] == "parse" {
            stack[0] = "\x1b]0;owned\x07";
        }
    }
    guest.analyze(|analysis, _| {
        assert!(analysis.findings.len() >= 2, "{analysis:#?}");
        let mut text = Vec::new();
        analysis.write(Some(100), None, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
        assert!(!text.contains('\u{202e}'), "{text}");
        assert!(text.contains("\\u{1b}[2J"), "{text}");
        assert!(!text.contains("--in-span"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    });
}

/// Guards a count of rules below zero: more rules are unchecked than there are rules about time.
#[test]
fn the_summary_counts_the_rules_that_were_checked() {
    let unchecked = |rule| Unchecked { rule, why: HEAP };
    let mut of_allocations = Analysis {
        most: None,
        findings: Vec::new(),
        quiet: heap::RULES.map(|(rule, _)| rule).to_vec(),
        unchecked: RULES.map(|(rule, _)| unchecked(rule)).to_vec(),
    };
    assert_eq!(of_allocations.summary(), "analysis of the guest: none of 2 rules found anything");
    let quiet = std::mem::take(&mut of_allocations.quiet);
    of_allocations.unchecked.extend(quiet.into_iter().map(unchecked));
    assert_eq!(of_allocations.summary(), "analysis of the guest: no rule could be checked");
}

#[test]
fn text_and_json_tell_the_same() {
    let mut guest = Guest::healthy();
    guest.runstate.runnable_ns = Some(6 * SECOND);
    guest.analyze(|analysis, report| {
        let mut text = Vec::new();
        analysis.write(None, None, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("1 finding of 9 rules"), "{text}");
        assert!(text.contains("\n   63  stolen                40.0 % of the time"), "{text}");
        assert!(text.contains("nothing found by: masked, lockstep, callers"), "{text}");
        let mut json = Vec::new();
        report.write(Format::Json, &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert!(json["analysis"].is_null(), "it was not asked for");
        let json = serde_json::to_value(analysis).unwrap();
        assert_eq!(json["findings"][0]["rule"], "stolen");
        assert_eq!(json["findings"][0]["score"], 63);
        assert_eq!(json["findings"][0]["figures"]["stolen_share"], 0.4);
        assert_eq!(json["quiet"].as_array().unwrap().len(), 8);
    });
}

/// Recordings of a process that is in one of two phases at a time. The interval of a recording's
/// share is to hold what ran while it was recorded, and that of the long run what the process does.
/// Guards intervals that hold both, three times as wide, and say of neither that they do.
#[test]
fn intervals_of_a_recording_and_of_the_long_run_hold_what_they_are_of() {
    let (mut of_itself, mut of_process, mut told) = (0, 0, 0);
    for seed in 0..100 {
        let mut random = Rng::with_seed(seed);
        let mut guest = Guest::idle();
        let (mut at, mut hot) = (BEGAN, 0.0);
        let end = BEGAN + 20 * SECOND;
        while at < end {
            let until = end.min(at + random.u64(SECOND / 20..SECOND / 3));
            let part = if random.bool() { 0.6 } else { 0.3 };
            hot += part * (until - at) as f64;
            let from = at;
            while at < until {
                let stack = if random.f64() < part { "hot" } else { "cold" };
                guest.samples.push((at, false, vec![stack, "main"]));
                at += random.u64(..8 * PERIOD);
            }
            at = at.max(from + 1);
        }
        let own = hot / (20 * SECOND) as f64;
        guest.analyze(|_, report| {
            let table = report.functions();
            let row = table.rows.iter().find(|row| row.text == "hot").unwrap();
            let interval = row.own_share;
            assert!(interval.high - interval.low < 0.03, "{interval:?}");
            of_itself += u32::from((interval.low..=interval.high).contains(&own));
            let Some(LongRun { row, share, .. }) = table.long_run else { return };
            told += 1;
            let mut text = Vec::new();
            report.write(Format::Text, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(text.contains("another recording may differ by more: in the long run `"));
            assert_eq!(row, 0);
            let truth = if table.rows[0].text == "hot" { 0.45 } else { 0.55 };
            of_process += u32::from((share.low..=share.high).contains(&truth));
        });
    }
    assert!((90..=99).contains(&of_itself), "{of_itself}");
    assert!(told >= 95, "{told}");
    assert!(of_process * 100 >= told * 90 && of_process < told, "{of_process} of {told}");
}

/// `parse` calls `work` for most of the first half, and others call it in the second: only a total
/// comes in bursts. Guards views that show intervals and do not say so.
#[test]
fn totals_that_come_in_bursts_are_told_wherever_intervals_are() {
    let mut random = Rng::with_seed(3);
    let mut guest = Guest::idle();
    let mut at = BEGAN;
    while at < BEGAN + 20 * SECOND {
        let part = if at < BEGAN + 10 * SECOND { 0.8 } else { 0.1 };
        let caller = if random.f64() < part { "parse" } else { "print" };
        guest.samples.push((at, false, vec!["work", caller, "main"]));
        at += random.u64(1..8 * PERIOD);
    }
    let line = "another recording may differ by more: in the long run `p";
    guest.analyze(|_, report| {
        let mut json = Vec::new();
        report.write(Format::Json, &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let found = &json["long_run"];
        let [low, high] = [0, 1].map(|end| found["interval"][end].as_f64().unwrap());
        assert!(found["function"].as_str().unwrap().starts_with('p'), "{found}");
        assert!(found["of"] == "total" && low < 0.4 && high > 0.5, "{found}");
        let name: FunctionName = "work".parse().unwrap();
        let calls = Calls::of(report, &name, Direction::Callers).unwrap();
        let mut callers = Report::new(report.symbolized, ReportOptions::default());
        callers.view = report.view;
        let mut text = Vec::new();
        for report in [report, &callers.with_calls(calls)] {
            report.write(Format::Text, &mut text).unwrap();
        }
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.matches(line).count(), 2, "{text}");
        assert!(text.contains("` with what it calls has "), "{text}");
    });
}

/// Guards an answer that is surer than the table below it.
#[test]
fn a_share_of_all_samples_is_not_known_to_be_all() {
    let all = Interval::wilson(100_000, 100_000);
    assert_eq!(text::with_interval(&all, Unit::Samples), "100.0 % (99.9 to 100.0)");
}
