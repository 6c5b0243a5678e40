//! Why shares are less certain than the same number of independent samples would make them: samples
//! without a known place, and clusters.

use std::collections::HashMap;

use super::Report;
use super::interval::{Interval, student};
use super::labels::LabelId;
use crate::profile::{Counters, Frame, Mode, NodeId, Profile, SpecialFrame, Unit};
use crate::timeline::Slice;
use crate::units::grouped;

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

/// Which of a function's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hits {
    Own,
    Total,
}

/// How the samples of each function lie in time, where the rings tell: if they come in bursts,
/// there are fewer independent ones than were counted.
#[derive(Debug)]
pub(super) struct Clusters {
    /// The samples of each part of the time that has any.
    parts: Vec<f64>,
    /// By function: its own and all its samples in each of these parts.
    functions: HashMap<LabelId, (Vec<f64>, Vec<f64>)>,
}

/// How many times as many samples it takes for the certainty of independent ones, and by how many
/// parts that is known.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Design {
    pub(super) effect: f64,
    /// 97.5 % of a t distribution with one degree less than there are parts.
    pub(super) z: f64,
}

/// The recorded samples, to which shares refer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recorded {
    pub(super) count: u64,
    pub(super) unit: Unit,
    pub(super) unplaced: Option<Unplaced>,
}

impl Recorded {
    /// The share of `part`, whose samples are clustered by `design`. `in_doubt` of them are late
    /// ones.
    pub(super) fn share(&self, part: u64, design: Option<Design>, in_doubt: u64) -> Interval {
        if self.unit != Unit::Samples {
            return Interval::measured(part, self.count);
        }
        let interval = match design {
            None => Interval::wilson(part, self.count),
            Some(Design { effect, z }) => Interval::wilson_clustered(part, self.count, effect, z),
        };
        match self.unplaced {
            None => interval,
            Some(unplaced) => unplaced.widen(interval, self.count, in_doubt),
        }
    }
}

/// The parts of the time shown in which there are samples; `None` where the file has no timeline,
/// or all samples lie in one part of it.
pub(super) fn slices(report: &Report<'_>) -> Option<Vec<Slice>> {
    let view = report.view.as_ref()?;
    let profile = report.symbolized.profile();
    let info = profile.recording();
    let window = view.timeline.bounded(&view.of, view.window);
    let step_ns = window.length_ns().div_ceil(PARTS).max(1);
    let mut slices = view.timeline.slices(&view.of, window, info.inside(), step_ns);
    slices.retain(|slice| !slice.stacks.is_empty());
    (slices.len() >= 2).then_some(slices)
}

/// The design effect of a share of which each part of the time has these counts, if it is more than
/// chance makes it.
pub(super) fn design_of_share(parts: &[f64], counts: &[f64]) -> Option<Design> {
    design(parts, counts, independent(parts, counts))
}

impl Clusters {
    /// Those of functions; `None` where the file has no timeline, or all samples lie in one part of
    /// it.
    pub(super) fn of(report: &Report<'_>) -> Option<Clusters> {
        Clusters::by(report, |stack| {
            let labels = distinct_labels(report, stack);
            (labels.iter().take(1).copied().collect(), labels)
        })
    }

    /// Those of whatever `hits` numbers: for a stack those that its samples belong to, and those
    /// they count for.
    pub(super) fn by(
        report: &Report<'_>,
        hits: impl Fn(NodeId) -> (Vec<u32>, Vec<u32>),
    ) -> Option<Clusters> {
        let slices = slices(report)?;
        let mut clusters = Clusters { parts: vec![0.0; slices.len()], functions: HashMap::new() };
        let of_parts = || (vec![0.0; slices.len()], vec![0.0; slices.len()]);
        for (part, slice) in slices.iter().enumerate() {
            for (node, count) in &slice.stacks {
                let count = *count as f64;
                clusters.parts[part] += count;
                let (owners, all) = hits(*node);
                for label in owners {
                    let (own, _) = clusters.functions.entry(label).or_insert_with(of_parts);
                    own[part] += count;
                }
                for label in all {
                    let (_, total) = clusters.functions.entry(label).or_insert_with(of_parts);
                    total[part] += count;
                }
            }
        }
        Some(clusters)
    }

    /// The design effect of a function's samples, if it is more than chance makes it.
    pub(super) fn design(&self, label: LabelId, hits: Hits) -> Option<Design> {
        let (own, total) = self.functions.get(&label)?;
        let counts = match hits {
            Hits::Own => own,
            Hits::Total => total,
        };
        design_of_share(&self.parts, counts)
    }

    /// The design effect of the difference between two functions' own samples, likewise.
    pub(super) fn design_of_difference(&self, a: LabelId, b: LabelId) -> Option<Design> {
        let (a, b) = (&self.functions.get(&a)?.0, &self.functions.get(&b)?.0);
        let apart: Vec<f64> = a.iter().zip(b).map(|(a, b)| a - b).collect();
        design(&self.parts, &apart, a.iter().chain(b).sum())
    }
}

/// The variance of a count of independent samples.
fn independent(parts: &[f64], counts: &[f64]) -> f64 {
    let samples: f64 = parts.iter().sum();
    let share = counts.iter().sum::<f64>() / samples;
    samples * share * (1.0 - share)
}

/// The variance of a share between parts, as a ratio estimate has it (W. G. Cochran, "Sampling
/// Techniques", 1977, section 6.3), over that of as many `independent` samples.
fn design(parts: &[f64], counts: &[f64], independent: f64) -> Option<Design> {
    let samples: f64 = parts.iter().sum();
    let share = counts.iter().sum::<f64>() / samples;
    let squares = parts.iter().zip(counts);
    let squares: f64 = squares.map(|(n, hits)| (hits - share * n).powi(2)).sum();
    design_of(parts.len() as f64, squares, independent)
}

/// The same of so many parts, and of the sum of the squares of what each has more or fewer than its
/// share.
fn design_of(parts: f64, squares: f64, independent: f64) -> Option<Design> {
    let freedom = parts - 1.0;
    if independent <= 0.0 || freedom < 1.0 {
        return None;
    }
    let effect = squares * (parts / freedom) / independent;
    // 97.5 % of a χ² distribution over its degrees of freedom (Wilson and Hilferty, 1931).
    let spread = 2.0 / (9.0 * freedom);
    let chance = (1.0 - spread + Interval::Z * spread.sqrt()).powi(3);
    (effect > chance).then(|| Design { effect, z: student(freedom) })
}

/// How the samples of one function lie in time, where parts of the time come one after the other
/// and are not kept.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct RunningClusters {
    /// Of the function's samples in each part, the squares.
    squares: f64,
    /// Of these times all samples in the part, the sum.
    products: f64,
}

impl RunningClusters {
    /// Adds a part with so many samples of the function, of so many in all.
    pub(super) fn add(&mut self, hits: u64, samples: u64) {
        self.squares += (hits as f64).powi(2);
        self.products += hits as f64 * samples as f64;
    }

    /// The design effect of a function with so many samples, if it is more than chance makes it.
    /// `all` are those of all samples, `parts` is how many parts had any.
    pub(super) fn design(
        &self,
        hits: u64,
        samples: u64,
        all: &RunningClusters,
        parts: u64,
    ) -> Option<Design> {
        let (hits, samples) = (hits as f64, samples as f64);
        let share = hits / samples;
        // Σ(h − p·n)², without the parts.
        let squares = self.squares - 2.0 * share * self.products + share * share * all.squares;
        design_of(parts as f64, squares.max(0.0), samples * share * (1.0 - share))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn samples_that_are_spread_evenly_have_no_design_effect() {
        let parts = [100.0; 32];
        let counts: Vec<f64> = (0..32).map(|at| 50.0 + f64::from(at % 5) * 4.0 - 8.0).collect();
        assert_eq!(design_of_share(&parts, &counts), None);
        assert_eq!(design_of_share(&parts, &[0.0; 32]), None);
        assert_eq!(design_of_share(&parts, &parts), None);
    }

    /// A function that has all samples of half of the parts: each part tells as much as one sample.
    #[test]
    fn samples_of_a_part_that_are_all_alike_tell_as_much_as_one() {
        let parts = [100.0; 32];
        let counts: Vec<f64> = (0..32).map(|at| f64::from(at % 2) * 100.0).collect();
        let found = design_of_share(&parts, &counts).unwrap();
        assert!((found.effect - 100.0 * 32.0 / 31.0).abs() < 1e-9, "{found:?}");
        assert!((found.z - 2.0395).abs() < 1e-3, "{found:?}");
    }

    /// Parts that are added one after the other come to what they come to together.
    #[test]
    fn running_clusters_have_the_design_effect_of_kept_ones() {
        let parts: Vec<u64> = (0..32).map(|at| 90 + at % 3 * 10).collect();
        let hits: Vec<u64> = (0..32).map(|at| at % 2 * 70 + at % 5).collect();
        let floats = |of: &[u64]| of.iter().map(|n| *n as f64).collect::<Vec<f64>>();
        let kept = design_of_share(&floats(&parts), &floats(&hits)).unwrap();
        let (mut of_function, mut of_all) =
            (RunningClusters::default(), RunningClusters::default());
        for (samples, hits) in parts.iter().zip(&hits) {
            of_function.add(*hits, *samples);
            of_all.add(*samples, *samples);
        }
        let (hits, samples) = (hits.iter().sum(), parts.iter().sum());
        let running = of_function.design(hits, samples, &of_all, 32).unwrap();
        assert!((running.effect - kept.effect).abs() < 1e-6, "{running:?}, {kept:?}");
        assert_eq!(running.z, kept.z);
        assert_eq!(of_function.design(hits, samples, &of_all, 1), None);
    }

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
}
