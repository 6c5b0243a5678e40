//! Time that the guest wanted and did not get, and time in which it heard of nothing.

use super::super::marks;
use super::super::seconds::LINES;
use super::super::stack_warnings::{UNMASK_OR_STALL, where_late};
use super::super::warnings::{LESS_STEAL, NOTABLE, STOLEN, stolen_words};
use super::{Finding, Found, Subject, score};
use unikprof_profile::profile::Interval;
use unikprof_profile::timeline::{Window, slice_windows, step_ns};
use unikprof_profile::units::{duration, grouped, percent};

pub(super) const STOLEN_RULE: &str = "stolen";
pub(super) const MASKED_RULE: &str = "masked";

/// Work takes twice as long.
const HALF: f64 = 0.5;

/// What `doctor` calls bad: samples are off by as much.
const MASKED_BADLY: f64 = 0.05;

pub(super) fn stolen(subject: &Subject<'_>) -> Found {
    let Some(share) = subject.profile.runstate().stolen_share() else {
        return Err("stolen time is not known here");
    };
    if share < STOLEN {
        return Ok(Vec::new());
    }
    let mut finding = Finding::new(
        STOLEN_RULE,
        score(share, STOLEN, HALF),
        stolen_words(share),
        format!(
            "{LESS_STEAL}; the host's scheduler shows who had the processor (`xl list`, `xentop`)"
        ),
    )
    .because(format!(
        "work takes {:.1} times as long as on a processor of its own",
        1.0 / (1.0 - share).max(0.001)
    ))
    .real("stolen_share", share);
    let vcpus = subject.profile.vcpus();
    let by_vcpu = vcpus.iter().filter_map(|vcpu| Some((vcpu.vcpu, vcpu.runstate.stolen_share()?)));
    if let Some((vcpu, most)) =
        by_vcpu.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| vcpus.len() > 1)
    {
        finding = finding.because(format!("vCPU {vcpu} lost most: {}", percent(most)));
    }
    if let Ok(time) = subject.time() {
        // The lines of `--timeline`.
        let step_ns = step_ns(time.window, None, LINES);
        let parts: Vec<Window> = slice_windows(time.window, step_ns).collect();
        let shares = time.view.timeline.stolen_shares(&parts);
        let known = parts.iter().zip(shares);
        let known = known.filter_map(|(part, share)| Some((time.of(*part), share?)));
        if let Some((when, most)) = known.max_by(|a, b| a.1.total_cmp(&b.1)) {
            finding =
                finding.because(format!("most of all from {}: {}", when.seconds(), percent(most)));
            finding.windows.push(when);
        }
    }
    Ok(vec![finding])
}

/// Samples are due at random moments of the running time. So the share of them that waited is the
/// share of the running time in which an interrupt would have waited as well.
pub(super) fn masked(subject: &Subject<'_>) -> Found {
    subject.is_sampled()?;
    let counters = &subject.counters;
    if counters.ticks == 0 {
        return Err(super::FEW);
    }
    let waited = counters.masked.saturating_add(counters.late);
    let share = Interval::wilson(waited, counters.ticks);
    if share.low < NOTABLE {
        return Ok(Vec::new());
    }
    let mut finding = Finding::new(
        MASKED_RULE,
        score(share.share, NOTABLE, MASKED_BADLY),
        format!("for about {} of the running time interrupts had to wait", percent(share.share)),
        "see which code that is (`report --focus 'sample arrived late'`): mask events for less \
         time there, and in steps \
         where a long loop does",
    )
    .count("masked", counters.masked)
    .count("late", counters.late)
    .real("waited_share", share.share);
    if counters.masked > 0 {
        finding = finding.because(format!(
            "{} of {} ticks came while events were masked, without registers",
            grouped(counters.masked),
            grouped(counters.ticks)
        ));
    }
    if counters.late > 0 {
        let threshold_ns = subject.info().late_threshold_ns;
        let how = match threshold_ns {
            0 => String::new(),
            ns => format!(" by more than {}", duration(ns)),
        };
        finding = finding.because(format!("{} samples were late{how}", grouped(counters.late)));
        let under = marks::late_under(subject.report.symbolized);
        if let Some(functions) = where_late(&under) {
            finding = finding.because(format!(
                "most of the late ones arrived in {functions}: if that code {UNMASK_OR_STALL}"
            ));
        }
    }
    if let Some(lateness) = subject.profile.lateness_ns() {
        finding = finding.because(format!(
            "samples waited for p99 ≤ {}, at most {} (of the whole recording)",
            duration(lateness.percentile(99)),
            duration(lateness.max())
        ));
    }
    Ok(vec![finding])
}
