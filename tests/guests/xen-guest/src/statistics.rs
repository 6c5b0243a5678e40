//! Statistics of each vCPU, for tests that check that an idle guest stays asleep, and for the parts
//! of a tick's cost.
//!
//! A *tick* here is an upcall in which the timer fired. Its cycles, by the time stamp counter:
//!
//! | name | from, to |
//! |---|---|
//! | `upcall` | after the entry has saved the general registers; before it restores the SSE state |
//! | `sampler` | the sampler's part of it, hypercalls left out |
//! | `calls` | the hypercalls of it: one to arm the timer anew, as a rule |
//!
//! The rest of `upcall` is the entry's `fxsave`, the demultiplexing, and the guest's own
//! accounting.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::processor::MAX_VCPUS;

static STATISTICS: [VcpuStatistics; MAX_VCPUS] = [const { VcpuStatistics::new() }; MAX_VCPUS];

/// The counts of a vCPU.
pub(crate) fn of(vcpu: VcpuId) -> &'static VcpuStatistics {
    &STATISTICS[vcpu.0 as usize]
}

macro_rules! statistics {
    ($($(#[doc = $doc:literal])* $name:ident: $kind:ident,)*) => {
        /// One vCPU's statistics since it started.
        #[derive(Debug)]
        pub(crate) struct VcpuStatistics {
            $($(#[doc = $doc])* pub(crate) $name: $kind,)*
        }

        impl VcpuStatistics {
            const fn new() -> Self {
                Self { $($name: $kind::new(),)* }
            }

            /// Writes a line `vcpuN.NAME VALUE` for each count.
            pub(crate) fn write(&self, vcpu: VcpuId, to: &mut impl fmt::Write) -> fmt::Result {
                $(self.$name.write(vcpu, stringify!($name), to)?;)*
                Ok(())
            }
        }
    };
}

statistics! {
    blocks: Counter,
    /// The number of interrupts that ended such a sleep, or only interrupted it.
    wakes: Counter,
    upcalls: Counter,
    /// Upcalls in which the timer fired.
    timer_upcalls: Counter,
    /// Upcalls in which another vCPU kicked this one to check its deadline.
    kicks: Counter,
    /// Hypercalls for this vCPU, mostly for its timer.
    timer_calls: Counter,
    event_calls: Counter,
    other_calls: Counter,
    requests: Counter,
    call_cycles: Counter,
    /// Cycles of ticks.
    upcall: Cost,
    /// The sampler's part of these cycles.
    sampler: Cost,
    /// The hypercalls' part of these cycles.
    calls: Cost,
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

    fn write(&self, vcpu: VcpuId, name: &str, to: &mut impl fmt::Write) -> fmt::Result {
        writeln!(to, "vcpu{}.{name} {}", vcpu.0, self.get())
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

    fn write(&self, vcpu: VcpuId, name: &str, to: &mut impl fmt::Write) -> fmt::Result {
        let figures = [
            ("count", self.count.get()),
            ("cycles", self.cycles.get()),
            ("p50", self.percentile(50)),
            ("p99", self.percentile(99)),
            ("max", self.max.get()),
        ];
        for (figure, value) in figures {
            writeln!(to, "vcpu{}.tick.{name}.{figure} {value}", vcpu.0)?;
        }
        Ok(())
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
    if bucket.is_multiple_of(2) { 3 << power >> 1 } else { 2 << power }
}
