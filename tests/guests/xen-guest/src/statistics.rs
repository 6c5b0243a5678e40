//! Statistics of each vCPU, for tests that check that an idle guest stays asleep, and for the parts of a tick's cost.
//!
//! A *tick* here is an upcall in which the timer fired. Its cycles, by the time stamp counter:
//!
//! | name | from, to |
//! |---|---|
//! | `upcall` | after the entry has saved the general registers; before it restores the SSE state |
//! | `sampler` | the sampler's part of it, hypercalls left out |
//! | `calls` | the hypercalls of it: one to arm the timer anew, as a rule |
//! | `walk`, `count` | the two parts of a sample, where `parts` is asked for; within `sampler` then |
//!
//! The rest of `upcall` is the entry's `fxsave`, the demultiplexing, and the guest's own accounting.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::descriptors::MAX_VCPUS;

static STATISTICS: [VcpuStatistics; MAX_VCPUS] = [const { VcpuStatistics::new() }; MAX_VCPUS];

/// The counts of a vCPU.
pub(crate) fn of(vcpu: VcpuId) -> &'static VcpuStatistics {
    &STATISTICS[vcpu.0 as usize]
}

/// One vCPU's statistics since it started.
#[derive(Debug)]
pub(crate) struct VcpuStatistics {
    /// Sleeps begun.
    pub(crate) blocks: Counter,
    /// The number of interrupts that ended such a sleep, or only interrupted it.
    pub(crate) wakes: Counter,
    pub(crate) upcalls: Counter,
    /// Upcalls in which the timer fired.
    pub(crate) timer_upcalls: Counter,
    /// Upcalls in which another vCPU kicked this one to check its deadline.
    pub(crate) kicks: Counter,
    /// Hypercalls for this vCPU, mostly for its timer.
    pub(crate) timer_calls: Counter,
    /// Hypercalls for event channels.
    pub(crate) event_calls: Counter,
    /// Other hypercalls.
    pub(crate) other_calls: Counter,
    /// Requests that the load has served.
    pub(crate) requests: Counter,
    /// Cycles in hypercalls.
    pub(crate) call_cycles: Counter,
    /// Cycles of ticks.
    pub(crate) upcall: Cost,
    /// Of these, the sampler's.
    pub(crate) sampler: Cost,
    /// Of these, the hypercalls'.
    pub(crate) calls: Cost,
    /// Cycles of a walk, if `parts` is requested.
    pub(crate) walk: Cost,
    /// Cycles of a count, likewise.
    pub(crate) count: Cost,
    /// Frames walked.
    pub(crate) frames: Counter,
}

impl VcpuStatistics {
    const fn new() -> Self {
        Self {
            blocks: Counter::new(),
            wakes: Counter::new(),
            upcalls: Counter::new(),
            timer_upcalls: Counter::new(),
            kicks: Counter::new(),
            timer_calls: Counter::new(),
            event_calls: Counter::new(),
            other_calls: Counter::new(),
            requests: Counter::new(),
            call_cycles: Counter::new(),
            upcall: Cost::new(),
            sampler: Cost::new(),
            calls: Cost::new(),
            walk: Cost::new(),
            count: Cost::new(),
            frames: Counter::new(),
        }
    }

    /// Writes a line `vcpuN.NAME VALUE` for each count.
    pub(crate) fn write(&self, vcpu: VcpuId, to: &mut impl fmt::Write) -> fmt::Result {
        let counters = [
            ("blocks", &self.blocks),
            ("wakes", &self.wakes),
            ("upcalls", &self.upcalls),
            ("timer_upcalls", &self.timer_upcalls),
            ("kicks", &self.kicks),
            ("timer_calls", &self.timer_calls),
            ("event_calls", &self.event_calls),
            ("other_calls", &self.other_calls),
            ("frames", &self.frames),
            ("requests", &self.requests),
        ];
        for (name, counter) in counters {
            writeln!(to, "vcpu{}.{name} {}", vcpu.0, counter.get())?;
        }
        let costs = [
            ("upcall", &self.upcall),
            ("sampler", &self.sampler),
            ("calls", &self.calls),
            ("walk", &self.walk),
            ("count", &self.count),
        ];
        for (name, cost) in costs {
            let figures = [
                ("count", cost.count.get()),
                ("cycles", cost.cycles.get()),
                ("p50", cost.percentile(50)),
                ("p99", cost.percentile(99)),
                ("max", cost.max.get()),
            ];
            for (figure, value) in figures {
                writeln!(to, "vcpu{}.tick.{name}.{figure} {value}", vcpu.0)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn raise_to(&self, value: u64) {
        self.0.fetch_max(value, Ordering::Relaxed);
    }
}

/// Two buckets for each power of two.
const BUCKETS: usize = 64;

/// The distribution of a cost in cycles.
#[derive(Debug)]
pub(crate) struct Cost {
    count: Counter,
    cycles: Counter,
    max: Counter,
    buckets: [Counter; BUCKETS],
}

impl Cost {
    const fn new() -> Self {
        Self {
            count: Counter::new(),
            cycles: Counter::new(),
            max: Counter::new(),
            buckets: [const { Counter::new() }; BUCKETS],
        }
    }

    /// Adds a value.
    pub(crate) fn add(&self, cycles: u64) {
        self.count.add(1);
        self.cycles.add(cycles);
        self.max.raise_to(cycles);
        self.buckets[bucket(cycles)].add(1);
    }

    /// The percentile, accurate to a third; 0 if there are no values.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (self.count.get() * percent).div_ceil(100);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count.get();
            if seen >= wanted.max(1) {
                return end(bucket).min(self.max.get());
            }
        }
        self.max.get()
    }
}

/// Bucket 2n contains 2ⁿ to 1.5 · 2ⁿ, bucket 2n + 1 the rest up to 2ⁿ⁺¹.
fn bucket(cycles: u64) -> usize {
    let cycles = cycles.max(2);
    let power = cycles.ilog2();
    let upper_half = (cycles >> (power - 1)) & 1;
    (2 * power as usize + upper_half as usize).min(BUCKETS - 1)
}

fn end(bucket: usize) -> u64 {
    let power = bucket / 2;
    if bucket.is_multiple_of(2) {
        3 << power >> 1
    } else {
        2 << power
    }
}
