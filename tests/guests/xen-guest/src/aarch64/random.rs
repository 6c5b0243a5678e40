//! Random numbers from the processor.

#![allow(unsafe_code, reason = "the number comes from an instruction")]

use core::arch::asm;

/// The number of tries: the instruction fails if none is ready.
const TRIES: u32 = 100;

/// 64 random bits; `None` if the processor cannot generate them.
pub(crate) fn random() -> Option<u64> {
    let features: u64;
    // SAFETY: reads a feature register.
    unsafe {
        asm!("mrs {}, \
              id_aa64isar0_el1", out(reg) features, options(nomem, nostack, preserves_flags));
    }
    if features >> 60 == 0 {
        return None;
    }
    (0..TRIES).find_map(|_| {
        let (value, valid): (u64, u64);
        // SAFETY: the processor has RNDR.
        unsafe {
            asm!(
                "mrs {}, s3_3_c2_c4_0",
                "cset {}, ne",
                out(reg) value, out(reg) valid, options(nomem, nostack)
            );
        }
        (valid != 0).then_some(value)
    })
}
