//! The CPU budget over time: the share of a CPU that the agent's own network work may take, and its
//! distribution.
//!
//! The time of one poll is bounded by [`BUDGET_NS`](super::service::BUDGET_NS); this bounds the
//! number of polls. Each [class](Class) of clients has a token bucket that receives a part of the
//! share, and pays for the work done for its clients. The overflow of full buckets goes to the
//! others: a class alone has the whole share, and no class can take another's part.

/// The default share of a CPU for the agent's own network work, in thousandths.
pub const DEFAULT_CPU_SHARE_PERMILLE: u32 = 100;

/// The number of classes.
const CLASSES: usize = 3;
/// Each class's part of the share, in hundredths. One handshake every 5 ms takes 2 % of a CPU,
/// which is the part of unauthenticated clients in the default share.
const PARTS: [i64; CLASSES] = [50, 30, 20];
/// The capacity of a bucket: what it receives in this time.
const WINDOW_NS: i64 = 1_000_000_000;
/// A class whose bucket was empty continues when it has received this much, so that it does not
/// wake the guest for every frame.
const QUANTUM_NS: i64 = 200_000;
/// The maximum charge of one measurement: the client should not pay for an interruption that the
/// clock does not show.
const MAX_CHARGE_NS: u64 = 4_000_000;
/// Units of a bucket per ns: thousandths of the share times hundredths of the part, so that all
/// products are integers.
const UNITS_PER_NS: i64 = 1000 * 100;

/// On whose behalf work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Clients with the role `control`; all clients of an open agent.
    Control,
    /// Clients with the role `view`.
    View,
    /// Clients that have not proved a key yet, and connections without a session.
    Unauthenticated,
}

/// The CPU budget of an agent.
#[derive(Debug)]
pub(crate) struct Budget {
    share_permille: u32,
    /// Remaining budget of each class in [units](UNITS_PER_NS); negative after work that took
    /// longer than was left.
    levels: [i64; CLASSES],
    refilled_ns: u64,
    /// Charges of each class in the current work, in ns.
    charged_ns: [u64; CLASSES],
    /// Start of the wait of each class's clients for their bucket; `None` if they do not wait.
    waits_since_ns: [Option<u64>; CLASSES],
    waited_ns: u64,
}

impl Budget {
    /// Creates a budget with full buckets.
    pub(crate) fn new(now_ns: u64) -> Self {
        let mut budget = Self {
            share_permille: DEFAULT_CPU_SHARE_PERMILLE,
            levels: [0; CLASSES],
            refilled_ns: now_ns,
            charged_ns: [0; CLASSES],
            waits_since_ns: [None; CLASSES],
            waited_ns: 0,
        };
        budget.levels = core::array::from_fn(|class| budget.capacity(class));
        budget
    }

    /// Sets the share, 1 to 1000 thousandths of a CPU; with 1000, a whole CPU, nothing is deferred.
    pub(crate) fn set_share(&mut self, permille: u32) {
        self.share_permille = permille.clamp(1, 1000);
        self.levels = core::array::from_fn(|class| self.capacity(class));
    }

    pub(crate) fn share_permille(&self) -> u32 {
        self.share_permille
    }

    /// The time that clients have waited for their buckets, in ns: the sum over all classes.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// Whether work for a class may be done now.
    pub(crate) fn allows(&mut self, class: Class, now_ns: u64) -> bool {
        self.refill(now_ns);
        let index = class as usize;
        let allows = self.is_unlimited() || self.levels.get(index).is_some_and(|level| *level > 0);
        if allows {
            let since_ns = self.waits_since_ns.get_mut(index).and_then(Option::take);
            let waited_ns = since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
            self.waited_ns = self.waited_ns.saturating_add(waited_ns);
        }
        allows
    }

    /// Notes that a client of a class waits for its bucket.
    pub(crate) fn wait(&mut self, class: Class, now_ns: u64) {
        if let Some(since_ns) = self.waits_since_ns.get_mut(class as usize) {
            since_ns.get_or_insert(now_ns);
        }
    }

    /// When work for a class may be done again: `now_ns` or later.
    pub(crate) fn allows_from_ns(&self, class: Class, now_ns: u64) -> u64 {
        let level = self.levels.get(class as usize).copied().unwrap_or(0);
        if level > 0 || self.is_unlimited() {
            return now_ns;
        }
        let wanted = QUANTUM_NS * UNITS_PER_NS - level;
        let rate = self.rate(class as usize).max(1);
        let wait_ns = u64::try_from(wanted / rate).unwrap_or(0);
        // The level is as it was when the buckets were filled last, which may be long ago.
        now_ns.max(self.refilled_ns.saturating_add(wait_ns + 1))
    }

    /// When the waiting clients can be served, if there are any. After this has returned `now_ns`
    /// for a class, that class no longer waits.
    pub(crate) fn deadline_ns(&mut self, now_ns: u64) -> Option<u64> {
        let mut next_ns = None;
        for class in [Class::Control, Class::View, Class::Unauthenticated] {
            let waits = self.waits_since_ns.get(class as usize);
            if waits.is_some_and(Option::is_some) {
                self.allows(class, now_ns);
                let from_ns = self.allows_from_ns(class, now_ns);
                next_ns = Some(next_ns.map_or(from_ns, |next_ns: u64| next_ns.min(from_ns)));
            }
        }
        next_ns
    }

    /// Charges a class for work that took `took_ns`.
    pub(crate) fn charge(&mut self, class: Class, took_ns: u64) {
        let index = class as usize;
        if let Some(charged_ns) = self.charged_ns.get_mut(index) {
            *charged_ns = charged_ns.saturating_add(took_ns);
        }
        self.take(index, took_ns);
    }

    /// Ends a piece of work that took `took_ns` in total. The time that was not charged to a class
    /// (packets, system calls, the recorder) is divided among the charged classes in proportion to
    /// their charges; if there are none, unauthenticated clients are charged.
    pub(crate) fn end_work(&mut self, took_ns: u64) {
        let charged_ns = core::mem::take(&mut self.charged_ns);
        let sum_ns = charged_ns.iter().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        let rest_ns = took_ns.saturating_sub(sum_ns).min(MAX_CHARGE_NS);
        if sum_ns == 0 {
            // A waiting class does not pay for polls: they would use up the budget that it waits
            // for.
            let index = Class::Unauthenticated as usize;
            if self.levels.get(index).is_some_and(|level| *level > 0) {
                self.take(index, rest_ns);
            }
            return;
        }
        for (index, part_ns) in charged_ns.into_iter().enumerate() {
            let part = u128::from(rest_ns) * u128::from(part_ns) / u128::from(sum_ns);
            self.take(index, u64::try_from(part).unwrap_or(0));
        }
    }

    fn is_unlimited(&self) -> bool {
        self.share_permille == 1000
    }

    fn take(&mut self, index: usize, ns: u64) {
        let units = i64::try_from(ns.min(MAX_CHARGE_NS)).unwrap_or(0) * UNITS_PER_NS;
        if let Some(level) = self.levels.get_mut(index) {
            // The debt is at most the budget of a second.
            *level = (*level - units).max(-WINDOW_NS * UNITS_PER_NS);
        }
    }

    /// The units that a class receives per ns.
    fn rate(&self, index: usize) -> i64 {
        let part = PARTS.get(index).copied().unwrap_or(0);
        i64::from(self.share_permille) * part
    }

    fn capacity(&self, index: usize) -> i64 {
        self.rate(index) * WINDOW_NS
    }

    fn refill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.refilled_ns);
        self.refilled_ns = self.refilled_ns.max(now_ns);
        // After this time every bucket is full, whatever its debt and however small the share.
        let passed_ns = i64::try_from(passed_ns.min(1 << 44)).unwrap_or(0);
        let mut spare: i64 = 0;
        for index in 0..CLASSES {
            let (rate, capacity) = (self.rate(index), self.capacity(index));
            if let Some(level) = self.levels.get_mut(index) {
                let filled = level.saturating_add(rate.saturating_mul(passed_ns));
                spare = spare.saturating_add((filled - capacity).max(0));
                *level = filled.min(capacity);
            }
        }
        for index in 0..CLASSES {
            let capacity = self.capacity(index);
            if let Some(level) = self.levels.get_mut(index) {
                let more = spare.min(capacity - *level);
                *level += more;
                spare -= more;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Simulates an endless loop: each iteration works for each class, and then waits for the
    /// earliest one.
    fn use_up(classes: &[Class], seconds: u64, share_permille: u32) -> [u64; CLASSES] {
        let mut budget = Budget::new(0);
        budget.set_share(share_permille);
        let (mut now_ns, mut used_ns) = (0, [0; CLASSES]);
        while now_ns < seconds * 1_000_000_000 {
            let before_ns = now_ns;
            for class in classes {
                if budget.allows(*class, now_ns) {
                    now_ns += 100_000;
                    budget.charge(*class, 80_000);
                    budget.end_work(100_000);
                    used_ns[*class as usize] += 100_000;
                } else {
                    budget.wait(*class, now_ns);
                }
            }
            if now_ns == before_ns {
                now_ns = budget.deadline_ns(now_ns).unwrap();
            }
        }
        used_ns
    }

    /// Guards the share, and that one class alone has all of it: the share of one second may be
    /// used at once, the rest as time passes.
    #[test]
    fn a_class_alone_has_the_whole_share_and_no_more() {
        for share_permille in [10, 100, 500] {
            for class in [Class::Control, Class::View, Class::Unauthenticated] {
                let used_ns = use_up(&[class], 60, share_permille)[class as usize];
                let share_ns = 1_000_000 * u64::from(share_permille);
                let range = 58 * share_ns..=62 * share_ns;
                assert!(range.contains(&used_ns), "{class:?} at {share_permille}: {used_ns}");
            }
        }
    }

    #[test]
    fn no_class_takes_the_part_of_another() {
        let all = [Class::View, Class::Unauthenticated, Class::Control];
        let used_ns = use_up(&all, 60, 100);
        for (used_ns, part) in used_ns.into_iter().zip([50, 30, 20]) {
            let share_ns = 1_000_000 * part;
            assert!((58 * share_ns..=62 * share_ns).contains(&used_ns), "{used_ns} of {part}");
        }
    }

    #[test]
    fn work_for_nobody_is_charged_to_unauthenticated_clients() {
        let mut budget = Budget::new(0);
        (0..20).for_each(|_| budget.end_work(1_000_000));
        assert!(!budget.allows(Class::Unauthenticated, 0));
        assert!(budget.allows(Class::Control, 0) && budget.allows(Class::View, 0));
    }

    /// A clock that stands still, or jumps by years, must not cause a panic.
    #[test]
    fn any_time_may_pass() {
        let mut budget = Budget::new(u64::MAX - 1);
        budget.set_share(999);
        (0..10_000).for_each(|_| budget.charge(Class::View, u64::MAX));
        budget.end_work(u64::MAX);
        assert!(!budget.allows(Class::View, 0));
        assert!(budget.allows_from_ns(Class::View, u64::MAX) >= u64::MAX - 1);
        let mut budget = Budget::new(0);
        budget.set_share(0);
        (0..10_000).for_each(|_| budget.charge(Class::View, u64::MAX));
        assert!(budget.allows(Class::View, u64::MAX));
    }
}
