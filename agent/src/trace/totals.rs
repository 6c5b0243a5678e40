//! The counts of each function, in place, and its callers.

use core::mem::MaybeUninit;

use unikprof_proto::message::{BUCKETS, bucket};
use unikprof_proto::trace::{
    Caller, Function, FunctionTotals, MAX_PARTS, function_flag, totals_flag,
};

use crate::ground::block::take;
use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// A function's memory.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
#[repr(C, align(64))]
pub(super) struct FunctionCells {
    /// See [`function_flag`].
    flags: AtomicU32,
    /// See [`totals_flag`]. Before a trace begins: a bit for each rehearsal that met one of its
    /// breakpoints.
    pub(super) marks: AtomicU32,
    /// The reason for its refusal in bits 0 to 31, and the code that this is about; 0: it is traced.
    refusal: AtomicU64,
    /// The first code of each part in the lower half, and its length in the upper one.
    parts: [AtomicU64; MAX_PARTS],
    calls: AtomicU64,
    unwound: AtomicU64,
    replaced: AtomicU64,
    orphans: AtomicU64,
    total_ns: AtomicU64,
    self_ns: AtomicU64,
    waited_ns: AtomicU64,
    /// The complement of the shortest duration, so that 0 means that there is none.
    not_min_ns: AtomicU64,
    max_ns: AtomicU64,
    /// The breakpoints of its probes since the cost was last compared with its limit.
    pub(super) recent: AtomicU32,
    _padding: AtomicU32,
    histogram: [AtomicU64; BUCKETS],
}

/// The end of a call, for its function's totals.
pub(super) struct Ended {
    /// It is not inside another call of the function on its stack.
    pub(super) is_outermost: bool,
    /// Its end was seen, so its duration is true.
    pub(super) was_seen: bool,
    pub(super) duration_ns: u64,
    pub(super) self_ns: u64,
    pub(super) waited_ns: u64,
}

/// The count that an event adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Call,
    Unwound,
    Replaced,
    Orphan,
}

fn add(cell: &AtomicU64, amount: u64) {
    if amount != 0 {
        cell.fetch_add(amount, Ordering::Relaxed);
    }
}

impl FunctionCells {
    /// Begins to count a function.
    pub(super) fn begin(&self, function: &Function<'_>) {
        self.clear_counts();
        self.marks.store(0, Ordering::Relaxed);
        self.refusal.store(0, Ordering::Relaxed);
        self.flags.store(function.flags, Ordering::Relaxed);
        let mut parts = function.parts.iter();
        for cell in &self.parts {
            let part = parts.next();
            let word = part.map_or(0, |(code, length)| u64::from(*code) | u64::from(*length) << 32);
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// Forgets what was counted.
    pub(super) fn clear_counts(&self) {
        let words = [
            &self.calls,
            &self.unwound,
            &self.replaced,
            &self.orphans,
            &self.total_ns,
            &self.self_ns,
            &self.waited_ns,
            &self.not_min_ns,
            &self.max_ns,
        ];
        for word in words.into_iter().chain(&self.histogram) {
            word.store(0, Ordering::Relaxed);
        }
        self.recent.store(0, Ordering::Relaxed);
    }

    /// Whether its calls are root calls of a slow trace.
    pub(super) fn is_root(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & function_flag::ROOT != 0
    }

    /// Whether it may jump back to its entry.
    pub(super) fn loops(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & function_flag::LOOPS != 0
    }

    /// The code of its first instruction.
    pub(super) fn code(&self) -> u32 {
        let first = self.parts.first();
        first.map_or(0, |part| part.load(Ordering::Relaxed) as u32)
    }

    /// Whether a code lies in one of its parts.
    pub(super) fn contains(&self, code: u32) -> bool {
        self.parts.iter().any(|part| {
            let part = part.load(Ordering::Relaxed);
            code.wrapping_sub(part as u32) < (part >> 32) as u32
        })
    }

    /// Notes why it is not traced, if no other reason was noted before.
    pub(super) fn refuse(&self, reason: u32, code: u32) {
        if self.refusal().is_none() {
            let word = u64::from(reason) | u64::from(code) << 32;
            self.refusal.store(word, Ordering::Relaxed);
        }
    }

    /// The reason for its refusal, and the code that this is about.
    pub(super) fn refusal(&self) -> Option<(u32, u32)> {
        let word = self.refusal.load(Ordering::Relaxed);
        (word != 0).then_some((word as u32, (word >> 32) as u32))
    }

    /// Notes that its probes were removed because of their cost.
    pub(super) fn mark_removed(&self) {
        self.marks.fetch_or(totals_flag::REMOVED, Ordering::Relaxed);
    }

    /// Whether its probes were removed because of their cost.
    pub(super) fn is_removed(&self) -> bool {
        self.marks.load(Ordering::Relaxed) & totals_flag::REMOVED != 0
    }

    #[inline]
    pub(super) fn count(&self, event: Event) {
        let cell = match event {
            Event::Call => &self.calls,
            Event::Unwound => &self.unwound,
            Event::Replaced => &self.replaced,
            Event::Orphan => &self.orphans,
        };
        add(cell, 1);
    }

    /// Counts the end of a call.
    #[inline]
    pub(super) fn end(&self, ended: &Ended) {
        if ended.is_outermost {
            add(&self.total_ns, ended.duration_ns);
        }
        add(&self.self_ns, ended.self_ns);
        add(&self.waited_ns, ended.waited_ns);
        if ended.was_seen {
            self.not_min_ns.fetch_max(!ended.duration_ns, Ordering::Relaxed);
            self.max_ns.fetch_max(ended.duration_ns, Ordering::Relaxed);
            if let Some(count) = self.histogram.get(bucket(ended.duration_ns)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Its totals, except the function's index.
    pub(super) fn totals(&self) -> FunctionTotals {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let not_min_ns = read(&self.not_min_ns);
        FunctionTotals {
            function: 0,
            flags: self.marks.load(Ordering::Relaxed),
            calls: read(&self.calls),
            unwound: read(&self.unwound),
            replaced: read(&self.replaced),
            orphans: read(&self.orphans),
            total_ns: read(&self.total_ns),
            self_ns: read(&self.self_ns),
            waited_ns: read(&self.waited_ns),
            min_ns: if not_min_ns == 0 { 0 } else { !not_min_ns },
            max_ns: read(&self.max_ns),
        }
    }

    /// The count in a bucket of the histogram of its durations.
    pub(super) fn bucket(&self, index: usize) -> u64 {
        let count = self.histogram.get(index);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// A caller's memory.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct CallerCells {
    /// The return address's code in the upper half, and the function's index plus one in the lower;
    /// 0: free.
    key: AtomicU64,
    calls: AtomicU64,
}

/// Calls by function and return address, in a hash table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Callers<'m>(&'m [CallerCells]);

/// The bytes of memory for so many callers.
pub(super) const fn caller_bytes(callers: usize) -> usize {
    callers * size_of::<CallerCells>()
}

/// The places at which a caller may be.
const CALLER_PLACES: usize = 16;

impl<'m> Callers<'m> {
    pub(super) fn in_block(block: &mut &'m mut [MaybeUninit<u8>], callers: usize) -> Option<Self> {
        Some(Self(take(block, callers)?))
    }

    pub(super) fn clear(&self) {
        for cells in self.0 {
            cells.key.store(0, Ordering::Relaxed);
            cells.calls.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a call; returns whether there was room.
    #[inline]
    pub(super) fn count(&self, function: u16, code: u32) -> bool {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let key = (u64::from(function) + 1) | (u64::from(code) << 32);
        let hash = (key.wrapping_mul(GOLDEN) >> 32) as usize;
        for step in 0..CALLER_PLACES {
            let place = hash.wrapping_add(step).checked_rem(self.0.len());
            let Some(cells) = place.and_then(|place| self.0.get(place)) else {
                return false;
            };
            let mut found = cells.key.load(Ordering::Relaxed);
            if found == 0 {
                let claimed =
                    cells.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed);
                found = claimed.err().unwrap_or(key);
            }
            if found == key {
                cells.calls.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// The caller at the first used place from `from` on, and the place behind it.
    pub(super) fn next(&self, from: u32) -> Option<(Caller, u32)> {
        let rest = (from..).zip(self.0.get(from as usize..)?);
        let read = |cells: &CallerCells| {
            let key = cells.key.load(Ordering::Relaxed);
            Some(Caller {
                function: (key as u32).checked_sub(1)?,
                code: (key >> 32) as u32,
                calls: cells.calls.load(Ordering::Relaxed),
            })
        };
        let mut found = rest.filter_map(|(place, cells)| Some((read(cells)?, place + 1)));
        found.next()
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytemuck::Zeroable as _;

    use super::*;

    /// A trace that is always on counts more calls than 32 bits hold: a bucket that began anew
    /// would change percentiles.
    #[test]
    fn buckets_count_on_beyond_32_bits() {
        let cells = FunctionCells::zeroed();
        let index = bucket(100);
        cells.histogram[index].store(u32::MAX.into(), Ordering::Relaxed);
        cells.end(&Ended {
            is_outermost: true,
            was_seen: true,
            duration_ns: 100,
            self_ns: 100,
            waited_ns: 0,
        });
        assert_eq!(cells.bucket(index), 1 << 32);
    }
}
