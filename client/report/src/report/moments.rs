//! What a report counts, sample by sample in the order of time.
//!
//! The counts are the truth: the agent accounts for every tick and every wait. The ring gives them
//! their times. It may lack some that were counted (they were evicted, or its part of the file
//! begins later), and have some that were not (their stack aged, or they came after the last
//! epoch).

use std::collections::{BTreeMap, HashMap};

use super::page::Stacks;
use super::{Report, TimelineView};
use unikprof_profile::profile::NodeId;
use unikprof_profile::timeline::{Outcome, SpanOf, Tick};

/// A sample or a wait that a report shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    /// On the guest's monotonic clock, in ns; of a wait its beginning.
    pub(super) at_ns: u64,
    pub(super) vcpu: u32,
    pub(super) stack: NodeId,
    /// What it counts in the report, in the mode's unit; a wait that is shorter than a period may
    /// count nothing.
    pub(super) count: u64,
    /// How long a wait was, in ns; `None` for a sample.
    pub(super) wait_ns: Option<u64>,
    pub(super) span: Option<SpanOf>,
}

/// What is said of stacks in the order of names.
pub(super) const UNTIMED: &str = " (no times: stacks by name)";

/// Stacks and what they count, in the mode's unit.
pub(super) type Counted = Vec<(NodeId, u64)>;

/// All that a report counts: with times as far as the ring has them.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// Of all vCPUs, in the order of time.
    pub(super) timed: Vec<Moment>,
    /// By vCPU, what was counted beyond these, in the order of the functions' names from the root
    /// on.
    pub(super) untimed: BTreeMap<u32, Counted>,
}

impl Moments {
    pub(super) fn of(report: &Report<'_>) -> Moments {
        let mut left: HashMap<(u32, NodeId), u64> = HashMap::new();
        for sample in report.shown_samples() {
            let sum = left.entry((sample.vcpu, sample.node)).or_default();
            *sum = sum.saturating_add(sample.count);
        }
        let timed = match &report.view {
            Some(view) => timed(report, view, &mut left),
            None => Vec::new(),
        };
        left.retain(|_, count| *count != 0);
        Moments { timed, untimed: by_name(report, left) }
    }
}

/// What the ring holds, and takes the counts of it from what was counted.
fn timed(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    left: &mut HashMap<(u32, NodeId), u64>,
) -> Vec<Moment> {
    let info = report.symbolized.profile().recording();
    let ticks = view.timeline.ticks(&view.of, view.window, info.inside());
    let moment = |tick: Tick| {
        let stack = tick.stack.filter(|stack| report.weights.keeps(*stack))?;
        let (count, wait_ns) = match tick.outcome {
            Outcome::Blocked { length_ns, count, .. } => (count, Some(length_ns)),
            _ => (1, None),
        };
        let left = left.entry((tick.vcpu, stack)).or_default();
        let count = count.min(*left);
        *left -= count;
        let moment =
            Moment { at_ns: tick.at_ns, vcpu: tick.vcpu, stack, count, wait_ns, span: tick.span };
        (count != 0 || wait_ns.is_some()).then_some(moment)
    };
    ticks.filter_map(moment).collect()
}

/// By vCPU, stacks in the order of their functions' names from the root on.
fn by_name(report: &Report<'_>, counted: HashMap<(u32, NodeId), u64>) -> BTreeMap<u32, Counted> {
    let mut by_vcpu: BTreeMap<u32, Counted> = BTreeMap::new();
    if counted.is_empty() {
        return by_vcpu;
    }
    for ((vcpu, node), count) in counted {
        by_vcpu.entry(vcpu).or_default().push((node, count));
    }
    let order = Stacks::of(report, |_, _, _| {});
    for stacks in by_vcpu.values_mut() {
        stacks.sort_unstable_by_key(|(node, _)| (order.node(*node), *node));
    }
    by_vcpu
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::ring::{Record, Wait, kind};

    use super::*;
    use crate::report::ReportOptions;
    use unikprof_profile::profile::{Frame, Mode, ProfileBuilder, RecordingInfo};
    use unikprof_profile::symbols::{Images, Symbolizer};
    use unikprof_profile::timeline::{RecordingSpan, Ring, Timeline, Window};

    const PERIOD_NS: u64 = 1_000;

    pub(in crate::report) fn sample(at_ns: u64, stack: u64) -> Record {
        Record { kind: kind::SAMPLE, at_ns, first: stack, second: 1, third: 0 }
    }

    /// A wait that ended at a moment, of which so much was counted.
    pub(in crate::report) fn wait(at_ns: u64, length_ns: u64, stack: u64, count: u64) -> Record {
        let wait =
            Wait { ring_bits: 1, is_first: true, is_last: true, length_ns, ..Wait::default() };
        let third = wait.to_number();
        Record { kind: kind::WAIT, at_ns, first: stack, second: count, third }
    }

    /// A report of two stacks that were counted on vCPU 0, whose ring has these records: the stacks
    /// are its 1 and 2.
    pub(in crate::report) fn with_ring<T>(
        mode: Mode,
        counts: [u64; 2],
        records: &[Record],
        ring: Ring,
        look: impl FnOnce(&Report<'_>) -> T,
    ) -> T {
        let mut builder = ProfileBuilder::new();
        builder.set_recording(RecordingInfo {
            mode,
            period_ns: PERIOD_NS,
            ..RecordingInfo::default()
        });
        let stacks = [0x10, 0x20].map(|pc| builder.step(NodeId::ROOT, Frame::leaf(pc)).unwrap());
        for (stack, count) in stacks.into_iter().zip(counts) {
            builder.count(0, stack, count);
        }
        let profile = builder.finish();
        let ring = Ring {
            records: records.to_vec(),
            stacks: vec![(1, stacks[0]), (2, stacks[1])],
            read_at_ns: 1_000_000,
            ..ring
        };
        let timeline = Timeline::new(vec![ring], BTreeMap::new(), 0);
        let symbolizer = Symbolizer::new(Images::default());
        let symbolized = symbolizer.resolve(&profile).unwrap();
        let view = TimelineView {
            timeline: &timeline,
            of: RecordingSpan { recording: Some(1), ring_bit: 0, window: Window::ALL },
            window: Window::ALL,
            seconds: false,
            step_ns: None,
        };
        look(&Report::new(&symbolized, ReportOptions::default()).with_timeline(view))
    }

    fn moments_of(mode: Mode, counts: [u64; 2], records: &[Record], ring: Ring) -> Moments {
        with_ring(mode, counts, records, ring, |report| {
            let moments = Moments::of(report);
            let timed = moments.timed.iter().map(|moment| moment.count);
            let untimed = moments.untimed.values().flatten().map(|(_, count)| *count);
            assert_eq!(timed.chain(untimed).sum::<u64>(), report.weights.shown);
            moments
        })
    }

    fn counts(moments: &Moments) -> (Vec<u64>, Vec<u64>) {
        let timed = moments.timed.iter().map(|moment| moment.count);
        let untimed = moments.untimed.values().flatten().map(|(_, count)| *count);
        (timed.collect(), untimed.collect())
    }

    #[test]
    fn what_the_ring_lacks_has_no_time_and_what_was_not_counted_is_nowhere() {
        let records = [sample(10, 1), sample(20, 2), sample(30, 2), sample(40, 1)];
        let moments = moments_of(Mode::Cpu, [5, 1], &records, Ring::default());
        assert_eq!(counts(&moments), (vec![1, 1, 1], vec![3]));
        let at: Vec<u64> = moments.timed.iter().map(|moment| moment.at_ns).collect();
        assert_eq!(at, [10, 20, 40]);
    }

    /// A wait counts what its record says, however long it was: some of it the vCPU ran, or waited
    /// for a CPU.
    #[test]
    fn a_wait_counts_what_was_counted_for_it() {
        let records = [wait(30_000, 30_000, 2, 24), wait(50_000, 10_000, 2, 8), sample(60_000, 1)];
        for mode in [Mode::Wall, Mode::OffCpu] {
            let moments = moments_of(mode, [1, 32], &records, Ring::default());
            assert_eq!(counts(&moments), (vec![24, 8, 1], vec![]));
            assert_eq!(moments.timed[0].wait_ns, Some(30_000));
            let moments = moments_of(mode, [1, 50], &records, Ring::default());
            assert_eq!(counts(&moments), (vec![24, 8, 1], vec![18]), "the ring may lack waits");
        }
    }

    #[test]
    fn hostile_counts_and_times_do_not_overflow() {
        let records = [wait(u64::MAX - 1, u64::MAX, 2, u64::MAX), wait(u64::MAX, 9, 2, u64::MAX)];
        moments_of(Mode::OffCpu, [0, u64::MAX], &records, Ring::default());
        moments_of(Mode::Wall, [0, u64::MAX], &records, Ring::default());
    }
}
