//! Architecture-specific code for processes on x86-64: the registers in a signal's context, and the
//! cycle counter.
#![allow(unsafe_code)]

use libc::{c_int, ucontext_t};

use crate::ground::platform::Registers;

/// The registers of the code that a signal has interrupted.
pub(super) fn registers(context: &ucontext_t) -> Registers {
    let register = |index: c_int| context.uc_mcontext.gregs[index as usize] as u64;
    Registers::new(register(libc::REG_RIP), register(libc::REG_RSP), register(libc::REG_RBP))
}

/// The time stamp counter.
#[inline]
pub(super) fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction, and Linux lets processes use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The general registers in the order of their encodings.
#[cfg(feature = "trace")]
const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// The registers at a breakpoint.
#[cfg(feature = "trace")]
pub(super) fn trap_frame(context: &ucontext_t) -> crate::TrapFrame {
    let register = |index: c_int| context.uc_mcontext.gregs[index as usize] as u64;
    crate::TrapFrame {
        registers: GENERAL.map(register),
        pc: register(libc::REG_RIP),
        flags: register(libc::REG_EFL),
    }
}

/// Continues where the breakpoint's handler says.
#[cfg(feature = "trace")]
pub(super) fn resume_at(context: &mut ucontext_t, frame: &crate::TrapFrame) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RIP as usize] = frame.pc as i64;
    registers[libc::REG_RSP as usize] = frame.sp() as i64;
}
