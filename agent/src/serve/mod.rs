//! Conversations with clients: transports, sessions, admission and keys. All I/O of the agent is in
//! this module.
//!
//! Nothing here is called from an upcall. It runs in the guest's loop, in bounded pieces, and a
//! sample may interrupt it at any instruction. It never accesses a table or a ring except through
//! `record`.

pub(crate) mod access;
mod admission;
pub(crate) mod boot;
pub(crate) mod budget;
mod conversations;
#[cfg(feature = "noise")]
pub(crate) mod secure;
pub(crate) mod service;
pub(crate) mod session;
#[cfg(feature = "embedded-io")]
pub mod stream_server;
#[cfg(feature = "smoltcp")]
pub mod tcp_server;
