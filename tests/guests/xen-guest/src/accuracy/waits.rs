//! Loads that wait for the timer and for the network. The runstate tells how long.

use core::hint::black_box;

use unikprof_accuracy_loads::bursts as short;

use super::command::Command;
use super::truth::{Truth, blocked_ns, running_ns};
use crate::served::{self, Served};
use crate::vcpus::FIRST;
use crate::{idle, timer, upcall};

/// The work between two waits, in ns.
const BETWEEN_NS: u64 = 500_000;

/// The time after which a missing packet is given up.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Runs `count` bursts, one every `every_ns`.
pub(super) fn bursts(command: Command<'_>) -> Option<Truth> {
    let (count, burst_ns): (u64, u64) = (command.number("count")?, command.number("burst_ns")?);
    let (every_ns, gap_ns): (u64, u64) = (command.number("every_ns")?, command.number("gap_ns")?);
    let mut truth = Truth::begin();
    let begin_ns = timer::now_ns(FIRST);
    let mut worked_ns = 0;
    let mut gaps = short::Gaps::new(gap_ns, running_ns());
    for burst in 1..=count {
        worked_ns += short::burst(&mut || gaps.note(running_ns()), burst_ns);
        idle::wait_for_timer(begin_ns.saturating_add(burst.saturating_mul(every_ns)));
    }
    truth.tell(short::FUNCTION, worked_ns);
    truth.tell("gap_ns", gaps.ns);
    truth.tell("gaps", gaps.count);
    truth.tell("elapsed", timer::now_ns(FIRST).saturating_sub(begin_ns));
    Some(truth)
}

/// Waits `count` times for each kind, with a little work in between. The network is polled after each.
pub(super) fn waits(command: Command<'_>) -> Option<Truth> {
    let count: u64 = command.number("count")?;
    let timer_ns = command.number("timer_ns")?;
    let mut truth = Truth::begin();
    let begin_ns = timer::now_ns(FIRST);
    let (mut for_timer, mut for_network) = (0, 0);
    for _ in 0..count {
        for_timer += wait_for_timer(timer_ns);
        black_box(short::burst(&mut running_ns, BETWEEN_NS));
        // Earlier packets must not end the wait.
        let _ = served::poll(Served::poll);
        let _ = upcall::take_woken(FIRST);
        for_network += wait_for_network();
        black_box(short::burst(&mut running_ns, BETWEEN_NS));
        let _ = served::poll(Served::poll);
    }
    truth.tell("wait_for_timer", for_timer);
    truth.tell("wait_for_network", for_network);
    truth.tell("elapsed", timer::now_ns(FIRST).saturating_sub(begin_ns));
    Some(truth)
}

#[inline(never)]
fn wait_for_timer(ns: u64) -> u64 {
    let before = blocked_ns();
    idle::wait_for_timer(timer::now_ns(FIRST).saturating_add(ns));
    blocked_ns().wrapping_sub(before)
}

#[inline(never)]
fn wait_for_network() -> u64 {
    let before = blocked_ns();
    let until_ns = timer::now_ns(FIRST).saturating_add(PATIENCE_NS);
    idle::wait_for_events(FIRST, Some(until_ns));
    blocked_ns().wrapping_sub(before)
}
