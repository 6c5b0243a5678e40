//! The crash dump of the guest: the last seconds of its profiler's ring.
//!
//! It is written to a block of the guest's memory, for readers of that memory (`xl dump-core`, if
//! the domain is preserved), and then to the console, line by line, for readers of its log. Nothing
//! is allocated and no lock is waited for, because the panic may have happened anywhere, including
//! an upcall.

#![allow(
    unsafe_code,
    reason = "a block of memory of its own is borrowed, and the console's page taken over"
)]

use core::cell::UnsafeCell;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU32, Ordering};

use unikprof_agent::CrashLines;
use xen_sys_lite::last_words::LastWords;
use xen_sys_lite::{PolledChannel, SharedPage, hvm};

#[cfg(feature = "trace")]
use crate::arch::probed;
use crate::hypercalls::CountedCalls;
use crate::hypervisor::{self, xen};
use crate::{early_println, events, timer, vcpus};

type Console = LastWords<PolledChannel<'static, CountedCalls>>;

/// The size of the block in bytes: the newest records of the ring, and the stacks that they refer
/// to. On the console it is twice as long, which takes a second at the rate that xenconsoled
/// allows.
const SIZE: usize = 128 << 10;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the first vCPU that calls `leave` gets access to it.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; SIZE]));

/// The number of the crashing vCPU, counted from 1; 0 = none.
static DYING: AtomicU32 = AtomicU32::new(0);

/// Writes the crash dump with the reason `what`, as far as possible. Call it with interrupts off.
pub(crate) fn leave(what: &dyn fmt::Display) {
    let Some(agent) = events::agent() else {
        return;
    };
    let this = vcpus::current().0 + 1;
    match DYING.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // A second panic, in the code below: give up.
        Err(dying) if dying == this => return,
        // Another vCPU is writing the dump, and ends the domain.
        Err(_) => loop {
            core::hint::spin_loop();
        },
    }
    if let Ok(name) = agent.event_name("panic") {
        agent.mark(name, this.into());
    }
    // SAFETY: only the first crashing vCPU gets here, once.
    let block = unsafe { &mut *BLOCK.0.get() };
    let length = match agent.crash_dump_into(block) {
        Ok(length) => length,
        Err(error) => return early_println!("xen-guest: nothing is left: {error}"),
    };
    early_println!("xen-guest: {length} bytes are left at {:#x}", block.as_ptr() as u64);
    let Some(mut console) = take_console() else {
        return;
    };
    // Output that is not accepted is lost: there is nowhere to report it.
    let _ = write(&mut console, what, &block[..length]);
    console.finish();
}

/// Takes over the console on this vCPU, whoever has its lock. `None` if there is no console.
fn take_console() -> Option<Console> {
    let ring = hvm::console_ring(&xen()).ok()?;
    // SAFETY: the Xen tools placed the page for this purpose, memory is mapped one to one, and the
    // earlier console is no longer used on this vCPU.
    let page = unsafe { SharedPage::identity_frame(ring.frame) }?;
    let clock = timer::clock(vcpus::current())?;
    let channel = PolledChannel::new(hypervisor::events(), clock, ring.port);
    Some(LastWords::new(page, channel))
}

fn write(console: &mut Console, what: &dyn fmt::Display, block: &[u8]) -> fmt::Result {
    // The previous line may be incomplete.
    write!(console, "\r\nxen-guest: {what}\r\n")?;
    write!(console, "xen-guest: what is left, for `unikprof-client recover`:\r\n")?;
    for line in CrashLines::of(block) {
        write!(console, "{line}\r\n")?;
    }
    #[cfg(feature = "trace")]
    write!(console, "xen-guest: {} bytes of the code are changed\r\n", probed::changed_bytes())?;
    write!(console, "xen-guest: that is all\r\n")
}
