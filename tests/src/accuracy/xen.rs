//! The suite on a real Xen: a guest in an emulated machine, and the cases with what they ask for
//! there.
//!
//! The machine is emulated: an upcall or a hypercall takes a hundred microseconds, and the emulator
//! stops now and then for some milliseconds, which are running time to everybody inside. So periods
//! are longer than hosted, and each row says its own.

mod cases;
mod guest;
pub mod shares;
pub mod steal;

pub use cases::run;
pub use guest::XenGuest;
