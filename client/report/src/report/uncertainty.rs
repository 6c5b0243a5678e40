//! Why shares are less certain than the same number of independent samples would make them: samples
//! without a known place, and beyond the recording clusters.

use std::collections::HashMap;

use serde::Serialize;

use super::Report;
use super::labels::LabelId;
use crate::diff::statistics;
use unikprof_profile::profile::{
    Counters, Frame, Interval, Mode, NodeId, Profile, SpecialFrame, Unit,
};
use unikprof_profile::timeline::Slice;
use unikprof_profile::units::{grouped, sum};

/// From this share of samples without a known place on, intervals include what these could change.
const NOTABLE: f64 = 0.02;

/// Into how many equal parts of the time samples are sorted to see whether they come in clusters.
const PARTS: u64 = 32;

/// Samples that were due and whose place is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Unplaced {
    /// Running time stands for them, but no tick came.
    missing: u64,
    /// Ticks without a stack.
    dropped: u64,
    /// Recorded late: what ran when they were due is not known.
    late: u64,
    /// Recorded, and given up before they were fetched.
    aged: u64,
}

impl Unplaced {
    /// Those of a profile; `None` where they are too few to matter, or nothing is sampled.
    pub(crate) fn of(profile: &Profile) -> Option<Unplaced> {
        let vcpus = profile.vcpus().iter().map(|vcpu| &vcpu.counters);
        Unplaced::among(vcpus, profile.recording().mode, profile.sample_count())
    }

    /// The same for the counters of each vCPU, of so many samples in stacks.
    pub(super) fn among<'c>(
        vcpus: impl IntoIterator<Item = &'c Counters>,
        mode: Mode,
        samples: u64,
    ) -> Option<Unplaced> {
        if !mode.samples_time() {
            return None;
        }
        let mut all = Unplaced::default();
        for counters in vcpus {
            // More samples than were due on one vCPU, or of one kind of time, make up for none of
            // another.
            let kinds = counters.sampled_kinds(mode);
            let missing = kinds.fold(0, |sum: u64, kind| sum.saturating_add(kind.surely_missing()));
            let dropped = [counters.overflow, counters.lost, counters.masked];
            let dropped = dropped.into_iter().fold(0, u64::saturating_add);
            all.missing = all.missing.saturating_add(missing);
            all.dropped = all.dropped.saturating_add(dropped);
            all.late = all.late.saturating_add(counters.late);
            all.aged = all.aged.saturating_add(counters.aged);
        }
        let due = samples as f64 + all.outside();
        (all.count() as f64 > NOTABLE * due).then_some(all)
    }

    pub(crate) fn count(&self) -> u64 {
        let in_stacks = self.late.saturating_add(self.aged);
        in_stacks.saturating_add(self.missing.saturating_add(self.dropped))
    }

    /// Those that are in no stack.
    fn outside(&self) -> f64 {
        self.missing as f64 + self.dropped as f64
    }

    /// An interval of the samples that were recorded, widened by what these could change: in the
    /// worst case none of them belongs to the function, or all do. `in_doubt` of its samples are
    /// late ones.
    pub(crate) fn widen(&self, interval: Interval, recorded: u64, in_doubt: u64) -> Interval {
        let (recorded, in_doubt) = (recorded as f64, in_doubt as f64);
        let due = recorded + self.outside();
        let inside = self.late as f64 + self.aged as f64;
        Interval {
            share: interval.share,
            low: ((interval.low * recorded - in_doubt) / due).clamp(0.0, interval.share),
            high: ((interval.high * recorded + inside + self.outside()) / due)
                .clamp(interval.share, 1.0),
        }
    }

    /// Their kinds and numbers, in words.
    pub(crate) fn kinds(&self) -> String {
        let kinds = [
            (self.missing, "missing"),
            (self.dropped, "without a stack"),
            (self.late, "late"),
            (self.aged, "aged"),
        ];
        let kinds = kinds.iter().filter(|(count, _)| *count != 0);
        let kinds: Vec<String> =
            kinds.map(|(count, kind)| format!("{} {kind}", grouped(*count))).collect();
        kinds.join(", ")
    }
}

/// How many of each function's samples are late ones. None are its own: those have a leaf that says
/// so.
pub(super) fn late_samples(report: &Report<'_>) -> HashMap<LabelId, u64> {
    let profile = report.symbolized.profile();
    let mut late: HashMap<LabelId, u64> = HashMap::new();
    for sample in profile.samples() {
        let leaf = profile.stack(sample.node).next();
        if leaf.map(|leaf| profile.frame(leaf)) != Some(Frame::Special(SpecialFrame::Late)) {
            continue;
        }
        for label in distinct_labels(report, sample.node) {
            let count = late.entry(label).or_default();
            *count = count.saturating_add(sample.count);
        }
    }
    late
}

/// The labels of a stack, innermost first; a function counts once a stack.
pub(super) fn distinct_labels(report: &Report<'_>, stack: NodeId) -> Vec<LabelId> {
    let frames = report.symbolized.profile().stack(stack);
    let mut labels = Vec::new();
    for label in frames.flat_map(|frame| report.labels.of_frame(frame)) {
        if !labels.contains(label) {
            labels.push(*label);
        }
    }
    labels
}

/// The recorded samples, to which shares refer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded {
    pub(super) count: u64,
    pub(super) unit: Unit,
    pub(super) unplaced: Option<Unplaced>,
}

impl Recorded {
    /// The share of `part`. `in_doubt` of its samples are late ones.
    pub(super) fn share(&self, part: u64, in_doubt: u64) -> Interval {
        if self.unit != Unit::Samples {
            return Interval::measured(part, self.count);
        }
        self.widened(Interval::wilson(part, self.count), in_doubt)
    }

    /// The share of a function's total, `in_whole` of it in whole stacks, widened by what the
    /// callers that broken and truncated stacks lack could change: so many samples are `cut`.
    pub(super) fn with_cut(
        &self,
        share: Interval,
        total: u64,
        in_whole: u64,
        cut: u64,
    ) -> Interval {
        let hidden = cut.saturating_sub(total.saturating_sub(in_whole));
        let hidden = hidden as f64 / self.count.max(1) as f64;
        match self.unit == Unit::Samples && hidden > NOTABLE {
            true => Interval { high: (share.high + hidden).min(1.0), ..share },
            false => share,
        }
    }

    fn widened(&self, interval: Interval, in_doubt: u64) -> Interval {
        match self.unplaced {
            None => interval,
            Some(unplaced) => unplaced.widen(interval, self.count, in_doubt),
        }
    }
}

/// The samples of a function that a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Of {
    #[serde(rename = "self")]
    Own,
    Total,
}

/// A share that may be another one in other recordings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LongRun {
    /// Its row in the table of functions.
    pub(crate) row: usize,
    pub(crate) of: Of,
    /// The share in the long run.
    pub(crate) share: Interval,
}

/// The first of the `asked` shares whose samples come in clusters. A share is asked for by a row of
/// the table, the row's label, and the kind of its samples. Answers `None` if no samples come in
/// clusters, and for a file without a timeline, which does not tell when they came.
pub(super) fn clustered(
    report: &Report<'_>,
    recorded: &Recorded,
    asked: &[(usize, LabelId, Of)],
) -> Option<LongRun> {
    let view = report.view.as_ref().filter(|_| recorded.unit == Unit::Samples)?;
    let window = view.timeline.bounded(&view.of, view.window);
    let step_ns = window.length_ns().div_ceil(PARTS).max(1);
    let profile = report.symbolized.profile();
    let inside = profile.recording().inside();
    let mut parts = view.timeline.slices(&view.of, window, inside, step_ns);
    parts.retain(|part| !part.stacks.is_empty());
    let all: Vec<f64> = parts.iter().map(count).collect();
    let mut counts = vec![vec![0.0; parts.len()]; asked.len()];
    for (at, part) in parts.iter().enumerate() {
        for (stack, count) in &part.stacks {
            let labels = distinct_labels(report, *stack);
            for (counts, (_, label, of)) in counts.iter_mut().zip(asked) {
                let is_in = match of {
                    Of::Own => labels.first() == Some(label),
                    Of::Total => labels.contains(label),
                };
                counts[at] += if is_in { *count as f64 } else { 0.0 };
            }
        }
    }
    asked.iter().zip(counts).find_map(|(&(row, _, of), counts)| {
        let counts: Vec<_> = counts.into_iter().enumerate().collect();
        let found = statistics::long_run(&counts, &all).filter(|found| found.is_clustered)?;
        Some(LongRun { row, of, share: recorded.widened(found.interval, 0) })
    })
}

fn count(part: &Slice) -> f64 {
    sum(part.stacks.iter().map(|(_, count)| *count as f64))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_worst_case_holds_whatever_the_unplaced_samples_were() {
        let unplaced = Unplaced { missing: 300, dropped: 100, late: 50, aged: 0 };
        let exact = Interval::measured(200, 1_000);
        let own = unplaced.widen(exact, 1_000, 0);
        assert!((own.low - 200.0 / 1_400.0).abs() < 1e-12, "{own:?}");
        assert!((own.high - 650.0 / 1_400.0).abs() < 1e-12, "{own:?}");
        let total = unplaced.widen(exact, 1_000, 50);
        assert!((total.low - 150.0 / 1_400.0).abs() < 1e-12, "{total:?}");
        assert_eq!(unplaced.kinds(), "300 missing, 100 without a stack, 50 late");
    }

    /// Guards 71.2 % (67.5 to 74.0) of a function that is in 90.9 % of the stacks: of the others
    /// half had lost it.
    #[test]
    fn a_function_may_be_among_the_callers_that_broken_stacks_lack() {
        use unikprof_profile::profile::ProfileBuilder;
        use unikprof_profile::symbols::Symbolizer;
        let mut builder = ProfileBuilder::new();
        let (leaf, main) = (Frame::leaf(0x2000), Frame::caller(0x1000));
        builder.add_stack(0, 700, &[leaf, main]).unwrap();
        builder.add_stack(0, 100, &[Frame::leaf(0x3000)]).unwrap();
        let broken = [leaf, Frame::Special(SpecialFrame::Broken)];
        builder.add_stack(0, 200, &broken).unwrap();
        let profile = builder.finish();
        let symbolized = Symbolizer::default().resolve(&profile).unwrap();
        let report = Report::new(&symbolized, super::super::ReportOptions::default());
        let table = report.functions();
        let high = |total| {
            let row = table.rows.iter().find(|row| row.total == total).unwrap();
            let plain = Interval::wilson(total, 1_000).high;
            ((row.total_share.high - plain) * 1_000.0).round() as u64
        };
        // The caller may be in all of the broken stacks; the leaf is, and the mark is they.
        assert_eq!([700, 900, 200].map(high), [200, 0, 0]);
    }
}
