//! The cost of a trace, and its limit.
//!
//! The cost is that of the handlers, measured, and of the exceptions themselves, at the cost that
//! was measured when the trace began. If it is above its limit over a window, the functions with
//! the most breakpoints lose their probes.

use super::probes::State;
use super::{Hands, Trace};
use crate::ground::sync::{AtomicU64, Ordering};

/// The shortest window.
const WINDOW_NS: u64 = 100_000_000;

/// A handler looks whether the window is over once in so many breakpoints.
pub(super) const EVERY: u64 = 256;

/// At most so many functions lose their probes after a window.
const MOST_REMOVED: u32 = 32;

fn read(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

impl Trace<'_> {
    /// Begins the first window. Call it before probes are set, and when all are.
    pub(super) fn begin_window(&self, platform: &dyn Hands) {
        let cells = self.cells;
        for (cell, count) in [
            (&cells.window_start, platform.cycles()),
            (&cells.window_traps, read(&cells.traps)),
            (&cells.window_cycles, read(&cells.cycles)),
            (&cells.window_ns, platform.now_ns().max(1)),
        ] {
            cell.store(count, Ordering::Relaxed);
        }
        for function in self.functions {
            function.recent.store(0, Ordering::Relaxed);
        }
    }

    /// The cost of the whole trace, in thousandths of one CPU, over so many cycles.
    pub(super) fn whole_cost(&self, passed: u64) -> u32 {
        self.cost(read(&self.cells.traps), read(&self.cells.cycles), passed)
    }

    fn cost(&self, traps: u64, handled: u64, passed: u64) -> u32 {
        let exceptions = traps.saturating_mul(read(&self.cells.probe_cycles));
        let spent = exceptions.saturating_add(handled);
        let cost = spent.saturating_mul(1000).checked_div(passed).unwrap_or(0);
        u32::try_from(cost).unwrap_or(u32::MAX)
    }

    /// Ends the window if it is over: compares its cost with the limit, and begins the next.
    /// Returns whether functions have lost their probes.
    #[cold]
    #[inline(never)]
    pub(super) fn judge(&self, platform: &dyn Hands) -> bool {
        let cells = self.cells;
        if cells.is_judging.swap(1, Ordering::Acquire) != 0 {
            return false;
        }
        let begun_ns = read(&cells.window_ns);
        let mut has_removed = false;
        if begun_ns != 0 && platform.now_ns().saturating_sub(begun_ns) >= WINDOW_NS {
            let passed = platform.cycles().saturating_sub(read(&cells.window_start));
            let traps = read(&cells.traps).saturating_sub(read(&cells.window_traps));
            let handled = read(&cells.cycles).saturating_sub(read(&cells.window_cycles));
            let cost = self.cost(traps, handled, passed);
            cells.cost_permille.store(cost, Ordering::Relaxed);
            let (most, cost) =
                (u64::from(cells.max_cost_permille.load(Ordering::Relaxed)), u64::from(cost));
            if most != 0 && cost > most {
                // Breakpoints that may stay, at the mean cost of one.
                let allowed = traps.saturating_mul(most) / cost.max(1);
                has_removed = self.remove_hottest(platform, traps, allowed);
            }
            self.begin_window(platform);
        }
        cells.is_judging.store(0, Ordering::Release);
        has_removed
    }

    /// Removes the probes of the functions with the most of the window's `traps`, until at most
    /// `allowed` are left. Returns whether there were any.
    pub(super) fn remove_hottest(
        &self,
        platform: &dyn Hands,
        mut traps: u64,
        allowed: u64,
    ) -> bool {
        for round in 0..MOST_REMOVED {
            let recent = |index: &usize| {
                let function = self.functions.get(*index);
                function.map_or(0, |function| function.recent.load(Ordering::Relaxed))
            };
            let hottest = (0..self.functions.len()).max_by_key(recent);
            let Some((hottest, function)) =
                hottest.and_then(|index| Some((index, self.functions.get(index)?)))
            else {
                return round != 0;
            };
            if traps <= allowed {
                return round != 0;
            }
            let own = function.recent.swap(0, Ordering::Relaxed);
            if own == 0 {
                return round != 0;
            }
            traps = traps.saturating_sub(own.into());
            function.mark_removed();
            for probe in self.probes.all() {
                let role = probe.role();
                if role.state == State::Set && usize::from(role.function) == hottest {
                    self.remove(probe, platform);
                }
            }
        }
        true
    }
}
