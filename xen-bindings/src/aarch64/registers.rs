//! System registers, and device registers in memory.

#![allow(unsafe_code, reason = "registers are accessed by instructions")]

/// Reads a system register.
macro_rules! read {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: the register is named here; reading it changes nothing that the compiler knows
        // of.
        #[allow(unused_unsafe, unsafe_code, reason = "also used in unsafe blocks")]
        unsafe {
            core::arch::asm!(
                concat!("mrs {}, ", $name),
                out(reg) value, options(nostack, preserves_flags)
            );
        }
        value
    }};
}

/// Writes a system register; the write has taken effect when this returns.
macro_rules! write {
    ($name:literal, $value:expr) => {{
        let value: u64 = $value;
        // SAFETY: the caller of this macro vouches for the effect.
        #[allow(unused_unsafe, unsafe_code, reason = "also used in unsafe blocks")]
        unsafe {
            core::arch::asm!(
                concat!("msr ", $name, ", {}"),
                "isb",
                in(reg) value, options(nostack, preserves_flags)
            );
        }
    }};
}

pub(super) use {read, write};

/// Reads a device's register.
///
/// # Safety
/// `address` is that of a register of a device, mapped as device memory.
pub(super) unsafe fn read_device(address: u64) -> u32 {
    let value: u32;
    // One plain instruction: Xen emulates the device, and decodes no load that also changes its
    // address register.
    // SAFETY: the caller's contract.
    unsafe {
        core::arch::asm!(
            "ldr {:w}, [{}]",
            out(reg) value, in(reg) address, options(nostack, preserves_flags)
        );
    }
    value
}

/// Writes a device's register.
///
/// # Safety
/// As [`read_device`], and the write's effect is one the caller may have.
pub(super) unsafe fn write_device(address: u64, value: u32) {
    // SAFETY: the caller's contract; one plain instruction, as above.
    unsafe {
        core::arch::asm!(
            "str {:w}, [{}]",
            in(reg) value, in(reg) address, options(nostack, preserves_flags)
        );
    }
}
