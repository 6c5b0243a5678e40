//! A guest whose work ends in a panic: its crash dump should show that work, which is a span
//! `settling` that never ends.
//!
//! `panic_after=SECONDS`; with `panic_in=upcall`, inside the timer upcall that interrupts the work.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::command_line::CommandLine;
use crate::vcpus::FIRST;
use crate::{events, println, timer};

/// The running time of the vCPU before it panics.
const LENGTH_NS: u64 = 1_000_000_000;

/// Whether the next timer upcall panics.
static UPCALL_PANICS: AtomicBool = AtomicBool::new(false);

/// Work that will fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failing {
    /// When it begins, on the guest's clock.
    pub(crate) at_ns: u64,
    in_upcall: bool,
}

impl Failing {
    /// The work that the command line requests; `None` without a profiler.
    pub(crate) fn from_command_line(command_line: CommandLine) -> Option<Self> {
        events::agent()?;
        let after_s = command_line.parsed::<u64>("panic_after")?;
        let after_ns = after_s.saturating_mul(1_000_000_000);
        Some(Self {
            at_ns: timer::now_ns(FIRST).saturating_add(after_ns),
            in_upcall: command_line.value("panic_in") == Some("upcall"),
        })
    }

    /// Does that work if it is due.
    pub(crate) fn when_due(self) {
        if self.at_ns <= timer::now_ns(FIRST) {
            println!("xen-guest: settling accounts");
            settle_accounts(self.in_upcall);
        }
    }
}

/// Panics if requested. Called from the timer upcall.
pub(crate) fn on_timer() {
    assert!(!UPCALL_PANICS.load(Ordering::Relaxed), "asked to panic in an upcall");
}

#[inline(never)]
fn settle_accounts(in_upcall: bool) {
    if let Some((agent, name)) = events::agent().zip(events::name("settling")) {
        agent.span_begin(name);
    }
    let end_ns = events::running_ns().saturating_add(LENGTH_NS);
    let mut balance = 1;
    loop {
        let is_last = events::running_ns() >= end_ns;
        if is_last && in_upcall {
            UPCALL_PANICS.store(true, Ordering::Relaxed);
        }
        balance = black_box(post_entries(black_box(balance), is_last && !in_upcall));
    }
}

/// Long beside the readings of the clock between two of them, which take most time on aarch64.
#[inline(never)]
fn post_entries(mut balance: u64, fails: bool) -> u64 {
    let mut left = 80_000;
    while left > 0 {
        balance ^= balance << 11;
        balance ^= balance >> 9;
        left -= 1;
    }
    assert!(!fails, "the balance {balance} is wrong");
    balance | 1
}
