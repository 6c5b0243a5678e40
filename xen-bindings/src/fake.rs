//! A hypervisor, a xenstore and a network backend in the test's own process (feature `fake`; needs
//! `std`).
//!
//! [`FakeXen`] answers the hypercalls of this crate as Xen does, with a clock that advances only on
//! request. [`FakeStore`](store::FakeStore) and [`FakeNetback`](netback::FakeNetback) are the other
//! sides of the rings, conforming or hostile as a test requires.

mod calls;
mod hypervisor;
pub mod netback;
mod physical;
mod state;
pub mod store;

pub use hypervisor::{FakeXen, GrantFault};
pub use physical::leak_page;
