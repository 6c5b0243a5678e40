//! Random numbers from the processor.

#![allow(unsafe_code, reason = "the number comes from an instruction")]

use core::arch::asm;
use core::arch::x86_64::__cpuid;

/// CPUID leaf 1, ecx: the processor has `rdrand`.
const HAS_RDRAND: u32 = 1 << 30;
/// The number of tries that Intel recommends.
const TRIES: u32 = 10;

/// 64 random bits; `None` if the processor cannot generate them.
pub(crate) fn random() -> Option<u64> {
    if __cpuid(1).ecx & HAS_RDRAND == 0 {
        return None;
    }
    (0..TRIES).find_map(|_| {
        let (value, valid): (u64, u8);
        // SAFETY: the processor has the instruction.
        unsafe {
            asm!("rdrand \
                  {}", "setc \
                               {}", out(reg) value, out(reg_byte) valid, options(nomem, nostack));
        }
        (valid != 0).then_some(value)
    })
}
