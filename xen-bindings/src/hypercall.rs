//! The guest's calls to Xen.
//!
//! All calls go through one trait, [`Hypercall`]. The processor's own way into Xen implements it
//! (on x86-64 [`HypercallPage`](crate::HypercallPage)), and for tests `fake::FakeXen` (feature
//! `fake`).

#![allow(unsafe_code, reason = "hypercalls are made with addresses")]

pub(crate) mod operations;

/// The guest's way to call the hypervisor.
///
/// Used through a shared reference, from the upcall too: an implementation neither locks for long
/// nor panics.
pub trait Hypercall {
    /// Makes hypercall `number` and returns what it returned; negative numbers are errors.
    ///
    /// # Safety
    /// The arguments must be what the hypercall expects, addresses among them valid for what it
    /// reads and writes, and its effect on the guest's memory must be one the caller may have.
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64;
}

impl<H: Hypercall + ?Sized> Hypercall for &H {
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64 {
        // SAFETY: the same contract, passed on.
        unsafe { (**self).call(number, arguments) }
    }
}
