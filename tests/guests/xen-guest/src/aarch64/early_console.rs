//! Messages before the console is connected, and after a crash. Xen on Arm has no debug port for
//! guests, so that they go to the ring of the console; before the guest can call Xen they are lost.

#![allow(unsafe_code, reason = "the ring's page is taken in charge")]

use core::fmt::{self, Write as _};

use xen_sys_lite::console::Console;
use xen_sys_lite::{PolledChannel, SharedPage, hvm};

use crate::hypervisor::{self, events, xen};
use crate::timer;
use crate::vcpus::FIRST;

/// Writes formatted text and a newline.
#[macro_export]
macro_rules! early_println {
    ($($argument:tt)*) => {
        $crate::early_console::write_line(format_args!($($argument)*))
    };
}

/// Writes a line.
pub(crate) fn write_line(line: fmt::Arguments<'_>) {
    if !hypervisor::is_connected() {
        return;
    }
    let Ok(ring) = hvm::console_ring(&xen()) else {
        return;
    };
    // SAFETY: the Xen tools placed the page for this purpose, and memory is mapped one to one.
    // Another console on the ring writes at the same position or is not used any more.
    let page = unsafe { SharedPage::identity_frame(ring.frame) };
    if let (Some(page), Some(clock)) = (page, timer::clock(FIRST)) {
        let mut console = Console::new(page, PolledChannel::new(events(), clock, ring.port));
        // What the console does not accept is lost: there is nowhere to report it.
        let _ = writeln!(console, "{line}");
        console.drain();
    }
}
