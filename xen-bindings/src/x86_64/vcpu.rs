//! Starting and stopping the second and later vCPUs of a PVH or HVM guest.

#![allow(unsafe_code, reason = "code is started on another vCPU")]

use crate::abi::hvm_vcpu::{MODE_64B, VcpuHvmContext};
use crate::abi::vcpu as abi;
use crate::abi::xen::hypercall as number;
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{VcpuDown, VcpuIsUp, issue_for_vcpu};
use crate::vcpu::VcpuId;

pub use crate::abi::hvm_vcpu::Registers64;

/// Sets the first registers of `vcpu` (64-bit mode, flat segments); [`up`] lets it run.
///
/// ```
/// use xen_sys_lite::fake::FakeXen;
/// use xen_sys_lite::vcpu::{self, Registers64, VcpuId, long_mode_registers};
///
/// let xen = FakeXen::new();
/// # xen.add_vcpu(VcpuId(1));
/// let registers = Registers64 { rdi: 1, ..long_mode_registers(0x20_1000, 0x40_0000, 0x1000) };
/// // SAFETY: (a fake runs nothing)
/// unsafe {
///     vcpu::initialise(&xen, VcpuId(1), &registers)?;
///     vcpu::up(&xen, VcpuId(1))?;
/// }
/// assert!(vcpu::is_up(&xen, VcpuId(1))?);
/// # Ok::<(), xen_sys_lite::Errno>(())
/// ```
///
/// # Safety
/// Code at `registers.rip` must be fit to run with these registers, on a vCPU that shares the
/// guest's memory.
///
/// # Errors
/// `EEXIST` where it was done before, `ENOENT` for a vCPU that does not exist, `EINVAL` for
/// registers that make no sense together.
pub unsafe fn initialise(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    registers: &Registers64,
) -> Result<(), Errno> {
    let mut context =
        VcpuHvmContext { mode: MODE_64B, registers: *registers, ..VcpuHvmContext::default() };
    let arguments = [
        u64::from(abi::op::INITIALISE),
        u64::from(vcpu.0),
        core::ptr::from_mut(&mut context).expose_provenance() as u64,
        0,
        0,
    ];
    // SAFETY: Xen reads the context, which is as long as the header's; the rest is the caller's
    // contract.
    Errno::from_result(unsafe { hypercall.call(number::VCPU_OP, arguments) }).map(drop)
}

/// Registers that begin in long mode at `entry` with paging on, interrupts off and `stack` as rsp.
///
/// `page_table` is the physical address of the top-level page table. SSE is enabled (CR4.OSFXSR),
/// and NX.
#[must_use]
pub const fn long_mode_registers(entry: u64, stack: u64, page_table: u64) -> Registers64 {
    const CR0: u64 = 0x8001_0033; // PG, WP, NE, ET, MP, PE
    const CR4: u64 = 0x620; // OSXMMEXCPT, OSFXSR, PAE
    const EFER: u64 = 0xd00; // NXE, LMA, LME
    Registers64 {
        rax: 0,
        rcx: 0,
        rdx: 0,
        rbx: 0,
        rsp: stack,
        rbp: 0,
        rsi: 0,
        rdi: 0,
        rip: entry,
        rflags: 2,
        cr0: CR0,
        cr3: page_table,
        cr4: CR4,
        efer: EFER,
    }
}

/// Lets an initialised `vcpu` run.
///
/// # Safety
/// As [`initialise`]: its code begins to run.
///
/// # Errors
/// `EINVAL` where it was not initialised, `ENOENT` for a vCPU that does not exist.
pub unsafe fn up(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<(), Errno> {
    let arguments = [u64::from(abi::op::UP), u64::from(vcpu.0), 0, 0, 0];
    // SAFETY: no address is passed; what runs is the caller's contract.
    Errno::from_result(unsafe { hypercall.call(number::VCPU_OP, arguments) }).map(drop)
}

/// Stops `vcpu`. Stopping another one returns before it has stopped.
///
/// # Errors
/// `ENOENT` for a vCPU that does not exist.
pub fn down(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<(), Errno> {
    issue_for_vcpu::<VcpuDown>(hypercall, vcpu, &mut ()).map(drop)
}

/// Is `vcpu` up?
///
/// # Errors
/// `ENOENT` for a vCPU that does not exist.
pub fn is_up(hypercall: &impl Hypercall, vcpu: VcpuId) -> Result<bool, Errno> {
    issue_for_vcpu::<VcpuIsUp>(hypercall, vcpu, &mut ()).map(|answer| answer != 0)
}
