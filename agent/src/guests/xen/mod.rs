//! Support for Xen guests: clocks, runstate and event channels through [`xen_sys_lite`].
//!
//! [`XenPlatform`] implements the agent's [`Platform`](crate::Platform); the guest's upcall calls
//! [`Ticks`]. The timer is shared in one of two ways, selected by [`TickSource`]:
//!
//! - [`TickSource::Host`]: the guest keeps VIRQ_TIMER (it can be bound once for each vCPU) and its
//!   own single-shot deadlines. It calls [`Ticks::on_timer`] from its handler and programs its own
//!   deadline or the returned one, whichever is earlier.
//! - [`TickSource::Owned`]: the guest gives up VIRQ_TIMER. [`Ticks`] arms the timer, and the guest
//!   sets its own deadline with [`Ticks::set_guest_deadline`].
//!
//! Neither wakes an idle guest: between [`Ticks::on_block`] and [`Ticks::on_wake`] of a vCPU the
//! sampler has no deadline. Under `Host` a block costs no additional hypercall. Under `Owned` the
//! block of a recorded vCPU costs at most one, which leaves the guest's own deadline armed or stops
//! the timer, and its wake another one; outside blocks the timer is not armed again while an
//! earlier deadline is armed.
//!
//! On aarch64, where Xen has no VIRQ_TIMER, the architecture's virtual timer takes its place: the
//! guest calls [`Ticks::on_timer`] from the handler of its interrupt
//! (`xen_sys_lite::timer::INTERRUPT`), and a deadline costs no hypercall. Xen does not fill
//! [`VcpuAreas::time`] there; the guest does, by `clock::set_counter_hz` and `clock::catch_up`.
//!
//! # Which vCPUs are sampled
//!
//! Those for which [`Hooks::vcpu`] returns an id, that have [`VcpuAreas`], and whose id is below
//! the parameter `VCPUS` of [`XenPlatform`] (32 by default) and below
//! [`Config::vcpus`](crate::Config::vcpus). On any other vCPU nothing is counted and no deadline is
//! returned or armed.
//!
//! # A guest that is stuck
//!
//! A main loop that never returns does not poll the network. With
//! [`PollCell`](crate::guests::rescue::PollCell) the upcall does it instead. Every upcall of that
//! vCPU should end with [`rescue`](crate::guests::rescue::PollCell::rescue), because a stuck guest
//! may have no other upcall: while nothing is recorded there are no ticks. Two events wake it then:
//!
//! 1. The event channel of the network device. Its handler calls
//!    [`notice`](crate::guests::rescue::PollCell::notice); the loop may still poll in time.
//! 2. The timer, at [`look_at_ns`](crate::guests::rescue::PollCell::look_at_ns): the time at which
//!    the loop is overdue with the noticed work or, later, an open connection needs a
//!    retransmission or a time-out. Under [`TickSource::Host`] it is another of the guest's own
//!    deadlines, under [`TickSource::Owned`] it is included in [`Ticks::set_guest_deadline`].
//!
//! A sleeping guest, and a busy one without clients, need no such timer. With a client, the timer
//! fires at most 20 times a second while the loop works. During a rescue poll upcalls are masked: a
//! tick that is due then is late, and shows the stuck loop.

mod platform;
mod ticks;

// The architecture-specific functions: `arm_timer`, `cycles` and `random`.
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;

#[cfg(feature = "trace")]
pub use platform::TraceHooks;
pub use platform::{Hooks, VcpuAreas, XenPlatform};
pub use ticks::{TickSource, Ticks};
