//! The path of one sample: the [frame codes](unikprof_proto::code::frame_code) that the walk found,
//! leaf first, and their hashes.
//!
//! The hash of a sequence of codes is a polynomial in a fixed factor, with the codes as
//! coefficients, modulo 2^64 (a Rabin-Karp rolling hash). The walk computes it frame by frame, from
//! the leaf to the root, and stores each step. The hash of any number of root-most frames then
//! follows from two steps with one multiplication, so the stack table can look up all of a stack's
//! callers at once instead of one after another.
//!
//! The cells belong to the vCPU's slot and every sample reuses them, so a tick neither needs a
//! large stack nor clears one.
//!
//! Why: docs/design/decisions.md#the-hash-is-never-believed.

use crate::ground::sync::{AtomicU32, AtomicU64, Ordering, prefetch};

/// The most frames of one stack that are walked.
pub const MAX_DEPTH: usize = 128;

/// Room for the walked frames and three marks: one before them, one for missing callers, and one
/// for the agent's own work.
pub(crate) const MAX_CODES: usize = MAX_DEPTH + 3;

/// The frames in one node of the stack table, which are compared together.
pub const FRAMES_PER_NODE: usize = 11;

/// Zeros before the leaf, so that a partly filled node is compared like a full one.
const PADDING: usize = FRAMES_PER_NODE;

/// The cells that a path is written into.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub struct PathCells {
    codes: [AtomicU32; PADDING + MAX_CODES],
    /// The polynomial of the frames from the leaf to each frame.
    steps: [AtomicU64; MAX_CODES],
}

impl Default for PathCells {
    fn default() -> Self {
        Self {
            codes: core::array::from_fn(|_| AtomicU32::new(0)),
            steps: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl PathCells {
    /// Prefetches the cells of a path of usual depth.
    #[inline]
    pub fn prefetch(&self) {
        const USUAL: usize = 32;
        if let Some(codes) = self.codes.first_chunk::<{ PADDING + USUAL }>() {
            prefetch(codes);
        }
        if let Some(steps) = self.steps.first_chunk::<USUAL>() {
            prefetch(steps);
        }
    }

    /// Begins a path, which overwrites the previous one.
    pub fn begin(&self) -> Path<'_> {
        Path { cells: self, length: 0, polynomial: 0 }
    }

    /// The last path written here, which has this length.
    pub(crate) fn resume(&self, length: usize) -> Path<'_> {
        let length = length.min(MAX_CODES);
        let step = length.checked_sub(1).and_then(|last| self.steps.get(last));
        Path {
            cells: self,
            length,
            polynomial: step.map_or(0, |step| step.load(Ordering::Relaxed)),
        }
    }
}

/// A path being written.
#[derive(Debug)]
pub struct Path<'a> {
    cells: &'a PathCells,
    length: usize,
    polynomial: u64,
}

impl<'a> Path<'a> {
    /// Adds the next frame towards the root. Ignored if the path has [`MAX_DEPTH`] frames and three
    /// marks.
    #[inline]
    pub fn push(&mut self, code: u32) {
        let mut code = Some(code);
        self.push_all(MAX_CODES, || code.take());
    }

    /// Adds frames from `next` until it returns `None` or the path has `limit` frames.
    #[inline]
    pub(crate) fn push_all(&mut self, limit: usize, mut next: impl FnMut() -> Option<u32>) {
        let PathCells { codes, steps } = self.cells;
        let (from, to) = (self.length, limit.min(MAX_CODES));
        let (Some(codes), Some(steps)) =
            (codes.get(PADDING + from..PADDING + to), steps.get(from..to))
        else {
            return;
        };
        // Kept in registers: a frame need not wait until the previous one has been written and read
        // back.
        let mut polynomial = self.polynomial;
        let mut pushed = 0;
        for (cell, step) in codes.iter().zip(steps) {
            let Some(code) = next() else {
                break;
            };
            polynomial = extend(polynomial, code);
            cell.store(code, Ordering::Relaxed);
            step.store(polynomial, Ordering::Relaxed);
            pushed += 1;
        }
        self.polynomial = polynomial;
        self.length += pushed;
    }

    /// The number of frames.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The frame codes, leaf first.
    pub fn codes(&self) -> impl Iterator<Item = u32> + 'a {
        // Always in range; `get` because a tick must not panic.
        let codes = self.cells.codes.get(PADDING..PADDING + self.length);
        codes.unwrap_or_default().iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// The hash of the whole path.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        finish(self.polynomial)
    }

    /// The hashes of the frames in the root-most node, in the two root-most nodes and so on,
    /// without that of the whole path.
    #[inline]
    pub(crate) fn root_hashes(&self) -> impl Iterator<Item = u64> + use<'a> {
        let Self { cells, length, polynomial } = *self;
        // The index of the step before the last node's frames, then the last two nodes' and so on;
        // it wraps around, out of range, if there is none.
        let mut at = length.wrapping_sub(FRAMES_PER_NODE + 1);
        POWERS.iter().map_while(move |power| {
            let step = cells.steps.get(at)?.load(Ordering::Relaxed);
            at = at.wrapping_sub(FRAMES_PER_NODE);
            Some(finish(polynomial.wrapping_sub(step.wrapping_mul(*power))))
        })
    }

    /// The runs of the nodes for the path's `length` root-most frames, leaf-most run first. Each
    /// run has [`FRAMES_PER_NODE`] cells, leaf first; the first run begins with zeros, or with
    /// frames nearer to the leaf.
    #[inline]
    pub(crate) fn root_runs(
        &self,
        length: usize,
    ) -> impl Iterator<Item = &'a [AtomicU32; FRAMES_PER_NODE]> + use<'a> {
        let end = PADDING + self.length;
        let cells = (length as u32).next_multiple_of(FRAMES_PER_NODE as u32) as usize;
        let codes = self.cells.codes.get(end.saturating_sub(cells)..end);
        let mut codes = codes.unwrap_or_default();
        core::iter::from_fn(move || {
            let (run, rest) = codes.split_first_chunk()?;
            codes = rest;
            Some(run)
        })
    }
}

/// The factor of the polynomial, 2^64 divided by the golden ratio: odd and without a regular bit
/// pattern.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// [`FACTOR`] to the power of the number of frames in one node, two nodes and so on.
const POWERS: [u64; MAX_CODES / FRAMES_PER_NODE] = {
    let mut powers = [0; MAX_CODES / FRAMES_PER_NODE];
    let mut power = 1_u64;
    let mut frames = 1;
    while frames <= FRAMES_PER_NODE * powers.len() {
        power = power.wrapping_mul(FACTOR);
        if frames.is_multiple_of(FRAMES_PER_NODE) {
            powers[frames / FRAMES_PER_NODE - 1] = power;
        }
        frames += 1;
    }
    powers
};

/// Adds a code to a polynomial. The multiplication overlaps the walk's next load and costs no extra
/// time.
#[inline]
fn extend(polynomial: u64, code: u32) -> u64 {
    polynomial.wrapping_mul(FACTOR).wrapping_add(u64::from(code))
}

/// Turns a polynomial into a hash. The upper bits, from which the table derives the position,
/// depend on all codes. Without the shift, stacks with equally spaced codes would cluster in a part
/// of the index.
#[inline]
fn finish(polynomial: u64) -> u64 {
    (polynomial ^ polynomial >> 32).wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn runs_count_from_the_root_and_are_padded_at_the_leaf() {
        let cells = PathCells::default();
        let mut path = cells.begin();
        for code in 1..=13 {
            path.push(code);
        }
        let runs = |length| -> Vec<Vec<u32>> {
            let run = |cells: &[AtomicU32; FRAMES_PER_NODE]| {
                cells.each_ref().map(|cell| cell.load(Ordering::Relaxed))
            };
            path.root_runs(length).map(|cells| run(cells).to_vec()).collect()
        };
        let root: Vec<u32> = (3..=13).collect();
        assert_eq!(runs(13), [[&[0; 9][..], &[1, 2]].concat(), root.clone()]);
        assert_eq!(runs(11), [root]);
    }

    /// Stacks that share callers have the same hash for these, whatever the other frames are.
    #[test]
    fn the_hash_of_root_most_frames_is_that_of_a_path_of_them() {
        let hashed = |codes: &[u32]| {
            let cells = PathCells::default();
            let mut path = cells.begin();
            codes.iter().for_each(|code| path.push(*code));
            (path.hash(), path.root_hashes().collect::<Vec<_>>())
        };
        let callers: Vec<u32> = (0..22).map(|code| 0x9000_0000 + code * code).collect();
        for leaves in [&[1_u32][..], &[2, 1], &[u32::MAX; 40]] {
            let stack = [leaves, &callers[..]].concat();
            let of_callers = [hashed(&callers[11..]).0, hashed(&callers).0];
            assert_eq!(hashed(&stack).1[..2], of_callers);
            assert_eq!(hashed(&callers).1, of_callers[..1]);
        }
        assert_eq!(hashed(&callers[11..]).1, [0; 0]);
        let hash = |codes: &[u32]| hashed(codes).0;
        assert_ne!(hash(&[7, 8, 9]), hash(&[8, 7, 9]), "the order matters");
        assert_ne!(hash(&[7, 8, 9]), hash(&[7, 8]), "the length matters");
    }

    /// Guards against a hash whose index positions or tags cluster for neighbouring codes, such as
    /// leaves of one function with the same callers.
    #[test]
    fn hashes_of_neighbouring_leaves_are_spread() {
        const STACKS: u32 = 4096;
        let mut upper = [0_u32; 64];
        let mut lower = [0_u32; 64];
        for leaf in 0..STACKS {
            let cells = PathCells::default();
            let mut path = cells.begin();
            for code in [leaf, 100, 200, 300, 400] {
                path.push(code);
            }
            upper[(path.hash() >> 58) as usize] += 1;
            lower[(path.hash() as u32 >> 26) as usize] += 1;
        }
        // The mean is 64, the standard deviation 8.
        for count in upper.into_iter().chain(lower) {
            assert!((16..=112).contains(&count), "{upper:?} {lower:?}");
        }
    }

    #[test]
    fn a_path_too_long_is_cut_not_overrun() {
        let cells = PathCells::default();
        let mut path = cells.begin();
        for code in 0..1000 {
            path.push(code + 1);
        }
        assert_eq!(path.len(), MAX_CODES);
    }
}
