//! The ring: records with times on one vCPU, the oldest dropped first.
//!
//! A record has a kind, a time and up to three numbers, whose meaning depends on the kind
//! ([`Record`]). The positions of records count up from 0 for as long as the guest runs: a record
//! whose position is no longer in the ring was evicted.
//!
//! A run of records is encoded one after the other:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | bits 0 to 4: the kind; bits 5, 6 and 7: a first, a second, a third number follows |
//! | varint | zigzag(time − previous time), in ns; for the first record the previous time is the run's base |
//! | varint each | the nonzero numbers |
//!
//! Times may go back a little: a record of an upcall can precede that of the event that it
//! interrupted.

use crate::run::{self, InvalidRun};
use crate::varint::{Output, take_varint, unzigzag, zigzag};

/// The maximum length of a record in bytes.
pub const MAX_RECORD_BYTES: usize = 1 + 4 * 10;

/// Kinds of records, below 32.
pub mod kind {
    /// Nothing: a position that the ring uses internally. Skip it; it was not evicted.
    pub const NOTHING: u8 = 0;
    /// A tick's sample: the number of the stack's leaf-most [node](crate::nodes), and in the second
    /// number the ring bits of the tick's recordings (the lowest eight bits) with the sample's
    /// flags above ([`SAMPLE_LATE`](super::SAMPLE_LATE)). The node's number is 0 if the agent
    /// discarded the stack before the record was sent.
    pub const SAMPLE: u8 = 1;
    /// A tick without a sample: its [`outcome`](super::outcome), and the ring bits.
    pub const NO_SAMPLE: u8 = 2;
    /// A wait, or a part of one, at the moment that a recording counted its blocked time: when the
    /// vCPU woke, when an epoch or the recording ended, and about each second while the agent is
    /// served. The number of the leaf-most node of the stack that blocked, or 0 if it is not known
    /// or was discarded; the blocked time counted, in the unit of the recording's mode (samples or
    /// ns); and a [`Wait`](super::Wait). Each recording that counts a wait has a record of its own.
    /// While none counts blocked time, long waits have a record of no recording, which tells their
    /// length only.
    pub const WAIT: u8 = 3;
    /// A recording began: its id, and its bit in samples.
    pub const BEGAN: u8 = 5;
    /// A recording ended: its id, and its bit in samples.
    pub const ENDED: u8 = 6;
    /// The guest was suspended and resumed before this record.
    pub const RESUMED: u8 = 7;
    /// The vCPU's time so far in ns: running and runnable (stolen). Followed by [`WAITED`]; if the
    /// ring has none of these, the platform knows the running time only, and the second number says
    /// nothing.
    pub const RAN: u8 = 8;
    /// The vCPU's time so far in ns: blocked and offline.
    pub const WAITED: u8 = 9;
    /// The CPU was given to others for longer than a threshold: the time in ns.
    pub const STOLEN: u8 = 10;
    /// A client's handshake failed.
    pub const BAD_KEY: u8 = 11;
    /// The time of day in ns since 1970-01-01 UTC.
    pub const CLOCK: u8 = 12;
    /// A traced function was entered: an [`Enter`](super::Enter), and the number of the stack that
    /// it runs on.
    pub const ENTER: u8 = 13;
    /// A traced call ended: a [`Leave`](super::Leave), and the number of the stack.
    pub const LEAVE: u8 = 14;
    /// Guest event: a mark. The name's id, and a value chosen by the guest.
    pub const MARK: u8 = 16;
    /// Guest event: the begin of a nested span: one that ends on the same vCPU before any span
    /// around it. The name's id, and the span's number.
    pub const SPAN_BEGIN: u8 = 17;
    /// Guest event: the end of a span of either kind. The name's id, and the span's number.
    pub const SPAN_END: u8 = 18;
    /// Guest event: the new value of a counter. The name's id, and the value as the bits of an
    /// `i64`.
    pub const COUNTER: u8 = 19;
    /// Guest event: the begin of an asynchronous span: code of others may run before it ends. The
    /// name's id, and the span's number.
    pub const ASYNC_SPAN_BEGIN: u8 = 20;
    /// The next [`SAMPLE`], [`NO_SAMPLE`] or [`WAIT`] of the same time is of code that ran for this
    /// span. The name's id, and the span's number.
    pub const ENTERED: u8 = 21;
    /// Guest event: the first half of the id of the distributed trace that a span is part of. The
    /// span's number, and the eight bytes in network order.
    pub const TRACE_HIGH: u8 = 22;
    /// The second half, likewise.
    pub const TRACE_LOW: u8 = 23;
    /// The span's own id in that trace, likewise.
    pub const TRACE_SPAN: u8 = 24;

    /// Whether the first number of records of this kind is the id of an event name.
    pub const fn is_named(kind: u8) -> bool {
        matches!(kind, MARK..=ENTERED)
    }
}

/// The outcome of a tick without a sample: the first number of [`kind::NO_SAMPLE`].
pub mod outcome {
    /// The stack table was full.
    pub const OVERFLOW: u64 = 1;
    /// The slot was busy.
    pub const LOST: u64 = 2;
    /// Delivered without registers.
    pub const MASKED: u64 = 3;
    /// Delivered inside the block call.
    pub const IDLE: u64 = 4;
}

/// A flag in the second number of [`kind::SAMPLE`]: the sample was late.
pub const SAMPLE_LATE: u64 = 1 << 8;

/// The third number of [`kind::WAIT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// The ring bit of the recording that counted the wait; 0 if none did.
    pub ring_bits: u8,
    /// Whether the recording counted no part of this wait before.
    pub is_first: bool,
    /// Whether the vCPU woke at its end.
    pub is_last: bool,
    /// Whether the time was counted as `blocked_overflow`, because the stack is not known or has no
    /// room.
    pub is_overflow: bool,
    /// The time on the monotonic clock from the block, or the last part that was counted, to the
    /// record. The vCPU may have run, or waited for a CPU, in some of it.
    pub length_ns: u64,
}

impl Wait {
    const FIRST: u64 = 1 << 8;
    const LAST: u64 = 1 << 9;
    const OVERFLOW: u64 = 1 << 10;
    const LENGTH_SHIFT: u32 = 11;

    /// The number. A length of more than 100 days loses its highest bits.
    pub const fn to_number(self) -> u64 {
        self.ring_bits as u64
            | if self.is_first { Self::FIRST } else { 0 }
            | if self.is_last { Self::LAST } else { 0 }
            | if self.is_overflow { Self::OVERFLOW } else { 0 }
            | self.length_ns << Self::LENGTH_SHIFT
    }

    /// The inverse of [`to_number`](Self::to_number).
    pub const fn from_number(number: u64) -> Self {
        Self {
            ring_bits: number as u8,
            is_first: number & Self::FIRST != 0,
            is_last: number & Self::LAST != 0,
            is_overflow: number & Self::OVERFLOW != 0,
            length_ns: number >> Self::LENGTH_SHIFT,
        }
    }
}

/// The first number of [`kind::ENTER`].
///
/// Calls on one stack are nested, so each [`Leave`] ends the innermost open call of its stack. A
/// stack that has no open call loses its number, which another one may get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enter {
    /// The function's index in its trace.
    pub function: u16,
    /// The trace's [number](crate::message::TraceReady::number).
    pub trace: u16,
    /// The [code](crate::code::frame_code) of the return address.
    pub caller: u32,
}

/// The first number of [`kind::LEAVE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// The function's index in its trace.
    pub function: u16,
    /// The trace's [number](crate::message::TraceReady::number).
    pub trace: u16,
    /// See [`how`].
    pub how: u8,
    /// The time within the call, without that of traced calls inside it, during which the vCPU did
    /// not run, in ns: rounded down to multiples of 256 ns, at most 275 s.
    pub waited_ns: u64,
}

/// The kinds of a call's end: [`Leave::how`].
pub mod how {
    /// By a return, or by a jump to another function.
    pub const RETURNED: u8 = 0;
    /// It was found to have ended when a caller of it was next seen: by an exception, for example.
    /// The time of the record is too late.
    pub const UNWOUND: u8 = 1;
    /// By an unseen jump to another traced function, whose entry has the same time.
    pub const REPLACED: u8 = 2;
    /// It was open when the trace ended, or when its function's probes were removed.
    pub const OPEN: u8 = 3;
}

impl Enter {
    /// The number.
    pub const fn to_number(self) -> u64 {
        self.function as u64 | (self.trace as u64) << 16 | (self.caller as u64) << 32
    }

    /// The inverse of [`to_number`](Self::to_number).
    pub const fn from_number(number: u64) -> Self {
        Self {
            function: number as u16,
            trace: (number >> 16) as u16,
            caller: (number >> 32) as u32,
        }
    }
}

impl Leave {
    const WAITED_UNIT_SHIFT: u32 = 8;
    const MOST_WAITED: u64 = (1 << 30) - 1;

    /// The number.
    pub const fn to_number(self) -> u64 {
        let waited = self.waited_ns >> Self::WAITED_UNIT_SHIFT;
        let waited = if waited < Self::MOST_WAITED { waited } else { Self::MOST_WAITED };
        self.function as u64
            | (self.trace as u64) << 16
            | (self.how as u64 & 3) << 32
            | waited << 34
    }

    /// The inverse of [`to_number`](Self::to_number), but for the rounding.
    pub const fn from_number(number: u64) -> Self {
        Self {
            function: number as u16,
            trace: (number >> 16) as u16,
            how: (number >> 32) as u8 & 3,
            waited_ns: number >> 34 << Self::WAITED_UNIT_SHIFT,
        }
    }
}

/// The maximum number of event names; their ids are below it.
pub const MAX_EVENT_NAMES: usize = 256;

/// The maximum length of an event name, in bytes.
pub const MAX_EVENT_NAME: usize = 48;

/// One record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// See [`kind`]; unknown kinds are kept.
    pub kind: u8,
    /// The time on the guest's monotonic clock, in ns.
    pub at_ns: u64,
    /// The first number.
    pub first: u64,
    /// The second number.
    pub second: u64,
    /// The third number.
    pub third: u64,
}

/// The name of a run's items in errors.
const ITEM: &str = "ring record";

/// Encodes a run of records into a buffer.
#[derive(Debug)]
pub struct Encoder<'a> {
    before_ns: u64,
    output: Output<'a>,
}

impl<'a> Encoder<'a> {
    /// Begins a run whose first time is counted from `base_ns`.
    pub fn new(base_ns: u64, buffer: &'a mut [u8]) -> Self {
        Self { before_ns: base_ns, output: Output::new(buffer) }
    }

    /// Whether another record certainly fits.
    pub fn has_room(&self) -> bool {
        self.output.room() >= MAX_RECORD_BYTES
    }

    /// Adds the next record. Call it only while there [is room](Self::has_room).
    pub fn push(&mut self, record: Record) {
        let numbers = [record.first, record.second, record.third];
        let mut head = record.kind & 0x1f;
        for (bit, number) in [0x20, 0x40, 0x80].into_iter().zip(numbers) {
            head |= if number == 0 { 0 } else { bit };
        }
        self.output.byte(head);
        self.output.varint(zigzag(record.at_ns.wrapping_sub(self.before_ns) as i64));
        self.before_ns = record.at_ns;
        for number in numbers {
            if number != 0 {
                self.output.varint(number);
            }
        }
    }

    /// Ends the run; returns its length in bytes.
    pub fn finish(self) -> usize {
        self.output.length()
    }
}

/// Decodes a run of `count` records and passes each to `visit`.
///
/// # Errors
///
/// [`InvalidRun`] at the first invalid record, after `visit` has seen those before it.
pub fn decode(
    base_ns: u64,
    count: u32,
    payload: &[u8],
    mut visit: impl FnMut(Record),
) -> Result<(), InvalidRun> {
    let mut input = payload;
    let mut at_ns = base_ns;
    for index in 0..count {
        let cut = InvalidRun::Cut(ITEM, u64::from(index));
        let (&head, rest) = input.split_first().ok_or(cut)?;
        input = rest;
        let step = unzigzag(take_varint(&mut input).ok_or(cut)?);
        at_ns = at_ns.wrapping_add(step as u64);
        let mut number = |bit| {
            if head & bit == 0 { Ok(0) } else { take_varint(&mut input).ok_or(cut) }
        };
        let (first, second, third) = (number(0x20)?, number(0x40)?, number(0x80)?);
        visit(Record { kind: head & 0x1f, at_ns, first, second, third });
    }
    run::end(ITEM, input)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    fn back(base_ns: u64, records: &[Record]) -> Vec<Record> {
        let mut buffer = [0; 512];
        let mut encoder = Encoder::new(base_ns, &mut buffer);
        for record in records {
            assert!(encoder.has_room());
            encoder.push(*record);
        }
        let length = encoder.finish();
        let mut found = Vec::new();
        decode(base_ns, records.len() as u32, &buffer[..length], |record| {
            found.push(record);
        })
        .unwrap();
        for cut in 0..length {
            let records = records.len() as u32;
            assert!(decode(base_ns, records, &buffer[..cut], |_| {}).is_err());
        }
        found
    }

    #[test]
    fn records_come_back_whatever_their_numbers() {
        let record =
            |kind, at_ns, first, second| Record { kind, at_ns, first, second, ..Record::default() };
        let records = [
            record(kind::SAMPLE, 1_000, 7, 1),
            record(kind::SAMPLE, 999, 0, 0),
            record(kind::COUNTER, 2_000, 255, -5_i64 as u64),
            record(31, u64::MAX, u64::MAX, u64::MAX),
            Record { third: 5, ..record(kind::WAIT, 0, 0, 1) },
        ];
        assert_eq!(back(1_000, &records), records);
        assert_eq!(back(u64::MAX, &records), records);
        assert_eq!(back(0, &[]), []);
    }

    #[test]
    fn foreign_bytes_are_refused() {
        assert_eq!(decode(0, 1, &[], |_| {}), Err(InvalidRun::Cut(ITEM, 0)));
        let left = decode(0, 1, &[1, 0, 9], |_| {});
        assert_eq!(left, Err(InvalidRun::LeftOver(ITEM, 1)));
    }

    #[test]
    fn calls_survive_their_numbers() {
        let enter = Enter { function: 999, trace: u16::MAX, caller: u32::MAX };
        assert_eq!(Enter::from_number(enter.to_number()), enter);
        let leave = |waited_ns| Leave { function: u16::MAX, trace: 7, how: how::OPEN, waited_ns };
        let back = |waited_ns| Leave::from_number(leave(waited_ns).to_number());
        assert_eq!(back(256_000), leave(256_000));
        assert_eq!(back(256_255), leave(256_000));
        assert_eq!(back(u64::MAX), leave(((1 << 30) - 1) << 8));
    }

    #[test]
    fn waits_survive_their_numbers() {
        for is_first in [false, true] {
            for is_last in [false, true] {
                let is_overflow = is_first ^ is_last;
                let wait =
                    Wait { ring_bits: 0xff, is_first, is_last, is_overflow, length_ns: 1 << 52 };
                assert_eq!(Wait::from_number(wait.to_number()), wait);
            }
        }
        assert_eq!(Wait::from_number(0), Wait::default());
    }

    /// A sample of the usual kind takes five to six bytes on the wire.
    #[test]
    fn a_sample_is_short() {
        let mut buffer = [0; 64];
        let mut encoder = Encoder::new(0, &mut buffer);
        let sample =
            Record { kind: kind::SAMPLE, at_ns: 10_300_000, first: 300, second: 1, third: 0 };
        encoder.push(sample);
        assert!(encoder.finish() <= 8);
    }
}
