//! The budget over time: how much of a CPU the agent's own network work may take, and for whom.
//!
//! One poll is bounded by [`BUDGET_NS`](super::service::BUDGET_NS); this bounds how often there is one. Each
//! [class](Class) of clients has a token bucket that is filled with a part of the share, and emptied by the time that the
//! work for its clients takes. What a full bucket cannot take fills the others, so one class alone has the whole
//! share, and no class can take another's part.

/// How much of a CPU the agent's own network work may take, in thousandths, unless the guest sets another share.
pub const DEFAULT_CPU_SHARE_PERMILLE: u32 = 100;

/// The number of classes.
const CLASSES: usize = 3;
/// Each class's part of the share, in hundredths. A handshake in 5 ms is 2 % of a CPU: what unauthenticated clients
/// have of the default share.
const PARTS: [i64; CLASSES] = [50, 30, 20];
/// A bucket holds as much as it receives in this time.
const WINDOW_NS: i64 = 1_000_000_000;
/// A class whose bucket is empty goes on when it has received this much, so that it does not wake the guest for every
/// frame.
const QUANTUM_NS: i64 = 200_000;
/// The most that one measurement is charged: an interruption that the clock does not show is not the client's doing.
const MAX_CHARGE_NS: u64 = 4_000_000;
/// A bucket's unit: with a thousandth of the share and a hundredth of the part, all products are whole.
const UNITS_PER_NS: i64 = 1000 * 100;

/// Whom work is done for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Clients with the role `control`; in an open agent, all.
    Control,
    /// Clients with the role `view`.
    View,
    /// Clients that have not shown a key yet, and connections that have no session.
    Unauthenticated,
}

/// The budget of one agent.
#[derive(Debug)]
pub(crate) struct Budget {
    share_permille: u32,
    /// What each class may still use, in [units](UNITS_PER_NS); negative after work that took longer than was left.
    levels: [i64; CLASSES],
    refilled_ns: u64,
    /// What each class has been charged in the work under way, in ns.
    charged_ns: [u64; CLASSES],
    /// Since when clients of a class wait for their bucket.
    waits_since_ns: [Option<u64>; CLASSES],
    waited_ns: u64,
}

impl Budget {
    /// A budget with full buckets.
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

    /// Sets the share, 1 to 1000 thousandths of a CPU; with a whole CPU nothing is deferred.
    pub(crate) fn set_share(&mut self, permille: u32) {
        self.share_permille = permille.clamp(1, 1000);
        self.levels = core::array::from_fn(|class| self.capacity(class));
    }

    pub(crate) fn share_permille(&self) -> u32 {
        self.share_permille
    }

    /// How long clients have waited for their bucket, in ns: the sum of all classes.
    pub(crate) fn waited_ns(&self) -> u64 {
        self.waited_ns
    }

    /// Whether there may be work for a class now.
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

    /// When there may be work for a class again: `now_ns` or later.
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

    /// When the clients that wait for their bucket can be served, if there are any. Once it has answered `now_ns`
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

    /// Charges a class for work that took so long.
    pub(crate) fn charge(&mut self, class: Class, took_ns: u64) {
        let index = class as usize;
        if let Some(charged_ns) = self.charged_ns.get_mut(index) {
            *charged_ns = charged_ns.saturating_add(took_ns);
        }
        self.take(index, took_ns);
    }

    /// Ends a piece of work that took so long in all. The time that was charged to no class (packets, system calls, the recorder) is
    /// divided among the classes that were charged, as their charges are; without any it is that of unauthenticated
    /// clients.
    pub(crate) fn end_work(&mut self, took_ns: u64) {
        let charged_ns = core::mem::take(&mut self.charged_ns);
        let sum_ns = charged_ns
            .iter()
            .fold(0, |sum: u64, ns| sum.saturating_add(*ns));
        let rest_ns = took_ns.saturating_sub(sum_ns).min(MAX_CHARGE_NS);
        if sum_ns == 0 {
            // A class that waits does not pay for polls: they would use up what it waits for.
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
            // A client cannot be charged for more than a second in advance.
            *level = (*level - units).max(-WINDOW_NS * UNITS_PER_NS);
        }
    }

    /// What a class receives in a nanosecond, in units.
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
        // After so long every bucket is full, whatever its debt and however small the share.
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

    /// Work as a loop that never ends: in each turn so much for each class, then a wait for the earliest.
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

    /// Guards the share, and that a class alone has all of it: a second's share may be used at once, the rest as
    /// time goes by.
    #[test]
    fn a_class_alone_has_the_whole_share_and_no_more() {
        for share_permille in [10, 100, 500] {
            for class in [Class::Control, Class::View, Class::Unauthenticated] {
                let used_ns = use_up(&[class], 60, share_permille)[class as usize];
                let share_ns = 1_000_000 * u64::from(share_permille);
                let range = 58 * share_ns..=62 * share_ns;
                assert!(
                    range.contains(&used_ns),
                    "{class:?} at {share_permille}: {used_ns}"
                );
            }
        }
    }

    #[test]
    fn no_class_takes_the_part_of_another() {
        let all = [Class::View, Class::Unauthenticated, Class::Control];
        let used_ns = use_up(&all, 60, 100);
        for (used_ns, part) in used_ns.into_iter().zip([50, 30, 20]) {
            let share_ns = 1_000_000 * part;
            assert!(
                (58 * share_ns..=62 * share_ns).contains(&used_ns),
                "{used_ns} of {part}"
            );
        }
    }

    #[test]
    fn work_for_nobody_is_charged_to_unauthenticated_clients() {
        let mut budget = Budget::new(0);
        (0..20).for_each(|_| budget.end_work(1_000_000));
        assert!(!budget.allows(Class::Unauthenticated, 0));
        assert!(budget.allows(Class::Control, 0) && budget.allows(Class::View, 0));
    }

    /// A clock that stood still, or went on for years, is no reason for a panic.
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
