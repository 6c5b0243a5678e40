//! The guest's reports of its own work: events in the profiler's ring, beside the samples.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unikprof_agent::{Agent, EventName, Platform as _};

use crate::command_line::CommandLine;
use crate::println;
use crate::profiler::{self, GuestPlatform};
use crate::vcpus::FIRST;

/// One in this many timer upcalls is reported.
const UPCALLS_A_MARK: u64 = 32;

static UPCALLS_ARE_TOLD: AtomicBool = AtomicBool::new(false);
static UPCALLS: AtomicU64 = AtomicU64::new(0);

/// Enables the reports that the command line requests: `events=upcalls`.
pub(crate) fn start(command_line: CommandLine) {
    let upcalls = command_line.value("events") == Some("upcalls");
    UPCALLS_ARE_TOLD.store(upcalls, Ordering::Relaxed);
}

/// The profiler, once it has started.
pub(crate) fn agent() -> Option<&'static Agent<'static, GuestPlatform>> {
    profiler::ticks().map(|ticks| ticks.agent())
}

/// An event name; prints the reason and returns `None` if it cannot be used.
pub(crate) fn name(text: &str) -> Option<EventName> {
    let name = agent()?.event_name(text);
    name.inspect_err(|error| println!("xen-guest: no events `{text}`: {error}")).ok()
}

pub(crate) fn running_ns() -> u64 {
    agent().map_or(0, |agent| agent.platform().running_ns(FIRST.0))
}

/// Called when the timer has fired, from an upcall, which may have interrupted the guest inside
/// another event.
pub(crate) fn on_timer() {
    if !UPCALLS_ARE_TOLD.load(Ordering::Relaxed) {
        return;
    }
    let number = UPCALLS.fetch_add(1, Ordering::Relaxed);
    if number.is_multiple_of(UPCALLS_A_MARK)
        && let Some(agent) = agent()
        && let Ok(name) = agent.event_name("timer upcall")
    {
        agent.mark(name, number);
    }
}
