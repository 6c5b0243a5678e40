//! The calls of the flight recorder: the guest's own events, and crash dumps.
//!
//! They may be called wherever upcalls may run, inside an upcall too, and on any stack: see
//! [`entry`](super::entry).

use core::ffi::{c_char, c_void};

use unikprof_agent::{
    Agent, CrashDumpError, CrashLines, EventName, EventNameError, SpanId, ring_bytes,
};

use super::calls::{code_of, code_or};
use super::guest::Guest;
use super::{one, read};
use crate::arch::aligned;
use crate::status::{
    Misuse, UNIKPROF_E_DUMP_ROOM, UNIKPROF_E_EVENT_NAME, UNIKPROF_E_EVENT_NAMES,
    UNIKPROF_E_NO_RING, UNIKPROF_E_NULL, UNIKPROF_E_UNSUPPORTED, UNIKPROF_OK,
};

/// Receives a crash dump piece by piece.
type Sink = unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: usize);

/// Receives one line of text.
type LineSink = unsafe extern "C" fn(context: *mut c_void, line: *const c_char);

/// A line of at most 77 characters and its terminating 0.
const LINE: usize = 80;

/// Returns the length in bytes of a block for the flight recorder with `records` records per vCPU,
/// at any alignment. A record takes 16 bytes. A tick, a mark or a counter takes one record, a span
/// takes two; the minimum is 64. The oldest records are dropped first. Returns 0 in an archive that
/// was built without `--ring`.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_ring_bytes(vcpus: u32, records: usize) -> usize {
    if cfg!(feature = "ring") { ring_bytes(vcpus as usize, records) } else { 0 }
}

/// Returns the id of an event name, 0 or above, or an error code. `text` has 1 to
/// UNIKPROF_MAX_EVENT_NAME bytes of UTF-8 without control characters, and is copied. The same text
/// always has the same id, and names are never removed: call this once for each name, at the start.
/// May be called wherever `unikprof_on_tick` may.
///
/// # Safety
///
/// For C: `text` is NULL or ends with 0.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_event_name(text: *const c_char) -> i32 {
    aligned!(event_name)
}

/// Records that an event happened now on this vCPU, with a value of the guest's choice. If `vcpu`
/// of `struct unikprof_ops` returns none, the event is counted as lost.
///
/// Returns UNIKPROF_OK or an error code. May be called wherever `unikprof_on_tick` may, also by an
/// upcall that interrupts another event.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_mark(name: i32, value: u64) -> i32 {
    aligned!(mark)
}

/// Records the value that a counter has from now on. Otherwise like `unikprof_mark`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_counter(name: i32, value: i64) -> i32 {
    aligned!(counter)
}

/// Begins a nested span: it must end on this vCPU before the spans around it do. Samples in its
/// time belong to it. One that ends otherwise is shown as an asynchronous span.
///
/// Returns the span's id for `unikprof_span_end`, or 0 if nothing was recorded; on error,
/// `unikprof_take_error` returns the code. May be called wherever `unikprof_mark` may.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_span_begin(name: i32) -> u64 {
    aligned!(span_begin)
}

/// Begins an asynchronous span: one that waits while other spans' code runs on the vCPU, such as a
/// request that an event loop serves. It may overlap others, and end in another context and on
/// another vCPU. No sample belongs to it by time alone. Otherwise like `unikprof_span_begin`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_async_span_begin(name: i32) -> u64 {
    aligned!(async_span_begin)
}

/// Ends a span: `span` is what `unikprof_span_begin` or `unikprof_async_span_begin` returned for the
/// same name; 0 is ignored. Otherwise like `unikprof_mark`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_span_end(name: i32, span: u64) -> i32 {
    aligned!(span_end)
}

/// Records that a span is the one with this id of a distributed trace, such as one of OpenTelemetry:
/// `trace_id` points to 16 bytes, `span_id` to 8. Clients give the ids to the span's samples. Call it
/// once, after the span has begun; a trace id of zeros is ignored. Otherwise like `unikprof_mark`.
///
/// # Safety
///
/// For C: the pointers are NULL or point to so many bytes.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_span_trace(
    span: u64,
    trace_id: *const u8,
    span_id: *const u8,
) -> i32 {
    aligned!(span_trace)
}

/// Says that the code that runs on this vCPU from now on works for this asynchronous span: ticks and
/// waits until `unikprof_span_leave` are its own. Stores one word. Call it around each stretch of
/// code that runs for a span, such as a callback of an event loop. Code that gives up the vCPU to
/// another thread leaves before.
///
/// Returns what `unikprof_span_leave` must be given: the span that was entered before, 0 if none.
/// May be called wherever `unikprof_mark` may.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_span_enter(span: u64) -> u64 {
    aligned!(span_enter)
}

/// Ends what `unikprof_span_enter` began, which returned `before`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_span_leave(before: u64) {
    aligned!(span_enter)
}

/// Writes everything that the agent has recorded as a recording file, which `unikprof-client
/// report` reads. `sink` is called with `context` for one piece after the other. Nothing is
/// changed, and the agent continues if the guest does.
///
/// Intended for panic handlers: it may be called on any vCPU, in any context and on any stack,
/// however it is aligned, even if a tick was interrupted. Takes 6 KiB of stack in addition to what
/// `sink` and the guest's memory functions need. Returns UNIKPROF_OK or an error code.
///
/// It uses no vector or floating-point registers itself. Unlike the calls for upcalls, it calls
/// the guest's memcpy, memmove, memset and memcmp. Where these use vector registers, a handler that
/// reports these registers, or continues the interrupted code, must save them before.
///
/// # Safety
///
/// For C: `sink` is NULL or a function that may be called in this way.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_crash_dump(
    sink: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: usize)>,
    context: *mut c_void,
) -> i32 {
    aligned!(crash_dump)
}

/// Writes the same file into `block`, after a header by which it can be found: by dom0 in the
/// guest's memory, or after a reboot in memory that survives it. If the block is too short, the
/// newest records are kept, and the file says so. May be called wherever `unikprof_crash_dump` may,
/// and uses the same registers and stack.
///
/// Returns the number of bytes used, or an error code; on error the block holds no header.
///
/// # Safety
///
/// For C: `block` is NULL or points to `length` bytes that nothing else accesses.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_crash_dump_into(block: *mut c_void, length: usize) -> i64 {
    aligned!(crash_dump_into)
}

/// Converts a block of `unikprof_crash_dump_into` to lines of text, for an output that carries
/// nothing else: the guest's console. Each line is passed to `sink` with `context`, ends with 0,
/// has at most 77 characters and no newline. Other lines may come between; `unikprof-client
/// recover` finds the right ones in the console's log.
///
/// Returns UNIKPROF_OK or an error code. Does not need a running agent. May be called wherever
/// `unikprof_crash_dump` may, and uses the same registers and stack.
///
/// # Safety
///
/// For C: `block` is NULL or points to `length` bytes; `sink` is NULL or a function that may be
/// called in this way.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_crash_lines(
    block: *const c_void,
    length: usize,
    sink: Option<unsafe extern "C" fn(context: *mut c_void, line: *const c_char)>,
    context: *mut c_void,
) -> i32 {
    aligned!(crash_lines)
}

unsafe extern "C" fn event_name(text: *const c_char) -> i32 {
    let name = recorder(|agent| {
        // SAFETY: guaranteed by the caller. A text that is too long is not a valid name either.
        let text = unsafe { read::text(text, read::NAME) };
        let text = text.map_err(|Misuse(_)| Misuse(UNIKPROF_E_EVENT_NAME))?;
        let name = agent.event_name(text.ok_or(Misuse(UNIKPROF_E_NULL))?);
        name.map_err(misuse)
    });
    name.map_or_else(|misuse| misuse.0, |name| i32::from(name.number()))
}

extern "C" fn mark(name: i32, value: u64) -> i32 {
    code_of(named(name, |agent, name| agent.mark(name, value)))
}

extern "C" fn counter(name: i32, value: i64) -> i32 {
    code_of(named(name, |agent, name| agent.counter(name, value)))
}

extern "C" fn span_begin(name: i32) -> u64 {
    begun(named(name, Agent::span_begin))
}

extern "C" fn async_span_begin(name: i32) -> u64 {
    begun(named(name, Agent::async_span_begin))
}

fn begun(span: Result<SpanId, Misuse>) -> u64 {
    match span {
        Ok(span) => span.number(),
        Err(misuse) => {
            one::note(misuse);
            0
        }
    }
}

extern "C" fn span_end(name: i32, span: u64) -> i32 {
    let span = SpanId::from_number(span);
    code_of(named(name, |agent, name| agent.span_end(name, span)))
}

unsafe extern "C" fn span_trace(span: u64, trace_id: *const u8, span_id: *const u8) -> i32 {
    code_of(recorder(|agent| {
        // SAFETY: guaranteed by the caller; arrays of bytes have no alignment.
        let ids =
            unsafe { (trace_id.cast::<[u8; 16]>().as_ref(), span_id.cast::<[u8; 8]>().as_ref()) };
        let (Some(trace_id), Some(span_id)) = ids else {
            return Err(Misuse(UNIKPROF_E_NULL));
        };
        agent.span_trace(SpanId::from_number(span), *trace_id, *span_id);
        Ok(())
    }))
}

extern "C" fn span_enter(span: u64) -> u64 {
    let before = recorder(|agent| Ok(agent.enter(SpanId::from_number(span)).number()));
    before.unwrap_or(0)
}

unsafe extern "C" fn crash_dump(sink: Option<Sink>, context: *mut c_void) -> i32 {
    code_of(recorder(|agent| {
        let sink = sink.ok_or(Misuse(UNIKPROF_E_NULL))?;
        // SAFETY: guaranteed by the caller.
        agent.crash_dump(&mut |bytes| unsafe { sink(context, bytes.as_ptr().cast(), bytes.len()) });
        Ok(())
    }))
}

unsafe extern "C" fn crash_dump_into(block: *mut c_void, length: usize) -> i64 {
    code_or(recorder(|agent| {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { read::room(block, length)? };
        match agent.crash_dump_into(block) {
            Ok(used) => Ok(used as i64),
            Err(CrashDumpError::TooSmall(_)) => Err(Misuse(UNIKPROF_E_DUMP_ROOM)),
        }
    }))
}

unsafe extern "C" fn crash_lines(
    block: *const c_void,
    length: usize,
    sink: Option<LineSink>,
    context: *mut c_void,
) -> i32 {
    if !cfg!(feature = "ring") {
        return UNIKPROF_E_UNSUPPORTED;
    }
    // SAFETY: guaranteed by the caller.
    let (Some(sink), Ok(block)) = (sink, unsafe { read::bytes(block, length) }) else {
        return UNIKPROF_E_NULL;
    };
    for line in CrashLines::of(block) {
        let mut text = [0; LINE];
        let line = line.as_str().as_bytes();
        if let Some(place) = text.get_mut(..line.len()) {
            place.copy_from_slice(line);
        }
        // SAFETY: guaranteed by the caller; the text ends with 0.
        unsafe { sink(context, text.as_ptr().cast()) };
    }
    UNIKPROF_OK
}

/// Enters like an upcall, if there is a flight recorder.
#[inline]
fn recorder<R>(
    work: impl FnOnce(&Agent<'static, Guest>) -> Result<R, Misuse>,
) -> Result<R, Misuse> {
    one::upcall(|agent| {
        if cfg!(feature = "ring") { work(agent) } else { Err(Misuse(UNIKPROF_E_UNSUPPORTED)) }
    })?
}

/// Like [`recorder`], with the event name of this id.
#[inline]
fn named<R>(
    number: i32,
    work: impl FnOnce(&Agent<'static, Guest>, EventName) -> R,
) -> Result<R, Misuse> {
    recorder(|agent| {
        let number = u8::try_from(number).map_err(|_| Misuse(UNIKPROF_E_EVENT_NAME))?;
        let name = agent.numbered_event_name(number).map_err(misuse)?;
        Ok(work(agent, name))
    })
}

pub(super) fn misuse(error: EventNameError) -> Misuse {
    Misuse(match error {
        EventNameError::NoRing => UNIKPROF_E_NO_RING,
        EventNameError::TooMany => UNIKPROF_E_EVENT_NAMES,
        EventNameError::Empty
        | EventNameError::TooLong(_)
        | EventNameError::NotPrintable
        | EventNameError::Unknown(_) => UNIKPROF_E_EVENT_NAME,
    })
}
