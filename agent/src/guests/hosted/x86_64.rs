//! Architecture-specific code for processes on x86-64: the registers in a signal's context, and the
//! cycle counter.
#![allow(unsafe_code)]

use libc::{c_int, ucontext_t};

use crate::ground::platform::Registers;

/// The registers of the code that a signal has interrupted.
pub(super) fn registers(context: &ucontext_t) -> Registers {
    let register = |index: c_int| context.uc_mcontext.gregs[index as usize] as u64;
    Registers::new(
        register(libc::REG_RIP),
        register(libc::REG_RSP),
        register(libc::REG_RBP),
    )
}

/// The time stamp counter.
#[inline]
pub(super) fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and Linux lets processes use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}
