//! The result of every tick.

use serde::{Deserialize, Serialize};

/// Declares [`Counters`] and [`Counter`] from one list of fields: their order is that of the wire.
macro_rules! counters {
    ($(
        $(#[$doc:meta])*
        $field:ident = $counter:ident,
    )+) => {
        /// The number of ticks by result, since the recording began.
        ///
        /// A *tick* is a timer delivery whose target was reached, and
        /// `ticks = recorded + aged + overflow + lost + masked + idle`.
        // Serialized as an array in a loop: serializing field by field adds a kibibyte of code to
        // the agent.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "[u64; Counters::FIELDS]", into = "[u64; Counters::FIELDS]")]
        pub struct Counters {
            $(
                $(#[$doc])*
                pub $field: u64,
            )+
        }

        /// The index of each counter in [`Counters::to_array`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter {
            $(
                $(#[$doc])*
                $counter,
            )+
        }

        impl Counters {
            /// The number of counters.
            pub const FIELDS: usize = [$(Counter::$counter),+].len();

            /// All counters, in the order of [`Counter`].
            #[inline(never)]
            pub const fn to_array(&self) -> [u64; Self::FIELDS] {
                [$(self.$field),+]
            }

            /// The inverse of [`to_array`](Self::to_array).
            #[inline(never)]
            pub const fn from_array([$($field),+]: [u64; Self::FIELDS]) -> Self {
                Self { $($field),+ }
            }
        }
    };
}

counters! {
    /// Deliveries whose target was reached.
    ticks = Ticks,
    /// Walked and counted in the stack table.
    recorded = Recorded,
    /// Walked and counted, but discarded before a client fetched the count: memory ran short, and
    /// the recording [keeps the newest](crate::code::start_flag::KEEP_NEWEST).
    aged = Aged,
    /// Walked, but the stack table was full.
    overflow = Overflow,
    /// The slot was busy.
    lost = Lost,
    /// Delivered without registers.
    masked = Masked,
    /// Delivered inside the block call.
    idle = Idle,
    /// Delivered before the target; the timer was armed again. Not ticks.
    early = Early,
    /// Recorded, but delivered late.
    late = Late,
    /// Recorded, deeper than the limit.
    truncated = Truncated,
    /// Recorded, with a chain of frame pointers that ended early.
    broken = Broken,
    /// Recorded; the interrupted function's caller was found in the caller table.
    /// `by_table + by_bytes + by_frame_pointer = recorded + aged`.
    by_table = ByTable,
    /// Recorded; the caller was found from the instructions around the pc.
    by_bytes = ByBytes,
    /// Recorded; the caller was taken from the frame pointer, which may be wrong for a leaf
    /// function.
    by_frame_pointer = ByFramePointer,
    /// Recorded with [`UNWIND_TABLE`](crate::code::start_flag::UNWIND_TABLE), with at least one
    /// frame that is not in the table, for which the frame pointer was followed instead.
    mixed = Mixed,
    /// The number of times that the vCPU blocked, if blocked time is recorded.
    blocks = Blocks,
    /// Blocked time counted: in samples, or in ns in mode [`OFF_CPU`](crate::code::mode::OFF_CPU).
    blocked = Blocked,
    /// Blocked time without a stack, in the same unit: the stack table was full, the guest passed
    /// no registers, or, among samples, it did not report that it blocked.
    blocked_overflow = BlockedOverflow,
    /// Blocked time that was counted and then discarded, like `aged`, in the same unit.
    blocked_aged = BlockedAged,
}

impl From<Counters> for [u64; Counters::FIELDS] {
    fn from(counters: Counters) -> Self {
        counters.to_array()
    }
}

impl From<[u64; Counters::FIELDS]> for Counters {
    fn from(fields: [u64; Counters::FIELDS]) -> Self {
        Self::from_array(fields)
    }
}

impl Counters {
    /// Whether every tick is accounted for, and the caller of every recorded tick.
    pub fn add_up(&self) -> bool {
        let parts = [self.recorded, self.aged, self.overflow, self.lost, self.masked, self.idle];
        parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part)) == Some(self.ticks)
            && self
                .by_table
                .checked_add(self.by_bytes)
                .and_then(|sum| sum.checked_add(self.by_frame_pointer))
                == self.recorded.checked_add(self.aged)
    }

    /// Combines two sets of counters field by field.
    #[must_use]
    pub fn zip(&self, other: &Self, combine: impl Fn(u64, u64) -> u64) -> Self {
        let (these, others) = (self.to_array(), other.to_array());
        Self::from_array(core::array::from_fn(|field| combine(these[field], others[field])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_do_not_add_up_are_seen() {
        let whole = Counters {
            ticks: 21,
            recorded: 1,
            aged: 6,
            overflow: 2,
            lost: 3,
            masked: 4,
            idle: 5,
            by_bytes: 7,
            ..Counters::default()
        };
        assert!(whole.add_up());
        assert!(!Counters { ticks: 22, ..whole }.add_up());
        let two_ways = Counters { by_table: 1, ..whole };
        assert!(!two_ways.add_up(), "one sample has one way");
        assert!(!Counters { lost: u64::MAX, ..whole }.add_up());
    }

    #[test]
    fn counters_come_back_as_they_went() {
        let fields = core::array::from_fn(|field| field as u64 + 1);
        let counters = Counters::from_array(fields);
        assert_eq!((counters.ticks, counters.blocked_aged), (1, 19));
        assert_eq!(counters.to_array(), fields);
        let twice = counters.zip(&counters, |a, b| a + b);
        assert_eq!(twice.to_array(), fields.map(|field| 2 * field));
    }
}
