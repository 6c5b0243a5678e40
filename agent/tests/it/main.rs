//! The integration tests of the agent, except those that need a process of their own.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod client;
mod fake;
mod fake_guest;
#[cfg(feature = "noise")]
mod keyed;
#[cfg(feature = "smoltcp")]
mod network;
#[cfg(feature = "embedded-io")]
mod pipe;
#[cfg(feature = "trace")]
mod tracing;

mod aging;
mod blocked_time;
mod boot;
mod caller_table;
mod delivery_cost;
mod fetching;
mod folding;
#[cfg(all(feature = "heap", feature = "ring"))]
mod heap;
#[cfg(feature = "noise")]
mod keyed_service;
mod leases;
mod memory_per_stack;
mod recordings;
#[cfg(feature = "ring")]
mod ring_sums;
#[cfg(feature = "ring")]
mod rings;
#[cfg(feature = "noise")]
mod secrets;
mod service;
mod snapshot;
#[cfg(feature = "embedded-io")]
mod stream_server;
#[cfg(feature = "smoltcp")]
mod tcp_server;
#[cfg(feature = "dhcp")]
mod tcp_server_dhcp;
#[cfg(feature = "smoltcp")]
mod tcp_server_faults;
#[cfg(all(feature = "noise", feature = "smoltcp"))]
mod tcp_server_keyed;
#[cfg(feature = "trace")]
mod trace;
#[cfg(feature = "xen")]
mod xen;
