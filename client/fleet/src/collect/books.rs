//! What became of every tick of a guest: the books that `collect --audit` shows.
//!
//! For each target, all that was fetched is accepted, rejected, dropped, or waits: a parcel is
//! booked once, in the order of its number, and never again. What the guest could not hold is in
//! the fetched ticks themselves as `aged`, and time of which nothing was fetched is in `lost`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use unikprof_profile::profile::Counters;

/// The most lost spans that are told one by one.
const MOST_SPANS: usize = 32;

/// A span of time, in ns since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Span {
    pub(super) from_unix_ns: u64,
    pub(super) to_unix_ns: u64,
}

/// An epoch of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EpochId {
    /// Of the agent that sent it: epochs are numbered within it. A guest that migrates has another
    /// one afterwards, and the same epochs.
    pub(super) instance: u64,
    pub(super) epoch: u64,
    /// Its end on the guest's monotonic clock, in ns.
    pub(super) ended_ns: u64,
}

/// One epoch, as it lies in the spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parcel {
    /// Its place in the order of the guest's parcels, from 1.
    pub(super) number: u64,
    pub(super) id: EpochId,
    pub(super) outcomes: Outcomes,
    pub(super) span: Span,
}

impl Parcel {
    pub(super) fn ticks(&self) -> u64 {
        self.outcomes.ticks()
    }

    /// When its epoch began, on the guest's monotonic clock in ns.
    fn began_ns(&self) -> Option<u64> {
        let length_ns = self.span.to_unix_ns.checked_sub(self.span.from_unix_ns);
        self.id.ended_ns.checked_sub(length_ns?)
    }
}

/// Parcels together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Amount {
    pub(super) parcels: u64,
    pub(super) ticks: u64,
    /// From the first one's beginning to the last one's end.
    pub(super) span: Option<Span>,
}

impl Amount {
    pub(super) fn add(&mut self, parcel: &Parcel) {
        self.parcels += 1;
        self.ticks = self.ticks.saturating_add(parcel.ticks());
        let Span { from_unix_ns, to_unix_ns } = parcel.span;
        let span = self.span.get_or_insert(parcel.span);
        span.from_unix_ns = span.from_unix_ns.min(from_unix_ns);
        span.to_unix_ns = span.to_unix_ns.max(to_unix_ns);
    }
}

/// Ticks by what the guest had made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Outcomes {
    pub(super) recorded: u64,
    pub(super) aged: u64,
    pub(super) overflow: u64,
    pub(super) lost: u64,
    pub(super) masked: u64,
    pub(super) idle: u64,
}

impl From<[u64; 6]> for Outcomes {
    fn from([recorded, aged, overflow, lost, masked, idle]: [u64; 6]) -> Outcomes {
        Outcomes { recorded, aged, overflow, lost, masked, idle }
    }
}

impl From<&Counters> for Outcomes {
    fn from(c: &Counters) -> Outcomes {
        [c.recorded, c.aged, c.overflow, c.lost, c.masked, c.idle].into()
    }
}

impl Outcomes {
    /// In the order of the fields.
    pub(super) fn all(&self) -> [u64; 6] {
        [self.recorded, self.aged, self.overflow, self.lost, self.masked, self.idle]
    }

    pub(super) fn ticks(&self) -> u64 {
        self.all().into_iter().fold(0, u64::saturating_add)
    }

    fn plus(&self, more: &Outcomes) -> Outcomes {
        let (sums, more) = (self.all(), more.all());
        std::array::from_fn::<_, 6, _>(|at| sums[at].saturating_add(more[at])).into()
    }
}

/// What a target has made of the parcels.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct TargetBooks {
    /// The number of the first parcel that is not booked here.
    pub(super) next: u64,
    /// The ticks that had left the spool before this target was named.
    pub(super) before: u64,
    pub(super) accepted: Amount,
    /// For good, by the target or since it refused them alone for long, or as they could not be
    /// read. They lie in the folder of what is [rejected](super::rejected), and so do those of
    /// `in_part`.
    pub(super) rejected: Amount,
    /// Of these the target has some pieces, and has rejected another for good.
    pub(super) in_part: Amount,
    /// Because the spool was full, the parcel's file was gone, or the target was taken out of
    /// `fleet.toml`.
    pub(super) dropped: Amount,
    /// Why the last one was not accepted.
    pub(super) reason: Option<String>,
    /// Whether it was taken out of `fleet.toml`: nothing waits for it any more.
    #[serde(rename = "gone")]
    pub(super) is_gone: bool,
}

impl TargetBooks {
    fn book(&mut self, parcel: &Parcel, fate: Fate) {
        self.next = parcel.number.saturating_add(1);
        let (amount, reason) = match fate {
            Fate::Accepted => (&mut self.accepted, None),
            Fate::Rejected(reason) => (&mut self.rejected, Some(reason)),
            Fate::InPart(reason) => (&mut self.in_part, Some(reason)),
            Fate::Dropped(reason) => (&mut self.dropped, Some(reason)),
        };
        amount.add(parcel);
        if reason.is_some() {
            self.reason = reason;
        }
    }
}

/// What became of a parcel at a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Accepted,
    Rejected(String),
    /// Some pieces are accepted, and another one is rejected.
    InPart(String),
    Dropped(String),
}

/// Time of which nothing was fetched: the guest started anew, or its recording was ended by others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Lost {
    pub(super) times: u64,
    pub(super) ns: u64,
    /// The latest ones.
    pub(super) latest: Vec<Span>,
}

/// The books of one guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Books {
    /// The number of parcels so far.
    pub(super) last_number: u64,
    /// The epoch that was fetched last, and its end.
    pub(super) last: Option<EpochId>,
    pub(super) last_unix_ns: u64,
    /// All that was fetched.
    pub(super) outcomes: Outcomes,
    pub(super) lost: Lost,
    /// By name.
    pub(super) targets: BTreeMap<String, TargetBooks>,
}

impl Books {
    /// Whether an epoch was fetched from this instance before. Only the last one's acknowledgement
    /// may have been lost: until it is acknowledged, no other is fetched.
    pub(super) fn has(&self, instance: u64, epoch: u64) -> bool {
        let is_it = |last: EpochId| last.instance == instance && last.epoch == epoch;
        self.last.is_some_and(is_it)
    }

    /// Whether an epoch that was fetched now is the last one again: the guest has migrated, or was
    /// saved and restored, before it was acknowledged. The last one is the present instance's from
    /// then on.
    pub(super) fn repeats_last(&mut self, id: EpochId) -> bool {
        let is_it = |last: &&mut EpochId| last.epoch == id.epoch && last.ended_ns == id.ended_ns;
        let last = self.last.as_mut().filter(is_it);
        last.map(|last| *last = id).is_some()
    }

    /// Takes the targets of now. What waits for others is dropped: without them it would wait for
    /// ever. One that is new begins with what waits in the spool, and so does one that was gone.
    pub(super) fn become_for(&mut self, names: &[String], waiting: &[Parcel]) {
        self.targets.retain(|name, books| !(books.is_gone && names.contains(name)));
        let gone = self.targets.iter_mut();
        let gone = gone.filter(|(name, books)| !books.is_gone && !names.contains(name));
        for (_, books) in gone {
            books.is_gone = true;
            let next = books.next;
            for parcel in waiting.iter().filter(|it| it.number >= next) {
                let reason = "it was taken out of fleet.toml";
                books.book(parcel, Fate::Dropped(reason.into()));
            }
        }
        let next = waiting.first().map_or(self.last_number.saturating_add(1), |it| it.number);
        let sum = |sum: u64, parcel: &Parcel| sum.saturating_add(parcel.ticks());
        let ticks = waiting.iter().fold(0, sum);
        for name in names {
            let new = || TargetBooks {
                next,
                before: self.outcomes.ticks().saturating_sub(ticks),
                ..TargetBooks::default()
            };
            self.targets.entry(name.clone()).or_insert_with(new);
        }
    }

    /// Books an epoch that lies in the spool. If it is not the next one of its recording, the time
    /// between is lost.
    pub(super) fn fetched(&mut self, parcel: &Parcel) {
        let is_next = self.last.is_none_or(|last| {
            // The same recording in a guest that has migrated goes on where it was.
            let goes_on = parcel.began_ns() == Some(last.ended_ns);
            (last.instance == parcel.id.instance || goes_on)
                && last.epoch.checked_add(1) == Some(parcel.id.epoch)
        });
        if !is_next {
            self.lost_until(parcel.span.from_unix_ns);
        }
        self.last_number = self.last_number.max(parcel.number);
        self.last = Some(parcel.id);
        self.last_unix_ns = parcel.span.to_unix_ns;
        self.outcomes = self.outcomes.plus(&parcel.outcomes);
    }

    /// Books those of a guest's parcels that came after the books were written.
    pub(super) fn catch_up(&mut self, parcels: &[Parcel]) {
        let known = self.last_number;
        parcels.iter().filter(|it| it.number > known).for_each(|it| self.fetched(it));
    }

    fn lost_until(&mut self, until_unix_ns: u64) {
        if self.last_unix_ns == 0 || until_unix_ns <= self.last_unix_ns {
            return;
        }
        let Lost { times, ns, latest } = &mut self.lost;
        *times += 1;
        *ns = ns.saturating_add(until_unix_ns - self.last_unix_ns);
        if latest.len() >= MOST_SPANS {
            latest.remove(0);
        }
        latest.push(Span { from_unix_ns: self.last_unix_ns, to_unix_ns: until_unix_ns });
    }

    /// Books what became of a parcel at a target; answers whether that was new.
    pub(super) fn settle(&mut self, target: &str, parcel: &Parcel, fate: Fate) -> bool {
        let Some(books) = self.targets.get_mut(target) else {
            return false;
        };
        if books.is_gone || parcel.number < books.next {
            return false;
        }
        books.book(parcel, fate);
        true
    }

    /// Below this number no target needs a parcel any more.
    pub(super) fn done_below(&self) -> u64 {
        let targets = self.targets.values().filter(|books| !books.is_gone);
        let next = targets.map(|books| books.next).min();
        next.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(number: u64) -> Parcel {
        let from_unix_ns = number.wrapping_mul(100);
        Parcel {
            number,
            id: EpochId { instance: 7, epoch: number, ended_ns: from_unix_ns.wrapping_add(90) },
            outcomes: [number.wrapping_mul(10), 0, 0, 0, 0, 0].into(),
            span: Span { from_unix_ns, to_unix_ns: from_unix_ns.wrapping_add(90) },
        }
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    /// It was fetched before the guest migrated, and waits in it until it is acknowledged.
    #[test]
    fn an_epoch_that_a_migrated_guest_sends_again_is_the_same() {
        let mut books = Books::default();
        assert!(!books.has(7, 2));
        books.fetched(&parcel(2));
        // One whose number has gone back is of a guest that was restored from a snapshot.
        assert!(books.has(7, 2) && !books.has(7, 1) && !books.has(7, 3) && !books.has(8, 2));
        let again = EpochId { instance: 8, ..parcel(2).id };
        assert!(!books.repeats_last(EpochId { ended_ns: 3, ..again }));
        assert!(books.repeats_last(again));
        assert!(books.has(8, 2));
        // The next one begins where that has ended, also behind another migration.
        let mut next = parcel(3);
        next.id.instance = 9;
        next.span.from_unix_ns = parcel(2).span.to_unix_ns + 5;
        next.id.ended_ns = again.ended_ns + (next.span.to_unix_ns - next.span.from_unix_ns);
        books.fetched(&next);
        assert_eq!(books.lost, Lost::default());
        // A guest that was restored from an older state counts time anew.
        let mut other = parcel(4);
        other.id.instance = 10;
        books.fetched(&other);
        assert_eq!(books.lost.times, 1);
    }

    /// An agent may say anything.
    #[test]
    fn the_largest_numbers_are_no_mistake_of_ours() {
        let mut books = Books::default();
        books.become_for(&names(&["a"]), &[]);
        let mut last = parcel(u64::MAX);
        last.outcomes = [u64::MAX; 6].into();
        last.id.epoch = u64::MAX;
        last.span = Span { from_unix_ns: u64::MAX, to_unix_ns: 0 };
        for _ in 0..2 {
            books.fetched(&last);
            books.settle("a", &last, Fate::Accepted);
        }
        assert_eq!(books.outcomes.ticks(), u64::MAX);
        assert_eq!(books.done_below(), u64::MAX);
    }

    #[test]
    fn time_between_two_epochs_is_lost_unless_they_follow_each_other() {
        let mut books = Books::default();
        for number in [1, 2, 4] {
            books.fetched(&parcel(number));
        }
        // From the end of the second to the beginning of the fourth.
        let span = Span { from_unix_ns: 290, to_unix_ns: 400 };
        assert_eq!((books.lost.times, books.lost.ns), (1, 110));
        assert_eq!(books.lost.latest, [span]);
        let mut of_other = parcel(5);
        of_other.id.instance = 8;
        books.fetched(&of_other);
        assert_eq!((books.lost.times, books.lost.ns), (2, 120));
    }
}
