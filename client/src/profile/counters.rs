//! The outcome of every tick, how callers were found, and blocked time.

use serde::Serialize;
use thiserror::Error;
use unikprof_proto::message;

/// The outcomes of the sampling timer's deliveries, and blocked time.
///
/// A tick is a delivery whose target was reached; each tick is in exactly one of `recorded`,
/// `aged`, `overflow`, `lost`, `masked` and `idle`, and each recorded or aged one in exactly one of
/// `by_table`, `by_bytes` and `by_frame_pointer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Sampled time ÷ period − ticks: noise around zero in a sound recording. `None` if nothing is
    /// sampled. This check is independent; all others agree by construction.
    pub missing: Option<i64>,
    /// Deliveries whose target was reached.
    pub ticks: u64,
    /// Walked and counted in a stack.
    pub recorded: u64,
    /// Walked and counted in a stack that the agent gave up before it was fetched, because memory
    /// ran short.
    pub aged: u64,
    /// The table of stacks was full.
    pub overflow: u64,
    /// The slot was busy.
    pub lost: u64,
    /// Due, but delivered without registers.
    pub masked: u64,
    /// Due while the guest blocked.
    pub idle: u64,
    /// Delivered before the target and armed again; no tick.
    pub early: u64,
    /// Recorded, but later than [`RecordingInfo::late_threshold_ns`](super::RecordingInfo) after
    /// the target.
    pub late: u64,
    /// Recorded, but deeper than the limit.
    pub truncated: u64,
    /// Recorded, but the chain of frames ended badly.
    pub broken: u64,
    /// Recorded; the interrupted function's caller was found through the caller table.
    pub by_table: u64,
    /// Recorded; its caller was found by the instructions at the interrupted place.
    pub by_bytes: u64,
    /// Recorded; its caller was taken from the frame pointer, right or not.
    pub by_frame_pointer: u64,
    /// Recorded under [`Unwind::Table`](super::Unwind), with a frame that the table does not know.
    pub mixed: u64,
    /// How often the vCPU blocked, if blocked time is recorded.
    pub blocks: u64,
    /// Blocked time counted in stacks, in the mode's [unit](super::Mode::unit).
    pub blocked: u64,
    /// Blocked time that is in no stack, in the same unit: the table was full, or the guest
    /// supplied no registers when it blocked.
    pub blocked_overflow: u64,
    /// Blocked time in stacks that the agent gave up before they were fetched, in the same unit.
    pub blocked_aged: u64,
}

impl Counters {
    /// Checks that every tick is accounted for, and every recorded one's caller.
    pub fn check(&self) -> Result<(), CountersDisagree> {
        let found = sum(&self.outcomes().map(|(_, count)| count));
        if found != u128::from(self.ticks) {
            return Err(CountersDisagree::Ticks { ticks: self.ticks, sum: found });
        }
        let found = sum(&[self.by_table, self.by_bytes, self.by_frame_pointer]);
        let recorded = sum(&[self.recorded, self.aged]);
        if found != recorded {
            return Err(CountersDisagree::Ways { recorded, sum: found });
        }
        Ok(())
    }

    /// The total count of the profile's stacks, including `[aged]`, in the mode's unit.
    pub(crate) fn counted(&self) -> u64 {
        let counted = self.recorded.saturating_add(self.blocked);
        counted.saturating_add(self.aged_in_all())
    }

    /// Samples that were counted in a stack, those that were given up since included.
    pub fn sampled(&self) -> u64 {
        self.recorded.saturating_add(self.aged)
    }

    /// What became of the ticks: the outcomes' names and counts, whose sum is
    /// [`ticks`](Self::ticks).
    pub fn outcomes(&self) -> [(&'static str, u64); 6] {
        [
            ("recorded", self.recorded),
            ("aged", self.aged),
            ("overflow", self.overflow),
            ("lost", self.lost),
            ("masked", self.masked),
            ("idle", self.idle),
        ]
    }

    /// What became of the ticks, in words.
    pub(crate) fn equation(&self) -> String {
        let outcomes = self.outcomes().map(|(outcome, count)| format!("{outcome} {count}"));
        format!("{} = {}", self.ticks, outcomes.join(" + "))
    }

    /// Samples and blocked time that the agent dropped before they were fetched, in the mode's
    /// unit.
    pub(crate) fn aged_in_all(&self) -> u64 {
        self.aged.saturating_add(self.blocked_aged)
    }

    /// Blocked time, in stacks or not, in the mode's unit.
    pub(crate) fn blocked_in_all(&self) -> u64 {
        let blocked = self.blocked.saturating_add(self.blocked_overflow);
        blocked.saturating_add(self.blocked_aged)
    }
}

/// What is done with every count alike.
macro_rules! with_each {
    ($($count:ident)+) => {
        impl Counters {
            /// Both together, stopping at the largest number.
            pub fn plus(&self, other: &Counters) -> Counters {
                Counters {
                    $($count: self.$count.saturating_add(other.$count),)+
                    missing: match (self.missing, other.missing) {
                        (Some(a), Some(b)) => Some(a.saturating_add(b)),
                        (a, b) => a.or(b),
                    },
                }
            }
        }

        impl From<&message::Counters> for Counters {
            /// What an agent counted; what is missing is for the reader to find.
            fn from(counters: &message::Counters) -> Counters {
                Counters {
                    $($count: counters.$count,)+
                    missing: None,
                }
            }
        }
    };
}

with_each! {
    ticks recorded aged overflow lost masked idle early late truncated broken
    by_table by_bytes by_frame_pointer mixed
    blocks blocked blocked_overflow blocked_aged
}

fn sum(parts: &[u64]) -> u128 {
    parts.iter().map(|part| u128::from(*part)).sum()
}

/// A count is not the sum of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CountersDisagree {
    #[error(
        "the accounting does not add up: {ticks} ticks, but recorded + aged + overflow + lost + \
         masked + \
         idle = {sum}"
    )]
    Ticks { ticks: u64, sum: u128 },
    #[error(
        "the accounting does not add up: {recorded} samples recorded or aged, but callers by table \
         + by \
         bytes + by frame pointer = {sum}"
    )]
    Ways { recorded: u128, sum: u128 },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Counters {
        Counters {
            ticks: 21,
            recorded: 1,
            aged: 6,
            overflow: 2,
            lost: 3,
            masked: 4,
            idle: 5,
            by_bytes: 7,
            ..Counters::default()
        }
    }

    #[test]
    fn a_sum_that_is_off_by_one_is_told() {
        assert_eq!(whole().check(), Ok(()));
        let one_more = Counters { ticks: 22, ..whole() };
        assert_eq!(one_more.check(), Err(CountersDisagree::Ticks { ticks: 22, sum: 21 }));
        let two_ways = Counters { by_table: 1, ..whole() };
        assert_eq!(two_ways.check(), Err(CountersDisagree::Ways { recorded: 7, sum: 8 }));
        // Early deliveries are outside the sum.
        let early = Counters { early: 100, ..whole() };
        assert_eq!(early.check(), Ok(()));
    }

    #[test]
    fn hostile_counters_do_not_overflow() {
        let huge = Counters {
            ticks: 1,
            recorded: u64::MAX,
            lost: u64::MAX,
            by_table: u64::MAX,
            by_bytes: u64::MAX,
            blocked: 1,
            missing: Some(i64::MIN),
            ..Counters::default()
        };
        assert!(huge.check().is_err());
        assert_eq!(huge.counted(), u64::MAX);
        let sum = huge.plus(&huge);
        assert_eq!((sum.recorded, sum.missing), (u64::MAX, Some(i64::MIN)));
    }

    /// A vCPU that cannot tell must not hide what another tells.
    #[test]
    fn what_is_missing_on_one_vcpu_is_not_lost_in_the_sum() {
        let of = |missing| Counters { missing, ..Counters::default() };
        assert_eq!(of(None).plus(&of(Some(-3))).missing, Some(-3));
        assert_eq!(of(Some(5)).plus(&of(Some(-3))).missing, Some(2));
        assert_eq!(of(None).plus(&of(None)).missing, None);
    }
}
