//! Times single calls, serialised, with the cycle counter.
#![allow(unsafe_code)]

use std::arch::x86_64::{__cpuid, _mm_lfence, _rdtsc};
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
        let (started, first) = (Instant::now(), cycles());
        while started.elapsed() < Duration::from_millis(200) {}
        let elapsed_cycles = cycles() - first;
        let mut clock = Self {
            cycles_per_ns: elapsed_cycles as f64 / started.elapsed().as_nanos() as f64,
            empty_cycles: 0,
        };
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
        let virtualised = if leaf.ecx >> 31 == 1 {
            ", virtualised"
        } else {
            ""
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        format!(
            "x86-64 family {family} model {model}, {processors} processors{virtualised}; cycle counter {:.3} GHz; \
             the empty call ({:.1} ns) is taken off",
            self.cycles_per_ns,
            self.empty_cycles as f64 / self.cycles_per_ns
        )
    }

    /// Times each of `calls` calls of `work`, with `prepare` before it untimed; `works` are distinguished by their
    /// index and take turns, so that other work on the machine affects all equally.
    pub(crate) fn series<const N: usize>(
        &self,
        calls: usize,
        mut prepare: impl FnMut(usize),
        mut works: [&mut dyn FnMut(usize); N],
    ) -> [Timing; N] {
        let mut medians = [const { Vec::new() }; N];
        let mut all = [const { Vec::new() }; N];
        for _ in 0..REPETITIONS {
            for (index, work) in works.iter_mut().enumerate() {
                let first = all[index].len();
                for call in 0..calls {
                    prepare(call);
                    let taken = self.time(|| work(call));
                    all[index].push(taken.saturating_sub(self.empty_cycles));
                }
                let repetition: &mut [u64] = &mut all[index][first..];
                repetition.sort_unstable();
                medians[index].push(repetition[repetition.len() / 2]);
            }
        }
        std::array::from_fn(|index| self.timing(&mut all[index], &mut medians[index]))
    }

    /// The same for works without preparation, which take turns call by call: other work on the machine, which comes
    /// and goes, affects all equally.
    #[allow(dead_code, reason = "not for every bench")]
    pub(crate) fn in_turns<const N: usize>(
        &self,
        calls: usize,
        mut works: [&mut dyn FnMut(usize); N],
    ) -> [Timing; N] {
        let mut medians = [const { Vec::new() }; N];
        let mut all = [const { Vec::new() }; N];
        for _ in 0..REPETITIONS {
            let first = all[0].len();
            for call in 0..calls {
                for (all, work) in all.iter_mut().zip(&mut works) {
                    all.push(self.time(|| work(call)).saturating_sub(self.empty_cycles));
                }
            }
            for (all, medians) in all.iter_mut().zip(&mut medians) {
                let repetition: &mut [u64] = &mut all[first..];
                repetition.sort_unstable();
                medians.push(repetition[repetition.len() / 2]);
            }
        }
        std::array::from_fn(|index| self.timing(&mut all[index], &mut medians[index]))
    }

    /// The timing from all calls' cycles and the repetitions' medians.
    fn timing(&self, all: &mut [u64], medians: &mut [u64]) -> Timing {
        all.sort_unstable();
        medians.sort_unstable();
        let ns = |cycles: u64| cycles as f64 / self.cycles_per_ns;
        Timing {
            p50: ns(medians[medians.len() / 2]),
            p99: ns(all[all.len() * 99 / 100]),
            max: ns(all[all.len() - 1]),
            noise: ns(medians[medians.len() - 1] - medians[0]),
        }
    }

    /// Times one call, with fences: earlier instructions are complete when the clock is first read, and the call is
    /// complete when it is read again.
    #[inline(always)]
    fn time<T>(&self, work: impl FnOnce() -> T) -> u64 {
        // SAFETY: every x86-64 has both instructions, and they access no memory.
        unsafe { _mm_lfence() };
        let start = cycles();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        black_box(work());
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        let end = cycles();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        end.wrapping_sub(start)
    }
}

impl Timing {
    /// The timing of one call in a run of `calls`, less its share of `around`.
    #[allow(dead_code, reason = "not for every bench")]
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
        let Self {
            p50,
            p99,
            max,
            noise,
        } = self;
        write!(f, "{p50:9.1} {p99:9.1} {max:11.1} {noise:7.1}")
    }
}

/// The heading above lines of a name and a [`Timing`].
pub(crate) const HEADING: &str =
    "                                              p50       p99         max  spread   (ns)";

fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and Linux lets processes use it.
    unsafe { _rdtsc() }
}
