//! Ends the guest.

#![allow(unsafe_code, reason = "a symbol that the compiled core library refers to")]

use xen_sys_lite::sched::{self, ShutdownReason};

use crate::{console, hypervisor, processor};

pub(crate) fn power_off() -> ! {
    console::drain();
    end(ShutdownReason::PowerOff)
}

pub(crate) fn reboot() -> ! {
    console::drain();
    end(ShutdownReason::Reboot)
}

pub(crate) fn crash() -> ! {
    end(ShutdownReason::Crash)
}

/// The compiled core library refers to it, but never calls it: panics abort.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    crash()
}

fn end(reason: ShutdownReason) -> ! {
    if hypervisor::is_connected() {
        // Returns only if Xen refuses; then the guest gives up.
        sched::shutdown(&hypervisor::xen(), reason);
    }
    processor::give_up()
}
