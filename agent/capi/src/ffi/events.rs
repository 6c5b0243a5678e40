//! The flight recorder's calls: the guest's own events, and what is left after a crash.
//!
//! They may come where upcalls may, also inside one, and on any stack: see [`entry`](super::entry).

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

/// Where a crash dump goes, piece by piece.
type Sink = unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: usize);

/// Where a line goes.
type LineSink = unsafe extern "C" fn(context: *mut c_void, line: *const c_char);

/// Room for a line of at most 77 characters, and its end.
const LINE: usize = 80;

/// How long the block for the flight recorder should be, in bytes: for so many vCPUs, each with room for
/// `records` records, wherever it is aligned. A record takes 16 bytes; a tick is one, a mark or a counter is one,
/// a span is two, and 64 is the least. The oldest are dropped first. 0 in an archive that was built
/// without `--ring`.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_ring_bytes(vcpus: u32, records: usize) -> usize {
    if cfg!(feature = "ring") {
        ring_bytes(vcpus as usize, records)
    } else {
        0
    }
}

/// The name of events with this text, 1 to UNIKPROF_MAX_EVENT_NAME bytes of UTF-8 without control
/// characters. The same text has the same name, none is ever forgotten, and the text is copied. Ask once for each,
/// at the start.
///
/// Answers its number, 0 or above, or a code. May be called where `unikprof_on_tick` may.
///
/// # Safety
/// C's: `text` is NULL or ends with 0.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_event_name(text: *const c_char) -> i32 {
    aligned!(event_name)
}

/// Something happened, now and on this vCPU; `value` is the guest's own. Where `vcpu` of `struct unikprof_ops`
/// knows none, it is counted as lost.
///
/// Answers UNIKPROF_OK or a code. May be called where `unikprof_on_tick` may, also by an upcall that interrupts
/// another event.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_mark(name: i32, value: u64) -> i32 {
    aligned!(mark)
}

/// A counter has a value, from now on. Else as `unikprof_mark`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_counter(name: i32, value: i64) -> i32 {
    aligned!(counter)
}

/// Something begins that takes time. Spans may overlap, and may end in another context and on another vCPU.
///
/// Answers what `unikprof_span_end` is to be given; 0 where nothing was kept, and where the call was wrong
/// `unikprof_take_error` tells the code. May be called where `unikprof_mark` may.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_span_begin(name: i32) -> u64 {
    aligned!(span_begin)
}

/// What `unikprof_span_begin` has answered ends, under the same name; 0 is passed over. Else as
/// `unikprof_mark`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_span_end(name: i32, span: u64) -> i32 {
    aligned!(span_end)
}

/// Hands out all that the agent knows as a recording file, which `unikprof-client report` reads: its pieces to
/// `sink`, one after the other, with `context`. Nothing is changed, and the agent goes on if its guest does.
///
/// For a panic handler: callable on any vCPU and whatever was interrupted, also a tick. It takes 6 KiB of stack
/// beside what `sink` does. Answers UNIKPROF_OK or a code.
///
/// # Safety
/// C's: `sink` is NULL or a function that may be called so.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_crash_dump(
    sink: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: usize)>,
    context: *mut c_void,
) -> i32 {
    aligned!(crash_dump)
}

/// Leaves the same in `block`, behind a head by which it is found: by dom0 in the guest's memory, or by the
/// guest's next life in memory that survives. Where the block is too short the newest records are kept, and the
/// file says so.
///
/// Answers the bytes in use, or a code; the block then holds no head.
///
/// # Safety
/// C's: `block` is NULL or leads to `length` bytes that are nobody else's.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_crash_dump_into(block: *mut c_void, length: usize) -> i64 {
    aligned!(crash_dump_into)
}

/// Hands out a block of `unikprof_crash_dump_into` as lines of text, for a way out that carries nothing else: the
/// guest's console. Each goes to `sink` with `context`, ends with 0, has at most 77 characters and no newline. Other lines
/// may come between; `unikprof-client recover` finds them in the console's log.
///
/// Answers UNIKPROF_OK or a code. There need not be an agent; it may be called where `unikprof_crash_dump` may.
///
/// # Safety
/// C's: `block` is NULL or leads to `length` bytes; `sink` is NULL or a function that may be called so.
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
        // SAFETY: the caller's promise. A longer text is none that can be used either.
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
    match named(name, Agent::span_begin) {
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

unsafe extern "C" fn crash_dump(sink: Option<Sink>, context: *mut c_void) -> i32 {
    code_of(recorder(|agent| {
        let sink = sink.ok_or(Misuse(UNIKPROF_E_NULL))?;
        // SAFETY: the caller's promise.
        agent.crash_dump(&mut |bytes| unsafe { sink(context, bytes.as_ptr().cast(), bytes.len()) });
        Ok(())
    }))
}

unsafe extern "C" fn crash_dump_into(block: *mut c_void, length: usize) -> i64 {
    code_or(recorder(|agent| {
        // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
    let (Some(sink), Ok(block)) = (sink, unsafe { read::bytes(block, length) }) else {
        return UNIKPROF_E_NULL;
    };
    for line in CrashLines::of(block) {
        let mut text = [0; LINE];
        let line = line.as_str().as_bytes();
        if let Some(place) = text.get_mut(..line.len()) {
            place.copy_from_slice(line);
        }
        // SAFETY: the caller's promise; the text ends with 0.
        unsafe { sink(context, text.as_ptr().cast()) };
    }
    UNIKPROF_OK
}

/// Enters as an upcall does, where there is a flight recorder.
#[inline]
fn recorder<R>(
    work: impl FnOnce(&Agent<'static, Guest>) -> Result<R, Misuse>,
) -> Result<R, Misuse> {
    one::upcall(|agent| {
        if cfg!(feature = "ring") {
            work(agent)
        } else {
            Err(Misuse(UNIKPROF_E_UNSUPPORTED))
        }
    })?
}

/// The same with the name that has this number.
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

fn misuse(error: EventNameError) -> Misuse {
    Misuse(match error {
        EventNameError::NoRing => UNIKPROF_E_NO_RING,
        EventNameError::TooMany => UNIKPROF_E_EVENT_NAMES,
        EventNameError::Empty
        | EventNameError::TooLong(_)
        | EventNameError::NotPrintable
        | EventNameError::Unknown(_) => UNIKPROF_E_EVENT_NAME,
    })
}
