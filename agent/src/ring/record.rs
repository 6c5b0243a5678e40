//! A record in memory: two words, written by any context of its vCPU and read concurrently.
//!
//! | word 0 | field |
//! |---|---|
//! | bits 0 to 42 | the lowest bits of the time in ns |
//! | bits 43 to 50 | a small number: a name's id, a ring bit |
//! | bits 51 to 55 | the kind, never 0 |
//! | bits 56 to 63 | the lap: how many times the ring was filled before, modulo 256 |
//!
//! Word 1 is a 64-bit number. A record with two large numbers takes two adjacent places, the second
//! of kind [`REST`]. Records of kind [`TIME`] contain the upper bits of times.

use unikprof_proto::ring::{Record, Wait, kind};

use crate::count::recording::MAX_RECORDINGS;
use crate::ground::sync::{AtomicU64, Ordering};

/// The number of a time's lowest bits in a record.
pub(super) const TIME_BITS: u32 = 43;

/// A *half* is a time without its lowest `HALF_BITS` bits; [`TIME`] records contain halves. A
/// record has one bit more: its top bit, the half's lowest, shows whether the record belongs to the
/// half of the last [`TIME`] record.
pub(super) const HALF_BITS: u32 = TIME_BITS - 1;

/// Internal kind: the second number of the record before.
pub(super) const REST: u8 = 30;

/// Internal kind: the half of the following times, and from bit [`BEFORE_SHIFT`] on the half of the
/// preceding ones.
pub(super) const TIME: u8 = 31;

/// See [`TIME`].
pub(super) const BEFORE_SHIFT: u32 = 32;

const SMALL_SHIFT: u32 = TIME_BITS;
const KIND_SHIFT: u32 = SMALL_SHIFT + 8;
const LAP_SHIFT: u32 = KIND_SHIFT + 5;

/// Word 0 of a record that was never written.
const EMPTY: u64 = 0;
/// Word 0 of a record that is being written. No published record has this value: its kind is not 0.
const BUSY: u64 = 1;

/// A record's contents without its time and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(super) kind: u8,
    pub(super) small: u8,
    pub(super) number: u64,
}

/// Kinds whose two numbers are below 2³² and share word 1.
const fn is_split(kind: u8) -> bool {
    matches!(kind, kind::SAMPLE | kind::NO_SAMPLE)
}

/// Kinds whose second number is in a separate record of kind [`REST`].
pub(super) const fn is_pair(kind: u8) -> bool {
    matches!(
        kind,
        kind::RAN
            | kind::WAITED
            | kind::WAIT
            | kind::TRACE_HIGH
            | kind::TRACE_LOW
            | kind::TRACE_SPAN
    )
}

impl Entry {
    /// A guest's event.
    #[inline]
    pub(crate) fn named(kind: u8, name: u8, number: u64) -> Self {
        Self { kind, small: name, number }
    }

    /// Tells of the span with this id, for which the vCPU works: the lowest eight bits are its
    /// name.
    pub(super) fn entered(id: u64) -> Self {
        Self::named(kind::ENTERED, id as u8, id >> 8)
    }

    /// A [`TIME`] record: the half of the following times, and that of the preceding ones.
    pub(super) fn time(half: u64, before: u64) -> Self {
        Self { kind: TIME, small: 0, number: half | before << BEFORE_SHIFT }
    }

    /// The second record of a pair.
    pub(super) fn rest(number: u64) -> Self {
        Self { kind: REST, small: 0, number }
    }

    /// A record of `kind` with its two numbers; for a [pair](is_pair) the first record, with the
    /// first number only.
    #[inline]
    pub(crate) fn new(kind: u8, first: u64, second: u64) -> Self {
        if kind::is_named(kind) {
            Self::named(kind, first as u8, second)
        } else if is_split(kind) {
            Self::named(kind, 0, first & 0xffff_ffff | second << 32)
        } else if is_pair(kind) {
            Self::named(kind, 0, first)
        } else {
            Self::named(kind, second as u8, first)
        }
    }

    /// The record of a pair's first entry and [`REST`] number, or of the only entry.
    pub(super) fn record(self, rest: u64, at_ns: u64) -> Record {
        let Self { kind, small, number } = self;
        let (first, second, third) = match kind {
            kind::WAIT => (rest & 0xffff_ffff, number, wait_of(small, rest).to_number()),
            _ if is_pair(kind) => (number, rest, 0),
            _ if kind::is_named(kind) => (u64::from(small), number, 0),
            _ if is_split(kind) => (number & 0xffff_ffff, number >> 32, 0),
            _ => (number, u64::from(small), 0),
        };
        Record { kind, at_ns, first, second, third }
    }
}

/// The recordings that a [`kind::WAIT`] record can name.
const WAIT_RECORDINGS: u8 = 0x1f;
const WAIT_IS_FIRST: u8 = 1 << 5;
const WAIT_IS_LAST: u8 = 1 << 6;
const WAIT_IS_OVERFLOW: u8 = 1 << 7;

const _: () = assert!(1 << MAX_RECORDINGS <= WAIT_RECORDINGS as u32 + 1);

/// The first entry and the [`REST`] number of a wait.
pub(super) fn wait(place: u32, amount: u64, wait: Wait) -> (Entry, u64) {
    let small = wait.ring_bits & WAIT_RECORDINGS
        | if wait.is_first { WAIT_IS_FIRST } else { 0 }
        | if wait.is_last { WAIT_IS_LAST } else { 0 }
        | if wait.is_overflow { WAIT_IS_OVERFLOW } else { 0 };
    let rest = u64::from(place) | u64::from(short(wait.length_ns)) << 32;
    (Entry { kind: kind::WAIT, small, number: amount }, rest)
}

fn wait_of(small: u8, rest: u64) -> Wait {
    Wait {
        ring_bits: small & WAIT_RECORDINGS,
        is_first: small & WAIT_IS_FIRST != 0,
        is_last: small & WAIT_IS_LAST != 0,
        is_overflow: small & WAIT_IS_OVERFLOW != 0,
        length_ns: long((rest >> 32) as u32),
    }
}

/// The number of bits of a [`short`] number that are exact.
const SHORT_BITS: u32 = 26;

/// A number in 32 bits, rounded down to its highest [`SHORT_BITS`] bits: a length of up to 67 ms is
/// exact.
fn short(number: u64) -> u32 {
    let shift = (u64::BITS - number.leading_zeros()).saturating_sub(SHORT_BITS);
    (number >> shift) as u32 | shift << SHORT_BITS
}

/// The inverse of [`short`], but for the rounding.
fn long(short: u32) -> u64 {
    let number = u64::from(short & ((1 << SHORT_BITS) - 1));
    number << (short >> SHORT_BITS)
}

/// The result of reading a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A complete record, and the lowest [`TIME_BITS`] of its time.
    Whole(Entry, u64),
    /// The record is not written yet, or was lost.
    Unwritten,
    /// A later record has the place.
    Overwritten,
}

/// The memory of a record.
#[repr(C, align(16))]
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct RecordCells {
    head: AtomicU64,
    number: AtomicU64,
}

impl Default for RecordCells {
    fn default() -> Self {
        Self { head: AtomicU64::new(EMPTY), number: AtomicU64::new(0) }
    }
}

/// Points at which a writer can be interrupted, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Reserved,
    Looked,
    Claimed,
    Numbered,
}

impl RecordCells {
    /// Writes the record of this lap. `false` if another writer has the place, either of a later
    /// lap or one of an earlier lap that was interrupted while writing. The record is then lost.
    #[inline]
    pub(super) fn write(
        &self,
        lap: u8,
        now_ns: u64,
        entry: Entry,
        interrupt: impl Fn(Step),
    ) -> bool {
        let before = self.head.load(Ordering::Relaxed);
        interrupt(Step::Looked);
        if before == BUSY || before != EMPTY && !is_before(lap_of(before), lap) {
            return false;
        }
        // Acquire: this number is stored after that of the previous record. A reader that sees this
        // number also sees `BUSY` or a later head.
        let claimed =
            self.head.compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if claimed.is_err() {
            return false;
        }
        interrupt(Step::Claimed);
        self.number.store(entry.number, Ordering::Release);
        interrupt(Step::Numbered);
        let head = now_ns & ((1 << TIME_BITS) - 1)
            | u64::from(entry.small) << SMALL_SHIFT
            | u64::from(entry.kind) << KIND_SHIFT
            | u64::from(lap) << LAP_SHIFT;
        self.head.store(head, Ordering::Release);
        true
    }

    /// Reads the record of this lap.
    pub(super) fn read(&self, lap: u8) -> Found {
        let head = self.head.load(Ordering::Acquire);
        let number = self.number.load(Ordering::Acquire);
        let after = self.head.load(Ordering::Relaxed);
        if after == EMPTY || after == BUSY {
            return Found::Unwritten;
        }
        if lap_of(after) != lap {
            return if is_before(lap_of(after), lap) {
                Found::Unwritten
            } else {
                Found::Overwritten
            };
        }
        if head != after {
            // It was written during this read; reading again finds it.
            return Found::Unwritten;
        }
        let entry = Entry {
            kind: (head >> KIND_SHIFT) as u8 & 0x1f,
            small: (head >> SMALL_SHIFT) as u8,
            number,
        };
        Found::Whole(entry, head & ((1 << TIME_BITS) - 1))
    }
}

fn lap_of(head: u64) -> u8 {
    (head >> LAP_SHIFT) as u8
}

/// Whether a lap comes before another, modulo 256.
fn is_before(lap: u8, other: u8) -> bool {
    (lap.wrapping_sub(other) as i8) < 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A wait may last for days: its length must not wrap.
    #[test]
    fn lengths_in_32_bits_are_exact_or_a_little_short() {
        for number in [0, 1, 12_345, (1 << SHORT_BITS) - 1, 3_600_000_000_000, u64::MAX] {
            let back = long(short(number));
            assert!(back <= number && number - back <= number >> (SHORT_BITS - 1), "{number}");
            assert!(number >> SHORT_BITS != 0 || back == number, "{number}");
        }
    }
}
