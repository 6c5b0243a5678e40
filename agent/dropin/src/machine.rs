//! The processor: page tables, descriptor tables, the local APIC, and the stacks of the profiler.
#![allow(unsafe_code, reason = "instructions and tables without an equivalent in Rust")]

/// The address of a symbol of the assembly. Without a global offset table there is no other way to
/// it.
macro_rules! address_of {
    ($symbol:literal) => {{
        let address: u64;
        // SAFETY: the instruction only computes an address.
        unsafe {
            core::arch::asm!(
                concat!("lea {}, [rip + ", $symbol, "]"),
                out(reg) address,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        address
    }};
}
pub(crate) use address_of;

pub(crate) mod apic;
pub(crate) mod descriptors;
mod fault;
pub(crate) mod own_stacks;
pub(crate) mod paging;

use core::arch::asm;

/// The interrupt flag of rflags.
pub(crate) const INTERRUPTS_ON: u64 = 1 << 9;

pub(crate) fn enable_interrupts() {
    // SAFETY: called where an interrupt is handled like anywhere else.
    unsafe { asm!("sti", options(nostack)) };
}

/// Returns whether interrupts were on.
pub(crate) fn disable_interrupts() -> bool {
    let flags: u64;
    // SAFETY: interrupts are only delayed.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags & INTERRUPTS_ON != 0
}

/// Does the work, whose walks of stacks may fault, and restores CR2: a handler of the guest's that is
/// interrupted before it has read the address of its own page fault finds it there.
pub(crate) fn keeping_cr2<T>(work: impl FnOnce() -> T) -> T {
    let before = read_cr2();
    let result = work();
    if read_cr2() != before {
        // SAFETY: the register holds the address of the last page fault, and has no effect.
        unsafe { asm!("mov cr2, {}", in(reg) before, options(nomem, nostack, preserves_flags)) };
    }
    result
}

fn read_cr2() -> u64 {
    let value;
    // SAFETY: reading has no effect; the guest runs at privilege level 0. Not `pure`: the processor
    // changes the register.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

pub(crate) fn read_cr3() -> u64 {
    let value;
    // SAFETY: reading has no effect; the guest runs at privilege level 0.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

pub(crate) fn read_cr4() -> u64 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

pub(crate) fn read_cr0() -> u64 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("mov {}, cr0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// # Safety
/// The caller may have the effect.
pub(crate) unsafe fn write_cr0(value: u64) {
    // SAFETY: the caller's contract.
    unsafe { asm!("mov cr0, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// # Safety
/// The caller may have the effect.
pub(crate) unsafe fn write_cr3(value: u64) {
    // SAFETY: the caller's contract.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Makes the processor look an address up in the page tables again, also if its page was global.
///
/// # Safety
/// The caller may have the effect.
pub(crate) unsafe fn forget_translation(address: u64) {
    // SAFETY: the caller's contract.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// # Safety
/// The processor has the register.
pub(crate) unsafe fn read_msr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "rdmsr", in("ecx") register, out("eax") low, out("edx") high,
            options(nostack, preserves_flags)
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// # Safety
/// The processor has the register, and the caller may have the effect.
pub(crate) unsafe fn write_msr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "wrmsr", in("ecx") register, in("eax") low, in("edx") high,
            options(nostack, preserves_flags)
        );
    }
}

/// Writes a line to Xen's debug port, for the host's log: where the console cannot be reached.
pub(crate) fn debug_line(line: &str) {
    for byte in "unikprof: ".bytes().chain(line.bytes()).chain(*b"\n") {
        // SAFETY: Xen's port for guests; without Xen it is the port of debuggers.
        unsafe { asm!("out 0xe9, al", in("al") byte, options(nomem, nostack, preserves_flags)) };
    }
}

/// An invalid instruction.
#[cfg(unikprof_archive)]
pub(crate) fn trap() -> ! {
    // SAFETY: the instruction does not return.
    unsafe { asm!("ud2", options(noreturn, nomem, nostack)) }
}
