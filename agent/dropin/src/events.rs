//! The guest's own events: the calls of `unikprof_dropin.h`, with the codes of `unikprof.h`.
#![allow(unsafe_code, reason = "the names are called from C")]

use core::ffi::c_char;
use core::slice;

use unikprof_agent::{Agent, EventName, EventNameError, SpanId};

use crate::served::ServedAgent;
use crate::upcall;

/// More bytes than any event name has.
const LONGEST: usize = 64;

const OK: i32 = 0;
const E_NULL: i32 = -1;
const E_NOT_STARTED: i32 = -3;
const E_NO_RING: i32 = -30;
const E_EVENT_NAME: i32 = -31;
const E_EVENT_NAMES: i32 = -32;

/// # Safety
///
/// For C: `text` is NULL or ends with 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn unikprof_event_name(text: *const c_char) -> i32 {
    if text.is_null() {
        return E_NULL;
    }
    let Some(agent) = agent() else {
        return E_NOT_STARTED;
    };
    // Not `CStr`, which needs the guest to have `strlen`. A text that is longer than this is
    // refused.
    // SAFETY: guaranteed by the caller; nothing behind the 0 is read.
    let is_text = |at: &usize| unsafe { text.add(*at).read() } != 0;
    let length = (0..LONGEST).take_while(is_text).count();
    // SAFETY: guaranteed by the caller; these bytes were just read.
    let text = unsafe { slice::from_raw_parts(text.cast::<u8>(), length) };
    // A text that is not UTF-8 is refused, and counted, like an empty one.
    match agent.event_name(str::from_utf8(text).unwrap_or_default()) {
        Ok(name) => i32::from(name.number()),
        Err(error) => code_of(error),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_mark(name: i32, value: u64) -> i32 {
    named(name, |agent, name| agent.mark(name, value)).map_or_else(|code| code, |()| OK)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_counter(name: i32, value: i64) -> i32 {
    named(name, |agent, name| agent.counter(name, value)).map_or_else(|code| code, |()| OK)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_span_begin(name: i32) -> u64 {
    named(name, Agent::span_begin).map_or(0, SpanId::number)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_async_span_begin(name: i32) -> u64 {
    named(name, Agent::async_span_begin).map_or(0, SpanId::number)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_span_end(name: i32, span: u64) -> i32 {
    let span = SpanId::from_number(span);
    named(name, |agent, name| agent.span_end(name, span)).map_or_else(|code| code, |()| OK)
}

/// # Safety
///
/// For C: the pointers are NULL or point to 16 and to 8 bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn unikprof_span_trace(
    span: u64,
    trace_id: *const u8,
    span_id: *const u8,
) -> i32 {
    // SAFETY: guaranteed by the caller; arrays of bytes have no alignment.
    let ids = unsafe { (trace_id.cast::<[u8; 16]>().as_ref(), span_id.cast::<[u8; 8]>().as_ref()) };
    let (Some(trace_id), Some(span_id)) = ids else {
        return E_NULL;
    };
    let Some(agent) = agent() else {
        return E_NOT_STARTED;
    };
    agent.span_trace(SpanId::from_number(span), *trace_id, *span_id);
    OK
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_span_enter(span: u64) -> u64 {
    agent().map_or(0, |agent| agent.enter(SpanId::from_number(span)).number())
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn unikprof_span_leave(before: u64) {
    unikprof_span_enter(before);
}

fn agent() -> Option<&'static ServedAgent> {
    let running = upcall::running()?;
    running.follow_table();
    upcall::agent()
}

fn named<R>(number: i32, work: impl FnOnce(&ServedAgent, EventName) -> R) -> Result<R, i32> {
    let agent = agent().ok_or(E_NOT_STARTED)?;
    let number = u8::try_from(number).map_err(|_| E_EVENT_NAME)?;
    let name = agent.numbered_event_name(number).map_err(code_of)?;
    Ok(work(agent, name))
}

fn code_of(error: EventNameError) -> i32 {
    match error {
        EventNameError::NoRing => E_NO_RING,
        EventNameError::TooMany => E_EVENT_NAMES,
        EventNameError::Empty
        | EventNameError::TooLong(_)
        | EventNameError::NotPrintable
        | EventNameError::Unknown(_) => E_EVENT_NAME,
    }
}
