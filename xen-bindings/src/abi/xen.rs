//! Hypercall numbers, virtual interrupts, the shared information page (`xen.h`).

use core::sync::atomic::{AtomicI8, AtomicU8, AtomicU32, AtomicU64};

use super::{ArchSharedInfo, ArchVcpuInfo, LEGACY_MAX_VCPUS, layout};

/// Hypercall numbers (`__HYPERVISOR_*`).
pub mod hypercall {
    /// Memory reservations and the guest's physical map.
    pub const MEMORY_OP: u32 = 12;
    /// The calling vCPU's single-shot timer.
    pub const SET_TIMER_OP: u32 = 15;
    /// Version and features.
    pub const XEN_VERSION: u32 = 17;
    /// The hypervisor's own console; refused to ordinary guests.
    pub const CONSOLE_IO: u32 = 18;
    /// Grant tables.
    pub const GRANT_TABLE_OP: u32 = 20;
    /// Optional behaviours of the hypervisor.
    pub const VM_ASSIST: u32 = 21;
    /// vCPUs, their timers and their registered areas.
    pub const VCPU_OP: u32 = 24;
    /// Yield, block, poll, shutdown.
    pub const SCHED_OP: u32 = 29;
    /// Event channels.
    pub const EVENT_CHANNEL_OP: u32 = 32;
    /// Parameters and callbacks of HVM and PVH guests.
    pub const HVM_OP: u32 = 34;
    /// One more than the largest number whose entry fits the hypercall page (32 bytes each).
    pub const PAGE_ENTRIES: u32 = 128;
}

/// Virtual interrupts (`VIRQ_*`).
pub mod virq {
    /// Time base update or requested timeout; one per vCPU.
    pub const TIMER: u32 = 0;
    /// Request to dump debug information; one per vCPU.
    pub const DEBUG: u32 = 1;
    /// Performance counter interrupt; one per vCPU.
    pub const XENPMU: u32 = 13;
}

/// `VMASST_CMD_enable`.
pub const VMASST_CMD_ENABLE: u32 = 0;
/// `VMASST_TYPE_runstate_update_flag`: mark runstate updates under way.
pub const VMASST_TYPE_RUNSTATE_UPDATE_FLAG: u32 = 5;

/// `DOMID_SELF`: the calling domain.
pub const DOMID_SELF: u16 = 0x7ff0;

/// `EVTCHN_2L_NR_CHANNELS`: ports of the two-level event channel ABI.
pub const EVTCHN_2L_NR_CHANNELS: u32 = 4096;

/// `XEN_PVCLOCK_TSC_STABLE_BIT`: clocks read on different vCPUs do not go backwards.
pub const PVCLOCK_TSC_STABLE: u8 = 1 << 0;

/// `struct vcpu_time_info`: how to turn a TSC value into system time. Written by Xen.
#[repr(C)]
#[derive(Debug, Default)]
pub struct VcpuTimeInfo {
    /// Odd while an update is under way.
    pub version: AtomicU32,
    pad0: u32,
    /// TSC at the last update.
    pub tsc_timestamp: AtomicU64,
    /// Nanoseconds since the host booted, at the last update.
    pub system_time: AtomicU64,
    /// Multiplier, 32.32 fixed point.
    pub tsc_to_system_mul: AtomicU32,
    /// Binary exponent applied before the multiplication; negative shifts right.
    pub tsc_shift: AtomicI8,
    /// `XEN_PVCLOCK_*` bits.
    pub flags: AtomicU8,
    pad1: [u8; 2],
}
impl VcpuTimeInfo {
    /// Zeros, for a place that Xen fills.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            version: AtomicU32::new(0),
            pad0: 0,
            tsc_timestamp: AtomicU64::new(0),
            system_time: AtomicU64::new(0),
            tsc_to_system_mul: AtomicU32::new(0),
            tsc_shift: AtomicI8::new(0),
            flags: AtomicU8::new(0),
            pad1: [0; 2],
        }
    }
}
layout!(VcpuTimeInfo, size 32, version @ 0, tsc_timestamp @ 8, system_time @ 16,
    tsc_to_system_mul @ 24, tsc_shift @ 28, flags @ 29);

/// `struct vcpu_info`: one vCPU's event flags and time. Written by Xen and by the guest.
///
/// On x86-64 it is aligned to 64 bytes, so that a copy registered with `VCPUOP_register_vcpu_info`
/// never crosses a page. On aarch64 it has 48 bytes, and such a copy needs an alignment of its own.
#[cfg_attr(target_arch = "x86_64", repr(C, align(64)))]
#[cfg_attr(target_arch = "aarch64", repr(C))]
#[derive(Debug, Default)]
pub struct VcpuInfo {
    /// Nonzero: an event waits; no further upcall until the guest writes zero.
    pub evtchn_upcall_pending: AtomicU8,
    /// Used by PV guests only.
    pub evtchn_upcall_mask: AtomicU8,
    pad: [u8; 6],
    /// Bit n: word n of [`SharedInfo::evtchn_pending`] has news for this vCPU.
    pub evtchn_pending_sel: AtomicU64,
    /// The architecture's part.
    pub arch: ArchVcpuInfo,
    /// This vCPU's clock.
    pub time: VcpuTimeInfo,
}

/// `struct shared_info`: the page that Xen and the domain share. Written by both.
#[repr(C)]
#[derive(Debug)]
pub struct SharedInfo {
    /// The first vCPUs' information, until one registers a place of its own.
    pub vcpu_info: [VcpuInfo; LEGACY_MAX_VCPUS],
    /// Pending bit of each port.
    pub evtchn_pending: [AtomicU64; 64],
    /// Mask bit of each port.
    pub evtchn_mask: [AtomicU64; 64],
    /// Odd while the wall clock is updated.
    pub wc_version: AtomicU32,
    /// Seconds since 1970 (UTC) at system time zero, low half.
    pub wc_sec: AtomicU32,
    /// Nanoseconds to add to [`wc_sec`](Self::wc_sec).
    pub wc_nsec: AtomicU32,
    /// High half of the seconds.
    pub wc_sec_hi: AtomicU32,
    /// The architecture's part.
    pub arch: ArchSharedInfo,
}
