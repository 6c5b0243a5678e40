//! Hypercalls with counters, so that the guest can report the cost of its ticks and sleeps.

#![allow(unsafe_code, reason = "a hypercall is passed on")]

use xen_sys_lite::Hypercall;
use xen_sys_lite::abi::xen::hypercall::{EVENT_CHANNEL_OP, SET_TIMER_OP};
use xen_sys_lite::clock::read_counter;

use crate::processor::Calls;
use crate::statistics;
use crate::vcpus;

/// The way into Xen; each call is counted for the vCPU that makes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CountedCalls(pub(crate) Calls);

impl Hypercall for CountedCalls {
    #[inline]
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64 {
        let statistics = statistics::of(vcpus::current());
        let started = read_counter();
        // SAFETY: the same contract.
        let result = unsafe { self.0.call(number, arguments) };
        let kind = match number {
            SET_TIMER_OP => &statistics.timer_calls,
            EVENT_CHANNEL_OP => &statistics.event_calls,
            _ => &statistics.other_calls,
        };
        kind.add(1);
        statistics.call_cycles.add(read_counter().wrapping_sub(started));
        result
    }
}
