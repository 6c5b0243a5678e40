//! Times single calls, serialised, with the cycle counter.
#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, _mm_lfence, _mm_mfence, _rdtsc};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The cycle counter, and the apparent duration of an empty call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    cycles_per_ns: f64,
    empty_cycles: u64,
}

/// The durations of many calls in ns, less that of an empty call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timing {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
    /// The spread of the repetitions' medians.
    pub(crate) noise: f64,
}

/// The number of repetitions of a series; the median of their medians is reported.
pub(crate) const REPETITIONS: usize = 9;

impl Clock {
    /// Measures the counter's rate against the system's clock, and the empty call.
    pub(crate) fn calibrate() -> Self {
        let mut clock = Self { cycles_per_ns: cycles_per_ns(), empty_cycles: 0 };
        let mut empty: Vec<u64> = (0..100_000).map(|_| clock.time(|| ())).collect();
        empty.sort_unstable();
        clock.empty_cycles = empty[empty.len() / 2];
        clock
    }

    /// One line about the processor and the clock.
    pub(crate) fn describe(&self) -> String {
        let leaf = __cpuid(1);
        // If the family is 15, the extended field is added.
        let extended = leaf.eax >> 20 & 0xff;
        let family = match leaf.eax >> 8 & 15 {
            15 => 15 + extended,
            family => family,
        };
        let model = leaf.eax >> 4 & 15 | leaf.eax >> 12 & 0xf0;
        let virtualised = if leaf.ecx >> 31 == 1 { ", virtualised" } else { "" };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        format!(
            "x86-64 family {family} model {model}, {processors} processors{virtualised}; cycle \
             counter {:.3} GHz; \
             the empty call ({:.1} ns) is taken off",
            self.cycles_per_ns,
            self.empty_cycles as f64 / self.cycles_per_ns
        )
    }

    /// Times each of `calls` calls of `work`, with `prepare` before it untimed; `works` are
    /// distinguished by their index and take turns, so that other work on the machine affects all
    /// equally.
    pub(crate) fn series<const N: usize>(
        &self,
        calls: usize,
        mut prepare: impl FnMut(usize),
        mut works: [&mut dyn FnMut(usize); N],
    ) -> [Timing; N] {
        let mut all = [const { Vec::new() }; N];
        for _ in 0..REPETITIONS {
            for (all, work) in all.iter_mut().zip(&mut works) {
                for call in 0..calls {
                    prepare(call);
                    all.push(self.time(|| work(call)));
                }
            }
        }
        all.map(|all| self.timing(all, calls))
    }

    /// The same for works without preparation, which take turns call by call: other work on the
    /// machine, which comes and goes, affects all equally.
    pub(crate) fn in_turns<const N: usize>(
        &self,
        calls: usize,
        mut works: [&mut dyn FnMut(usize); N],
    ) -> [Timing; N] {
        let mut all = [const { Vec::new() }; N];
        for call in (0..REPETITIONS).flat_map(|_| 0..calls) {
            for (all, work) in all.iter_mut().zip(&mut works) {
                all.push(self.time(|| work(call)));
            }
        }
        all.map(|all| self.timing(all, calls))
    }

    /// The timing from all calls' cycles; each repetition has so many calls.
    fn timing(&self, mut all: Vec<u64>, calls: usize) -> Timing {
        let median = |repetition: &mut [u64]| {
            repetition.sort_unstable();
            repetition[repetition.len() / 2]
        };
        let mut medians: Vec<u64> = all.chunks_mut(calls).map(median).collect();
        all.sort_unstable();
        medians.sort_unstable();
        let ns = |cycles: u64| cycles.saturating_sub(self.empty_cycles) as f64 / self.cycles_per_ns;
        Timing {
            p50: ns(medians[medians.len() / 2]),
            p99: ns(all[all.len() * 99 / 100]),
            max: ns(all[all.len() - 1]),
            noise: ns(medians[medians.len() - 1]) - ns(medians[0]),
        }
    }

    /// Times one call, with fences: earlier instructions are complete when the clock is first read,
    /// and the call is complete when it is read again.
    #[inline(always)]
    fn time<T>(&self, work: impl FnOnce() -> T) -> u64 {
        fence();
        let start = cycles();
        fence();
        black_box(work());
        fence();
        let end = cycles();
        fence();
        end.wrapping_sub(start)
    }
}

impl Timing {
    /// The timing of one call in a run of `calls`, less its share of `around`.
    pub(crate) fn of_one(self, around: Self, calls: usize) -> Self {
        let of_one = |ns: f64| (ns - around.p50) / calls as f64;
        Self {
            p50: of_one(self.p50),
            p99: of_one(self.p99),
            max: of_one(self.max),
            noise: self.noise / calls as f64,
        }
    }
}

impl std::fmt::Display for Timing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50, p99, max, noise } = self;
        write!(f, "{p50:9.1} {p99:9.1} {max:11.1} {noise:7.1}")
    }
}

/// The heading above lines of a name and a [`Timing`].
pub(crate) const HEADING: &str =
    "                                              p50       p99         max  spread   (ns)";

/// The rate of the cycle counter against the system's clock.
pub(crate) fn cycles_per_ns() -> f64 {
    let (started, first) = (Instant::now(), cycles());
    while started.elapsed() < Duration::from_millis(200) {}
    let passed = cycles() - first;
    passed as f64 / started.elapsed().as_nanos() as f64
}

#[inline(always)]
pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and Linux lets processes use it.
    unsafe { _rdtsc() }
}

/// Waits until all earlier instructions are complete.
#[inline(always)]
pub(crate) fn fence() {
    // SAFETY: every x86-64 has the instruction, and it accesses no memory.
    unsafe { _mm_lfence() };
}

/// Waits until all earlier stores have left the store buffer.
#[inline(always)]
pub(crate) fn drain_stores() {
    // SAFETY: every x86-64 has the instruction, and it accesses no memory.
    unsafe { _mm_mfence() };
}
