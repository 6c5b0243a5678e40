//! What the guest leaves when it ends badly: the last seconds of its profiler's ring.
//!
//! They are left in a block of the guest's memory, where whoever can read that finds them (`xl dump-core`, where the
//! domain is preserved), and then written to the console, line by line, for whoever has its log. Nothing is allocated
//! and no lock is waited for; the panic may have come anywhere, also in an upcall.

#![allow(unsafe_code, reason = "a block of memory of its own is borrowed")]

use core::cell::UnsafeCell;
use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU32, Ordering};

use unikprof_agent::CrashLines;

use crate::last_words::LastWords;
use crate::{early_println, events, vcpus};

/// Bytes of the block: the newest records of the ring, and the stacks that these name. On the console it is twice as
/// long, which takes a second at the rate that xenconsoled allows.
const SIZE: usize = 128 << 10;

#[repr(align(4096))]
struct Block(UnsafeCell<[u8; SIZE]>);

// SAFETY: `leave` hands it to the one vCPU that dies first.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; SIZE]));

/// The number of the vCPU that dies, from 1; 0 while all live.
static DYING: AtomicU32 = AtomicU32::new(0);

/// Leaves them, with `what` happened; returns when it is done, or could not be. With interrupts off.
pub(crate) fn leave(what: &dyn fmt::Display) {
    let Some(agent) = events::agent() else {
        return;
    };
    let this = vcpus::current().0 + 1;
    match DYING.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {}
        // A panic within what follows: let it be the end.
        Err(dying) if dying == this => return,
        // Another one is at it, and ends the domain.
        Err(_) => loop {
            core::hint::spin_loop();
        },
    }
    if let Ok(name) = agent.event_name("panic") {
        agent.mark(name, this.into());
    }
    // SAFETY: only the first vCPU to die gets here, once.
    let block = unsafe { &mut *BLOCK.0.get() };
    let length = match agent.crash_dump_into(block) {
        Ok(length) => length,
        Err(error) => return early_println!("xen-guest: nothing is left: {error}"),
    };
    early_println!(
        "xen-guest: {length} bytes are left at {:#x}",
        block.as_ptr() as u64
    );
    let Some(mut console) = LastWords::open() else {
        return;
    };
    // What is not taken is lost: there is nowhere to complain.
    let _ = write(&mut console, what, &block[..length]);
    console.finish();
}

fn write(console: &mut LastWords, what: &dyn fmt::Display, block: &[u8]) -> fmt::Result {
    // The line before may have been cut.
    write!(console, "\r\nxen-guest: {what}\r\n")?;
    write!(
        console,
        "xen-guest: what is left, for `unikprof-client recover`:\r\n"
    )?;
    for line in CrashLines::of(block) {
        write!(console, "{line}\r\n")?;
    }
    write!(console, "xen-guest: that is all\r\n")
}
