//! The whole way: hosted guests and guests on a real Xen, met by the client's own program; and what
//! is true of the workspace as a whole.
#![allow(clippy::unwrap_used)]

mod harness;

mod aarch64_user;
mod accuracy;
mod all_tests;
mod docs;
mod hosted;
mod lives;
mod soak;
mod xen_accuracy;
mod xen_lab;
mod xen_profile;
