//! The error codes of the C ABI, and their texts.

use core::ffi::CStr;

/// Success.
pub const UNIKPROF_OK: i32 = 0;
/// A required pointer is NULL.
pub const UNIKPROF_E_NULL: i32 = -1;
/// The configuration's version is not the library's.
pub const UNIKPROF_E_VERSION: i32 = -2;
/// The agent is not running: `unikprof_init` was not called, or has failed.
pub const UNIKPROF_E_NOT_STARTED: i32 = -3;
/// The agent is already running.
pub const UNIKPROF_E_STARTED: i32 = -4;
/// Another call is in progress: on another CPU, or further up the same stack.
pub const UNIKPROF_E_BUSY: i32 = -5;
/// The memory block is too short.
pub const UNIKPROF_E_MEMORY: i32 = -6;
/// The configuration does not set `access`, or sets keys for `UNIKPROF_ACCESS_OPEN`.
pub const UNIKPROF_E_ACCESS: i32 = -7;
/// The number of vCPUs is 0 or too large, or there are several and no `kick`.
pub const UNIKPROF_E_VCPUS: i32 = -8;
/// The mappings cannot be used.
pub const UNIKPROF_E_MAPPINGS: i32 = -9;
/// A text is too long, or not UTF-8.
pub const UNIKPROF_E_TEXT: i32 = -10;
/// A required function is NULL.
pub const UNIKPROF_E_OPS: i32 = -11;
/// All sessions are in use.
pub const UNIKPROF_E_SESSIONS: i32 = -12;
/// The connection id is unknown, or the connection was closed.
pub const UNIKPROF_E_CONNECTION: i32 = -13;
/// The conversation is over: close the connection.
pub const UNIKPROF_E_OVER: i32 = -14;
/// Called too late: a client may already have connected. Call it directly after `unikprof_init`.
pub const UNIKPROF_E_TOO_LATE: i32 = -15;
/// The caller table is damaged, or is not a caller table.
pub const UNIKPROF_E_TABLE: i32 = -16;
/// The caller table was made from another image.
pub const UNIKPROF_E_OTHER_IMAGE: i32 = -17;
/// The caller table does not fit `caller_memory`.
pub const UNIKPROF_E_TABLE_ROOM: i32 = -18;
/// A flag is set that the library does not know.
pub const UNIKPROF_E_FLAGS: i32 = -19;
/// The agent's network addresses cannot be used.
pub const UNIKPROF_E_NETWORK: i32 = -20;
/// The archive was built without this feature.
pub const UNIKPROF_E_UNSUPPORTED: i32 = -21;
/// A frame is empty or too long, or the buffer is too short for a frame.
pub const UNIKPROF_E_FRAME: i32 = -22;
/// The queue of frames is full; this frame was dropped.
pub const UNIKPROF_E_FULL: i32 = -23;
/// The agent has no network: `network` was NULL.
pub const UNIKPROF_E_NO_NETWORK: i32 = -24;
/// A key cannot be used, there are none, or there are too many.
pub const UNIKPROF_E_KEYS: i32 = -25;
/// Keys are set, but `random` returned nothing.
pub const UNIKPROF_E_RANDOM: i32 = -26;
/// The number of recordings is too large.
pub const UNIKPROF_E_RECORDINGS: i32 = -27;
/// A recording at boot has invalid settings, or there is no room for it.
pub const UNIKPROF_E_RECORDING: i32 = -28;
/// The block for the flight recorder is too short.
pub const UNIKPROF_E_RING: i32 = -29;
/// The agent has no flight recorder: `ring` was NULL.
pub const UNIKPROF_E_NO_RING: i32 = -30;
/// An event name is invalid, or no event name has this id.
pub const UNIKPROF_E_EVENT_NAME: i32 = -31;
/// All event names are in use.
pub const UNIKPROF_E_EVENT_NAMES: i32 = -32;
/// The block is too short for a crash dump.
pub const UNIKPROF_E_DUMP_ROOM: i32 = -33;
/// The block for live samples is too short.
pub const UNIKPROF_E_LIVE: i32 = -34;
/// The block for traces is too short, or there is no `write_code`.
pub const UNIKPROF_E_TRACE: i32 = -35;
/// Why a call was rejected: one of the codes above except [`UNIKPROF_OK`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misuse(pub(crate) i32);

/// A code's meaning, and how to fix it.
pub(crate) fn text(code: i32) -> &'static CStr {
    match code {
        UNIKPROF_OK => c"no error",
        UNIKPROF_E_NULL => c"a required pointer is NULL",
        UNIKPROF_E_VERSION => {
            c"the configuration's version is not the library's; set version = \
              UNIKPROF_ABI_VERSION, and use \
              the library's own header"
        }
        UNIKPROF_E_NOT_STARTED => c"the agent is not running; call unikprof_init first",
        UNIKPROF_E_STARTED => c"the agent is already running",
        UNIKPROF_E_BUSY => {
            c"another call is in progress, on another CPU or further up this stack; \
                             try again later"
        }
        UNIKPROF_E_MEMORY => {
            c"the memory block is too short; unikprof_memory_bytes says how long it must be"
        }
        UNIKPROF_E_ACCESS => {
            c"set access to UNIKPROF_ACCESS_KEYS and give keys, or to \
                               UNIKPROF_ACCESS_OPEN without keys"
        }
        UNIKPROF_E_VCPUS => {
            c"the number of vCPUs is not 1 to 4096, or there are several but kick is NULL"
        }
        UNIKPROF_E_MAPPINGS => {
            c"the mappings cannot be used; give 1 to 64, sorted by start, none empty, none \
              overlapping, \
              4 GiB at most together, with build-ids of 64 bytes at most"
        }
        UNIKPROF_E_TEXT => c"a text is not UTF-8, or longer than 255 bytes (a path: 4095 bytes)",
        UNIKPROF_E_OPS => {
            c"a required function is NULL; give now_ns, vcpu, running_ns and stack_bounds"
        }
        UNIKPROF_E_SESSIONS => c"all sessions are in use; send unikprof_busy_answer and close",
        UNIKPROF_E_CONNECTION => c"the connection id is unknown, or the connection was closed",
        UNIKPROF_E_OVER => c"the conversation is over; close the connection",
        UNIKPROF_E_TOO_LATE => {
            c"a client may already have connected; call this directly after unikprof_init"
        }
        UNIKPROF_E_TABLE => {
            c"the caller table is damaged or is not one; make it again with the \
                              client"
        }
        UNIKPROF_E_OTHER_IMAGE => {
            c"the caller table was made from another image; make it from the linked image"
        }
        UNIKPROF_E_TABLE_ROOM => {
            c"the caller table does not fit; give a longer caller_memory, 10 bytes per row"
        }
        UNIKPROF_E_FLAGS => c"a flag is set that the library does not know; set it to 0",
        UNIKPROF_E_NETWORK => {
            c"the network cannot be used; give a port, and unicast addresses with a prefix of 0 to \
              32"
        }
        UNIKPROF_E_UNSUPPORTED => {
            c"the archive was built without this feature; build it with \
              --smoltcp, --noise, --ring, --heap or --trace"
        }
        UNIKPROF_E_FRAME => {
            c"a frame is empty or longer than UNIKPROF_MAX_FRAME, or the buffer is shorter than \
              that"
        }
        UNIKPROF_E_FULL => {
            c"the queue of frames is full and this frame was dropped; call \
                             unikprof_poll"
        }
        UNIKPROF_E_NO_NETWORK => c"the agent has no network; set network in the configuration",
        UNIKPROF_E_KEYS => {
            c"a key cannot be used; give 1 to 8 as unikprof-client keygen makes them, no key twice"
        }
        UNIKPROF_E_RANDOM => c"keys are set, but random returned no bits",
        UNIKPROF_E_RECORDINGS => c"the number of recordings is too large; give 0 to 4",
        UNIKPROF_E_RECORDING => {
            c"a recording at boot was refused, and the reason was logged; give it a unique name, a \
              period of 10 \
              us to 10 s, a depth of 128 at most, and a place among recordings"
        }
        UNIKPROF_E_RING => {
            c"the block for the flight recorder is too short; unikprof_ring_bytes says how long it \
              must be"
        }
        UNIKPROF_E_NO_RING => c"the agent has no flight recorder; set ring in the configuration",
        UNIKPROF_E_EVENT_NAME => {
            c"an event name has 1 to 48 bytes of UTF-8 without control characters, and its number \
              is what \
              unikprof_event_name returned"
        }
        UNIKPROF_E_EVENT_NAMES => {
            c"all 256 event names are in use; use fewer, and distinguish events by their values"
        }
        UNIKPROF_E_LIVE => {
            c"the block for live samples is too short; unikprof_live_bytes says how long it must be"
        }
        UNIKPROF_E_TRACE => {
            c"the block for traces is too short (unikprof_trace_bytes says how long it must be), \
              or write_code is NULL \
              or cannot write"
        }
        UNIKPROF_E_DUMP_ROOM => {
            c"the block is too short for a crash dump; give it as many bytes as ring has"
        }
        _ => c"not an error code of this library",
    }
}
