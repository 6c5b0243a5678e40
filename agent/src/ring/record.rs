//! A record in memory: two words, written by any context of its vCPU and read beside it.
//!
//! | word 0 | field |
//! |---|---|
//! | bits 0 to 42 | the lowest bits of the time in ns |
//! | bits 43 to 50 | a small number: a name's id, a lane |
//! | bits 51 to 55 | the kind, never 0 |
//! | bits 56 to 63 | the lap: how often the ring was filled before, modulo 256 |
//!
//! Word 1 is a number of 64 bits. What does not fit takes two records side by side, the second of kind
//! [`REST`]. [`TIME`] keeps what the lowest bits of times leave out.

use unikprof_proto::ring::kind;

use crate::ground::sync::{AtomicU64, Ordering};

/// Bits of a time in a record.
pub(super) const TIME_BITS: u32 = 43;

/// How many lower bits of a time the halves leave out that [`TIME`] tells of: one less than a record has, so
/// that a record's own bits say whether it belongs to the half told last.
pub(super) const HALF_BITS: u32 = TIME_BITS - 1;

/// Of the ring's own: the second number of the record before.
pub(super) const REST: u8 = 30;

/// Of the ring's own: the half that the times from here on lie in, and above it, from bit
/// [`BEFORE_SHIFT`] on, that of those before.
pub(super) const TIME: u8 = 31;

/// See [`TIME`].
pub(super) const BEFORE_SHIFT: u32 = 32;

const SMALL_SHIFT: u32 = TIME_BITS;
const KIND_SHIFT: u32 = SMALL_SHIFT + 8;
const LAP_SHIFT: u32 = KIND_SHIFT + 5;

/// Word 0 of a record that was never written.
const EMPTY: u64 = 0;
/// Word 0 of a record that is being written. Its kind is 0.
const BUSY: u64 = 1;

/// What a record tells, without its time and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(super) kind: u8,
    pub(super) small: u8,
    pub(super) number: u64,
}

/// Both numbers of a kind whose numbers are below 2³² share a word.
const fn is_split(kind: u8) -> bool {
    matches!(kind, kind::SAMPLE | kind::NO_SAMPLE | kind::BLOCK)
}

/// The first number of these kinds is small, and the second one large.
const fn is_named(kind: u8) -> bool {
    matches!(
        kind,
        kind::MARK | kind::SPAN_BEGIN | kind::SPAN_END | kind::COUNTER
    )
}

/// Kinds whose second number takes a record of its own.
pub(super) const fn is_pair(kind: u8) -> bool {
    matches!(kind, kind::RAN | kind::WAITED)
}

impl Entry {
    /// An event of the guest's.
    #[inline]
    pub(crate) fn named(kind: u8, name: u8, number: u64) -> Self {
        Self {
            kind,
            small: name,
            number,
        }
    }

    /// The half that times lie in from here on, and that they lay in before.
    pub(super) fn time(half: u64, before: u64) -> Self {
        Self {
            kind: TIME,
            small: 0,
            number: half | before << BEFORE_SHIFT,
        }
    }

    /// The second half of a pair.
    pub(super) fn rest(number: u64) -> Self {
        Self {
            kind: REST,
            small: 0,
            number,
        }
    }

    /// A record of `kind` with its two numbers; of a [pair](is_pair) the first one alone.
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

    /// The two numbers again.
    pub(super) fn numbers(self) -> (u64, u64) {
        let Self {
            kind,
            small,
            number,
        } = self;
        if is_named(kind) {
            (u64::from(small), number)
        } else if is_split(kind) {
            (number & 0xffff_ffff, number >> 32)
        } else {
            (number, u64::from(small))
        }
    }
}

/// What a reader finds in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The record, and the lowest [`TIME_BITS`] of its time.
    Whole(Entry, u64),
    /// It was not written yet, or never will be.
    Unwritten,
    /// A later one has its place.
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
        Self {
            head: AtomicU64::new(EMPTY),
            number: AtomicU64::new(0),
        }
    }
}

/// Where a writer can be interrupted, for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Reserved,
    Looked,
    Claimed,
    Numbered,
}

impl RecordCells {
    /// Writes the record of this lap; `false` where the place belongs to another writer, of a later lap or
    /// of an earlier one that was interrupted while it wrote: this record is given up.
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
        // Acquire: the number of the record before lies behind us. Whoever sees our number sees `BUSY`, or
        // what came after it.
        let claimed =
            self.head
                .compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed);
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

    /// The record of this lap.
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
            // It was written while we read; the next look will find it.
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

/// Whether a lap comes before another, as far as eight bits can tell.
fn is_before(lap: u8, other: u8) -> bool {
    (lap.wrapping_sub(other) as i8) < 0
}
