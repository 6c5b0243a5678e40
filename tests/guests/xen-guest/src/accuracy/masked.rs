//! Work with events masked for known times, and with events open in between.
//!
//! A guest that receives upcalls through a vector masks them with the interrupt flag. Events that
//! become due meanwhile are delivered after the instruction that sets it again, in [`unmask`].

use core::hint::black_box;

use unikprof_accuracy_loads::bursts::burst;
use unikprof_accuracy_loads::orders::{Order, Truth};

use super::clock::running_ns;
use crate::interrupts;

/// Runs `count` masked and unmasked periods in turn.
pub(super) fn run(order: Order<'_>) -> Option<Truth> {
    let count: u64 = order.number("count")?;
    let (masked_ns, open_ns) = (order.number("masked_ns")?, order.number("open_ns")?);
    let truth = Truth::begin(running_ns);
    for _ in 0..count {
        black_box(masked_work(masked_ns));
        black_box(open_work(open_ns));
    }
    Some(truth)
}

#[inline(never)]
fn masked_work(ns: u64) -> u64 {
    interrupts::disable();
    let ran = burst(&mut running_ns, ns);
    unmask();
    black_box(ran)
}

/// Samples of the masked period would be charged to this function if they were not distinguished.
#[inline(never)]
fn unmask() {
    interrupts::enable();
    black_box(());
}

#[inline(never)]
fn open_work(ns: u64) -> u64 {
    black_box(burst(&mut running_ns, ns))
}
