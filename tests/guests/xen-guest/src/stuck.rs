//! A main loop that enters an endless loop, to test the rescue.

use crate::command_line::CommandLine;
use crate::println;
use crate::timer;
use crate::vcpus::FIRST;

/// When the main loop gets stuck, on the guest's clock: `stuck=loop`, `stuck_after=SECONDS` (0).
pub(crate) fn from_command_line(command_line: CommandLine) -> Option<u64> {
    if command_line.value("stuck") != Some("loop") {
        return None;
    }
    let after_s = command_line.parsed::<u64>("stuck_after").unwrap_or(0);
    Some(timer::now_ns(FIRST).saturating_add(after_s.saturating_mul(1_000_000_000)))
}

/// Gets stuck if it is due.
pub(crate) fn when_due(due_ns: Option<u64>) {
    if due_ns.is_some_and(|due_ns| due_ns <= timer::now_ns(FIRST)) {
        println!("xen-guest: stuck in a loop");
        stuck_in_a_loop();
    }
}

/// The function that a profile of the stuck guest should show.
#[inline(never)]
fn stuck_in_a_loop() -> ! {
    #[allow(clippy::empty_loop, reason = "it is what is wanted")]
    loop {}
}
