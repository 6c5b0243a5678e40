//! Ends the guest.

#![allow(
    unsafe_code,
    reason = "without hypercalls only a triple fault ends the guest"
)]

use core::arch::asm;

use xen_sys_lite::sched::{self, ShutdownReason};

use crate::{console, hypervisor};

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
        // Returns only if Xen refuses; then the triple fault follows.
        sched::shutdown(&hypervisor::xen(), reason);
    }
    triple_fault()
}

/// Faults with an empty interrupt table: the processor gives up, and Xen ends the domain.
pub(crate) fn triple_fault() -> ! {
    let empty = [0_u16; 5];
    // SAFETY: nothing of the guest runs after this.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) empty.as_ptr(), options(noreturn)) }
}
