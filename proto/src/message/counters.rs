//! What became of every tick.

use serde::{Deserialize, Serialize};

/// Declares [`Counters`] and [`Counter`] from one list of fields: their order is that of the wire.
macro_rules! counters {
    ($(
        $(#[$doc:meta])*
        $field:ident = $counter:ident,
    )+) => {
        /// What became of every tick, since the recording began.
        ///
        /// A *tick* is a delivery whose target was reached, and
        /// `ticks = recorded + aged + overflow + lost + masked + idle`.
        // Written as an array, in a loop: each field on its own is a kibibyte of code in the agent.
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
    /// Walked and counted.
    recorded = Recorded,
    /// Walked and counted, then given up before a client fetched it: memory ran short, and the recording
    /// [keeps the newest](crate::code::start_flag::KEEP_NEWEST).
    aged = Aged,
    /// Walked, but the table was full.
    overflow = Overflow,
    /// The slot was busy.
    lost = Lost,
    /// Delivered without registers.
    masked = Masked,
    /// Delivered inside the block call.
    idle = Idle,
    /// Delivered before their target and armed again; not ticks.
    early = Early,
    /// Recorded, but delivered late.
    late = Late,
    /// Recorded, deeper than the limit.
    truncated = Truncated,
    /// Recorded, with a chain of frame pointers that ended badly.
    broken = Broken,
    /// Recorded; the interrupted function's caller was found through the caller table.
    /// `by_table + by_bytes + by_frame_pointer = recorded + aged`.
    by_table = ByTable,
    /// Recorded; its caller was found by the instructions around the interrupted one.
    by_bytes = ByBytes,
    /// Recorded; its caller was taken from the frame pointer, right or not.
    by_frame_pointer = ByFramePointer,
    /// Recorded under [`UNWIND_TABLE`](crate::code::start_flag::UNWIND_TABLE), with at least one frame
    /// that the table does not know, whose frame pointer was followed instead.
    mixed = Mixed,
    /// How often the vCPU blocked, where blocked time is recorded.
    blocks = Blocks,
    /// Blocked time counted: in samples, or in ns in mode [`OFF_CPU`](crate::code::mode::OFF_CPU).
    blocked = Blocked,
    /// Blocked time that was not counted, in the same unit: the table was full.
    blocked_overflow = BlockedOverflow,
    /// Blocked time that was counted and then given up, as `aged`, in the same unit.
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
    /// Whether every tick is accounted for, and every recorded one's caller.
    pub fn add_up(&self) -> bool {
        let parts = [
            self.recorded,
            self.aged,
            self.overflow,
            self.lost,
            self.masked,
            self.idle,
        ];
        parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(*part))
            == Some(self.ticks)
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
        Self::from_array(core::array::from_fn(|field| {
            combine(these[field], others[field])
        }))
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
        let two_ways = Counters {
            by_table: 1,
            ..whole
        };
        assert!(!two_ways.add_up(), "one sample has one way");
        assert!(
            !Counters {
                lost: u64::MAX,
                ..whole
            }
            .add_up()
        );
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
