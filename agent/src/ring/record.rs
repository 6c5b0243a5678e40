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

use unikprof_proto::ring::kind;

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
    matches!(kind, kind::SAMPLE | kind::NO_SAMPLE | kind::BLOCK)
}

/// Kinds whose first number is small and whose second one is large.
const fn is_named(kind: u8) -> bool {
    matches!(kind, kind::MARK | kind::SPAN_BEGIN | kind::SPAN_END | kind::COUNTER)
}

/// Kinds whose second number is in a separate record of kind [`REST`].
pub(super) const fn is_pair(kind: u8) -> bool {
    matches!(kind, kind::RAN | kind::WAITED)
}

impl Entry {
    /// A guest's event.
    #[inline]
    pub(crate) fn named(kind: u8, name: u8, number: u64) -> Self {
        Self { kind, small: name, number }
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
        if is_named(kind) {
            Self::named(kind, first as u8, second)
        } else if is_split(kind) {
            Self::named(kind, 0, first & 0xffff_ffff | second << 32)
        } else if is_pair(kind) {
            Self::named(kind, 0, first)
        } else {
            Self::named(kind, second as u8, first)
        }
    }

    /// The record's two numbers.
    pub(super) fn numbers(self) -> (u64, u64) {
        let Self { kind, small, number } = self;
        if is_named(kind) {
            (u64::from(small), number)
        } else if is_split(kind) {
            (number & 0xffff_ffff, number >> 32)
        } else {
            (number, u64::from(small))
        }
    }
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
