//! Records of traced calls in a ring.

use unikprof_proto::ring::{Enter, Leave, Record, kind};

/// The trace that the calls belong to.
pub const TRACE: u16 = 7;

/// The begin of a call.
pub fn enter(function: u16, stack: u64, at_ns: u64) -> Record {
    let enter = Enter { function, trace: TRACE, caller: 99 };
    Record { kind: kind::ENTER, at_ns, first: enter.to_number(), second: stack, third: 0 }
}

/// The end of a call, after 1,024 ns of waiting.
pub fn leave(function: u16, stack: u64, at_ns: u64, how: u8) -> Record {
    let leave = Leave { function, trace: TRACE, how, waited_ns: 1024 };
    Record { kind: kind::LEAVE, at_ns, first: leave.to_number(), second: stack, third: 0 }
}
