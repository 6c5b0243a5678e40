//! The choice of sampled allocations: points at random in the sequence of all bytes that a vCPU
//! allocates.
//!
//! The distances of the points are exponentially distributed with the mean `interval` (a Poisson
//! process). An allocation smaller than the mean is sampled if a point lies in it, so with the
//! probability `1 - exp(-size / interval)`. An allocation of at least the mean is always sampled
//! and does not move the points: the distance to the next point has the same distribution at every
//! byte.
//!
//! Only the vCPU itself writes its points. An allocation by an upcall that interrupts
//! [`pass`](PointCells::pass) between its load and its store is not subtracted. If that allocation
//! was a [visit](PointCells::visit), the store puts back the earlier `left`: then the total of
//! allocated bytes, and the place of the next point, are wrong by up to [`CHUNK`].
//!
//! Why: docs/design/decisions.md#a-chunk-of-bytes-between-two-looks.

use crate::ground::sync::{AtomicU64, Ordering, add_owned};

/// The most bytes that are allocated between two [visits](PointCells::visit): a recording begins
/// and ends on a vCPU within this many bytes.
const CHUNK: u64 = 8 << 10;

/// A vCPU's position in its allocated bytes.
#[repr(C)]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct PointCells {
    /// Bytes that are allocated without a visit. Below the mean interval.
    left: AtomicU64,
    /// Bytes from there to the next point.
    beyond: AtomicU64,
    /// All bytes allocated since the agent started, and `left`.
    drawn: AtomicU64,
    /// The mean interval that the next point was drawn for. 0 if the last visit found no recording
    /// of allocations.
    interval: AtomicU64,
    random: AtomicU64,
    /// Sampled allocations of this vCPU that were freed.
    freed: AtomicU64,
}

/// Why an allocation is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// It is at least as large as the mean interval.
    Whole,
    /// The first point in it is this many bytes after its start.
    At(u64),
}

impl PointCells {
    /// Counts an allocation of `size` bytes if it certainly contains no point; `false` if a
    /// [visit](Self::visit) must decide.
    #[inline(always)]
    pub(crate) fn pass(&self, size: u64) -> bool {
        let (left, is_short) = self.left.load(Ordering::Relaxed).overflowing_sub(size);
        if !is_short {
            self.left.store(left, Ordering::Relaxed);
        }
        !is_short
    }

    /// The bytes that certainly contain no point.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Makes the next allocation a [visit](Self::visit), because a recording begins. Only for the
    /// vCPU itself.
    pub(crate) fn cut(&self) {
        let allocated = self.allocated();
        let left = self.left.swap(0, Ordering::Relaxed);
        self.drawn.store(allocated, Ordering::Relaxed);
        let beyond = self.beyond.load(Ordering::Relaxed);
        self.beyond.store(beyond.saturating_add(left), Ordering::Relaxed);
    }

    /// Counts an allocation that [`pass`](Self::pass) did not count. `interval` is the least mean
    /// interval of the recordings, 0 if there are none. Returns whether the allocation is sampled.
    #[inline(never)]
    pub(crate) fn visit(&self, size: u64, interval: u64) -> Option<Point> {
        let left = self.left.load(Ordering::Relaxed);
        let mut to_point = left.saturating_add(self.beyond.load(Ordering::Relaxed));
        // Without recordings there is no point, also before the first recording.
        if interval == 0 || interval != self.interval.load(Ordering::Relaxed) {
            self.interval.store(interval, Ordering::Relaxed);
            to_point = self.draw(interval);
        }
        let point = match interval {
            0 => None,
            _ if size >= interval => Some(Point::Whole),
            _ if size > to_point => Some(Point::At(to_point)),
            _ => None,
        };
        to_point = match point {
            Some(Point::At(_)) => self.draw(interval),
            Some(Point::Whole) => to_point,
            None => to_point.saturating_sub(size),
        };
        let next = to_point.min(CHUNK).min(interval.wrapping_sub(1));
        let allocated = self.allocated().wrapping_add(size);
        self.beyond.store(to_point - next, Ordering::Relaxed);
        self.drawn.store(allocated.wrapping_add(next), Ordering::Relaxed);
        self.left.store(next, Ordering::Relaxed);
        point
    }

    /// Counts an allocation of `size` bytes that another sampler has drawn at the mean `interval`:
    /// as many bytes as it stands for. Returns the first point in it.
    #[inline(never)]
    pub(crate) fn drawn_elsewhere(&self, size: u64, interval: u64) -> Point {
        /// An allocation of so many intervals is drawn as good as always: it stands for itself.
        const CERTAIN: u64 = 16;
        let mut bytes = size;
        // Distances have no memory: modulo the size they are those that lie within the allocation.
        let first = self.draw(interval).checked_rem(size).unwrap_or(0);
        if size / CERTAIN < interval {
            // Each point in it stands for the mean interval.
            let mut at = first;
            bytes = 0;
            while at < size {
                bytes = bytes.saturating_add(interval);
                at = at.saturating_add(self.draw(interval)).saturating_add(1);
            }
        }
        add_owned(&self.drawn, bytes);
        Point::At(first)
    }

    /// Whether an allocation that was sampled for the least mean interval `least` is also sampled
    /// for a recording with a greater `interval`: with the probability that the recording alone
    /// would have sampled it.
    #[inline(never)]
    pub(crate) fn is_kept(&self, point: Point, size: u64, least: u64, interval: u64) -> bool {
        if size >= interval || interval <= least {
            return true;
        }
        match point {
            Point::Whole => self.draw(interval) < size,
            // Each point is kept with the probability `least / interval`. The points after the
            // first are not known; those that are kept have the mean distance `interval`.
            Point::At(first) => {
                let share = (u128::from(self.random()) * u128::from(interval)) >> u64::BITS;
                share < u128::from(least) || self.draw(interval) < size - first
            }
        }
    }

    /// Rounds a size at random to one of 32 steps an octave, so that a site with many sizes makes
    /// few stacks. The expectation is `size`. A size that could become `least` or more is kept: it
    /// would get the weight of one that is always sampled.
    pub(crate) fn rounded_below(&self, size: u64, least: u64) -> u64 {
        let octave = u64::BITS - (size | 1).leading_zeros();
        let step = 1 << octave.saturating_sub(6);
        let down = size & !(step - 1);
        let up = down.saturating_add(step);
        let rest = size - down;
        if up >= least {
            size
        } else if self.random() & (step - 1) < rest {
            up
        } else {
            down
        }
    }

    /// All bytes that the vCPU has allocated.
    pub(crate) fn allocated(&self) -> u64 {
        let drawn = self.drawn.load(Ordering::Relaxed);
        drawn.wrapping_sub(self.left.load(Ordering::Relaxed))
    }

    /// Sampled allocations of this vCPU that were freed.
    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Counts a sampled allocation of this vCPU as freed, on any vCPU.
    pub(crate) fn count_freed(&self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the random numbers depend on `seed`.
    pub(crate) fn seed(&self, seed: u64) {
        add_owned(&self.random, seed);
    }

    /// An exponentially distributed number with this mean, rounded down; [`u64::MAX`] if the mean
    /// is 0.
    fn draw(&self, mean: u64) -> u64 {
        match mean {
            0 => u64::MAX,
            _ => exponential(self.random(), mean),
        }
    }

    /// 64 random bits: SplitMix64, whose state may have any value.
    #[inline(never)]
    fn random(&self) -> u64 {
        add_owned(&self.random, 0x9e37_79b9_7f4a_7c15);
        let state = self.random.load(Ordering::Relaxed);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// `-ln(uniform / 2^64) * mean`, rounded down.
fn exponential(uniform: u64, mean: u64) -> u64 {
    /// ln 2, with 32 binary places.
    const LN_2: u128 = 2_977_044_472;
    const PLACES: u32 = 32;
    // The binary logarithm, digit by digit: squaring a number between 1 and 2 doubles its
    // logarithm.
    let uniform = uniform.max(1);
    let exponent = uniform.leading_zeros();
    let mut number = uniform << exponent;
    let mut digits = 0_u64;
    for _ in 0..PLACES {
        let square = u128::from(number) * u128::from(number);
        let high = (square >> 64) as u64;
        let is_two = high >> 63;
        digits = digits << 1 | is_two;
        // Without a 128-bit shift by a variable, which is a call.
        number = high << (1 - is_two) | (square as u64 >> 63) & (1 - is_two);
    }
    let negated = (u64::from(exponent + 1) << PLACES) - digits;
    ((u128::from(negated) * LN_2 * u128::from(mean)) >> (2 * PLACES)) as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use super::*;

    /// Every weight is computed for exponential distances: an error here would bias all sums.
    #[test]
    fn the_logarithm_has_nine_digits() {
        const MEAN: u64 = 1 << 40;
        let mut uniform = 1_u64;
        for step in 0..200_000_u64 {
            uniform = uniform.wrapping_mul(6_364_136_223_846_793_005) | 1;
            let uniform = uniform >> (step % 64);
            if uniform == 0 {
                continue;
            }
            let exact = (64.0 * core::f64::consts::LN_2 - (uniform as f64).ln()) * MEAN as f64;
            let found = exponential(uniform, MEAN) as f64;
            let error = (found - exact).abs();
            assert!(error <= 1e-9 * MEAN as f64 * 45.0, "{uniform}: {found}, not {exact}");
        }
        assert_eq!(exponential(0, 1000), 44_361, "-ln 2^-64 is 44.36");
    }

    fn cells(seed: u64) -> PointCells {
        let cells = PointCells::default();
        cells.seed(seed);
        cells
    }

    fn allocate(cells: &PointCells, size: u64, interval: u64) -> Option<Point> {
        if cells.pass(size) {
            return None;
        }
        cells.visit(size, interval)
    }

    /// Asserts that `found` of `rounds` allocations of `size` bytes is close to the number expected
    /// from the probability of this size.
    #[track_caller]
    fn assert_sampled(found: u32, rounds: u32, size: u64, interval: u64) {
        let p = if size >= interval { 1.0 } else { 1.0 - (-(size as f64) / interval as f64).exp() };
        let mean = p * f64::from(rounds);
        let deviation = (mean * (1.0 - p)).sqrt();
        assert!(
            (f64::from(found) - mean).abs() <= 5.0 * deviation,
            "{found} of {mean} samples of {size} bytes"
        );
    }

    /// Sizes below, around and above the chunk and the mean. Guards the sum of all bytes and the
    /// probability of each size.
    #[test]
    fn sizes_are_sampled_with_their_probability_and_all_bytes_are_counted() {
        const INTERVAL: u64 = 40_000;
        const ROUNDS: u32 = 20_000;
        let sizes = [16, 1_000, 8_191, 8_192, 20_000, 39_999, 40_000, 1 << 20];
        let cells = cells(42);
        let mut sampled = [0_u32; 8];
        for _ in 0..ROUNDS {
            for (size, count) in sizes.into_iter().zip(&mut sampled) {
                *count += u32::from(allocate(&cells, size, INTERVAL).is_some());
            }
        }
        let expected: u64 = sizes.iter().sum::<u64>() * u64::from(ROUNDS);
        assert_eq!(cells.allocated(), expected);
        for (size, count) in sizes.into_iter().zip(sampled) {
            assert_sampled(count, ROUNDS, size, INTERVAL);
        }
    }

    /// Guards the cost of a guest that nobody records: nearly all of its allocations are a
    /// subtraction and a branch.
    #[test]
    fn an_allocation_is_looked_at_once_in_a_chunk() {
        for interval in [0, 1 << 20, 0] {
            let cells = cells(5);
            let looked_at = (0..100_000).filter(|_| {
                let passed = cells.pass(64);
                if !passed {
                    cells.visit(64, interval);
                }
                !passed
            });
            let chunks = 100_000 * 64 / CHUNK as usize;
            assert!(looked_at.count() <= chunks + 20, "at a mean of {interval}");
        }
    }

    /// The second of two recordings must see what it would see alone.
    #[test]
    fn a_recording_beside_a_finer_one_is_sampled_as_if_alone() {
        const LEAST: u64 = 1_000;
        const INTERVAL: u64 = 30_000;
        const ROUNDS: u32 = 200_000;
        let cells = cells(7);
        for size in [200_u64, 900, 5_000, 29_000, 30_000] {
            let mut kept = 0_u32;
            for _ in 0..ROUNDS {
                let point = allocate(&cells, size, LEAST);
                kept += u32::from(point.is_some_and(|it| cells.is_kept(it, size, LEAST, INTERVAL)));
            }
            assert_sampled(kept, ROUNDS, size, INTERVAL);
        }
    }

    /// Allocations drawn by another sampler are counted without a bias, and a recording samples
    /// them as if it had drawn them.
    #[test]
    fn what_was_drawn_elsewhere_is_drawn_again() {
        const LEAST: u64 = 1_000;
        const INTERVAL: u64 = 30_000;
        const ROUNDS: u32 = 200_000;
        for size in [40_u64, 200, 900, 5_000, 15_999, 16_000, 29_000, 100_000] {
            let (other, cells) = (cells(7), cells(8));
            let mut kept = 0_u32;
            for _ in 0..ROUNDS {
                if other.draw(LEAST) < size {
                    let point = cells.drawn_elsewhere(size, LEAST);
                    kept += u32::from(cells.is_kept(point, size, LEAST, INTERVAL));
                }
            }
            assert_sampled(kept, ROUNDS, size, INTERVAL);
            let ratio = cells.allocated() as f64 / (size * u64::from(ROUNDS)) as f64;
            // The number of points has a Poisson distribution.
            let deviation = (LEAST as f64 / (size * u64::from(ROUNDS)) as f64).sqrt();
            assert!((ratio - 1.0).abs() < 5.0 * deviation, "{size}: {ratio}");
        }
        for (size, interval) in [(0, 1), (1, 1), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            assert!(matches!(cells(1).drawn_elsewhere(size, interval), Point::At(_)));
        }
    }

    #[test]
    fn rounding_keeps_the_mean_and_makes_few_sizes() {
        let cells = cells(3);
        for size in [0_u64, 1, 63, 64, 65, 1_000, 12_345, 524_287] {
            let mut seen = std::collections::BTreeSet::new();
            let mut sum = 0;
            const ROUNDS: u64 = 100_000;
            for _ in 0..ROUNDS {
                let rounded = cells.rounded_below(size, u64::MAX);
                assert!(rounded.abs_diff(size) <= size / 32, "{size}: {rounded}");
                seen.insert(rounded);
                sum += rounded;
            }
            assert!(seen.len() <= 2, "{size}: {seen:?}");
            let mean = sum as f64 / ROUNDS as f64;
            assert!((mean - size as f64).abs() <= 1e-3 * size as f64 / 4.0, "{size}: {mean}");
        }
        assert!(cells.rounded_below(u64::MAX, u64::MAX) >= u64::MAX - (1 << 58));
    }

    /// Sizes that no memory has, and an interval that changes, must neither overflow nor stop the
    /// sampling.
    #[test]
    fn any_size_at_any_interval_is_defined() {
        let cells = cells(1);
        for interval in [0, 64, 1 << 40, 0, 4_096] {
            for size in [0, 1, 1 << 60, u64::MAX, 64, 8 << 10] {
                let point = allocate(&cells, size, interval);
                let is_whole = interval != 0 && size >= interval;
                assert_eq!(point == Some(Point::Whole), is_whole, "{size} at {interval}");
            }
        }
        let many = (0..100_000).filter(|_| allocate(&cells, 64, 4_096).is_some());
        assert!((1_300..1_900).contains(&many.count()), "1,550 are expected");
    }
}
