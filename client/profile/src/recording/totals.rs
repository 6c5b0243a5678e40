//! The vCPUs' counters, added up over the epochs of a file.

use std::collections::BTreeMap;

use unikprof_proto::code::histogram;
use unikprof_proto::message::{self, Histogram, Snapshot, VcpuEpoch};

use crate::profile::{Cost, Counters, Distribution, Mode, Runstate, VcpuStats};

/// The sums so far, by vCPU.
#[derive(Debug, Default)]
pub(super) struct Totals {
    vcpus: BTreeMap<u32, Total>,
    warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct Total {
    counters: Counters,
    runstate: Option<message::Runstate>,
    /// Whether some epoch lacks the kinds of time.
    runstate_unknown: bool,
    running_ns: u64,
    blocked_ns: u64,
    elapsed_ns: u64,
    cycles: u64,
    tick_cycles: u64,
    deliveries: u64,
    /// The last estimate for one delivery; 0 if there is none.
    delivery_cycles: u64,
    deliveries_measured: u64,
    sample_cycles: Option<Distribution>,
    lateness_ns: Option<Distribution>,
    allocated_bytes: u64,
    freed_samples: u64,
}

impl Totals {
    /// Adds one vCPU's share of an epoch; answers what its stacks should hold.
    pub(super) fn add(&mut self, share: &VcpuEpoch, mode: Mode) -> u64 {
        let VcpuEpoch { vcpu, start, end, .. } = share;
        if ran_backwards(start, end, mode) {
            self.warn(format!(
                "vCPU {vcpu}: a counter or clock ran backwards within epoch {}; counted as 0",
                share.epoch
            ));
        }
        let delta = end.counters.zip(&start.counters, u64::saturating_sub);
        if !delta.add_up() {
            self.warn(format!(
                "vCPU {vcpu}: the {} ticks of epoch {} or the callers of its {} recorded samples \
                 do not add up",
                delta.ticks, share.epoch, delta.recorded
            ));
        }
        let total = self.vcpus.entry(*vcpu).or_default();
        total.counters = total.counters.plus(&Counters::from(&delta));
        let add = |sum: &mut u64, start: u64, end: u64| {
            *sum = sum.saturating_add(end.saturating_sub(start));
        };
        match (&start.runstate, &end.runstate) {
            (Some(start), Some(end)) => {
                let sum = total.runstate.get_or_insert_default();
                add(&mut sum.running_ns, start.running_ns, end.running_ns);
                add(&mut sum.runnable_ns, start.runnable_ns, end.runnable_ns);
                add(&mut sum.blocked_ns, start.blocked_ns, end.blocked_ns);
                add(&mut sum.offline_ns, start.offline_ns, end.offline_ns);
            }
            _ => total.runstate_unknown = true,
        }
        add(&mut total.running_ns, start.running_ns, end.running_ns);
        add(&mut total.blocked_ns, start.blocked_ns, end.blocked_ns);
        add(&mut total.elapsed_ns, start.at_ns, end.at_ns);
        add(&mut total.cycles, start.cycles, end.cycles);
        add(&mut total.tick_cycles, start.tick_cycles, end.tick_cycles);
        if !mode.is_heap() {
            let delivered = delta.ticks.saturating_add(delta.early);
            total.deliveries = total.deliveries.saturating_add(delivered);
        }
        if end.delivery_cycles != 0 {
            total.delivery_cycles = end.delivery_cycles;
            total.deliveries_measured = end.deliveries_measured;
        }
        add(&mut total.allocated_bytes, start.allocated_bytes, end.allocated_bytes);
        add(&mut total.freed_samples, start.freed_samples, end.freed_samples);
        match mode {
            // Counted as they are held, and not in stacks.
            Mode::Live => 0,
            _ => delta.recorded.saturating_add(delta.blocked),
        }
    }

    /// Adds a distribution, which is of one epoch.
    pub(super) fn add_histogram(&mut self, share: &Histogram<'_>) {
        let what = match share.kind {
            histogram::SAMPLE_CYCLES => "cost of samples",
            histogram::LATENESS_NS => "lateness of samples",
            _ => return,
        };
        let Some(found) = Distribution::of(share) else {
            self.warn(format!("vCPU {}: the distribution of the {what} is malformed", share.vcpu));
            return;
        };
        let total = self.vcpus.entry(share.vcpu).or_default();
        let sum = match share.kind {
            histogram::SAMPLE_CYCLES => &mut total.sample_cycles,
            _ => &mut total.lateness_ns,
        };
        *sum = Some(sum.take().unwrap_or_default().plus(&found));
    }

    /// The sums, and what was wrong with them.
    pub(super) fn finish(self, mode: Mode, period_ns: u64) -> (Vec<VcpuStats>, Vec<String>) {
        let stats = self
            .vcpus
            .into_iter()
            .map(|(vcpu, total)| total.stats(vcpu, mode, period_ns))
            .collect();
        (stats, self.warnings)
    }

    fn warn(&mut self, warning: String) {
        // A hostile file must not fill the screen.
        const MOST: usize = 32;
        if self.warnings.len() < MOST {
            self.warnings.push(warning);
        }
    }
}

impl Total {
    fn stats(self, vcpu: u32, mode: Mode, period_ns: u64) -> VcpuStats {
        let mut counters = self.counters;
        let states = self.runstate.filter(|_| !self.runstate_unknown);
        // Where the kinds of time are told, without the time in which the vCPU was offline.
        let blocked_ns = states.map_or(self.blocked_ns, |told| told.blocked_ns);
        counters.find_missing(mode, period_ns, Some(self.running_ns), Some(blocked_ns));
        VcpuStats {
            vcpu,
            counters,
            runstate: Runstate::told(self.running_ns, states),
            elapsed_ns: self.elapsed_ns,
            cost: self.cost(),
            lateness_ns: self.lateness_ns,
            allocated_bytes: if mode.is_heap() { self.allocated_bytes } else { 0 },
            freed_samples: if mode.is_heap() { self.freed_samples } else { 0 },
        }
    }

    /// What sampling cost; `None` where the platform counts no cycles.
    fn cost(&self) -> Option<Cost> {
        if self.cycles == 0 {
            return None;
        }
        let of_elapsed = |cycles: u64| {
            let ns = u128::from(cycles) * u128::from(self.elapsed_ns) / u128::from(self.cycles);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        let per_second = u128::from(self.cycles) * 1_000_000_000;
        let distribution = self.sample_cycles.as_ref();
        let percentile = |percent| distribution.map_or(0, |d| d.percentile(percent));
        Some(Cost {
            cycles_p50: percentile(50),
            cycles_p99: percentile(99),
            cycles_max: distribution.map_or(0, Distribution::max),
            cycles_per_second: per_second
                .checked_div(u128::from(self.elapsed_ns))
                .map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX)),
            sampling_ns: of_elapsed(self.tick_cycles),
            deliveries: self.deliveries,
            delivery_ns: (self.delivery_cycles != 0)
                .then(|| of_elapsed(self.deliveries.saturating_mul(self.delivery_cycles))),
            deliveries_measured: self.deliveries_measured,
        })
    }
}

/// Whether the agent follows blocked time.
fn keeps_blocked(mode: Mode) -> bool {
    !matches!(mode, Mode::Cpu | Mode::Alloc | Mode::Live)
}

fn ran_backwards(start: &Snapshot, end: &Snapshot, mode: Mode) -> bool {
    let runstate = match (&start.runstate, &end.runstate) {
        (Some(start), Some(end)) => {
            end.running_ns < start.running_ns
                || end.runnable_ns < start.runnable_ns
                // Not kept where nothing is sampled by it.
        || (end.blocked_ns < start.blocked_ns && keeps_blocked(mode))
                || end.offline_ns < start.offline_ns
        }
        _ => false,
    };
    // Field by field 0 where all is well.
    let counters = start.counters.zip(&end.counters, u64::saturating_sub);
    runstate
        || counters != message::Counters::default()
        || end.at_ns < start.at_ns
        || end.cycles < start.cycles
        || end.running_ns < start.running_ns
        // Not kept where nothing is sampled by it.
        || (keeps_blocked(mode) && end.blocked_ns < start.blocked_ns)
        || end.tick_cycles < start.tick_cycles
        || end.allocated_bytes < start.allocated_bytes
        || end.freed_samples < start.freed_samples
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at_ns: u64, ticks: u64) -> Snapshot {
        Snapshot {
            allocated_bytes: 0,
            freed_samples: 0,
            at_ns,
            cycles: at_ns * 3,
            running_ns: at_ns / 2,
            blocked_ns: at_ns / 2,
            runstate: Some(message::Runstate {
                running_ns: at_ns / 2,
                runnable_ns: 0,
                blocked_ns: at_ns / 2,
                offline_ns: 0,
            }),
            counters: message::Counters {
                ticks,
                recorded: ticks,
                by_frame_pointer: ticks,
                ..message::Counters::default()
            },
            tick_cycles: ticks * 300,
            delivery_cycles: if at_ns > 2000 { 900 } else { 0 },
            deliveries_measured: if at_ns > 2000 { 16 } else { 0 },
        }
    }

    fn share(start: Snapshot, end: Snapshot) -> VcpuEpoch {
        VcpuEpoch { epoch: 1, vcpu: 0, start, end }
    }

    #[test]
    fn epochs_add_up_and_what_is_missing_is_told() {
        let mut totals = Totals::default();
        assert_eq!(totals.add(&share(snapshot(1000, 10), snapshot(2000, 15)), Mode::Cpu), 5);
        assert_eq!(totals.add(&share(snapshot(2000, 15), snapshot(4000, 24)), Mode::Cpu), 9);
        let (stats, warnings) = totals.finish(Mode::Cpu, 100);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(stats[0].counters.ticks, 14);
        // 1,500 ns of running time at a period of 100 ns.
        assert_eq!(stats[0].counters.missing, Some(1));
        assert_eq!(stats[0].runstate.blocked_ns, Some(1500));
        let cost = stats[0].cost.unwrap_or_default();
        assert_eq!((cost.cycles_per_second, cost.sampling_ns), (3_000_000_000, 1400));
        // 14 deliveries at 300 ns: also those before the estimate.
        assert_eq!((cost.delivery_ns, cost.deliveries_measured), (Some(4200), 16));
    }

    /// What is missing is measured by the time that was sampled, which the mode decides.
    #[test]
    fn missing_is_of_the_time_that_the_mode_samples() {
        let mut end = snapshot(2000, 5);
        end.counters.blocked = 4;
        end.counters.blocked_overflow = 2;
        let missing = |mode| {
            let mut totals = Totals::default();
            assert_eq!(totals.add(&share(snapshot(0, 0), end), mode), 5 + 4);
            let counters = totals.finish(mode, 100).0[0].counters;
            (counters.missing, counters.missing_blocked)
        };
        // 1,000 ns running and 1,000 ns blocked at a period of 100 ns.
        assert_eq!(missing(Mode::Cpu), (Some(5), None));
        assert_eq!(missing(Mode::Wall), (Some(20 - 5 - 4 - 2), Some(10 - 4 - 2)));
        assert_eq!(missing(Mode::OffCpu), (None, Some(1000 - 4 - 2)), "nothing is sampled");
    }

    /// A thread that lived for a part of the recording: the rest of the time is offline, and no
    /// sample of it is due, though the platform's blocked time has it.
    #[test]
    fn offline_time_is_not_missing() {
        let times = |blocked_ns, offline_ns| message::Runstate {
            running_ns: 1000,
            runnable_ns: 0,
            blocked_ns,
            offline_ns,
        };
        let start = snapshot(0, 0);
        let mut end = snapshot(2000, 14);
        end.counters.blocked = 4;
        end.blocked_ns = start.blocked_ns + 9000;
        let start = Snapshot { runstate: Some(message::Runstate::default()), ..start };
        let end = Snapshot { runstate: Some(times(800, 8200)), ..end };
        let mut totals = Totals::default();
        totals.add(&share(start, end), Mode::Wall);
        let stats = totals.finish(Mode::Wall, 100).0;
        let due = (1000 + 800) / 100;
        assert_eq!(stats[0].counters.missing, Some(due - 14 - 4));
    }

    #[test]
    fn each_histogram_is_added_in_its_place() {
        let mut totals = Totals::default();
        totals.add(&share(snapshot(0, 0), snapshot(1000, 1)), Mode::Cpu);
        let mut histogram = |kind, buckets| {
            totals.add_histogram(&Histogram { epoch: 1, vcpu: 0, kind, max: 9, buckets });
        };
        histogram(histogram::SAMPLE_CYCLES, &[5, 1]);
        histogram(histogram::LATENESS_NS, &[3, 7]);
        histogram(histogram::LATENESS_NS, &[3, 8]);
        histogram(77, &[3]);
        let (stats, warnings) = totals.finish(Mode::Cpu, 1);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(stats[0].cost.map(|cost| cost.cycles_p50), Some(5));
        let lateness = stats[0].lateness_ns.clone().unwrap_or_default();
        assert_eq!((lateness.count(), lateness.max()), (15, 9), "two epochs add up");
    }

    #[test]
    fn counters_that_do_not_add_up_or_run_backwards_are_told() {
        let mut totals = Totals::default();
        let mut end = snapshot(2000, 20);
        end.counters.ticks += 1;
        totals.add(&share(snapshot(1000, 10), end), Mode::Cpu);
        totals.add(&share(snapshot(3000, 10), snapshot(2000, 20)), Mode::Cpu);
        let (_, warnings) = totals.finish(Mode::Cpu, 0);
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("11 ticks") && warnings[1].contains("backwards"));
    }

    /// Each clock counts only where something is sampled by it.
    #[test]
    fn blocked_time_that_runs_backwards_matters_where_it_is_recorded() {
        const SECOND: u64 = 1_000_000_000;
        let (mut start, mut end) = (snapshot(1000, 10), snapshot(2000, 20));
        start.blocked_ns = SECOND;
        end.blocked_ns = SECOND - 1;
        for (mode, warnings) in [(Mode::Cpu, 0), (Mode::Wall, 1), (Mode::OffCpu, 1)] {
            let mut totals = Totals::default();
            totals.add(&share(start, end), mode);
            assert_eq!(totals.finish(mode, 1).1.len(), warnings, "{mode}");
        }
    }

    #[test]
    fn an_epoch_without_runstate_leaves_it_unknown() {
        let mut totals = Totals::default();
        totals.add(&share(snapshot(0, 0), snapshot(1000, 1)), Mode::Cpu);
        let mut end = snapshot(2000, 2);
        end.runstate = None;
        totals.add(&share(snapshot(1000, 1), end), Mode::Cpu);
        let (stats, _) = totals.finish(Mode::Cpu, 1);
        assert_eq!(stats[0].runstate.blocked_ns, None);
        assert_eq!(stats[0].runstate.running_ns, Some(1000));
    }
}
