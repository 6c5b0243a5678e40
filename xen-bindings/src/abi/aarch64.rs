//! The aarch64 parts of the ABI (`arch-arm.h`).

use super::layout;
use super::xen::{SharedInfo, VcpuInfo};

/// `XEN_LEGACY_MAX_VCPUS`: vCPUs whose information lies in the shared information page.
pub const LEGACY_MAX_VCPUS: usize = 1;

/// `struct arch_vcpu_info`, which is empty.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ArchVcpuInfo([u64; 0]);

/// `struct arch_shared_info`, which is empty.
#[repr(C)]
#[derive(Debug)]
pub struct ArchSharedInfo([u64; 0]);

layout!(VcpuInfo, size 48, evtchn_upcall_pending @ 0, evtchn_upcall_mask @ 1,
    evtchn_pending_sel @ 8, time @ 16);
layout!(SharedInfo, size 1088, vcpu_info @ 0, evtchn_pending @ 48, evtchn_mask @ 560,
    wc_version @ 1072, wc_sec @ 1076, wc_nsec @ 1080, wc_sec_hi @ 1084);
