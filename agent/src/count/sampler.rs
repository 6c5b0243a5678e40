//! The times at which to sample: random targets on the vCPU's running time.
//!
//! Each target is one random step after the one before, uniformly distributed from half a period to
//! one and a half. Steps start at the last target, never at the current time, so the rate does not
//! drift. A step's spread is a whole period, so after one step every phase of a load that is
//! synchronous with the period is equally likely. Stolen and blocked time do not advance the clock,
//! so each sample stands for one period of running time.
//!
//! Why: docs/design/decisions.md#targets-are-drawn-evenly,
//! docs/design/decisions.md#a-sample-is-late-from-a-whole-period.

use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// The most steps that a late delivery draws one by one; further missed steps count as whole
/// periods.
const DRAWS: u64 = 8;

/// The most missed targets that a recording makes up for while it follows: another recording with a
/// shorter period arms the timer.
const MOST_OWED: u64 = 16;

/// The sampler's state, 32 bytes. Only its vCPU writes it while the recording is active; before
/// that, the recorder writes it.
#[repr(C)]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct Sampler {
    period_ns: AtomicU64,
    target_ns: AtomicU64,
    random: AtomicU64,
    /// Targets that have passed without a tick.
    owed: AtomicU32,
    /// [`FIXED`] and [`FOLLOWS`].
    flags: AtomicU32,
}

/// The intervals are fixed, not random.
const FIXED: u32 = 1;
/// Another recording's targets arm the timer.
const FOLLOWS: u32 = 2;

/// The meaning of a timer delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Before the target: how much running time is left, in ns.
    Early(u64),
    /// A tick.
    Due {
        /// Running time past the target, in ns.
        lateness_ns: u64,
        /// Running time left to the next target, in ns.
        next_ns: u64,
    },
}

impl Sampler {
    /// Begins sampling; the first target is one step after `running_ns`.
    pub(crate) fn begin(&self, period_ns: u64, fixed: bool, running_ns: u64, seed: u64) {
        self.period_ns.store(period_ns.max(1), Ordering::Relaxed);
        self.random.store(seed | 1, Ordering::Relaxed);
        let flags = if fixed { FIXED } else { 0 };
        self.flags.store(flags, Ordering::Relaxed);
        self.owed.store(0, Ordering::Relaxed);
        let first = running_ns.saturating_add(self.draw());
        self.target_ns.store(first, Ordering::Relaxed);
    }

    /// The mean step between targets.
    #[inline]
    pub(crate) fn period_ns(&self) -> u64 {
        self.period_ns.load(Ordering::Relaxed)
    }

    /// Running time left to the target in ns; 0 if it has passed.
    #[inline]
    pub(crate) fn left_ns(&self, running_ns: u64) -> u64 {
        let target = self.target_ns.load(Ordering::Relaxed);
        target.saturating_sub(running_ns).min(self.farthest_ns())
    }

    /// Whether a delivery at `running_ns` is a tick. If so, moves the target on.
    #[inline(always)]
    pub(crate) fn deliver(&self, running_ns: u64) -> Delivery {
        let target = self.target_ns.load(Ordering::Relaxed);
        let Some(lateness_ns) = running_ns.checked_sub(target) else {
            let left_ns = target - running_ns;
            if left_ns > self.farthest_ns() {
                return Delivery::Early(self.draw_anew(running_ns));
            }
            return Delivery::Early(left_ns);
        };
        let (_, next) = self.pass_target(target, running_ns);
        Delivery::Due { lateness_ns, next_ns: next.saturating_sub(running_ns) }
    }

    /// Moves the target past `now_ns` of the sampled clock; returns how many targets have passed.
    #[inline]
    pub(crate) fn pass(&self, now_ns: u64) -> u64 {
        let target = self.target_ns.load(Ordering::Relaxed);
        if target.saturating_sub(now_ns) > self.farthest_ns() {
            self.draw_anew(now_ns);
            return 0;
        }
        let (targets, _) = self.pass_target(target, now_ns);
        targets
    }

    /// The same for a `target` that is known not to be too far ahead; returns the new target too.
    #[inline]
    fn pass_target(&self, mut target: u64, now_ns: u64) -> (u64, u64) {
        let mut targets = 0;
        let period = self.period_ns();
        let late_ns = now_ns.saturating_sub(target);
        if late_ns / DRAWS > period {
            targets = late_ns.checked_div(period).unwrap_or(0).saturating_sub(DRAWS);
            target = target.saturating_add(targets.saturating_mul(period));
        }
        // A step is at least half a period, so this many always pass `now_ns`.
        for _ in 0..2 * (DRAWS + 1) + 1 {
            if target > now_ns {
                break;
            }
            targets += 1;
            target = target.saturating_add(self.draw());
        }
        self.target_ns.store(target, Ordering::Relaxed);
        (targets, target)
    }

    /// Whether a delivery is a tick of this recording, while a recording with a shorter period arms
    /// the timer. If several targets have passed since the last delivery, the next deliveries make
    /// up for them, so that the rate is right. If this delivery is `late` they do not: they would
    /// sample other code than ran at those targets.
    #[inline]
    pub(crate) fn follow(&self, now_ns: u64, late: bool) -> bool {
        let passed = self.pass(now_ns);
        let passed = if late { passed.min(1) } else { passed };
        let owed = self.owed().saturating_add(passed);
        self.set_follows(true);
        self.set_owed(owed.saturating_sub(1).min(MOST_OWED));
        owed > 0
    }

    /// Makes the recording's targets arm the timer. If it followed another recording until now,
    /// that recording's deliveries have served the targets that have passed.
    #[inline]
    pub(crate) fn lead(&self, now_ns: u64) {
        if self.follows() {
            self.set_follows(false);
            self.owed.store(0, Ordering::Relaxed);
            self.pass(now_ns);
        }
    }

    /// Whether a delivery this late is counted as late.
    #[inline]
    pub(crate) fn is_late(&self, lateness_ns: u64) -> bool {
        lateness_ns > late_threshold_ns(self.period_ns())
    }

    #[inline]
    fn follows(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FOLLOWS != 0
    }

    fn set_follows(&self, follows: bool) {
        let flags = self.flags.load(Ordering::Relaxed) & !FOLLOWS;
        let flags = flags | if follows { FOLLOWS } else { 0 };
        self.flags.store(flags, Ordering::Relaxed);
    }

    #[inline]
    fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed).into()
    }

    /// At most [`MOST_OWED`].
    fn set_owed(&self, owed: u64) {
        self.owed.store(owed as u32, Ordering::Relaxed);
    }

    /// An upper bound of the distance to a newly drawn target, in ns.
    #[inline]
    fn farthest_ns(&self) -> u64 {
        let period = self.period_ns.load(Ordering::Relaxed);
        period.saturating_mul(2).max(2)
    }

    /// Replaces a target that belongs to another clock, and returns the distance to the new one in
    /// ns. Either the guest's clock has stepped back, or a tick that was stopped for long has
    /// written the target of the recording before.
    #[cold]
    fn draw_anew(&self, now_ns: u64) -> u64 {
        let left_ns = self.draw();
        let target = now_ns.saturating_add(left_ns);
        self.target_ns.store(target, Ordering::Relaxed);
        left_ns
    }

    #[inline]
    fn draw(&self) -> u64 {
        let period = self.period_ns.load(Ordering::Relaxed);
        if self.flags.load(Ordering::Relaxed) & FIXED != 0 {
            return period.max(1);
        }
        // xorshift64*: Marsaglia's generator with Vigna's multiplier.
        let mut random = self.random.load(Ordering::Relaxed);
        random ^= random >> 12;
        random ^= random << 25;
        random ^= random >> 27;
        self.random.store(random, Ordering::Relaxed);
        let bits = random.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let part = ((u128::from(bits) * u128::from(period)) >> 64) as u64;
        (period - period / 2 + part).max(1)
    }
}

/// The lateness in ns of running time above which a sample counts as late: a whole period, so that
/// another sample was due in between; at least 100 µs, which an upcall may take by itself.
#[inline]
pub(crate) fn late_threshold_ns(period_ns: u64) -> u64 {
    period_ns.max(100_000)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PERIOD: u64 = 1_000_000;

    fn sampler(fixed: bool) -> Sampler {
        let sampler = Sampler::default();
        sampler.begin(PERIOD, fixed, 0, 42);
        sampler
    }

    /// Delivers at each target exactly; returns the number of ticks until `end`.
    fn ticks_until(sampler: &Sampler, end: u64) -> u64 {
        let (mut now, mut ticks) = (0, 0);
        loop {
            now += sampler.left_ns(now);
            if now > end {
                return ticks;
            }
            assert!(matches!(sampler.deliver(now), Delivery::Due { lateness_ns: 0, .. }));
            ticks += 1;
        }
    }

    /// The mean step is the period: nothing drifts.
    #[test]
    fn the_mean_is_the_period() {
        let ticks = ticks_until(&sampler(false), 100_000 * PERIOD);
        // Steps are uniform with variance P²/12: six standard deviations of 100,000 steps are 548
        // periods.
        assert!(ticks.abs_diff(100_000) < 548, "{ticks}");
        assert_eq!(ticks_until(&sampler(true), 1000 * PERIOD), 1000);
    }

    #[test]
    fn an_early_delivery_keeps_the_target() {
        let sampler = sampler(false);
        let target = sampler.left_ns(0);
        assert!((PERIOD / 2..=PERIOD * 3 / 2).contains(&target));
        assert_eq!(sampler.deliver(target - 3), Delivery::Early(3));
        assert_eq!(sampler.deliver(target - 1), Delivery::Early(1));
        assert!(matches!(sampler.deliver(target), Delivery::Due { lateness_ns: 0, .. }));
    }

    /// Bursts shorter than the period are sampled in proportion: the remaining step is never
    /// redrawn.
    #[test]
    fn short_bursts_are_seen() {
        let sampler = sampler(false);
        let (burst, mut running, mut ticks) = (300_000, 0, 0);
        for _ in 0..100_000 {
            let end = running + burst;
            while running + sampler.left_ns(running) <= end {
                running += sampler.left_ns(running);
                assert!(matches!(sampler.deliver(running), Delivery::Due { .. }));
                ticks += 1;
            }
            running = end;
        }
        assert!(u64::abs_diff(ticks, 30_000) < 300, "{ticks} of 30,000");
    }

    /// A load that is in step with the period: half its time in each of two phases.
    #[test]
    fn a_load_in_step_does_not_fool_the_sampler() {
        let in_first_phase = |fixed| {
            let sampler = sampler(fixed);
            let (mut now, mut hits) = (PERIOD / 4, 0);
            for _ in 0..10_000 {
                now += sampler.left_ns(now);
                let _ = sampler.deliver(now);
                hits += u64::from(now % PERIOD < PERIOD / 2);
            }
            hits
        };
        assert!(in_first_phase(false).abs_diff(5_000) < 250, "{}", in_first_phase(false));
        assert_eq!(in_first_phase(true), 10_000, "the fixed interval sees one phase only");
    }

    /// `pass` counts as many targets as were due, in many calls or in one.
    #[test]
    fn targets_pass_at_the_mean_rate() {
        let sampler = sampler(false);
        let mut passed = 0;
        for step in 1..=1000_u64 {
            passed += sampler.pass(step * 3 * PERIOD);
        }
        assert!(u64::abs_diff(passed, 3000) < 100, "{passed} of 3000");
        assert_eq!(sampler.pass(3000 * PERIOD), 0);
        let long = sampler.pass(1_003_000 * PERIOD);
        assert!(long.abs_diff(1_000_000) < 20, "{long} of 1,000,000");
    }

    /// A clock that steps back an hour must not end the sampling for an hour.
    #[test]
    fn a_clock_that_steps_back_is_sampled_from_there() {
        for follows in [false, true] {
            let sampler = sampler(false);
            let hour = 3_600_000 * PERIOD;
            let _ = sampler.deliver(hour);
            let (mut now, mut ticks) = (PERIOD, 0);
            while now < 101 * PERIOD {
                let left = sampler.left_ns(now);
                assert!(left <= 2 * PERIOD, "{left}");
                now += left;
                let due = if follows {
                    sampler.follow(now, false)
                } else {
                    matches!(sampler.deliver(now), Delivery::Due { .. })
                };
                ticks += u64::from(due);
            }
            assert!(u64::abs_diff(ticks, 100) < 20, "{ticks}");
        }
    }

    /// After a long time without delivery there is one tick, and the next one is not immediate.
    #[test]
    fn lateness_is_one_tick_and_bounded_work() {
        let sampler = sampler(false);
        let Delivery::Due { lateness_ns, next_ns } = sampler.deliver(1_000_000 * PERIOD) else {
            unreachable!("long past the target");
        };
        assert!(lateness_ns > 999_990 * PERIOD && next_ns > 0 && next_ns <= PERIOD * 3 / 2);
        assert!(sampler.is_late(lateness_ns) && !sampler.is_late(PERIOD));
        assert_eq!(late_threshold_ns(10_000), 100_000);
    }

    #[test]
    fn the_ends_of_the_range_do_not_overflow() {
        for period in [0, 1, u64::MAX / 4] {
            let sampler = Sampler::default();
            sampler.begin(period, false, u64::MAX - 10, 7);
            let _ = sampler.deliver(u64::MAX);
        }
    }
}
