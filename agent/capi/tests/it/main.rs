//! The integration tests of the archives and of the header for C.
#![allow(clippy::unwrap_used)]

mod archive;
mod build;
mod build_archive;
mod c_guests;
mod guides;
mod header;
