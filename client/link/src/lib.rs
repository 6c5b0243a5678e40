//! Connects to a running unikernel and records it: a guest becomes a file.
//!
//! It takes an address and, where the guest asks for one, a [`key`]. It gives a [`record::Session`],
//! which starts and stops recordings, fetches what they counted into a file, and traces calls. It reads
//! no profile out of what it fetches, prints nothing, and knows no command line.

pub mod connection;
pub mod deadline;
pub mod interrupt;
pub mod key;
pub mod plan;
pub mod record;
