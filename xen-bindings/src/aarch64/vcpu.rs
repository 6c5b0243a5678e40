//! Starting and stopping the second and later vCPUs, by PSCI.

#![allow(unsafe_code, reason = "code is started on another vCPU")]

use core::arch::asm;

use super::registers::read;
use crate::errno::Errno;
use crate::psci;
use crate::vcpu::VcpuId;

/// Functions of PSCI; those with addresses take 64-bit arguments.
const CPU_OFF: u32 = 0x8400_0002;
const CPU_ON: u32 = 0xc400_0003;
const AFFINITY_INFO: u32 = 0xc400_0004;

/// Lets `vcpu` run, from the guest-physical address `entry`, at exception level 1 with the MMU, the
/// caches and all interrupts off, and `context` in x0. What this vCPU has written before is visible
/// to it once its caches are on.
///
/// Its information is not in the shared page: [register](crate::vcpu::register_vcpu_info) it
/// before.
///
/// # Safety
/// Code at `entry` must be fit to run so, on a vCPU that shares the guest's memory.
///
/// # Errors
/// `EEXIST` for a vCPU that is up, `EINVAL` for one that does not exist or an entry outside the
/// guest's memory, `ENOSYS` from a hypervisor without PSCI.
pub unsafe fn up(vcpu: VcpuId, entry: u64, context: u64) -> Result<(), Errno> {
    // SAFETY: what runs then is the caller's contract.
    psci::result(unsafe { call(CPU_ON, [psci::affinity(vcpu), entry, context]) })
}

/// Stops the vCPU that calls this, with its interrupts masked. It returns only if Xen refuses, with
/// the reason; another vCPU starts this one again by [`up`]. Its registered information, its event
/// channels and its runstate area stay, and its time is offline time until then. An interrupt that
/// becomes pending meanwhile, that of its timer too, comes once it runs and unmasks interrupts.
pub fn down() -> Errno {
    // SAFETY: no address is passed; nothing runs on this vCPU until it is started again.
    let result = psci::result(unsafe { call(CPU_OFF, [0; 3]) });
    result.err().unwrap_or(Errno::EINVAL)
}

/// Is `vcpu` up? Once it is not, its stack is no longer used.
///
/// # Errors
/// `EINVAL` for a vCPU that does not exist, `ENOSYS` from a hypervisor without PSCI.
pub fn is_up(vcpu: VcpuId) -> Result<bool, Errno> {
    // SAFETY: no address is passed; the lowest level of affinity is one vCPU.
    psci::is_up(unsafe { call(AFFINITY_INFO, [psci::affinity(vcpu), 0, 0]) })
}

/// Calls PSCI. What this vCPU has written before is visible to the others.
///
/// # Safety
/// The effect must be one that the guest is fit for.
unsafe fn call(function: u32, [first, second, third]: [u64; 3]) -> i64 {
    let result;
    // SAFETY: the SMC calling convention: the function in x0 with arguments in x1 to x3, the result
    // in x0, and only the registers that a C function may change are changed. The rest is the
    // caller's contract.
    unsafe {
        asm!(
            "dsb ish",
            "hvc #0",
            inlateout("x0") u64::from(function) => result,
            in("x1") first,
            in("x2") second,
            in("x3") third,
            clobber_abi("C"),
            options(nostack),
        );
    }
    result
}

/// The vCPU that this code runs on.
#[must_use]
#[inline]
pub fn current() -> VcpuId {
    psci::vcpu_of(read!("mpidr_el1"))
}
