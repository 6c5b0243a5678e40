//! The cost of a timer delivery outside the agent's code: arming the timer, the return from the
//! upcall, the interrupt, and the way to the upcall.
//!
//! The agent measures it when a recording begins. After each of its first ticks it returns a
//! deadline that has passed, so that the next delivery interrupts the same instruction. The cycles
//! from the end of the one upcall to the entry of the other are one measurement. The extra delivery
//! is early.
//!
//! Why: docs/design/decisions.md#a-delivery-measures-the-next-one.

use crate::ground::platform::{Moment, Registers};
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// The number of measurements when a recording begins, and of those that are kept.
const MEASUREMENTS: usize = if cfg!(loom) { 1 } else { 16 };

/// The fewest measurements that make an estimate.
const FEWEST: usize = 4;

/// A delivery that comes later than this, in ns, was not due to the deadline that had passed.
const LONGEST_NS: u64 = 500_000;

/// The measurements of one vCPU. Only the vCPU writes them, except that a recording that begins
/// demands new ones.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct DeliveryCells {
    /// The last upcall that returned a deadline that had passed: its clocks at the end, and the
    /// interrupted code.
    cycles: AtomicU64,
    running_ns: AtomicU64,
    now_ns: AtomicU64,
    pc: AtomicU64,
    sp: AtomicU64,
    /// The number of results so far.
    results: AtomicU32,
    /// The last results in cycles; 0 = the measurement has failed.
    cells: [AtomicU32; MEASUREMENTS],
}

/// Twice the number of measurements left, less one while a measurement is under way. It lies beside
/// what every tick reads.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct MeasurementsLeft(AtomicU32);

impl MeasurementsLeft {
    /// Demands new measurements. One that is under way has failed.
    pub(crate) fn demand(&self) {
        self.0.store(2 * MEASUREMENTS as u32, Ordering::Relaxed);
    }

    /// Whether measurements are left, or one is under way.
    #[inline]
    pub(crate) fn are_left(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Begins a measurement if one is left.
    pub(crate) fn begin(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left != 0
    }

    /// Ends the measurement under way, if there is one.
    pub(crate) fn end(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        let is_under_way = left & 1 != 0;
        if is_under_way {
            self.0.store(left - 1, Ordering::Relaxed);
        }
        is_under_way
    }
}

impl DeliveryCells {
    /// Stores the clocks at the end of an upcall. `cycles` was read last.
    pub(crate) fn begin(&self, registers: &Registers, moment: Moment, cycles: u64) {
        self.running_ns.store(moment.running_ns, Ordering::Relaxed);
        self.now_ns.store(moment.now_ns, Ordering::Relaxed);
        self.pc.store(registers.pc, Ordering::Relaxed);
        self.sp.store(registers.sp, Ordering::Relaxed);
        self.cycles.store(cycles, Ordering::Relaxed);
    }

    /// Stores the result at the next delivery. The measurement has failed if the guest has run in
    /// between, has blocked, or has lost its CPU.
    pub(crate) fn end(&self, registers: Option<&Registers>, moment: Moment) {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let passed_ns = moment.now_ns.saturating_sub(load(&self.now_ns));
        let ran_ns = moment.running_ns.saturating_sub(load(&self.running_ns));
        let is_same =
            registers.is_some_and(|found| (found.pc, found.sp) == (load(&self.pc), load(&self.sp)));
        let is_prompt = passed_ns <= LONGEST_NS && ran_ns >= passed_ns / 2;
        let cycles = moment.cycles.wrapping_sub(load(&self.cycles));
        let result = if is_same && is_prompt { u32::try_from(cycles).unwrap_or(0) } else { 0 };
        let results = self.results.load(Ordering::Relaxed);
        if let Some(cell) = self.cells.get(results as usize % MEASUREMENTS) {
            cell.store(result, Ordering::Relaxed);
        }
        self.results.store(results.wrapping_add(1), Ordering::Relaxed);
    }

    /// The median of the last measurements in cycles, and their number. Zeros if there are too few,
    /// or if most have failed: then deadlines that have passed are not delivered at once.
    pub(crate) fn estimate(&self) -> (u64, u64) {
        let mut measured = self.cells.each_ref().map(|cell| cell.load(Ordering::Relaxed));
        measured.sort_unstable();
        let succeeded = measured.iter().filter(|cycles| **cycles != 0).count();
        let results = (self.results.load(Ordering::Relaxed) as usize).min(MEASUREMENTS);
        if succeeded < FEWEST || succeeded <= results / 2 {
            return (0, 0);
        }
        let median = measured.get(MEASUREMENTS - 1 - (succeeded - 1) / 2);
        (u64::from(median.copied().unwrap_or(0)), succeeded as u64)
    }
}
