//! The x86-64 parts of the ABI (`arch-x86/xen.h`, `arch-x86/xen-x86_64.h` and the headers named
//! below).

pub mod cpuid;
pub mod hvm_vcpu;
pub mod start_info;

use core::sync::atomic::AtomicU64;

use super::layout;
use super::xen::{SharedInfo, VcpuInfo};

/// `XEN_LEGACY_MAX_VCPUS`: vCPUs whose information lies in the shared information page.
pub const LEGACY_MAX_VCPUS: usize = 32;

/// `struct arch_vcpu_info`, used by PV guests only.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ArchVcpuInfo {
    /// The faulting address.
    pub cr2: AtomicU64,
    pad: u64,
}
layout!(ArchVcpuInfo, size 16, cr2 @ 0);

/// `struct arch_shared_info`, used by PV guests only.
#[repr(C)]
#[derive(Debug)]
pub struct ArchSharedInfo([u64; 6]);

layout!(VcpuInfo, size 64, evtchn_upcall_pending @ 0, evtchn_upcall_mask @ 1,
    evtchn_pending_sel @ 8, arch @ 16, time @ 32);
layout!(SharedInfo, size 3136, vcpu_info @ 0, evtchn_pending @ 2048, evtchn_mask @ 2560,
    wc_version @ 3072, wc_sec @ 3076, wc_nsec @ 3080, wc_sec_hi @ 3084, arch @ 3088);
