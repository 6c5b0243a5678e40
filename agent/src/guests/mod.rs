//! The environments of the agent: Linux processes ([`hosted`]), Xen guests ([`xen`]), and guests
//! that are stuck ([`rescue`]).
//!
//! A platform's clocks, bounds and timers are called from upcalls. Everything else in this module
//! (sockets, devices, threads, event channels) belongs to the guest's start and to its loop. No
//! module here counts samples or knows recordings.

#[cfg(feature = "hosted")]
pub mod hosted;
pub mod rescue;
#[cfg(feature = "xen")]
pub mod xen;
