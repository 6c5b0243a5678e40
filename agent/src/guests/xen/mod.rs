//! Guests on Xen: clocks, runstate and event channels through [`xen_sys_lite`].
//!
//! [`XenPlatform`] implements the agent's [`Platform`](crate::Platform); the guest's upcall calls [`Ticks`].
//! The timer is shared in one of two ways, selected by [`TickSource`]:
//!
//! - [`TickSource::Host`]: the guest keeps VIRQ_TIMER (it can be bound once for each vCPU) and its own
//!   single-shot deadlines. It calls [`Ticks::on_timer`] from its handler and programs the earlier of
//!   its own deadline and the returned one.
//! - [`TickSource::Owned`]: the guest gives up VIRQ_TIMER. [`Ticks`] arms the timer, and the guest
//!   sets its own deadline with [`Ticks::set_guest_deadline`].
//!
//! Neither wakes an idle guest: between [`Ticks::on_block`] and [`Ticks::on_wake`] of a vCPU the
//! sampler has no deadline. Under `Host` a block costs no hypercall of its own; under `Owned` a
//! deadline armed before the block stays armed, so a block costs at most one spurious wake, and the
//! timer is not armed again while an earlier deadline is armed.
//!
//! # Which vCPUs are sampled
//!
//! Those for which [`Hooks::vcpu`] returns an id, that have [`VcpuAreas`], and whose id is below the
//! parameter `VCPUS` of [`XenPlatform`] (32 by default) and [`Config::vcpus`](crate::Config::vcpus). On any
//! other vCPU nothing is counted and no deadline is returned or armed.
//!
//! # A guest that is stuck
//!
//! A main loop that never comes back polls no network, and with [`PollCell`](crate::guests::rescue::PollCell) the
//! upcall does it instead. Every upcall of that vCPU should end with a look at the cell, for a stuck guest
//! may have no other: while nothing is recorded there are no ticks. What wakes it then:
//!
//! 1. The event channel of the network device. Its handler calls
//!    [`notice`](crate::guests::rescue::PollCell::notice); the loop may still be in time with its poll.
//! 2. The timer, at [`look_at_ns`](crate::guests::rescue::PollCell::look_at_ns): that is when the loop would be
//!    overdue with what was noticed, or, later, when an open connection is due for a retransmission or a
//!    time-out. Under [`TickSource::Host`] it is one more of the guest's own deadlines, under
//!    [`TickSource::Owned`] part of [`Ticks::set_guest_deadline`].
//!
//! So a guest that sleeps has no timer of this, nor has a busy one to which nobody is connected; with a
//! client the timer fires 20 times a second at most while the loop lives. While the rescue polls, upcalls
//! are held back: a tick that falls due then is late, and shows the loop that is stuck.

mod platform;
mod ticks;

// What differs between processor architectures: `arm_timer`, `cycles` and `random`.
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use platform::{Hooks, VcpuAreas, XenPlatform};
pub use ticks::{TickSource, Ticks};
