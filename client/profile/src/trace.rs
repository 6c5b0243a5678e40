//! Traces: every call of chosen functions, with its duration.
//!
//! `data` is what came of a trace, `calls` the calls in the rings, and [`Pattern`] says which
//! functions are meant.

mod calls;
mod data;
mod pattern;

pub use calls::{Call, Calls, End};
pub use data::{CallsFrom, Order, Trace, TraceError, TracedFunction, last_of};
pub use pattern::Pattern;
