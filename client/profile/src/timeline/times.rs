//! How a vCPU's time was spent between two moments, from the runstate records in its ring.

use unikprof_proto::ring::{Record, kind};

use super::{Ring, Window};
use crate::profile::Runstate;

/// The times so far, as the ring tells them, one after the other.
#[derive(Debug, Clone, Default)]
pub(super) struct Times {
    told: Vec<Told>,
    /// Whether the platform tells more than running time.
    tells_states: bool,
}

/// So far apart two moments of a window's ends may be told, however short the window is.
const APART_NS: u64 = 2_500_000_000;

/// Running, runnable, blocked and offline, in ns.
type Sums = [u64; 4];

#[derive(Debug, Clone, Copy)]
struct Told {
    at_ns: u64,
    sums: Sums,
}

impl Told {
    /// By how much each kind of time grew until a later moment.
    fn grown_to(&self, later: &Told) -> Sums {
        [0, 1, 2, 3].map(|kind| later.sums[kind].saturating_sub(self.sums[kind]))
    }
}

impl Times {
    pub(super) fn of(ring: &Ring) -> Times {
        let outside = ring.told.iter();
        let mut told: Vec<Told> = outside.map(|&(at_ns, sums)| Told { at_ns, sums }).collect();
        let is_waited = |record: &Record| record.kind == kind::WAITED;
        let tells_states = !told.is_empty() || ring.records.iter().any(is_waited);
        let mut ran: Option<&Record> = None;
        for record in &ring.records {
            match (record.kind, ran) {
                (kind::RAN, _) if !tells_states => {
                    told.push(Told { at_ns: record.at_ns, sums: [record.first, 0, 0, 0] });
                }
                (kind::RAN, _) => ran = Some(record),
                (kind::WAITED, Some(before)) => {
                    told.push(Told {
                        at_ns: record.at_ns,
                        sums: [before.first, before.second, record.first, record.second],
                    });
                    ran = None;
                }
                // Without the half before it.
                _ => {}
            }
        }
        told.sort_by_key(|told| told.at_ns);
        for near in told.chunk_by_mut(|one, next| next.at_ns - one.at_ns <= APART_NS) {
            spread_excess(near);
        }
        Times { told, tells_states }
    }

    /// The moments with the times so far, and whether more than running time is measured.
    pub(super) fn into_parts(self) -> (Vec<(u64, Sums)>, bool) {
        let told = self.told.into_iter().map(|told| (told.at_ns, told.sums));
        (told.collect(), self.tells_states)
    }

    /// The last recorded moment.
    pub(super) fn last_ns(&self) -> Option<u64> {
        self.told.last().map(|told| told.at_ns)
    }

    /// How the time of a window went. Between two moments that the ring tells of, time is taken to
    /// have gone on evenly; what they do not reach, at either end, as the rest went. `None` where
    /// they reach less than half of the window, or lie so far apart about one of its ends that the
    /// window could have been different from what is about it: an agent that is not served writes
    /// none.
    pub(super) fn of_window(&self, window: Window) -> Option<Runstate> {
        let (first, last) = (self.told.first()?, self.told.last()?);
        let reached = window.and(Window::new(first.at_ns, last.at_ns));
        let (covered, whole) = (reached.length_ns(), window.length_ns());
        if covered == 0 || covered < whole / 2 {
            return None;
        }
        let allowed = whole.max(APART_NS);
        if [reached.from_ns, reached.to_ns].iter().any(|end| self.gap_ns(*end) > allowed) {
            return None;
        }
        let (start, end) = (self.at(reached.from_ns)?, self.at(reached.to_ns)?);
        let part = |at: usize| {
            if at != 0 && !self.tells_states {
                return None;
            }
            let ns = u128::from(end[at].saturating_sub(start[at]));
            let ns = ns * u128::from(whole) / u128::from(covered);
            Some(u64::try_from(ns).unwrap_or(u64::MAX))
        };
        Some(Runstate {
            running_ns: part(0),
            runnable_ns: part(1),
            blocked_ns: part(2),
            offline_ns: part(3),
        })
    }

    /// How the time of these windows went, together; `None` if one of them is not known.
    pub(super) fn of_windows(&self, windows: &[Window]) -> Option<Runstate> {
        let parts = windows.iter().map(|window| self.of_window(*window));
        parts.reduce(|sum, next| Some(sum?.plus(&next?)))?
    }

    /// How far apart the moments told before and after this one are.
    fn gap_ns(&self, at_ns: u64) -> u64 {
        let after = self.told.partition_point(|told| told.at_ns <= at_ns);
        let before = after.checked_sub(1).and_then(|at| self.told.get(at));
        match (before, self.told.get(after)) {
            (Some(before), Some(next)) if before.at_ns < at_ns => next.at_ns - before.at_ns,
            _ => 0,
        }
    }

    /// The sums at a moment between the first and the last told.
    fn at(&self, at_ns: u64) -> Option<Sums> {
        let after = self.told.partition_point(|told| told.at_ns <= at_ns);
        let before = self.told.get(after.checked_sub(1)?)?;
        let Some(next) = self.told.get(after) else {
            return Some(before.sums);
        };
        // Told at different moments, by the partition.
        let step = u128::from(next.at_ns - before.at_ns).max(1);
        let passed = u128::from(at_ns - before.at_ns);
        let mut sums = before.sums;
        for (sum, grown) in sums.iter_mut().zip(before.grown_to(next)) {
            let grown = u128::from(grown) * passed / step;
            *sum = sum.saturating_add(u64::try_from(grown).unwrap_or(u64::MAX));
        }
        Some(sums)
    }
}

/// Moves what grew by more than the time that passed to the moments before, and where these have no
/// room to those after. A hosted kernel counts a wait for a processor when the wait ends, which may
/// be some moments after it began. What grew from the first moment to the last stays.
fn spread_excess(told: &mut [Told]) {
    let [first, .., last] = told else {
        return;
    };
    let whole = u128::from(last.at_ns - first.at_ns).max(1);
    // More than the whole time has no place anywhere: all parts have the same share of it.
    let all = whole.max(first.grown_to(last).into_iter().map(u128::from).sum());
    let excess = |from: &Told, to: &Told| {
        let room = u128::from(to.at_ns - from.at_ns).saturating_mul(all).div_ceil(whole);
        let grown = from.grown_to(to);
        let sum: u128 = grown.into_iter().map(u128::from).sum();
        let mut beyond = sum.saturating_sub(room);
        let mut excess = [0; 4];
        // The waits for a processor first.
        for kind in [1, 0, 2, 3] {
            excess[kind] = u64::try_from(beyond).unwrap_or(u64::MAX).min(grown[kind]);
            beyond -= u128::from(excess[kind]);
        }
        excess
    };
    for at in (2..told.len()).rev() {
        let excess = excess(&told[at - 1], &told[at]);
        for (sum, moved) in told[at - 1].sums.iter_mut().zip(excess) {
            *sum += moved;
        }
    }
    for at in 1..told.len() - 1 {
        let excess = excess(&told[at - 1], &told[at]);
        for (sum, moved) in told[at].sums.iter_mut().zip(excess) {
            *sum -= moved;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ring(told: &[(u64, Sums)]) -> Ring {
        let mut ring = Ring::default();
        for (at_ns, sums) in told {
            for (kind, at) in [(kind::RAN, 0), (kind::WAITED, 2)] {
                ring.records.push(Record {
                    kind,
                    at_ns: *at_ns,
                    first: sums[at],
                    second: sums[at + 1],
                    third: 0,
                });
            }
        }
        ring
    }

    #[test]
    fn a_window_has_its_part_of_what_was_told_around_it() {
        let times = Times::of(&ring(&[
            (1_000, [100, 10, 50, 0]),
            (2_000, [600, 110, 450, 0]),
            (3_000, [600, 110, 1_450, 0]),
        ]));
        let half = times.of_window(Window::new(1_500, 2_500)).unwrap();
        assert_eq!((half.running_ns, half.runnable_ns), (Some(250), Some(50)));
        assert_eq!((half.blocked_ns, half.offline_ns), (Some(700), Some(0)));
        let beyond = times.of_window(Window::new(2_000, 3_500)).unwrap();
        assert_eq!(beyond.blocked_ns, Some(1_500), "as the rest went");
        assert_eq!(times.of_window(Window::new(2_900, 3_500)), None);
        assert_eq!(times.of_window(Window::new(5_000, 6_000)), None);
    }

    #[test]
    fn what_a_platform_does_not_tell_is_unknown() {
        let mut ring = ring(&[(0, [0, 0, 0, 0]), (100, [90, 0, 10, 0])]);
        let all = Times::of(&ring).of_window(Window::new(0, 100)).unwrap();
        assert_eq!((all.running_ns, all.runnable_ns), (Some(90), Some(0)));
        assert_eq!((all.blocked_ns, all.offline_ns), (Some(10), Some(0)));
        ring.records.retain(|record| record.kind == kind::RAN);
        let all = Times::of(&ring).of_window(Window::new(0, 100)).unwrap();
        let running = Runstate { running_ns: Some(90), ..Runstate::default() };
        assert_eq!(all, running, "the platform has no run states");
        assert_eq!(Times::of(&Ring::default()).of_window(Window::new(0, 1)), None);
    }

    /// What epochs tell at their ends closes the gap behind the ring's last.
    #[test]
    fn times_told_outside_of_the_ring_count_as_well() {
        let mut ring = ring(&[(10, [10, 0, 0, 0]), (20, [20, 0, 0, 0])]);
        assert_eq!(Times::of(&ring).of_window(Window::new(20, 40)), None);
        ring.told = vec![(40, [25, 5, 10, 0]), (0, [0; 4])];
        let times = Times::of(&ring);
        let end = times.of_window(Window::new(20, 40)).unwrap();
        assert_eq!((end.running_ns, end.blocked_ns), (Some(5), Some(10)));
        assert_eq!(times.of_window(Window::new(0, 10)).unwrap().running_ns, Some(10));
    }

    /// Guards 124.9 % of all time that is stolen: a wait of 900 ms is counted when it ends.
    #[test]
    fn a_wait_that_is_counted_late_lies_before_that() {
        let told = [
            (1_000, [0, 0, 0, 0]),
            (1_400, [100, 0, 0, 0]),
            (2_000, [100, 0, 0, 0]),
            (2_100, [200, 900, 0, 0]),
            (2_600, [700, 900, 0, 0]),
        ];
        let times = Times::of(&ring(&told));
        let of = |from, to| {
            let part = times.of_window(Window::new(from, to)).unwrap();
            [part.running_ns.unwrap(), part.runnable_ns.unwrap()]
        };
        assert_eq!(of(1_000, 1_400), [100, 300]);
        assert_eq!(of(1_400, 2_000), [0, 600]);
        assert_eq!(of(2_000, 2_100), [100, 0]);
        assert_eq!(of(2_100, 2_600), [500, 0]);
        assert_eq!(of(1_000, 2_600), [700, 900], "the sum stays");
        // What began before the first moment, or was read later than noted, goes on behind it.
        let times = Times::of(&ring(&[(0, [0; 4]), (10, [5, 25, 0, 0]), (40, [10, 30, 0, 0])]));
        let first = times.of_window(Window::new(0, 10)).unwrap();
        assert_eq!((first.running_ns, first.runnable_ns), (Some(5), Some(5)));
        // More than the time that passed has no room anywhere.
        let times = Times::of(&ring(&[(0, [0; 4]), (10, [0, 20, 0, 0]), (20, [0, 30, 0, 0])]));
        let half = |from| times.of_window(Window::new(from, from + 10)).unwrap().runnable_ns;
        assert_eq!([0, 10].map(half), [Some(15); 2]);
    }

    /// While the agent's thread is not run, no times are recorded: those seconds differ from each
    /// other and are unknown.
    #[test]
    fn a_short_window_within_a_long_silence_is_unknown() {
        const SECOND: u64 = 1_000_000_000;
        let told = [(0, [0; 4]), (60 * SECOND, [20 * SECOND, 0, 40 * SECOND, 0])];
        let times = Times::of(&ring(&told));
        assert_eq!(times.of_window(Window::new(30 * SECOND, 31 * SECOND)), None);
        let whole = times.of_window(Window::new(0, 60 * SECOND)).unwrap();
        assert_eq!(whole.running_ns, Some(20 * SECOND));
    }

    #[test]
    fn hostile_times_do_not_overflow() {
        let times = Times::of(&ring(&[(0, [0; 4]), (1, [u64::MAX; 4])]));
        let all = times.of_window(Window::new(0, 2)).unwrap();
        assert_eq!(all.running_ns, Some(u64::MAX));
        let back = Times::of(&ring(&[(0, [9; 4]), (u64::MAX, [0; 4])]));
        assert_eq!(back.of_window(Window::ALL).unwrap().running_ns, Some(0));
    }
}
