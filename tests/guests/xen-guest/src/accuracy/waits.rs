//! A load that waits for the timer and for the network. The runstate tells how long.

use core::hint::black_box;

use unikprof_accuracy_loads::bursts::burst;
use unikprof_accuracy_loads::orders::{Order, Truth};

use super::clock::{blocked_ns, running_ns};
use crate::served::{self, Served};
use crate::vcpus::FIRST;
use crate::{idle, timer, upcall};

/// The work between two waits, in ns.
const BETWEEN_NS: u64 = 500_000;

/// The time after which a missing packet is given up.
const PATIENCE_NS: u64 = 1_000_000_000;

/// Waits `count` times for each kind, with a little work in between. The network is polled after
/// each.
pub(super) fn run(order: Order<'_>) -> Option<Truth> {
    let count: u64 = order.number("count")?;
    let timer_ns = order.number("timer_ns")?;
    let mut truth = Truth::begin(running_ns);
    let (mut for_timer, mut for_network) = (0, 0);
    for _ in 0..count {
        for_timer += wait_for_timer(timer_ns);
        black_box(burst(&mut running_ns, BETWEEN_NS));
        // Earlier packets must not end the wait.
        let _ = served::poll(Served::poll);
        let _ = upcall::take_woken(FIRST);
        for_network += wait_for_network();
        black_box(burst(&mut running_ns, BETWEEN_NS));
        let _ = served::poll(Served::poll);
    }
    truth.tell("wait_for_timer", for_timer);
    truth.tell("wait_for_network", for_network);
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
