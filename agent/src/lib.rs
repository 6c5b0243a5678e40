//! The profiler's agent, which runs inside a unikernel.
#![no_std]
// Refusals contain their text: there is no allocator to box it with, and they are rare.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

#[cfg(all(feature = "trace", not(target_arch = "x86_64")))]
compile_error!("the feature `trace` is for x86_64");

#[cfg(feature = "hosted")]
extern crate std;

/// Errors that are shown by their text also where `main` returns them, and by `expect`.
macro_rules! debug_is_display {
    ($($error:ty),+) => {
        $(impl core::fmt::Debug for $error {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
        })+
    };
}

// Layers: a module imports from its own layer and from lower ones: guests, serve, record, agent,
// count and ring, stack, ground. Tracing is beside record.
mod agent;
mod count;
mod ground;
mod guests;
#[cfg(feature = "heap")]
pub mod heap;
mod record;
mod ring;
mod serve;
pub mod stack;
#[cfg(feature = "trace")]
mod trace;

pub use agent::{Agent, Config, OwnWork, StartError};
pub use count::live::live_bytes;
pub use count::memory::minimum_bytes;
pub use count::recording::MAX_RECORDINGS;
pub use count::table;
pub use ground::platform::{CallStack, Continuation, Moment, Platform, Registers, Runstate};
#[cfg(feature = "hosted")]
pub use guests::hosted;
pub use guests::rescue;
#[cfg(feature = "xen")]
pub use guests::xen;
pub use record::crash::CrashDumpError;
pub use record::events::{EventName, Span, SpanId};
pub use record::welcome::MAX_REQUEST;
pub use ring::{EventNameError, ring_bytes};
pub use serve::access::Access;
pub use serve::boot::{BootError, BootMode, BootRecording};
pub use serve::budget::DEFAULT_CPU_SHARE_PERMILLE;
#[cfg(feature = "noise")]
pub use serve::secure::{Key, KeyError, KeyId, Keys, KeysError, MAX_KEYS, Role};
pub use serve::service::{SESSIONS, ServeError, Service, SessionId, Work};
pub use serve::session::busy_answer;
#[cfg(feature = "embedded-io")]
pub use serve::stream_server;
#[cfg(feature = "smoltcp")]
pub use serve::tcp_server;
pub use stack::caller_table::{self, CallerTable, LinkedTableError, caller_table_bytes};
pub use stack::code_map::{self, CodeMap, MAX_MAPPINGS, Mapping, MappingsError};
pub use stack::path::{self, MAX_DEPTH};
pub use stack::walk;
#[cfg(feature = "trace")]
pub use trace::{Breakpoint, TrapFrame, trace_bytes};
pub use unikprof_proto::console::{Line as CrashLine, Lines as CrashLines};
pub use unikprof_proto::message::{MAX_PERIOD_NS, MIN_PERIOD_NS};

debug_is_display!(
    StartError,
    CrashDumpError,
    EventNameError,
    BootError,
    ServeError,
    LinkedTableError,
    MappingsError
);
#[cfg(feature = "noise")]
debug_is_display!(KeyError, KeysError);
#[cfg(feature = "smoltcp")]
debug_is_display!(tcp_server::TcpError);
#[cfg(feature = "hosted")]
debug_is_display!(hosted::Error);
