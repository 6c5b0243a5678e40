//! Guests on Xen: clocks, runstate and event channels through [`xen_sys_lite`].
//!
//! [`XenPlatform`] is what the agent asks; [`Ticks`] is where the guest's upcall hands over. Two ways
//! of sharing the timer are first class, by [`TickSource`]:
//!
//! - [`TickSource::Host`]: the guest keeps VIRQ_TIMER (it can be bound once for each vCPU) and its own
//!   single-shot deadlines. It calls [`Ticks::on_timer`] from its handler and programs the earlier of
//!   its own deadline and the one answered.
//! - [`TickSource::Owned`]: the guest hands VIRQ_TIMER over. The timer is armed here, and the guest
//!   says with [`Ticks::set_guest_deadline`] when it wants to be woken itself.
//!
//! An idle guest is left alone in both: while a vCPU is inside [`Ticks::on_block`] and
//! [`Ticks::on_wake`] the sampler has no deadline. Under `Host` that costs no hypercall of its own;
//! under `Owned` a deadline armed before the block is left standing, so a block costs at most one
//! spurious wake, and arming again is left out where an earlier deadline stands.
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
mod random;
mod ticks;

pub use platform::{Hooks, XenPlatform};
pub use ticks::{TickSource, Ticks};
