//! A hypervisor, a xenstore and a network backend in the test's own process (feature `fake`; needs `std`).
//!
//! [`FakeXen`] answers the hypercalls of this crate as Xen does, with a clock that moves only when told.
//! [`FakeStore`](store::FakeStore) and [`FakeNetback`](netback::FakeNetback) are other sides of the rings,
//! honest or hostile as a test wants.

mod calls;
mod hypervisor;
pub mod netback;
mod physical;
mod state;
pub mod store;

pub use hypervisor::{FakeXen, GrantFault};
pub use physical::leak_page;
