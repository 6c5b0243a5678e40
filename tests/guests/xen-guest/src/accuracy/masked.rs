//! Work with events masked for known times, and with events open in between.
//!
//! A guest that receives upcalls through a vector masks them with the interrupt flag. Events that become due
//! meanwhile are delivered after the instruction that sets it again, in [`unmask`].

use core::hint::black_box;

use unikprof_accuracy_loads::bursts::burst;

use super::command::Command;
use super::truth::{Truth, running_ns};
use crate::interrupts;

/// Runs `count` masked and unmasked periods in turn.
pub(super) fn run(command: Command<'_>) -> Option<Truth> {
    let count: u64 = command.number("count")?;
    let (masked_ns, open_ns) = (command.number("masked_ns")?, command.number("open_ns")?);
    let mut truth = Truth::begin();
    let (mut masked, mut open) = (0, 0);
    for _ in 0..count {
        masked += masked_work(masked_ns);
        open += open_work(open_ns);
    }
    truth.tell("masked_work", masked);
    truth.tell("open_work", open);
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
