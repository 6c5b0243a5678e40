//! Scheduler operations (`sched.h`).

use super::layout;

/// Commands of the scheduler hypercall (`SCHEDOP_*`).
pub mod op {
    /// Give up the physical CPU.
    pub const YIELD: u32 = 0;
    /// Sleep until an event.
    pub const BLOCK: u32 = 1;
    /// Stop the domain.
    pub const SHUTDOWN: u32 = 2;
    /// Sleep until one of some ports is pending.
    pub const POLL: u32 = 3;
}

/// Reasons of a shutdown (`SHUTDOWN_*`).
pub mod shutdown {
    /// Clean end.
    pub const POWEROFF: u32 = 0;
    /// Clean end, start again.
    pub const REBOOT: u32 = 1;
    /// Save or migrate.
    pub const SUSPEND: u32 = 2;
    /// The guest failed.
    pub const CRASH: u32 = 3;
}

/// `struct sched_shutdown`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Shutdown {
    /// One of [`shutdown`].
    pub reason: u32,
}
layout!(Shutdown, size 4, reason @ 0);

/// `struct sched_poll`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Poll {
    /// Address of an array of ports.
    pub ports: u64,
    /// Entries of the array; Xen accepts 128 at most.
    pub count: u32,
    /// Zero.
    pub pad: u32,
    /// System time at which to give up, ns; zero: never.
    pub timeout_abs_ns: u64,
}
layout!(Poll, size 24, ports @ 0, count @ 8, timeout_abs_ns @ 16);

/// Ports that one poll may name.
pub const POLL_MAX_PORTS: usize = 128;
