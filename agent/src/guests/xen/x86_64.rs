//! The x86-64 parts of the Xen platform: Xen's single-shot timer, the cycle counter, random
//! numbers.
//!
//! Why: docs/design/decisions.md#set_timer_op-arms-the-timer.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, _rdtsc};

use xen_sys_lite::Hypercall;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::timer;

/// CPUID leaf 1, ECX: the processor has RDRAND.
const RDRAND: u32 = 1 << 30;
/// CPUID leaf 7, EBX: it has RDSEED.
const RDSEED: u32 = 1 << 18;
/// Intel's manual: ten failures of RDRAND in a row mean a broken source.
const TRIES: u32 = 10;
/// RDSEED fails for a while if several processors use it at the same time.
const SEED_TRIES: u32 = 1000;

/// Arms the calling vCPU's timer for a system time; returns whether it is armed. A deadline in the
/// past fires at once.
#[inline]
pub(super) fn arm_timer(
    hypercall: &impl Hypercall,
    _: impl FnOnce() -> Option<Clock<'static>>,
    system_time_ns: u64,
) -> bool {
    timer::set_singleshot(hypercall, system_time_ns).is_ok()
}

/// Stops the calling vCPU's timer.
#[inline]
pub(super) fn stop_timer(hypercall: &impl Hypercall) {
    // Xen documents no error; a timer that runs on is delivered early.
    let _ = timer::stop_singleshot(hypercall);
}

/// The time stamp counter without a fence: it measures the cost of ticks and is not compared with
/// Xen's times.
#[inline]
pub(super) fn cycles() -> u64 {
    // SAFETY: every x86-64 has the instruction; a guest whose rdtsc is trapped has it emulated.
    unsafe { _rdtsc() }
}

/// Whether this code runs in ring 0. The kernel of a PV guest does not.
#[cfg(feature = "trace")]
pub(super) fn is_in_ring_0() -> bool {
    let selector: u16;
    // SAFETY: copies a register.
    unsafe { asm!("mov {:x}, cs", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    selector & 3 == 0
}

/// Copies `bytes` to code, which may be mapped read-only: with CR0.WP clear and interrupts off.
///
/// # Safety
/// The code is mapped, and may be written. The guest runs in ring 0 without control-flow
/// enforcement (CR4.CET), which needs CR0.WP.
#[cfg(feature = "trace")]
pub(super) unsafe fn write_code(address: u64, bytes: &[u8]) {
    const WRITE_PROTECT: u64 = 1 << 16;
    // SAFETY: the caller vouches for the code. The flags, and CR0, are as before at the end.
    unsafe {
        asm!(
            "pushfq",
            "cli",
            "mov {old}, cr0",
            "mov {new}, {old}",
            "and {new}, {mask}",
            "mov cr0, {new}",
            "rep movsb",
            "mov cr0, {old}",
            "popfq",
            old = out(reg) _,
            new = out(reg) _,
            mask = in(reg) !WRITE_PROTECT,
            inout("rdi") address => _,
            inout("rsi") bytes.as_ptr() => _,
            inout("rcx") bytes.len() => _,
        );
    }
}

/// 64 bits from RDRAND, or from RDSEED if RDRAND fails; `None` if the processor has neither, or
/// both fail. All zeros and all ones, which broken processors have returned, count as failures.
pub(super) fn random() -> Option<u64> {
    let is_good = |word: &u64| *word != 0 && *word != u64::MAX;
    let by_rdrand = || (0..TRIES).find_map(|_| rdrand().filter(is_good));
    let by_rdseed = || (0..SEED_TRIES).find_map(|_| rdseed().filter(is_good));
    let highest = __cpuid(0).eax;
    let has_rdrand = __cpuid(1).ecx & RDRAND != 0;
    let has_rdseed = highest >= 7 && __cpuid_count(7, 0).ebx & RDSEED != 0;
    has_rdrand.then(by_rdrand).flatten().or_else(|| has_rdseed.then(by_rdseed).flatten())
}

/// The processor must have the instruction.
fn rdrand() -> Option<u64> {
    let (word, filled): (u64, u8);
    // SAFETY: `random` has checked CPUID; the instruction writes registers and flags only.
    unsafe {
        asm!("rdrand {}", "setc {}", out(reg) word, out(reg_byte) filled, options(nomem, nostack));
    }
    (filled == 1).then_some(word)
}

/// The processor must have the instruction.
fn rdseed() -> Option<u64> {
    let (word, filled): (u64, u8);
    // SAFETY: as above.
    unsafe {
        asm!("rdseed {}", "setc {}", out(reg) word, out(reg_byte) filled, options(nomem, nostack));
    }
    (filled == 1).then_some(word)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Guards against a constant in place of a random number.
    #[test]
    fn numbers_differ_where_there_are_any() {
        if let Some(first) = random() {
            assert_ne!(Some(first), random());
        } else {
            let (one, seven) = (__cpuid(1), __cpuid_count(7, 0));
            assert!(one.ecx & RDRAND == 0 && seven.ebx & RDSEED == 0);
        }
    }
}
