//! vCPU operations: bring-up, timers, registered areas (`vcpu.h`).

use core::sync::atomic::{AtomicU32, AtomicU64};

use super::layout;

/// Commands of the vCPU hypercall (`VCPUOP_*`).
pub mod op {
    /// Set a vCPU's first registers.
    pub const INITIALISE: u32 = 0;
    /// Let a vCPU run.
    pub const UP: u32 = 1;
    /// Stop a vCPU.
    pub const DOWN: u32 = 2;
    /// Is a vCPU up? Answers 1 or 0.
    pub const IS_UP: u32 = 3;
    /// Fill a [`RunstateInfo`](super::RunstateInfo) once, with totals until now.
    pub const GET_RUNSTATE_INFO: u32 = 4;
    /// Register the area of [`RunstateInfo`](super::RunstateInfo), by virtual address.
    pub const REGISTER_RUNSTATE_MEMORY_AREA: u32 = 5;
    /// Stop the periodic timer.
    pub const STOP_PERIODIC_TIMER: u32 = 7;
    /// Move a vCPU's information to a place of the guest's choice; once per vCPU.
    pub const REGISTER_VCPU_INFO: u32 = 10;
    /// Register a second place, by virtual address, for a vCPU's clock; the address 0 ends it.
    pub const REGISTER_VCPU_TIME_MEMORY_AREA: u32 = 13;
}

/// States of a vCPU (`RUNSTATE_*`).
pub mod runstate {
    /// On a physical CPU.
    pub const RUNNING: u32 = 0;
    /// Able to run, and waiting for a physical CPU: stolen time.
    pub const RUNNABLE: u32 = 1;
    /// Idle.
    pub const BLOCKED: u32 = 2;
    /// Neither running nor idle: paused, unplugged.
    pub const OFFLINE: u32 = 3;
}

/// `XEN_RUNSTATE_UPDATE`: set in `state_entry_time` while Xen updates the area.
pub const RUNSTATE_UPDATE: u64 = 1 << 63;

/// `struct vcpu_runstate_info`. Written by Xen.
///
/// Aligned beyond its size, so that it never crosses a page.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct RunstateInfo {
    /// One of [`runstate`].
    pub state: AtomicU32,
    pad: u32,
    /// System time at which the state was entered, ns; top bit: [`RUNSTATE_UPDATE`].
    pub state_entry_time: AtomicU64,
    /// Time spent in each state, ns.
    pub time: [AtomicU64; 4],
}
impl RunstateInfo {
    /// An area of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(0),
            pad: 0,
            state_entry_time: AtomicU64::new(0),
            time: [const { AtomicU64::new(0) }; 4],
        }
    }
}
// 48 bytes in the header; the alignment rounds the size up.
layout!(RunstateInfo, size 64, state @ 0, state_entry_time @ 8, time @ 16);

/// `struct vcpu_register_runstate_memory_area` and `struct vcpu_register_time_memory_area`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RegisterMemoryArea {
    /// Virtual address of the area.
    pub address: u64,
}
layout!(RegisterMemoryArea, size 8, address @ 0);

/// `struct vcpu_register_vcpu_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RegisterVcpuInfo {
    /// Guest frame of the page (the header says mfn; for a translated guest it is a gfn).
    pub frame: u64,
    /// Offset in the page.
    pub offset: u32,
    /// Zero.
    pub reserved: u32,
}
layout!(RegisterVcpuInfo, size 16, frame @ 0, offset @ 8);
