//! A main loop that enters an endless loop, to test the rescue, or that panics.

use crate::command_line::CommandLine;
use crate::println;
use crate::timer;
use crate::vcpus::FIRST;

/// The end of the main loop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stuck {
    /// On the guest's clock.
    pub(crate) at_ns: u64,
    panics: bool,
}

impl Stuck {
    /// `stuck=loop` or `stuck=panic`, `stuck_after=SECONDS` (0).
    pub(crate) fn from_command_line(command_line: CommandLine) -> Option<Self> {
        let panics = match command_line.value("stuck")? {
            "loop" => false,
            "panic" => true,
            _ => return None,
        };
        let after_s = command_line.parsed::<u64>("stuck_after").unwrap_or(0);
        let after_ns = after_s.saturating_mul(1_000_000_000);
        Some(Self { at_ns: timer::now_ns(FIRST).saturating_add(after_ns), panics })
    }

    /// Ends the main loop if it is due.
    pub(crate) fn when_due(self) {
        if self.at_ns <= timer::now_ns(FIRST) {
            assert!(!self.panics, "asked to panic in the main loop");
            println!("xen-guest: stuck in a loop");
            stuck_in_a_loop();
        }
    }
}

/// The function that a profile of the stuck guest should show.
#[inline(never)]
fn stuck_in_a_loop() -> ! {
    #[allow(clippy::empty_loop, reason = "it is what is wanted")]
    loop {}
}
