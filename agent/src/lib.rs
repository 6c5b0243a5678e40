//! The profiler that lives inside a unikernel.
#![no_std]
// A refusal holds its text: there is no allocator to box it with, and refusals are rare.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

#[cfg(feature = "hosted")]
extern crate std;

mod agent;
pub mod caller_table;
mod cells;
pub mod code_map;
#[cfg(feature = "hosted")]
pub mod hosted;
mod memory;
pub mod path;
mod platform;
mod recorder;
pub mod rescue;
mod sampler;
mod service;
mod session;
mod slot;
#[cfg(all(test, loom))]
mod slot_model;
pub mod stack;
#[cfg(feature = "embedded-io")]
pub mod stream_server;
mod sync;
pub mod table;
#[cfg(feature = "smoltcp")]
pub mod tcp_server;
mod text;
mod upload;
pub mod walk;
#[cfg(feature = "xen")]
pub mod xen;

pub use agent::{Agent, Config, StartError};
pub use caller_table::{CallerTable, LinkedTableError, caller_table_bytes};
pub use code_map::{CodeMap, MAX_MAPPINGS, Mapping, MappingsError};
pub use memory::minimum_bytes;
pub use path::MAX_DEPTH;
pub use platform::{Platform, Registers, Runstate};
pub use recorder::{MAX_PERIOD_NS, MIN_PERIOD_NS};
pub use service::{SESSIONS, Service, SessionId, Work};
pub use session::{MAX_REQUEST, busy_answer};
