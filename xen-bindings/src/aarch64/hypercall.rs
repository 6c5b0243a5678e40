//! Calling Xen on aarch64.

#![allow(unsafe_code, reason = "a hypercall is an instruction")]

use core::arch::asm;

use crate::hypercall::Hypercall;

/// The processor's instruction for calling the hypervisor, with Xen's tag (`hvc #0xea1`).
///
/// For guests of Xen, whose device tree has a node `hypervisor` that is compatible with `xen,xen`:
/// another hypervisor takes the call for something else.
#[derive(Clone, Copy, Debug)]
pub struct HypercallInstruction;

impl Hypercall for HypercallInstruction {
    #[inline]
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64 {
        let [first, second, third, fourth, fifth] = arguments;
        let result;
        // SAFETY: Xen takes the number in x16 and arguments in x0 to x4, answers in x0, and may
        // change these registers and no others (`arch-arm.h`). Whether the arguments are right is
        // the caller's contract.
        unsafe {
            asm!(
                "hvc #0xea1",
                inlateout("x0") first => result,
                inlateout("x1") second => _,
                inlateout("x2") third => _,
                inlateout("x3") fourth => _,
                inlateout("x4") fifth => _,
                inlateout("x16") u64::from(number) => _,
                options(nostack),
            );
        }
        result
    }
}
