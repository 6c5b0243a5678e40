//! Checks that the samples are complete, on time, enough and cheap.

use std::collections::HashMap;

use super::check::{Check, Verdict, part_of};
use crate::report::FunctionTable;
use crate::report::marks;
use crate::report::stack_warnings::{UNMASK_OR_STALL, where_late};
use crate::report::uncertainty::Unplaced;
use crate::report::warnings::{
    BLOCKED_APART, COSTLY, Costs, LESS_LOCKED, LESS_STEAL, STILL_CORRECT, STOLEN, is_off_rate,
    stolen_words,
};
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::profile::{
    Came, Counters, Interval, Mode, Profile, RecordingInfo, Runstate, SampledTime, Unit,
};
use unikprof_profile::recording::Recording;
use unikprof_profile::symbols::Symbolized;
use unikprof_profile::units::{duration, grouped, percent};

/// Shares of samples that are missing or late which are worth a look, and bad.
const LOOK: f64 = 0.01;
const BAD: f64 = 0.05;

/// How far from the asked rate is bad.
const OFF_RATE: f64 = 0.2;

/// With fewer samples than this even a function of half the time is known to ±10 points only.
const FEW: u64 = 100;

/// Half the width of an interval, for whatever reason, that is worth a look, and that is bad.
const WIDE: f64 = 0.10;
const TOO_WIDE: f64 = 0.20;

pub(super) fn of_recording(
    recording: &Recording,
    symbolized: &Symbolized<'_>,
    table: &FunctionTable,
) -> Vec<Check> {
    let profile = &recording.profile;
    let info = profile.recording();
    let counters = profile.counters();
    let mut checks = vec![enough(profile, table)];
    let sampled = info.mode != Mode::OffCpu;
    if sampled {
        checks.push(interval(info.fixed_interval));
        checks.push(lost(&counters, "ticks"));
    }
    checks.push(aged(&counters, "ticks"));
    checks.push(overflow(&counters, memory_that_would_do(profile, &recording.agent)));
    if sampled {
        checks.push(masked(&counters));
        let under = where_late(&marks::late_under(symbolized));
        checks.push(late(&counters, info.late_threshold_ns, under));
        checks.push(stolen(&profile.runstate()));
    }
    if !sampled && profile.runstate().blocked_ns.is_some() {
        checks.extend(counters.missing_blocked.map(|missing_ns| waits(profile, missing_ns)));
    }
    // Rings tell of the samples alone, and what they have of a guest that crashed is all there will
    // be.
    if info.ring.is_none() {
        checks.push(overhead(profile));
        checks.push(reachable(&recording.agent));
    }
    checks
}

fn enough(profile: &Profile, table: &FunctionTable) -> Check {
    let (counters, info) = (profile.counters(), profile.recording());
    let counted = table.recorded;
    if info.unit() == Unit::Nanoseconds {
        let check = match counters.blocks {
            0 => Check::new("enough", Verdict::Bad, "the guest never blocked")
                .advise("record for longer, or use mode cpu if the guest is busy"),
            blocks => Check::new(
                "enough",
                Verdict::Good,
                format!("{} blocked in {} waits, measured", duration(counted), grouped(blocks)),
            ),
        };
        return check.count("blocks", counters.blocks);
    }
    // A function of a tenth of the time, as an example that says what the number means.
    let example = Interval::wilson(counted / 10, counted);
    let example = match Unplaced::of(profile) {
        None => example,
        Some(unplaced) => unplaced.widen(example, counted, 0),
    };
    let half_width = |interval: &Interval| (interval.high - interval.low) / 2.0;
    let half = half_width(&example) * 100.0;
    let own = table.rows.iter().map(|row| half_width(&row.own_share));
    let in_recording = own.fold(half_width(&example), f64::max);
    let long_run = table.long_run.map_or(0.0, |found| half_width(&found.share));
    let widest = in_recording.max(long_run);
    let finding = format!(
        "{} samples: the share of a function with 10 % is accurate to about ±{half:.1} points",
        grouped(counted)
    );
    let seconds = (info.elapsed_ns / counted.max(1)).saturating_mul(FEW).div_ceil(1_000_000_000);
    let enough_ns = seconds.saturating_mul(1_000_000_000);
    let check = if counted == 0 {
        Check::new("enough", Verdict::Bad, "no samples: the guest did not run")
            .advise("record for longer")
    } else if counted < FEW && info.ring.is_some() {
        Check::new("enough", Verdict::Look, finding)
            .advise("give the agent a larger ring, or sample at a higher rate")
    } else if counted < FEW {
        Check::new("enough", Verdict::Bad, finding)
            .advise(format!("record for longer: {}", duration(enough_ns)))
    } else if widest > WIDE {
        let verdict = if widest > TOO_WIDE { Verdict::Bad } else { Verdict::Look };
        let (of, advice) = if widest > in_recording {
            (" in the long run", "the samples come in bursts: record for longer to cover more")
        } else {
            (
                "",
                "the interval includes the worst-case effect of missing and late samples: see \
                 those checks",
            )
        };
        let finding =
            format!("{finding}; the widest interval{of} is ±{:.1} points", widest * 100.0);
        Check::new("enough", verdict, finding).advise(advice)
    } else {
        Check::new("enough", Verdict::Good, finding)
    };
    check.count("samples", counted)
}

/// Whether as many samples came as the time stands for, of each kind of time for itself: the only
/// checks that do not use the agent's own sums.
pub(super) fn rates(counters: &Counters, info: &RecordingInfo) -> Vec<Check> {
    let Some(asked) = info.rate_hz() else {
        let finding = "the recording does not contain the requested rate";
        return vec![Check::new("rate", Verdict::Bad, finding).advise("record again")];
    };
    let told = counters.told();
    let Some(all) = told.missing else {
        if info.is_incomplete {
            let finding = "unknown: some of the recording is missing";
            return vec![Check::new("rate", Verdict::Look, finding).real("asked_hz", asked)];
        }
        let finding = "unknown: the rings do not contain the vCPUs' running times";
        let advice = "an agent that is polled writes its vCPUs' times to the rings once per second";
        let check = Check::new("rate", Verdict::Look, finding).advise(advice);
        return vec![check.real("asked_hz", asked)];
    };
    let kinds = counters.sampled_kinds(info.mode);
    let check = |came: Came| {
        let (due, missing) = (came.due(), came.missing);
        let verdict = off_rate(&came);
        let missed = format!(
            "{} {} than the {} expected samples",
            grouped(missing.unsigned_abs()),
            if missing < 0 { "more" } else { "fewer" },
            grouped(due)
        );
        if came.time == SampledTime::Blocked {
            return Check::new(
                "blocked",
                verdict,
                format!("{missed} of the measured blocked time"),
            )
            .advise(BLOCKED_APART)
            .signed("missing_blocked", told.missing_blocked.unwrap_or(missing));
        }
        let achieved = if due == 0 { asked } else { asked * came.samples as f64 / due as f64 };
        let finding =
            format!("{achieved:.1} Hz of {}, requested {asked:.1} Hz: {missed}", came.time);
        Check::new("rate", verdict, finding)
            .advise("the timer did not keep up: use a lower rate, and see `masked` and `late`")
            .real("asked_hz", asked)
            .real("achieved_hz", achieved)
            .signed("missing", all)
    };
    kinds.map(check).collect()
}

fn off_rate(came: &Came) -> Verdict {
    match is_off_rate(came) {
        false => Verdict::Good,
        true => {
            let off = part_of(came.missing.unsigned_abs(), came.due());
            Verdict::of_share(off, 0.0, OFF_RATE)
        }
    }
}

/// Whether the waits that were counted are the measured blocked time, where it is not sampled.
/// Clocks that differ by little of all time say nothing of a guest that hardly blocks.
fn waits(profile: &Profile, missing_ns: i64) -> Check {
    let samples = profile.counters().blocked_in_all();
    let came = Came { time: SampledTime::Blocked, samples, missing: missing_ns };
    let elapsed = profile.vcpus().iter().map(|vcpu| vcpu.elapsed_ns);
    let elapsed_ns = elapsed.fold(0, u64::saturating_add);
    let verdict = match part_of(missing_ns.unsigned_abs(), elapsed_ns) < LOOK {
        true => Verdict::Good,
        false => off_rate(&came),
    };
    let finding = format!(
        "{} {} than the {} of measured blocked time",
        duration(missing_ns.unsigned_abs()),
        if missing_ns < 0 { "more" } else { "less" },
        duration(came.due())
    );
    Check::new("blocked", verdict, finding)
        .advise("the guest waits where it does not call on_block")
        .signed("missing_blocked", missing_ns)
}

fn interval(fixed: bool) -> Check {
    let (verdict, finding) = match fixed {
        true => (
            Verdict::Bad,
            "fixed: periodic work in step with it is over- or underrepresented, which the \
             intervals do not show",
        ),
        false => (Verdict::Good, "random: no periodic work can be in step with it"),
    };
    Check::new("interval", verdict, finding).advise("remove --fixed-interval")
}

/// `what` the counters count, in the plural.
pub(super) fn lost(counters: &Counters, what: &str) -> Check {
    let share = part_of(counters.lost, counters.ticks);
    Check::new(
        "lost",
        Verdict::of_share(share, LOOK, BAD),
        format!(
            "{} of the {what} found the stack table locked ({})",
            percent(share),
            grouped(counters.lost)
        ),
    )
    .advise(LESS_LOCKED)
    .count("lost", counters.lost)
}

/// What the agent counted and gave up before it was fetched; `what` as above.
pub(super) fn aged(counters: &Counters, what: &str) -> Check {
    let of_ticks = part_of(counters.aged, counters.ticks);
    let of_blocked = part_of(counters.blocked_aged, counters.blocked_in_all());
    let finding = match (counters.aged, counters.blocked_aged) {
        (0, 0) => "nothing was dropped before it was fetched".to_owned(),
        (_, 0) => format!(
            "{} of the {what} were dropped before they were fetched ({})",
            percent(of_ticks),
            grouped(counters.aged)
        ),
        (0, _) => {
            format!("{} of the blocked time was dropped before it was fetched", percent(of_blocked))
        }
        _ => format!(
            "{} of the ticks and {} of the blocked time were dropped before they were fetched",
            percent(of_ticks),
            percent(of_blocked)
        ),
    };
    Check::new("aged", Verdict::of_share(of_ticks.max(of_blocked), LOOK, BAD), finding)
        .advise(
            "they are the oldest, and shown as [aged] without their stacks. Give the agent more \
         memory, fetch more often \
         (`record` does so automatically), or choose a shorter window with --last",
        )
        .count("aged", counters.aged)
        .count("blocked_aged", counters.blocked_aged)
}

/// `memory_bytes`: what would have been enough.
pub(super) fn overflow(counters: &Counters, memory_bytes: Option<u64>) -> Check {
    let blocked = counters.blocked_in_all();
    let of_ticks = part_of(counters.overflow, counters.ticks);
    let of_blocked = part_of(counters.blocked_overflow, blocked);
    let finding = match counters.blocked_overflow {
        0 if counters.ticks == 0 => "all blocked time has a stack".to_owned(),
        0 => format!(
            "{} of the ticks found the stack table full ({})",
            percent(of_ticks),
            grouped(counters.overflow)
        ),
        _ if counters.ticks == 0 => format!(
            "{} of the blocked time has no stack: the stack table was full, or the guest passed no \
             registers",
            percent(of_blocked)
        ),
        _ => format!(
            "{} of the ticks and {} of the blocked time have no stack: the stack table was full, \
             or the guest \
             passed no registers when it blocked",
            percent(of_ticks),
            percent(of_blocked)
        ),
    };
    Check::new(
        "overflow",
        Verdict::of_share(of_ticks.max(of_blocked), LOOK, BAD),
        finding,
    )
    .advise(match memory_bytes {
        Some(bytes) => format!(
            "give the agent more memory ({} is enough), or fetch more often, which frees memory",
            mebibytes(bytes)
        ),
        None if counters.overflow == 0 => {
            "pass registers to `on_block`; if the guest does, give the agent more memory, or fetch \
             more often, which \
             frees memory"
                .to_owned()
        }
        None => {
            "give the agent more memory, or fetch more often, which frees memory".to_owned()
        }
    })
    .count("overflow", counters.overflow)
    .count("blocked_overflow", counters.blocked_overflow)
}

/// Memory that holds a stack of its own for each sample that found none; most need less, as the
/// same stack comes again.
fn memory_that_would_do(profile: &Profile, agent: &AgentInfo) -> Option<u64> {
    let mut stacks: HashMap<u32, u64> = HashMap::new();
    for sample in profile.samples() {
        *stacks.entry(sample.vcpu).or_default() += 1;
    }
    let factor = profile
        .vcpus()
        .iter()
        .filter(|vcpu| vcpu.counters.overflow != 0)
        .filter_map(|vcpu| {
            let held = *stacks.get(&vcpu.vcpu)?;
            Some(1.0 + vcpu.counters.overflow as f64 / held as f64)
        })
        .max_by(f64::total_cmp)?;
    // Saturates, where the counters are absurd.
    Some((agent.memory_bytes as f64 * factor).ceil() as u64)
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", grouped(bytes.div_ceil(1 << 20)))
}

pub(super) fn masked(counters: &Counters) -> Check {
    let share = part_of(counters.masked, counters.ticks);
    Check::new(
        "masked",
        Verdict::of_share(share, LOOK, BAD),
        format!(
            "{} of the ticks arrived without registers ({})",
            percent(share),
            grouped(counters.masked)
        ),
    )
    .advise("the guest masks events while it runs: mask events for less time there")
    .count("masked", counters.masked)
}

pub(super) fn late(counters: &Counters, threshold_ns: u64, under: Option<String>) -> Check {
    let share = part_of(counters.late, counters.sampled());
    let verdict = Verdict::of_share(share, LOOK, BAD);
    let mut finding = format!(
        "{} of the samples arrived more than {} after their target",
        percent(share),
        duration(threshold_ns)
    );
    if let Some(under) = under.filter(|_| verdict != Verdict::Good) {
        finding.push_str(&format!(", most of them under {under}"));
    }
    Check::new("late", verdict, finding)
        .advise(format!(
            "they are shown as [sample arrived late] under the code that ran when they \
                 arrived; the code that ran \
                 when they were due is unknown. If that code {UNMASK_OR_STALL}"
        ))
        .count("late", counters.late)
}

fn stolen(runstate: &Runstate) -> Check {
    let Some(share) = runstate.stolen_share() else {
        return unknown_steal();
    };
    let verdict = Verdict::of_share(share, STOLEN, f64::INFINITY);
    Check::new("steal", verdict, stolen_words(share))
        .advise(format!("{STILL_CORRECT}: {LESS_STEAL}"))
        .real("stolen_share", share)
}

pub(super) fn unknown_steal() -> Check {
    Check::new("steal", Verdict::Look, "the guest's platform does not report stolen time").advise(
        "stolen time may be counted as running time of the interrupted function: compare with \
             the host",
    )
}

pub(super) fn overhead(profile: &Profile) -> Check {
    let info = profile.recording();
    let server = part_of(info.server_ns, info.elapsed_ns);
    let served = format!("its server took {:.2} % of the recording", server * 100.0);
    let costs = Costs::of(profile);
    let (parts, running_ns) = profile.cost().unwrap_or_default();
    let share = |ns: u64| ns as f64 / running_ns as f64;
    let sampling = share(parts.sampling_ns);
    let blocks = profile.counters().blocks;
    let took = match parts.delivery_ns {
        _ if info.mode == Mode::OffCpu => format!(
            "the calls before and after waits took {:.2} % of running time, {} a wait",
            sampling * 100.0,
            duration(parts.sampling_ns / blocks.max(1))
        ),
        _ if parts.deliveries == 0 => {
            format!("sampling took {:.2} % of running time", sampling * 100.0)
        }
        Some(ns) => format!(
            "sampling took {:.2} % of running time, delivery and arming of its timer about {:.2} % \
             (estimated from {} deliveries)",
            sampling * 100.0,
            share(ns) * 100.0,
            parts.deliveries_measured
        ),
        None => format!(
            "sampling took {:.2} % of running time, without delivery and arming of its timer, \
             which were not measured",
            sampling * 100.0
        ),
    };
    let check = match costs {
        None => Check::new(
            "overhead",
            Verdict::Look,
            format!("the agent did not measure its sampling; {served}"),
        ),
        // Whatever runs is slowed down alike.
        Some(costs) => Check::new(
            "overhead",
            Verdict::of_share(costs.share(), COSTLY, f64::INFINITY),
            format!("{took}; {served}"),
        )
        .real("sampling_share", sampling),
    };
    let check = match parts.delivery_ns {
        Some(ns) if costs.is_some() => check.real("delivery_share", share(ns)),
        _ => check,
    };
    check
        .advise(match costs {
            None => "the platform counts no cycles: measure the guest's speed with and without a \
                     recording"
                .into(),
            Some(costs) => costs.advice(info),
        })
        .real("server_share", server)
}

pub(super) fn reachable(agent: &AgentInfo) -> Check {
    let (verdict, finding) = match agent.reachable_when_busy() {
        true => (Verdict::Good, "the agent answers even while the guest is stuck in a loop"),
        false => (
            Verdict::Look,
            "the agent answers only when the guest polls it, not while the guest is stuck in a \
             loop",
        ),
    };
    Check::new("reachable", verdict, finding).advise(
        "let the agent own its network (docs/guide/rust.md), or start recordings before the guest \
         is busy and fetch them afterwards",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Report, ReportOptions};
    use unikprof_profile::profile::{Cost, Frame, ProfileBuilder, VcpuStats};
    use unikprof_profile::symbols::Symbolizer;

    #[test]
    fn the_memory_that_would_do_is_by_the_fullest_vcpu() {
        let mut builder = ProfileBuilder::new();
        for place in 0..100 {
            for vcpu in [0, 1] {
                let added = builder.add_stack(vcpu, 1, &[Frame::leaf(place)]);
                assert_eq!(added, Ok(()));
            }
        }
        for (vcpu, overflow) in [(0, 50), (1, 200), (2, 9)] {
            builder.add_vcpu(VcpuStats {
                vcpu,
                counters: Counters { overflow, ..Counters::default() },
                ..VcpuStats::default()
            });
        }
        let agent = super::super::golden_tests::agent();
        assert_eq!(memory_that_would_do(&builder.finish(), &agent), Some(3 * agent.memory_bytes));
    }

    /// Guards a profile that `doctor` distrusts and of which `report` has nothing to say.
    #[test]
    fn the_report_warns_of_the_overhead_that_doctor_tells_of() {
        for (percent, expected) in [(4, Verdict::Good), (6, Verdict::Look), (60, Verdict::Look)] {
            let mut builder = ProfileBuilder::new();
            builder.add_vcpu(VcpuStats {
                cost: Some(Cost { sampling_ns: percent, ..Cost::default() }),
                runstate: Runstate { running_ns: Some(100), ..Runstate::default() },
                ..VcpuStats::default()
            });
            let profile = builder.finish();
            assert_eq!(overhead(&profile).verdict, expected, "{percent}");
            let symbolized = Symbolizer::default().resolve(&profile);
            let report = symbolized.as_ref().map(|it| Report::new(it, ReportOptions::default()));
            let warnings = report.map(|report| report.warnings()).unwrap_or_default();
            let is_told = warnings.iter().any(|it| it.starts_with("sampling took"));
            assert_eq!(is_told, expected != Verdict::Good, "{percent}: {warnings:?}");
        }
    }

    /// Guards against a verdict on the sum, in which two errors can cancel each other.
    #[test]
    fn running_and_blocked_time_are_judged_each_for_itself() {
        let info =
            RecordingInfo { period_ns: 1_000_000, mode: Mode::Wall, ..RecordingInfo::default() };
        let verdicts = |missing, missing_blocked| {
            let counters = Counters {
                ticks: 1_000,
                recorded: 1_000,
                blocked: 2_000,
                missing: Some(missing),
                missing_blocked: Some(missing_blocked),
                ..Counters::default()
            };
            let checks = rates(&counters, &info);
            checks.iter().map(|check| (check.name, check.verdict)).collect::<Vec<_>>()
        };
        let both = |running, blocked| [("rate", running), ("blocked", blocked)];
        assert_eq!(verdicts(10, -20), both(Verdict::Good, Verdict::Good));
        assert_eq!(verdicts(0, -150), both(Verdict::Look, Verdict::Look));
        assert_eq!(verdicts(10, -900), both(Verdict::Bad, Verdict::Bad));
        assert_eq!(verdicts(400, 400), both(Verdict::Good, Verdict::Look));
    }

    #[test]
    fn hostile_figures_make_no_nonsense() {
        let counters = Counters {
            ticks: u64::MAX,
            missing: Some(i64::MIN),
            blocked: u64::MAX,
            blocked_overflow: u64::MAX,
            blocked_aged: u64::MAX,
            aged: u64::MAX,
            overflow: u64::MAX,
            ..Counters::default()
        };
        let info = RecordingInfo { period_ns: 1, mode: Mode::Wall, ..RecordingInfo::default() };
        rates(&counters, &info);
        assert_eq!(overflow(&counters, Some(u64::MAX)).verdict, Verdict::Bad);
        assert_eq!(aged(&counters, "ticks").verdict, Verdict::Bad);
        let none = Counters { missing: Some(-5), ..Counters::default() };
        assert!(rates(&none, &info).iter().all(|check| !check.finding.contains("NaN")));
    }
}
