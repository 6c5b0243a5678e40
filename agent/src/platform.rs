//! What the agent asks of the system it is linked into.

use core::ops::Range;

pub use unikprof_proto::message::Runstate;

/// The registers of interrupted code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The program counter (`rip`).
    pub pc: u64,
    /// The stack pointer (`rsp`).
    pub sp: u64,
    /// The frame pointer (`rbp`).
    pub fp: u64,
}

/// The system below the agent: clocks, stacks and the other vCPUs.
///
/// Every method takes `&self`, because the timer upcall calls them while the guest's loop may be
/// inside another. Methods that the upcall calls are marked *upcall*: they must be bounded and must
/// neither allocate, lock, panic nor touch floating point.
///
/// # Safety
///
/// The agent reads the memory that [`stack_bounds`](Self::stack_bounds) names. An implementation
/// must name only memory that is mapped and readable for as long as the upcall runs.
#[allow(unsafe_code)]
pub unsafe trait Platform {
    /// The monotonic clock in ns, its origin the platform's own. *Upcall.*
    fn now_ns(&self) -> u64;

    /// The time of day in ns since 1970-01-01 UTC, where the guest knows it.
    fn wall_clock_ns(&self) -> Option<u64>;

    /// The vCPU this code runs on, or `None` where it is not one that is sampled. Ids count up from
    /// 0. *Upcall.*
    fn vcpu(&self) -> Option<u32>;

    /// How long `vcpu` has run, in ns since a fixed moment: neither stolen nor blocked time
    /// advances it, and it never goes back. *Upcall*, there for the vCPU it is on.
    fn running_ns(&self, vcpu: u32) -> u64;

    /// How `vcpu` has spent its time, where the platform can tell.
    fn runstate(&self, vcpu: u32) -> Option<Runstate>;

    /// Makes [`Agent::on_tick`](crate::Agent::on_tick) be called soon on `vcpu`, so that it arms its
    /// own timer: a Xen vCPU cannot arm another's.
    fn kick(&self, vcpu: u32);

    /// The stack that `sp` lies on, or `None` where it lies on none that is known. *Upcall.*
    ///
    /// A chain of frame pointers has reached its root where the saved frame pointer is 0, or in a
    /// frame that ends where the stack does: a platform whose outermost function saves something
    /// else ends the stack with that function's frame.
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>>;

    /// 64 random bits, where the platform has a source of them.
    fn random(&self) -> Option<u64>;

    /// A moment of the monotonic clock as the guest programs its timer with it. The two differ where
    /// the clock below has jumped, as Xen's does with a migration. *Upcall.*
    fn timer_deadline(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns
    }

    /// The guest was restored from a save or has migrated: the clocks below may have another
    /// origin. From here on the platform's own clocks go on where they stood.
    fn resume(&self) {}

    /// The cycle counter, or 0 where there is none. *Upcall.*
    fn cycles(&self) -> u64 {
        0
    }
}
