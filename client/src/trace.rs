//! Traces: every call of chosen functions, with its duration.
//!
//! `data` is what came of a trace, `calls` the calls in the rings, and [`Pattern`] says which
//! functions are meant.

mod calls;
mod data;
mod pattern;

#[cfg(test)]
pub(crate) use calls::tests as calls_tests;
pub(crate) use calls::{Call, Calls, End};
pub(crate) use data::{CallsFrom, Order, Trace, TraceError, TracedFunction, last_of};
pub(crate) use pattern::Pattern;
