//! The guest's clock, made one that never steps back.
//!
//! A guest may set its clock back, with its time of day for example. Whatever in the agent waits
//! for a time, such as the end of a silent connection or of a lease, would wait as much longer.

use core::sync::atomic::{AtomicU64, Ordering};

/// A clock that is behind by less than this is waited for. One that is further behind was set.
const WAITED_FOR_NS: u64 = 1_000_000_000;

/// How often the clock is read at most, if other CPUs shift it meanwhile.
const ATTEMPTS: u32 = 100;

/// The guest's clock and what is added to it.
///
/// A reading writes a cache line of its own CPU only.
pub(super) struct SteadyClock {
    /// Added to the guest's clock. Written only when that was set back.
    offset_ns: AtomicU64,
    /// By vCPU; the last one is for CPUs that are not sampled.
    latest: &'static [Latest],
}

/// The latest time, in 292 years. What is beyond is a guest's mistake, after which the clock would
/// stand still.
const MOST_NS: u64 = u64::MAX >> 1;

/// The latest reading on a CPU.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct Latest(AtomicU64);

impl SteadyClock {
    /// The clock of a guest with one vCPU less than there are `latest`.
    pub(super) fn new(latest: &'static [Latest]) -> Self {
        Self { offset_ns: AtomicU64::new(0), latest }
    }

    /// Reads the clock, which `ask` returns, on the CPU that `vcpu` returns. If it is behind the
    /// latest reading on this CPU by less than a second, returns that reading. If it is further
    /// behind, shifts the clock, so that it continues from the latest reading.
    #[inline]
    pub(super) fn read(&self, vcpu: impl Fn() -> Option<u32>, ask: impl Fn() -> u64) -> u64 {
        let Some(Latest(latest)) = self.here(vcpu) else {
            return ask();
        };
        for _ in 0..ATTEMPTS {
            // Read before the clock: an upcall in between reads a later time.
            let latest_ns = latest.load(Ordering::Relaxed);
            let offset_ns = self.offset_ns.load(Ordering::Acquire);
            let asked_ns = ask();
            if asked_ns > MOST_NS {
                return latest_ns;
            }
            let now_ns = asked_ns.wrapping_add(offset_ns);
            if self.offset_ns.load(Ordering::Acquire) != offset_ns {
                continue;
            }
            let Some(behind_ns) = latest_ns.checked_sub(now_ns) else {
                // A CPU that was idle for long may have missed that the clock was set back.
                if now_ns - latest_ns >= WAITED_FOR_NS
                    && self.newest_ns().saturating_sub(now_ns) >= WAITED_FOR_NS
                {
                    self.shift(offset_ns, now_ns);
                    continue;
                }
                latest.store(now_ns, Ordering::Relaxed);
                return now_ns;
            };
            if behind_ns < WAITED_FOR_NS {
                return latest_ns;
            }
            self.shift(offset_ns, now_ns);
        }
        latest.load(Ordering::Relaxed)
    }

    /// Shifts the clock, which reads `now_ns`, to the latest reading on any CPU, unless another CPU
    /// has done so.
    #[cold]
    #[inline(never)]
    fn shift(&self, offset_ns: u64, now_ns: u64) {
        let behind_ns = self.newest_ns().saturating_sub(now_ns);
        let shifted_ns = offset_ns.wrapping_add(behind_ns);
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = self.offset_ns.compare_exchange(offset_ns, shifted_ns, success, failure);
    }

    /// The latest reading on any CPU.
    fn newest_ns(&self) -> u64 {
        let all = self.latest.iter().map(|Latest(latest)| latest.load(Ordering::Relaxed));
        all.fold(0, u64::max)
    }

    /// Converts a time of this clock to the guest's.
    #[inline]
    pub(super) fn to_guest(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.offset_ns.load(Ordering::Relaxed))
    }

    /// The latest reading on this CPU.
    #[inline]
    fn here(&self, vcpu: impl Fn() -> Option<u32>) -> Option<&Latest> {
        match self.latest {
            // The loop and the upcalls of a guest with one vCPU run on that.
            [only, _] => Some(only),
            [vcpus @ .., others] => {
                vcpu().and_then(|vcpu| vcpus.get(vcpu as usize)).or(Some(others))
            }
            [] => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::boxed::Box;

    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    fn clock(vcpus: usize) -> SteadyClock {
        let latest: Box<[Latest]> = (0..=vcpus).map(|_| Latest::default()).collect();
        SteadyClock::new(Box::leak(latest))
    }

    /// All CPUs continue from the latest reading on any, whichever notices the step first.
    #[test]
    fn a_step_back_shifts_the_clock_of_all_cpus() {
        let clock = clock(2);
        let read = |vcpu: u32, ns: u64| clock.read(|| (vcpu < 2).then_some(vcpu), || ns);
        assert_eq!(read(0, 5 * HOUR), 5 * HOUR);
        assert_eq!(read(2, 6 * HOUR), 6 * HOUR);
        assert_eq!(read(1, 7 * HOUR), 7 * HOUR);
        assert_eq!(read(0, HOUR), 7 * HOUR);
        assert_eq!(read(1, HOUR + 1), 7 * HOUR + 1);
        assert_eq!(read(2, HOUR + 2), 7 * HOUR + 2);
        assert_eq!(clock.to_guest(7 * HOUR + 3), HOUR + 3);
    }

    /// Guards a CPU that has not read the clock for long, or never, before it was set back: it would
    /// be behind the others until one of them notices.
    #[test]
    fn a_cpu_that_was_idle_notices_a_step_back() {
        let clock = clock(2);
        let read = |vcpu: u32, ns: u64| clock.read(|| (vcpu < 2).then_some(vcpu), || ns);
        assert_eq!(read(1, HOUR), HOUR);
        assert_eq!(read(0, 7 * HOUR), 7 * HOUR);
        assert_eq!(read(1, 6 * HOUR), 7 * HOUR);
        assert_eq!(read(2, 6 * HOUR + 1), 7 * HOUR + 1);
        assert_eq!(read(0, 6 * HOUR + 2), 7 * HOUR + 2);
    }

    /// A step of less than a second is waited for, so many there are.
    #[test]
    fn a_small_step_is_waited_for() {
        let clock = clock(1);
        let read = |ns: u64| clock.read(|| None, || ns);
        assert_eq!(read(HOUR), HOUR);
        for back_ns in [1, WAITED_FOR_NS - 1, 5] {
            assert_eq!(read(HOUR - back_ns), HOUR);
        }
        assert_eq!(read(HOUR + 1), HOUR + 1);
        assert_eq!(read(HOUR + 1 - WAITED_FOR_NS), HOUR + 1);
        assert_eq!(read(HOUR + 2 - WAITED_FOR_NS), HOUR + 2);
    }

    /// Another CPU notices the step between this one's look at the offset and at the clock: the
    /// step must not count twice.
    #[test]
    fn two_cpus_that_notice_a_step_shift_the_clock_once() {
        let clock = clock(2);
        let read = |vcpu: u32, ns: u64| clock.read(|| Some(vcpu), || ns);
        assert_eq!(read(0, 5 * HOUR), 5 * HOUR);
        assert_eq!(read(1, 5 * HOUR), 5 * HOUR);
        let is_first = Cell::new(true);
        let late = clock.read(
            || Some(0),
            || {
                if is_first.take() {
                    assert_eq!(read(1, HOUR), 5 * HOUR);
                    // Before the step.
                    return 5 * HOUR;
                }
                HOUR + 1
            },
        );
        assert_eq!(late, 5 * HOUR + 1);
    }
}
