//! What a report counts, sample by sample in the order of time.
//!
//! The counts are the truth: the agent accounts for every tick, and knows from the runstate how
//! long a wait was. The ring gives them their times. It may lack some that were counted (they were
//! evicted, or its part of the file begins later), and have some that were not (their stack aged,
//! or they came after the last epoch). Its waits end when the guest goes on, so they contain time
//! in which the woken vCPU waited for a processor.

use std::collections::{BTreeMap, HashMap};

use super::page::Stacks;
use super::{Report, TimelineView};
use crate::profile::{NodeId, TooManyStacks, Unit};
use crate::timeline::{Outcome, Tick};

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
    /// How long a wait was; `None` for a sample.
    pub(super) blocked_ns: Option<u64>,
    /// The name id of the innermost span.
    pub(super) span: Option<u64>,
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

/// What the ring holds of one stack on one vCPU.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    samples: u64,
    /// The length of all its waits, and of those before the present one.
    blocked_ns: u64,
    passed_ns: u64,
    /// What was counted for all its waits, in the mode's unit.
    blocked: u64,
}

impl Held {
    /// What the next wait counts: its part of what was counted for all, in proportion to the time.
    fn next(&mut self, ns: u64) -> u64 {
        let until = |passed_ns: u64| {
            let part = u128::from(self.blocked) * u128::from(passed_ns);
            part.checked_div(self.blocked_ns.into()).unwrap_or(0) as u64
        };
        let passed_ns = self.passed_ns.saturating_add(ns);
        let count = until(passed_ns) - until(self.passed_ns);
        self.passed_ns = passed_ns;
        count
    }
}

impl Moments {
    pub(super) fn of(report: &Report<'_>) -> Result<Moments, TooManyStacks> {
        let mut left: HashMap<(u32, NodeId), u64> = HashMap::new();
        let samples = report.symbolized.profile().samples().iter();
        for sample in samples.filter(|sample| report.weights.keeps(sample.node)) {
            let sum = left.entry((sample.vcpu, sample.node)).or_default();
            *sum = sum.saturating_add(sample.count);
        }
        let timed = match &report.view {
            Some(view) => timed(report, view, &mut left),
            None => Vec::new(),
        };
        left.retain(|_, count| *count != 0);
        Ok(Moments { timed, untimed: by_name(report, left)? })
    }
}

/// What the ring holds, and takes the counts of it from what was counted.
fn timed(
    report: &Report<'_>,
    view: &TimelineView<'_>,
    left: &mut HashMap<(u32, NodeId), u64>,
) -> Vec<Moment> {
    let info = report.symbolized.profile().recording();
    let ticks = view.timeline.ticks(&view.of, info.mode, view.window, info.inside());
    let moment = |tick: Tick| {
        let stack = tick.stack.filter(|stack| report.weights.keeps(*stack))?;
        Some(Moment {
            at_ns: tick.at_ns,
            vcpu: tick.vcpu,
            stack,
            count: 1,
            blocked_ns: match tick.outcome {
                Outcome::Blocked { ns } => Some(ns),
                _ => None,
            },
            span: tick.span,
        })
    };
    let mut all: Vec<Moment> = ticks.filter_map(moment).collect();
    let mut held: HashMap<(u32, NodeId), Held> = HashMap::new();
    for moment in &all {
        let held = held.entry((moment.vcpu, moment.stack)).or_default();
        match moment.blocked_ns {
            Some(ns) => held.blocked_ns = held.blocked_ns.saturating_add(ns),
            None => held.samples += 1,
        }
    }
    // Then all blocked time that was counted belongs to these waits.
    let is_whole = info.ring.is_some() || view.timeline.holds(view.window.and(view.of.window));
    for (stack, held) in &mut held {
        let counted = left.get(stack).copied().unwrap_or(0);
        let counted = counted.saturating_sub(held.samples);
        held.blocked = match info.unit() {
            _ if is_whole => counted,
            Unit::Nanoseconds => counted.min(held.blocked_ns),
            Unit::Bytes | Unit::Objects => 0,
            Unit::Samples => counted.min(held.blocked_ns.checked_div(info.period_ns).unwrap_or(0)),
        };
    }
    all.retain_mut(|moment| {
        let key = (moment.vcpu, moment.stack);
        let left = left.entry(key).or_default();
        moment.count = match moment.blocked_ns {
            None => (*left).min(1),
            Some(ns) => held.get_mut(&key).map_or(0, |held| held.next(ns)),
        };
        *left = left.saturating_sub(moment.count);
        moment.count != 0 || moment.blocked_ns.is_some()
    });
    all
}

/// By vCPU, stacks in the order of their functions' names from the root on.
fn by_name(
    report: &Report<'_>,
    counted: HashMap<(u32, NodeId), u64>,
) -> Result<BTreeMap<u32, Counted>, TooManyStacks> {
    let mut by_vcpu: BTreeMap<u32, Counted> = BTreeMap::new();
    if counted.is_empty() {
        return Ok(by_vcpu);
    }
    for ((vcpu, node), count) in counted {
        by_vcpu.entry(vcpu).or_default().push((node, count));
    }
    let order = Stacks::of(report)?;
    for stacks in by_vcpu.values_mut() {
        stacks.sort_unstable_by_key(|(node, _)| (order.node(*node), *node));
    }
    Ok(by_vcpu)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::ring::{Record, kind};

    use super::*;
    use crate::profile::{Frame, Mode, ProfileBuilder, RecordingInfo};
    use crate::report::ReportOptions;
    use crate::symbols::{Images, Symbolizer};
    use crate::timeline::{RecordingSpan, Ring, Timeline, Window};

    const PERIOD_NS: u64 = 1_000;

    /// A report of two stacks that were counted on vCPU 0, whose ring has these records: the stacks
    /// are its 1 and 2.
    pub(in crate::report) fn with_ring<T>(
        mode: Mode,
        counts: [u64; 2],
        records: &[(u8, u64, u64)],
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
        let record =
            |&(kind, at_ns, first): &(u8, u64, u64)| Record { kind, at_ns, first, second: 1 };
        let ring = Ring {
            records: records.iter().map(record).collect(),
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

    fn moments_of(mode: Mode, counts: [u64; 2], records: &[(u8, u64, u64)], ring: Ring) -> Moments {
        with_ring(mode, counts, records, ring, |report| {
            let moments = Moments::of(report).unwrap();
            let timed = moments.timed.iter().map(|moment| moment.count);
            let untimed = moments.untimed.values().flatten().map(|(_, count)| *count);
            assert_eq!(timed.chain(untimed).sum::<u64>(), report.weights.shown());
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
        let sample = |at_ns, stack| (kind::SAMPLE, at_ns, stack);
        let records = [sample(10, 1), sample(20, 2), sample(30, 2), sample(40, 1)];
        let moments = moments_of(Mode::Cpu, [5, 1], &records, Ring::default());
        assert_eq!(counts(&moments), (vec![1, 1, 1], vec![3]));
        let at: Vec<u64> = moments.timed.iter().map(|moment| moment.at_ns).collect();
        assert_eq!(at, [10, 20, 40]);
    }

    /// A wait in the ring ends when the guest goes on; the agent counts what its vCPU was blocked.
    #[test]
    fn waits_share_what_was_counted_for_all_of_them() {
        let records = [
            (kind::BLOCK, 0, 2),
            (kind::WAKE, 30_000, 0),
            (kind::BLOCK, 40_000, 2),
            (kind::WAKE, 50_000, 0),
            (kind::SAMPLE, 60_000, 1),
        ];
        for (mode, unit) in [(Mode::Wall, 1), (Mode::OffCpu, PERIOD_NS)] {
            let moments = moments_of(mode, [1, 32 * unit], &records, Ring::default());
            assert_eq!(counts(&moments), (vec![24 * unit, 8 * unit, 1], vec![]));
            assert_eq!(moments.timed[0].blocked_ns, Some(30_000));
        }
        // Without its beginning the ring may lack waits.
        let later = Ring { held_since_ns: 5, ..Ring::default() };
        let moments = moments_of(Mode::Wall, [1, 50], &records, later);
        assert_eq!(counts(&moments), (vec![29, 10, 1], vec![11]));
    }

    #[test]
    fn hostile_counts_and_times_do_not_overflow() {
        let records = [
            (kind::BLOCK, 0, 2),
            (kind::WAKE, u64::MAX - 1, 0),
            (kind::BLOCK, 5, 2),
            (kind::WAKE, u64::MAX, 0),
        ];
        moments_of(Mode::OffCpu, [0, u64::MAX], &records, Ring::default());
        moments_of(Mode::Wall, [0, u64::MAX], &records, Ring::default());
    }
}
