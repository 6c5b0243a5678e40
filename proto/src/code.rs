//! The values of the protocol's integer codes.
//!
//! They are plain constants: a peer may send a value that this version does not know, and it must
//! survive being read, stored and shown.

/// The protection of a conversation: [`Preamble::security`](crate::preamble::Preamble::security).
pub mod security {
    /// No protection: everything is sent unencrypted, and every client may make all requests.
    pub const OPEN: u8 = 0;
    /// By `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, see [`secure`](crate::secure).
    pub const NOISE: u8 = 1;
}

/// A client's permissions: [`Welcome::role`](crate::message::Welcome::role).
pub mod role {
    /// All requests; the agent is open and requires no key.
    pub const OPEN: u32 = 0;
    /// Read-only requests: hello, check and fetch.
    pub const VIEW: u32 = 1;
    /// All requests but those that trace.
    pub const CONTROL: u32 = 2;
    /// All requests, and tracing: writing breakpoints into the guest's code.
    pub const TRACE: u32 = 3;
}

/// Message types. Requests are below `0x4000`, a recording file's own messages below `0x8000`,
/// answers above.
pub mod message_type {
    pub use crate::message::types::*;

    /// The first type that occurs only in recording files.
    pub const FILE_FIRST: u16 = 0x4000;
}

/// Why a request was refused: [`Refusal::code`](crate::message::Refusal::code).
pub mod refusal {
    /// No protocol version that both sides speak.
    pub const NO_COMMON_VERSION: u32 = 1;
    /// The frame or its body is malformed; the agent closes after it.
    pub const MALFORMED: u32 = 2;
    /// The agent does not know this request.
    pub const UNKNOWN_REQUEST: u32 = 3;
    /// The sampling period is outside the agent's limits.
    pub const BAD_PERIOD: u32 = 4;
    /// The depth is outside the agent's limits.
    pub const BAD_DEPTH: u32 = 5;
    /// The recording's name is empty, too long or not printable.
    pub const BAD_NAME: u32 = 6;
    /// The agent does not sample in this mode.
    pub const UNSUPPORTED_MODE: u32 = 7;
    /// A recording with this name is running, or a running recording prevents the upload of a
    /// caller table.
    pub const ALREADY_RECORDING: u32 = 8;
    /// A finished recording that has not been fetched prevents the request; the text names it.
    pub const UNFETCHED: u32 = 9;
    /// No such recording.
    pub const NO_RECORDING: u32 = 10;
    /// No such epoch: the id was never assigned, or the epoch was acknowledged.
    pub const NO_EPOCH: u32 = 11;
    /// All sessions are in use.
    pub const BUSY: u32 = 12;
    /// The caller table is too large for the memory given to the agent; the text names the limit.
    pub const TABLE_TOO_LARGE: u32 = 13;
    /// The caller table is malformed.
    pub const BAD_TABLE: u32 = 14;
    /// The agent does not have the caller table that the start refers to.
    pub const NO_TABLE: u32 = 15;
    /// The agent requires a key, and the client has none.
    pub const KEY_NEEDED: u32 = 16;
    /// The handshake failed: the agent does not have the client's key, or bytes were altered.
    pub const BAD_KEY: u32 = 17;
    /// The client's role does not allow the request.
    pub const NOT_ALLOWED: u32 = 18;
    /// The agent is open, and the client has begun a handshake.
    pub const NOT_KEYED: u32 = 19;
    /// The maximum number of recordings exists already; the text names them.
    pub const TOO_MANY_RECORDINGS: u32 = 20;
    /// There are several recordings, and the request does not select one; the text names them.
    pub const WHICH_RECORDING: u32 = 21;
    /// The agent was given no memory for a ring.
    pub const NO_RING: u32 = 22;
    /// Another client holds the lease on the recording; the text names it.
    pub const LEASED: u32 = 23;
    /// Some of an epoch's counts were given up while it was sent: fetch it again.
    pub const EPOCH_CHANGED: u32 = 24;
    /// The guest has no such vCPU.
    pub const NO_VCPU: u32 = 25;
    /// The sampling interval in bytes is outside the limits of
    /// [`Start::interval_bytes`](crate::message::Start::interval_bytes).
    pub const BAD_INTERVAL: u32 = 26;
    /// The guest does not allow tracing, or cannot be traced; the text says which.
    pub const NO_TRACING: u32 = 27;
    /// Another client's trace is under way; the text names the client.
    pub const TRACING: u32 = 28;
    /// The trace is malformed, or does not fit in the agent's memory; the text says what.
    pub const BAD_TRACE: u32 = 29;
    /// No such trace: it was replaced by another one, or its client was gone too long before it was
    /// armed.
    pub const NO_TRACE: u32 = 30;
    /// Another client has begun to send a caller table: send this one again.
    pub const OTHER_UPLOAD: u32 = 31;
    /// The client that holds the lease on the recording is not connected, and the lease ends soon
    /// unless it comes back; the text names it.
    pub const HOLDER_GONE: u32 = 32;
}

/// Sampled kinds of time and memory: [`Start::mode`](crate::message::Start::mode).
pub mod mode {
    /// Running time: where CPU time is spent.
    pub const CPU: u32 = 0;
    /// Running and blocked time: as [`CPU`], and blocked time is counted under the stack that
    /// blocked, with [`frame_code::BLOCKED`](super::frame_code::BLOCKED) as its leaf.
    pub const WALL: u32 = 1;
    /// Blocked time alone, measured and not sampled: counts are nanoseconds.
    pub const OFF_CPU: u32 = 2;
    /// Allocations, sampled by bytes. A count is a number of samples; each stack has the size of
    /// its allocations as its leaf, a [`frame_code::size`](super::frame_code::size).
    pub const ALLOC: u32 = 3;
    /// Allocations that are still held, sampled as in [`ALLOC`]. Counts are zero; the samples are
    /// sent as [`LiveSamples`](crate::message::LiveSamples).
    pub const LIVE: u32 = 4;

    /// Whether a mode samples allocations instead of time.
    pub const fn is_heap(mode: u32) -> bool {
        matches!(mode, ALLOC | LIVE)
    }
}

/// [`Start::flags`](crate::message::Start::flags).
pub mod start_flag {
    /// Replace a finished recording that was not fetched: the one of the same name, or any other
    /// one if there is no room.
    pub const REPLACE: u32 = 1;
    /// Sample at fixed intervals. For comparison only: a load in step with the intervals gives
    /// wrong shares.
    pub const FIXED_INTERVAL: u32 = 2;
    /// Look up every frame in the caller table, not only the interrupted one. Requires a table.
    pub const UNWIND_TABLE: u32 = 4;
    /// Keep the newest stacks if memory runs short: unfetched counts of the oldest ones are added
    /// to [`Counters::aged`](crate::message::Counters::aged). Without this flag old stacks are
    /// kept, and new ones overflow.
    pub const KEEP_NEWEST: u32 = 8;
    /// Discard the recording once its client has made no request for
    /// [`CONFIRM_WITHIN_NS`](crate::message::CONFIRM_WITHIN_NS), unless another one fetches it.
    pub const WATCHED: u32 = 16;
}

/// [`TraceBegin::flags`](crate::message::TraceBegin::flags).
pub mod trace_flag {
    /// Write no calls to the rings: only count.
    pub const COUNT: u32 = 1;
}

/// The state of a trace: [`TraceState::state`](crate::message::TraceState::state).
pub mod trace_state {
    /// Its functions and probes are being sent.
    pub const OPEN: u32 = 0;
    /// It is under way.
    pub const ARMED: u32 = 1;
    /// Its client has ended it.
    pub const STOPPED: u32 = 2;
    /// The agent has ended it, since its client was gone too long.
    pub const ABANDONED: u32 = 3;
}

/// Why a function is not traced: [`TraceRefused::reason`](crate::message::TraceRefused::reason).
pub mod trace_refusal {
    /// The guest's memory has other bytes at a probe than the client expects.
    pub const OTHER_BYTES: u32 = 1;
    /// The agent neither emulates the instruction at a probe nor can it run a copy of it.
    pub const INSTRUCTION: u32 = 2;
    /// There are no more slots for copies of instructions, or none near enough.
    pub const NO_SLOT: u32 = 3;
    /// The agent itself may run the function while it handles a breakpoint.
    pub const AGENT: u32 = 4;
    /// The code at a probe cannot be written, or is in no mapping.
    pub const NOT_WRITABLE: u32 = 5;
    /// There is no more memory for probes.
    pub const NO_ROOM: u32 = 6;
    /// Two probes overlap, or a probe lies inside of another function's instruction.
    pub const OVERLAP: u32 = 7;
}

/// The state of a recording: [`RecordingStatus::state`](crate::message::RecordingStatus::state).
pub mod state {
    /// The recording was fetched and removed after the status was requested.
    pub const IDLE: u32 = 0;
    /// The recording waits for its delay.
    pub const DELAYED: u32 = 1;
    /// The recording is running.
    pub const RECORDING: u32 = 2;
    /// The recording has ended and waits to be fetched.
    pub const FINISHED: u32 = 3;
}

/// Capabilities of an agent: bits of
/// [`Welcome::capabilities`](crate::message::Welcome::capabilities).
pub mod capability {
    /// Running, runnable, blocked and offline time are known separately.
    pub const RUNSTATE: u64 = 1;
    /// The agent answers even while the guest is stuck in a loop.
    pub const REACHABLE_WHEN_BUSY: u64 = 2;
    /// The agent has a flight recorder, and answers [`Ring`](crate::message::Ring).
    pub const RING: u64 = 4;
    /// The guest reports its allocations, and the agent records in mode
    /// [`ALLOC`](super::mode::ALLOC).
    pub const HEAP: u64 = 8;
    /// The agent has a table of live allocations, and records in mode [`LIVE`](super::mode::LIVE).
    pub const LIVE: u64 = 16;
    /// The guest allows tracing.
    pub const TRACE: u64 = 32;
}

/// The kind of a [`Histogram`](crate::message::Histogram).
pub mod histogram {
    /// Cycles per sample, from the entry of `on_tick` to its return.
    pub const SAMPLE_CYCLES: u32 = 0;
    /// Nanoseconds of running time between a target and its delivery.
    pub const LATENESS_NS: u32 = 1;
}

/// Frame codes: a frame of a stack in 32 bits.
///
/// A code at or above [`frame_code::FIRST_ADDRESS`] is an address: it belongs to the mapping with
/// the greatest [`code_base`](crate::message::Mapping::code_base) that is not above it, and its
/// address is `start + (code - code_base)`. Smaller codes have special meanings. Codes at or above
/// [`frame_code::FIRST_SIZE`] are sizes of allocations.
pub mod frame_code {
    /// No frame. Never sent.
    pub const NONE: u32 = 0;
    /// The stack continues towards its root beyond the depth limit.
    pub const TRUNCATED: u32 = 1;
    /// The chain of frame pointers ended early: callers towards the root are missing.
    pub const BROKEN: u32 = 2;
    /// The interrupted pc, or a return address, is in no mapping: code that was loaded or generated
    /// later.
    pub const UNKNOWN_CODE: u32 = 3;
    /// The interrupted code was the agent's own.
    pub const AGENT: u32 = 4;
    /// The vCPU was blocked: the leaf of blocked time's stacks in a wall-clock recording.
    pub const BLOCKED: u32 = 5;
    /// The leaf of a sample that arrived late. The code below ran when it arrived, not when it was
    /// due: it unmasked events, or was the first to run after the host had stalled the guest.
    pub const LATE: u32 = 6;
    /// Samples whose stacks were discarded, oldest first, because memory ran short. Clients make it
    /// from [`Counters::aged`](crate::message::Counters::aged); an agent never sends it.
    pub const AGED: u32 = 7;
    /// The first code that is an address.
    pub const FIRST_ADDRESS: u32 = 16;
    /// The first code that is a size, and no address: the leaf of an allocation's stack.
    pub const FIRST_SIZE: u32 = 0xf000_0000;

    /// The bits of a size below its exponent.
    const MANTISSA: u32 = 22;

    /// The code of a size in bytes: exact below 8 MiB; of larger sizes the 23 most significant bits
    /// are kept.
    ///
    /// The lower 22 bits are the mantissa, the 6 bits above them the exponent: with exponent 0 the
    /// size is the mantissa, with exponent `e` it is `(2^22 + mantissa) << (e - 1)`.
    pub const fn size(bytes: u64) -> u32 {
        let extra = (u64::BITS - bytes.leading_zeros()).saturating_sub(MANTISSA);
        if extra == 0 {
            return FIRST_SIZE | bytes as u32;
        }
        let kept = (bytes >> (extra - 1)) as u32;
        FIRST_SIZE | extra << MANTISSA | kept & ((1 << MANTISSA) - 1)
    }

    /// The size of a code; `None` if it is not that of a size.
    pub const fn size_of(code: u32) -> Option<u64> {
        if code < FIRST_SIZE {
            return None;
        }
        let mantissa = (code & ((1 << MANTISSA) - 1)) as u64;
        match (code - FIRST_SIZE) >> MANTISSA {
            0 => Some(mantissa),
            exponent if exponent <= u64::BITS - MANTISSA => {
                Some((mantissa | 1 << MANTISSA) << (exponent - 1))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::frame_code::{FIRST_SIZE, size, size_of};

    /// Sums of bytes are computed from these codes: small sizes must be exact, large ones almost,
    /// and all in order.
    #[test]
    fn sizes_survive_their_code() {
        for bytes in (0..1 << 23).step_by(977).chain((1 << 23) - 9..1 << 23) {
            assert_eq!(size_of(size(bytes)), Some(bytes));
        }
        let mut last = size((1 << 23) - 1);
        for shift in 23..64 {
            for bytes in [1 << shift, 3 << (shift - 1), (1 << shift) + 12_345] {
                let Some(back) = size_of(size(bytes)) else {
                    panic!("{bytes} has no size");
                };
                assert!(back <= bytes && bytes - back <= bytes >> 22, "{bytes}: {back}");
            }
            assert!(size(1 << shift) > last);
            last = size(1 << shift);
        }
        assert_eq!(size_of(size(u64::MAX)), Some(u64::MAX << 41));
    }

    #[test]
    fn codes_without_a_size_are_rejected() {
        assert_eq!(size_of(FIRST_SIZE - 1), None);
        assert_eq!(size_of(u32::MAX), None, "an exponent beyond 64 bits");
        assert_eq!(size_of(size(u64::MAX) + 1), None);
    }
}
