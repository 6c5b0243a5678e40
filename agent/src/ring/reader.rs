//! Reads a ring while writers are active.

use unikprof_proto::ring::{Encoder, Record, kind};

use super::record::{BEFORE_SHIFT, Found, HALF_BITS, REST, TIME, is_pair};
use super::{ANCHOR_EVERY, Ring};

/// A reader waits for a reserved but unwritten record at most this far from the newest one: it is
/// being written, usually by a context that the reader interrupted. One further back counts as
/// lost.
const PATIENCE: u64 = 64;

/// A reader's position in a [`Ring`]. The ring is passed to each method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader {
    position: u64,
    end: u64,
    since_ns: u64,
    /// From this time on no record is missing; `None` until a record determines it.
    whole_since_ns: Option<u64>,
    /// Whether a record was returned.
    has_begun: bool,
    /// Whether it goes on where a reader before it ended, so that a skipped position would look
    /// like a gap.
    continues: bool,
    clock: Clock,
    /// If true, unwritten records are skipped instead of waited for.
    no_wait: bool,
}

/// Records at consecutive positions, encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) count: u32,
    pub(crate) base_ns: u64,
    pub(crate) bytes: usize,
}

/// Computes full times from their lowest bits.
#[derive(Clone, Copy, Debug)]
struct Clock {
    half: u64,
    near_ns: u64,
}

impl Clock {
    fn at(half: u64, low: u64) -> Self {
        let mut clock = Self { half, near_ns: half << HALF_BITS };
        clock.whole(low);
        clock
    }

    /// The full time of a record's bits: in the half of the last [`TIME`] record, or, if the
    /// record's top bit differs from that half, in the nearer of the two halves beside it.
    fn whole(&mut self, low: u64) -> u64 {
        let in_half = low & ((1 << HALF_BITS) - 1);
        let odd = low >> HALF_BITS;
        let of = |half: u64| half << HALF_BITS | in_half;
        let whole = if self.half & 1 == odd {
            of(self.half)
        } else {
            let (before, after) = (self.half.wrapping_sub(1), self.half.wrapping_add(1));
            if self.near_ns.abs_diff(of(before)) <= self.near_ns.abs_diff(of(after)) {
                of(before)
            } else {
                of(after)
            }
        };
        self.near_ns = whole;
        whole
    }
}

impl Reader {
    /// A reader of the records now in the ring, from `position` and `since_ns` on.
    pub(crate) fn new(ring: &Ring<'_>, position: u64, since_ns: u64) -> Self {
        // Read before the end: a half that begins in between has a `TIME` record before the end.
        let half = ring.half();
        let end = ring.next();
        let oldest = ring.oldest().min(end);
        let continues = position > 0 && position >= oldest;
        let position = position.clamp(oldest, end);
        let mut reader = Self {
            position,
            end,
            since_ns,
            whole_since_ns: (position == 0).then_some(since_ns),
            has_begun: false,
            continues,
            clock: Clock { half, near_ns: half << HALF_BITS },
            no_wait: false,
        };
        reader.seek(ring);
        reader.set_clock(ring);
        reader
    }

    /// The same reader, for a ring whose writers have stopped: it does not wait for unwritten
    /// records.
    pub(crate) fn no_wait(mut self) -> Self {
        self.no_wait = true;
        self
    }

    /// The same reader, ending at `end`. Records after `end` may still be used to compute times.
    pub(crate) fn up_to(mut self, end: u64) -> Self {
        self.end = self.end.min(end);
        self
    }

    /// The position after the newest record at the reader's creation.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The position of the next record to read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// From this time on no record is missing, except at positions that were skipped; `None` if
    /// there was no record to derive it from.
    pub(crate) fn whole_since_ns(&self) -> Option<u64> {
        self.whole_since_ns
    }

    /// Encodes the next run into `buffer`; `None` at the end. `number` is called with a record's
    /// position and the place of the stack that it refers to, and returns the stack's number to
    /// send.
    pub(crate) fn run(
        &mut self,
        ring: &Ring<'_>,
        number: impl Fn(u64, u32) -> u64,
        buffer: &mut [u8],
    ) -> Option<Run> {
        let (first, record) = self.first(ring)?;
        let base_ns = record.at_ns;
        let mut encoder = Encoder::new(base_ns, buffer);
        let mut count = 0;
        let mut record = Some(record);
        while let Some(mut next) = record {
            if matches!(next.kind, kind::SAMPLE | kind::WAIT) {
                next.first =
                    u32::try_from(next.first).map_or(0, |place| number(self.position, place));
            }
            encoder.push(next);
            count += 1;
            self.position += 1;
            if !encoder.has_room() {
                break;
            }
            record = self.record(ring).ok();
        }
        Some(Run { first, count, base_ns, bytes: encoder.finish() })
    }

    /// Moves to the next readable record at or after `since_ns`.
    fn first(&mut self, ring: &Ring<'_>) -> Option<(u64, Record)> {
        while self.position < self.end {
            match self.record(ring) {
                Ok(record) => {
                    let since_ns = self.since_ns;
                    self.whole_since_ns.get_or_insert_with(|| record.at_ns.max(since_ns));
                    // Internal records between others are returned too: skipping them would look
                    // like a gap.
                    let is_wanted =
                        record.at_ns >= since_ns && (self.continues || record.kind != NOTHING.kind);
                    if self.has_begun || is_wanted {
                        self.has_begun = true;
                        return Some((self.position, record));
                    }
                    self.position += 1;
                }
                Err(Found::Unwritten) if self.is_awaited(ring) => return None,
                Err(_) => {
                    if !self.has_begun {
                        self.whole_since_ns = None;
                    }
                    self.position = (self.position + 1).max(ring.oldest()).min(self.end);
                }
            }
        }
        None
    }

    fn is_awaited(&self, ring: &Ring<'_>) -> bool {
        let patience = PATIENCE.min(ring.capacity() / 4);
        !self.no_wait && ring.next().saturating_sub(self.position) <= patience
    }

    /// The record at the current position; [`NOTHING`] for an internal one.
    fn record(&mut self, ring: &Ring<'_>) -> Result<Record, Found> {
        if self.position >= self.end {
            return Err(Found::Unwritten);
        }
        let (entry, low) = match ring.read(self.position) {
            Found::Whole(entry, low) => (entry, low),
            other => return Err(other),
        };
        if entry.kind == TIME {
            self.clock = Clock::at(entry.number & ((1 << BEFORE_SHIFT) - 1), low);
            return Ok(Record { at_ns: self.clock.near_ns, ..NOTHING });
        }
        let at_ns = self.clock.whole(low);
        if entry.kind == REST {
            return Ok(Record { at_ns, ..NOTHING });
        }
        if !is_pair(entry.kind) {
            return Ok(entry.record(0, at_ns));
        }
        match ring.read(self.position + 1) {
            Found::Whole(rest, _) if rest.kind == REST => Ok(entry.record(rest.number, at_ns)),
            Found::Whole(..) | Found::Overwritten => Err(Found::Overwritten),
            Found::Unwritten => Err(Found::Unwritten),
        }
    }

    /// Skips records that are certainly before `since_ns`, by a binary search over the [`TIME`]
    /// records.
    fn seek(&mut self, ring: &Ring<'_>) {
        if self.since_ns == 0 {
            return;
        }
        let (mut low, mut high) = (self.position, self.end);
        while high - low > 2 * ANCHOR_EVERY {
            let middle = low + (high - low) / 2;
            match time_at(ring, middle..high) {
                Some((position, clock)) if clock.near_ns < self.since_ns => low = position,
                _ => high = middle,
            }
        }
        // If the clock was set back, wanted records may be a little earlier.
        self.position = low.saturating_sub(ANCHOR_EVERY).max(self.position);
    }

    /// Determines the half of the current position's times. If there is no [`TIME`] record up to
    /// the end, it is the ring's last half.
    fn set_clock(&mut self, ring: &Ring<'_>) {
        let Self { position, end, .. } = *self;
        if let Some((at, clock)) = time_at(ring, position..end) {
            // The records before the `TIME` record belong to the previous half, which that record
            // contains.
            if let Found::Whole(entry, _) = ring.read(at) {
                self.clock.half = entry.number >> BEFORE_SHIFT;
            }
            self.clock.near_ns = clock.near_ns;
        }
    }
}

/// Returned in place of an internal record.
const NOTHING: Record = Record { kind: kind::NOTHING, at_ns: 0, first: 0, second: 0, third: 0 };

/// The first [`TIME`] record among the next positions.
fn time_at(ring: &Ring<'_>, positions: core::ops::Range<u64>) -> Option<(u64, Clock)> {
    let near = positions.take(2 * ANCHOR_EVERY as usize);
    near.into_iter().find_map(|at| time_of(ring, at))
}

fn time_of(ring: &Ring<'_>, position: u64) -> Option<(u64, Clock)> {
    match ring.read(position) {
        Found::Whole(entry, low) if entry.kind == TIME => {
            let half = entry.number & ((1 << BEFORE_SHIFT) - 1);
            Some((position, Clock::at(half, low)))
        }
        _ => None,
    }
}

impl Ring<'_> {
    /// The time for which the ring keeps its records at their present rate, in ns; `None` if it has
    /// too few to tell.
    pub(crate) fn window_ns(&self, now_ns: u64) -> Option<u64> {
        let next = self.next();
        let (position, clock) = time_at(self, self.oldest()..next)?;
        let records = next.checked_sub(position).filter(|records| *records > 1)?;
        let ns = now_ns.saturating_sub(clock.near_ns);
        let window = u128::from(self.capacity()) * u128::from(ns) / u128::from(records);
        Some(u64::try_from(window).unwrap_or(u64::MAX))
    }

    /// The complete record at a position, and the lowest bits of its time.
    #[cfg(all(test, loom))]
    pub(crate) fn whole(&self, position: u64) -> Option<(super::Entry, u64)> {
        match self.read(position) {
            Found::Whole(entry, low) => Some((entry, low)),
            _ => None,
        }
    }

    /// Whether one of these positions contains a [`TIME`] record.
    #[cfg(all(test, not(loom)))]
    pub(super) fn keeps_time(&self, mut positions: core::ops::Range<u64>) -> bool {
        positions.any(|at| time_of(self, at).is_some())
    }

    /// Reads the record at a position.
    fn read(&self, position: u64) -> Found {
        let (lap, place) = self.laps.locate(position);
        self.records.get(place).map_or(Found::Overwritten, |record| record.read(lap))
    }
}
