//! The agent in a freestanding program: no C library, no allocator, no start files.
//!
//! It records itself once, over both ways to serve clients, and ends with exit code 0. Any other code is the step
//! that failed: see [`Step`].
#![no_std]
#![no_main]

mod conversation;
#[path = "../../xen-guest/src/x86_64/memory_functions.rs"]
mod copying;
mod device;
#[path = "../../xen-guest/src/memory_functions.rs"]
mod memory_functions;
mod pipe;
mod platform;
mod process;
mod recording;

/// The step that failed, as an exit code.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Step {
    /// The agent does not start.
    Agent = 1,
    /// The service is already claimed.
    Service = 2,
    /// The TCP server does not start, or requests a poll without cause.
    Tcp = 3,
    /// A session or its stream does not make progress.
    Session = 4,
    /// A request got another message than its answer.
    Answer = 5,
    /// The stacks differ from the sampled ones.
    Stacks = 6,
    /// Something panicked.
    Panic = 7,
}

fn run() -> Result<(), Step> {
    recording::record_once()
}

#[panic_handler]
fn on_panic(_: &core::panic::PanicInfo<'_>) -> ! {
    process::exit(Step::Panic as u8)
}
