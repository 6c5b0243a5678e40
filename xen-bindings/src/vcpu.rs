//! vCPUs: their information, and starting and stopping the second and later ones.

#![allow(unsafe_code, reason = "memory is given to Xen by address")]

use crate::abi::vcpu as abi;
use crate::abi::xen::{VcpuInfo, hypercall as number};
use crate::abi::{PAGE_SHIFT, PAGE_SIZE};
use crate::errno::Errno;
use crate::hypercall::Hypercall;

pub use crate::arch::vcpu::*;

/// Number of a vCPU within its domain, from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct VcpuId(pub u32);

impl From<u32> for VcpuId {
    fn from(number: u32) -> Self {
        Self(number)
    }
}

/// Moves `vcpu`'s information out of the shared page to `place`. The shared page has that of the
/// first [`LEGACY_MAX_VCPUS`](crate::abi::LEGACY_MAX_VCPUS) only: 32 on x86-64, one on aarch64.
///
/// Once per vCPU and life of the domain; after a restore or migration it must be done again. Events
/// that were pending stay so.
///
/// # Safety
/// `physical_address` is the guest-physical address of `place`. (That both have the same offset in
/// their page is checked, and that the place does not cross a page.)
///
/// # Errors
/// `EINVAL` for a place that crosses a page; `EINVAL` (`EBUSY` from newer versions) if it was done
/// before; `ENOENT` for a vCPU that does not exist.
pub unsafe fn register_vcpu_info(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    place: &'static VcpuInfo,
    physical_address: u64,
) -> Result<(), Errno> {
    let offset = physical_address % PAGE_SIZE as u64;
    let end = offset as usize + size_of::<VcpuInfo>();
    if core::ptr::from_ref(place).addr() % PAGE_SIZE != offset as usize || end > PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let mut argument = abi::RegisterVcpuInfo {
        frame: physical_address >> PAGE_SHIFT,
        offset: offset as u32,
        reserved: 0,
    };
    let arguments = [
        u64::from(abi::op::REGISTER_VCPU_INFO),
        u64::from(vcpu.0),
        core::ptr::from_mut(&mut argument).expose_provenance() as u64,
        0,
        0,
    ];
    // SAFETY: Xen reads the argument and writes the place from now on. By the caller's contract the
    // address is that of `place`, which lives for ever and whose fields are atomics.
    Errno::from_result(unsafe { hypercall.call(number::VCPU_OP, arguments) }).map(drop)
}
