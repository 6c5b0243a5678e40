//! The console that `xl console` shows; the debug port until it is connected.

#![allow(unsafe_code, reason = "the ring's page is taken in charge")]

use core::fmt::{self, Write as _};

use xen_sys_lite::console::Console;
use xen_sys_lite::{Errno, SharedPage, hvm};

use crate::channel::EventChannel;
use crate::early_console;
use crate::hypervisor::xen;
use crate::lock::SpinLock;

/// Writes formatted text and a newline to the console. Not from an upcall.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::console::write_line(format_args!($($argument)*))
    };
}

static CONSOLE: SpinLock<Option<Console<EventChannel>>> = SpinLock::new(None);

/// Connects to the ring that the tools have made. On the first vCPU; again after a restore.
///
/// # Errors
///
/// What Xen refused, `ENODEV` where there is no ring.
pub(crate) fn connect() -> Result<(), Errno> {
    let ring = hvm::console_ring(&xen())?;
    // SAFETY: the tools placed the page for this purpose, memory is mapped one to one, and a console made
    // before is replaced below.
    let page = unsafe { SharedPage::identity_frame(ring.frame) }.ok_or(Errno::ENODEV)?;
    let console = Console::new(page, EventChannel::open(ring.port)?);
    *CONSOLE.lock() = Some(console);
    Ok(())
}

/// Writes a line.
pub(crate) fn write_line(line: fmt::Arguments<'_>) {
    match CONSOLE.lock().as_mut() {
        // What the console does not take is lost: there is nowhere to complain.
        Some(console) => drop(writeln!(console, "{line}")),
        None => early_console::write_line(line),
    }
}

/// Waits until everything has been read, for a tenth of a second at most.
pub(crate) fn drain() {
    if let Some(console) = CONSOLE.lock().as_ref() {
        console.drain();
    }
}
