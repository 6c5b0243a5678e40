//! The outcome of every tick, how callers were found, and blocked time.

use std::fmt;

use serde::Serialize;
use thiserror::Error;
use unikprof_proto::message;

use super::Mode;

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
    /// The part of `missing` that is blocked time, where that is sampled besides running time. Two
    /// errors that cancel each other in `missing` do not in its parts. In mode `off-cpu` blocked
    /// time − what was counted of it, in ns.
    pub missing_blocked: Option<i64>,
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
    pub fn counted(&self) -> u64 {
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
    pub fn equation(&self) -> String {
        let outcomes = self.outcomes().map(|(outcome, count)| format!("{outcome} {count}"));
        format!("{} = {}", self.ticks, outcomes.join(" + "))
    }

    /// Samples and blocked time that the agent dropped before they were fetched, in the mode's
    /// unit.
    pub(crate) fn aged_in_all(&self) -> u64 {
        self.aged.saturating_add(self.blocked_aged)
    }

    /// Finds what is missing, given how long the vCPU ran and was blocked; `None` if that is not
    /// known.
    pub(crate) fn find_missing(
        &mut self,
        mode: Mode,
        period_ns: u64,
        running_ns: Option<u64>,
        blocked_ns: Option<u64>,
    ) {
        // At most 2⁶⁵ either way.
        let apart = |due: u128, came: u128| {
            (due as i128 - came as i128).clamp(i64::MIN.into(), i64::MAX.into()) as i64
        };
        let beyond = |ns: u128, came| Some(apart(ns.checked_div(period_ns.into())?, came));
        let running = running_ns.map(|ns| (u128::from(ns), u128::from(self.ticks)));
        let blocked = blocked_ns.map(|ns| (u128::from(ns), u128::from(self.blocked_in_all())));
        (self.missing, self.missing_blocked) = match (mode, running, blocked) {
            (Mode::Cpu | Mode::Other(_), Some((ns, came)), _) => (beyond(ns, came), None),
            (Mode::Wall, Some((ran, ticks)), Some((blocked, samples))) => {
                (beyond(ran + blocked, ticks + samples), beyond(blocked, samples))
            }
            (Mode::OffCpu, _, Some((blocked, counted))) => (None, Some(apart(blocked, counted))),
            _ => (None, None),
        };
    }

    /// As texts and pages say it: where more came than was due, by no more than chance explains,
    /// nothing is missing.
    #[must_use]
    pub fn told(mut self) -> Counters {
        let told = |missing: i64, came: u64| match missing.unsigned_abs() as f64 <= chance(came) {
            true => missing.max(0),
            false => missing,
        };
        let blocked = self.blocked_in_all();
        let came = self.ticks.saturating_add(self.missing_blocked.map_or(0, |_| blocked));
        self.missing = self.missing.map(|missing| told(missing, came));
        self.missing_blocked = self.missing_blocked.map(|missing| told(missing, blocked));
        self
    }

    /// The samples of each kind of time, if it is known how many are missing.
    pub fn sampled_kinds(&self, mode: Mode) -> impl Iterator<Item = Came> + use<> {
        let blocked = self.missing_blocked.filter(|_| mode == Mode::Wall);
        let running = self.missing.map(|all| all.saturating_sub(blocked.unwrap_or(0)));
        let ticks = self.ticks;
        let running =
            running.map(|missing| Came { time: SampledTime::Running, samples: ticks, missing });
        let samples = self.blocked_in_all();
        let blocked = blocked.map(|missing| Came { time: SampledTime::Blocked, samples, missing });
        running.into_iter().chain(blocked)
    }

    /// Blocked time, in stacks or not, in the mode's unit.
    pub fn blocked_in_all(&self) -> u64 {
        let blocked = self.blocked.saturating_add(self.blocked_overflow);
        blocked.saturating_add(self.blocked_aged)
    }
}

/// The kinds of time that are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledTime {
    /// Of ticks: the vCPU ran.
    Running,
    /// Of waits: the vCPU was blocked.
    Blocked,
}

impl fmt::Display for SampledTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SampledTime::Running => "running time",
            SampledTime::Blocked => "blocked time",
        })
    }
}

/// The samples of a kind of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came {
    /// What the samples measure.
    pub time: SampledTime,
    /// How many there are.
    pub samples: u64,
    /// How many the time stands for beyond them.
    pub missing: i64,
}

impl Came {
    /// How many the time stands for.
    pub fn due(&self) -> u64 {
        u64::try_from(i128::from(self.samples) + i128::from(self.missing)).unwrap_or(0)
    }

    /// Those that are missing, if they are more than chance explains.
    pub fn surely_missing(&self) -> u64 {
        let missing = u64::try_from(self.missing).unwrap_or(0);
        if missing as f64 > chance(missing.saturating_add(self.samples)) { missing } else { 0 }
    }
}

/// By how much a count may differ from what is due, by chance: two standard deviations.
fn chance(count: u64) -> f64 {
    2.0 * (count as f64).sqrt()
}

/// What is done with every count alike.
macro_rules! with_each {
    ($($count:ident)+) => {
        impl Counters {
            /// Both together, stopping at the largest number.
            pub fn plus(&self, other: &Counters) -> Counters {
                let missing = |a: Option<i64>, b: Option<i64>| match (a, b) {
                    (Some(a), Some(b)) => Some(a.saturating_add(b)),
                    (a, b) => a.or(b),
                };
                Counters {
                    $($count: self.$count.saturating_add(other.$count),)+
                    missing: missing(self.missing, other.missing),
                    missing_blocked: missing(self.missing_blocked, other.missing_blocked),
                }
            }
        }

        impl From<&message::Counters> for Counters {
            /// What an agent counted; what is missing is for the reader to find.
            fn from(counters: &message::Counters) -> Counters {
                Counters {
                    $($count: counters.$count,)+
                    missing: None,
                    missing_blocked: None,
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
    #[error("{ticks} ticks, but recorded + aged + overflow + lost + masked + idle = {sum}")]
    Ticks { ticks: u64, sum: u128 },
    #[error(
        "{recorded} samples recorded or aged, but callers by table + bytes + frame pointer = {sum}"
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

    /// Guards `missing -3` beside a sum of 0: one figure, never negative by rounding alone.
    #[test]
    fn less_than_nothing_is_told_as_missing_only_beyond_chance() {
        let told = |missing, missing_blocked| {
            let counters = Counters { ticks: 100, missing, missing_blocked, ..whole() }.told();
            (counters.missing, counters.missing_blocked)
        };
        assert_eq!(told(Some(-20), None), (Some(0), None));
        assert_eq!(told(Some(-21), None), (Some(-21), None));
        assert_eq!(told(Some(7), Some(-1)), (Some(7), Some(-1)));
        assert_eq!(told(None, Some(0)), (None, Some(0)));
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
