//! Starting the second and later vCPUs, by PSCI.

#![allow(unsafe_code, reason = "code is started on another vCPU")]

use core::arch::asm;

use super::registers::read;
use crate::errno::Errno;
use crate::psci;
use crate::vcpu::VcpuId;

/// `CPU_ON` with 64-bit arguments.
const CPU_ON: u32 = 0xc400_0003;

/// Lets `vcpu` run, from the guest-physical address `entry`, at exception level 1 with the MMU, the caches and all
/// interrupts off, and `context` in x0. What this vCPU has written before is visible to it once its caches are on.
///
/// Its information is not in the shared page: [register](crate::vcpu::register_vcpu_info) it before.
///
/// # Safety
/// Code at `entry` must be fit to run so, on a vCPU that shares the guest's memory.
///
/// # Errors
/// `EEXIST` for a vCPU that runs, `EINVAL` for one that does not exist or an entry outside the guest's memory, `ENOSYS` from
/// a hypervisor without PSCI.
pub unsafe fn up(vcpu: VcpuId, entry: u64, context: u64) -> Result<(), Errno> {
    let result: i64;
    // SAFETY: the SMC calling convention: the function in x0 with arguments in x1 to x3, the result in x0, and only the
    // registers that a C function may change are changed. What runs then is the caller's contract.
    unsafe {
        asm!(
            "dsb ish",
            "hvc #0",
            inlateout("x0") u64::from(CPU_ON) => result,
            in("x1") psci::affinity(vcpu),
            in("x2") entry,
            in("x3") context,
            clobber_abi("C"),
            options(nostack),
        );
    }
    psci::result(result)
}

/// The vCPU that this code runs on.
#[must_use]
#[inline]
pub fn current() -> VcpuId {
    psci::vcpu_of(read!("mpidr_el1"))
}
