//! The console that `xl console` shows; the debug port before it is connected.

#![allow(unsafe_code, reason = "the ring's page is taken in charge")]

use core::fmt::{self, Write as _};

use xen_sys_lite::console::Console;
use xen_sys_lite::{Errno, SharedPage, hvm};

use crate::channel::EventChannel;
use crate::early_console;
use crate::hypervisor::xen;
use crate::lock::SpinLock;

/// Writes formatted text and a newline to the console. Not for upcalls.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::console::write_line(format_args!($($argument)*))
    };
}

static CONSOLE: SpinLock<Option<Console<EventChannel>>> = SpinLock::new(None);

/// Connects to the ring that the Xen tools have made. Called on the first vCPU, and again after a
/// restore.
pub(crate) fn connect() -> Result<(), Errno> {
    let ring = hvm::console_ring(&xen())?;
    // SAFETY: the Xen tools placed the page for this purpose, memory is mapped one to one, and an
    // earlier console is replaced below.
    let page = unsafe { SharedPage::identity_frame(ring.frame) }.ok_or(Errno::ENODEV)?;
    let console = Console::new(page, EventChannel::open(ring.port)?);
    *CONSOLE.lock() = Some(console);
    Ok(())
}

#[inline(never)]
pub(crate) fn write_line(line: fmt::Arguments<'_>) {
    match CONSOLE.lock().as_mut() {
        // Output that the console does not accept is lost: there is nowhere to report it.
        Some(console) => drop(writeln!(console, "{line}")),
        None => early_console::write_line(line),
    }
}

/// Waits until everything has been read, at most a tenth of a second.
pub(crate) fn drain() {
    if let Some(console) = CONSOLE.lock().as_ref() {
        console.drain();
    }
}
