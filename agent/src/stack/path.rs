//! The path of one sample: the frame codes that the walk found, leaf first, and their hash.
//!
//! The cells belong to the slot and are reused by every sample, so that a tick neither needs a large
//! stack of its own nor clears one.

use crate::ground::sync::{AtomicU32, Ordering, prefetch};

/// The most frames of one stack that are walked.
pub const MAX_DEPTH: usize = 128;

/// Room for the walked frames, a mark in front of them, one for what is missing, and the mark of the
/// agent's own work.
pub(crate) const MAX_CODES: usize = MAX_DEPTH + 3;

/// Frames in one node of the table: a run of the path that is compared at once.
pub const FRAMES_PER_NODE: usize = 11;

/// Zeros in front of the leaf, so that a node that is not full compares like one that is.
const PADDING: usize = FRAMES_PER_NODE;

/// The cells that a path is written into.
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub struct PathCells {
    cells: [AtomicU32; PADDING + MAX_CODES],
}

impl Default for PathCells {
    fn default() -> Self {
        Self {
            cells: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl PathCells {
    /// Asks for the cells of a path of usual depth ahead of their use.
    #[inline]
    pub(crate) fn prefetch(&self) {
        const USUAL: usize = PADDING + 37;
        if let Some(cells) = self.cells.first_chunk::<USUAL>() {
            prefetch(cells);
        }
    }

    /// Begins a path; what the cells held before is forgotten.
    pub fn begin(&self) -> Path<'_> {
        Path {
            cells: &self.cells,
            length: 0,
            hash: SEED,
        }
    }
}

impl PathCells {
    /// The path of this length and hash that was written here last.
    pub(crate) fn resume(&self, length: usize, hash: u64) -> Path<'_> {
        Path {
            cells: &self.cells,
            length: length.min(MAX_CODES),
            hash,
        }
    }
}

/// A path being written.
#[derive(Debug)]
pub struct Path<'a> {
    cells: &'a [AtomicU32; PADDING + MAX_CODES],
    length: usize,
    hash: u64,
}

impl<'a> Path<'a> {
    /// Adds the next frame towards the root. One more than [`MAX_DEPTH`] and the three marks is
    /// dropped.
    #[inline]
    pub fn push(&mut self, code: u32) {
        if let Some(cell) = self.cells.get(PADDING + self.length) {
            cell.store(code, Ordering::Relaxed);
            self.length += 1;
            self.hash = extend(self.hash, code);
        }
    }

    /// Adds frames from `next` until it has none or the path has `limit`. By value: so the length and the hash stay in
    /// registers, and no frame waits until that before it has been written and read back.
    #[inline]
    pub(crate) fn push_all(self, limit: usize, mut next: impl FnMut() -> Option<u32>) -> Self {
        let Self {
            cells,
            length,
            mut hash,
        } = self;
        let limit = limit.min(MAX_CODES);
        let room = cells.get(PADDING + length..PADDING + limit);
        let mut pushed = 0;
        for cell in room.unwrap_or_default() {
            let Some(code) = next() else {
                break;
            };
            cell.store(code, Ordering::Relaxed);
            hash = extend(hash, code);
            pushed += 1;
        }
        Self {
            cells,
            length: length + pushed,
            hash,
        }
    }

    /// How many frames there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The frame codes, leaf first.
    pub fn codes(&self) -> impl Iterator<Item = u32> + 'a {
        // Always there; said so that the tick has no road to a panic.
        let codes = self.cells.get(PADDING..PADDING + self.length);
        codes
            .unwrap_or_default()
            .iter()
            .map(|cell| cell.load(Ordering::Relaxed))
    }

    /// The hash of the whole path.
    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The hash of the path's last `frames` frames, those at the root.
    pub(crate) fn root_hash(&self, frames: usize) -> u64 {
        let skipped = self.length.saturating_sub(frames);
        self.codes().skip(skipped).fold(SEED, extend)
    }

    /// The run of a node whose root-most frame is the `from_root`-th from the root, counted from 0:
    /// exactly [`FRAMES_PER_NODE`] cells, leaf first, with zeros in front where the path begins.
    #[inline]
    pub(crate) fn run(&self, from_root: usize) -> Option<&'a [AtomicU32; FRAMES_PER_NODE]> {
        let end = (PADDING + self.length).checked_sub(from_root)?;
        let start = end.checked_sub(FRAMES_PER_NODE)?;
        self.cells.get(start..end)?.try_into().ok()
    }
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;

/// One multiplication a frame: it hides in the shadow of the next load of the chain. The upper bits
/// depend on all frames; the table places by them.
#[inline]
fn extend(hash: u64, code: u32) -> u64 {
    (hash ^ u64::from(code)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
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
        let run = |from_root| -> Option<Vec<u32>> {
            Some(
                path.run(from_root)?
                    .iter()
                    .map(|cell| cell.load(Ordering::Relaxed))
                    .collect(),
            )
        };
        assert_eq!(run(0), Some((3..=13).collect()));
        assert_eq!(run(11), Some([&[0; 9][..], &[1, 2]].concat()));
        assert_eq!(run(14), None);
    }

    #[test]
    fn a_hash_of_all_frames_is_the_hash_of_the_path() {
        let cells = PathCells::default();
        let mut path = cells.begin();
        for code in [7, 8, 9] {
            path.push(code);
        }
        assert_eq!(path.root_hash(3), path.hash());
        let hash = path.hash();
        let mut other = cells.begin();
        for code in [8, 7, 9] {
            other.push(code);
        }
        assert_ne!(other.hash(), hash, "the order matters");
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
