//! The profiler that lives inside a unikernel.
#![no_std]
// A refusal holds its text: there is no allocator to box it with, and refusals are rare.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

#[cfg(feature = "hosted")]
extern crate std;

mod access;
mod admission;
mod agent;
mod boot;
pub mod caller_table;
mod cells;
pub mod code_map;
mod crash;
mod events;
mod head;
#[cfg(feature = "hosted")]
pub mod hosted;
mod lane;
mod memory;
mod notes;
pub mod path;
mod platform;
mod recorder;
pub mod rescue;
mod ring;
#[cfg(all(test, loom))]
mod ring_model;
mod sampler;
#[cfg(feature = "noise")]
mod secure;
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
mod welcome;
#[cfg(feature = "xen")]
pub mod xen;

pub use access::Access;
pub use agent::{Agent, Config, StartError};
pub use boot::{BootError, BootMode, BootRecording};
pub use caller_table::{CallerTable, LinkedTableError, caller_table_bytes};
pub use code_map::{CodeMap, MAX_MAPPINGS, Mapping, MappingsError};
pub use crash::CrashDumpError;
pub use events::{EventName, Span, SpanId};
pub use lane::MAX_RECORDINGS;
pub use memory::minimum_bytes;
pub use path::MAX_DEPTH;
pub use platform::{Platform, Registers, Runstate};
pub use recorder::{MAX_PERIOD_NS, MIN_PERIOD_NS};
pub use ring::{EventNameError, ring_bytes};
#[cfg(feature = "noise")]
pub use secure::{Key, KeyError, KeyId, Keys, KeysError, MAX_KEYS, Role};
pub use service::{SESSIONS, ServeError, Service, SessionId, Work};
pub use session::{MAX_REQUEST, busy_answer};
pub use unikprof_proto::console::{Line as CrashLine, Lines as CrashLines};
