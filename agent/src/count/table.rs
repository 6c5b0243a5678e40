//! The stack table: call stacks and their counts, in memory that never grows.
//!
//! Stacks are stored as trees whose nodes hold runs of [`FRAMES_PER_NODE`] frames, divided from the
//! root on: stacks with the same outer callers share nodes, and most stacks cost little more than
//! their leaf-most node of 64 bytes, a cache line. An index of hashes finds the leaf-most node of a
//! path in one step; the whole path is then compared, node by node, so that two stacks are never
//! confused. Each node has two counts for each recording: one for the current epoch, one for the
//! epoch that is being fetched.
//!
//! The nodes are divided into [`SEGMENTS`] segments of equal size, so that old stacks can be given
//! up:
//!
//! - New stacks go to the *current* segment. A stack and all its nodes lie in one segment. A known
//!   stack is counted where it lies, in whichever segment that is.
//! - A tick that finds the current segment full begins a free one. Each segment begun is a *birth*
//!   with a number of its own. Birth and place make a node's [number](unikprof_proto::nodes), which
//!   is never used again.
//! - When few segments are free, the poll *condemns* the oldest. Lookups no longer find its stacks:
//!   the next sample of such a stack is inserted into the current segment. Its counts stay until no
//!   recording needs them.
//! - Then the poll *sweeps* the segment's stacks out of the index and frees it.
//!
//! All cells are atomics. The caller must own the vCPU's slot to count, condemn, sweep or free, but
//! not to read nodes or the counts of an epoch that has ended.
//!
//! Why: docs/design/decisions.md#runs-of-eleven-frames,
//! docs/design/decisions.md#stacks-age-by-segments,
//! docs/design/decisions.md#node-numbers-are-never-used-again.

use unikprof_proto::code::frame_code;
use unikprof_proto::{counts, nodes};

use crate::ground::sync::{AtomicU32, AtomicU64, Ordering, add_owned, fence, prefetch};
pub use crate::stack::path::FRAMES_PER_NODE;
use crate::stack::path::Path;

/// The number of segments of a vCPU's nodes. Callers shared by stacks are stored once in each
/// segment, so more segments cost memory; with fewer, more stacks are given up at a time.
pub const SEGMENTS: usize = 6;

/// The least number of nodes in a segment: more than the deepest stack needs.
pub(crate) const MIN_SEGMENT: usize = 16;

const _: () = assert!(MIN_SEGMENT > crate::stack::path::MAX_CODES.div_ceil(FRAMES_PER_NODE));

/// The number of index entries searched before a path counts as missing. At most two thirds of the
/// index are in use, so such a long run is rare; a path behind it counts as overflow.
const PROBES: usize = 256;

/// A freed entry of the index, behind which entries may still be in use. No node has this id.
const TOMBSTONE: u32 = u32::MAX;

/// A run of frames with its counts.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub struct Node {
    /// The counts of the first recording; those of the others are in [`Table::more_counts`].
    counts: Counts,
    /// The place of the next node towards the root; 0 = none.
    parent: AtomicU32,
    /// Leaf first; padded with zeros at the front.
    frames: [AtomicU32; FRAMES_PER_NODE],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() == 64);

impl Default for Node {
    fn default() -> Self {
        Self {
            counts: [AtomicU64::new(0), AtomicU64::new(0)],
            parent: AtomicU32::new(0),
            frames: core::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Node {
    #[inline]
    fn holds(&self, run: &[AtomicU32; FRAMES_PER_NODE]) -> bool {
        let mut pairs = self.frames.iter().zip(run);
        pairs.all(|(own, other)| own.load(Ordering::Relaxed) == other.load(Ordering::Relaxed))
    }

    fn leaf(&self) -> u32 {
        let mut frames = self.frames.iter().map(|cell| cell.load(Ordering::Relaxed));
        frames.find(|frame| *frame != 0).unwrap_or(0)
    }
}

/// A node's counts of one recording: for even and for odd epochs.
pub type Counts = [AtomicU64; 2];

/// One column of counts. Each recording has two, one for each parity of its epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    recording: usize,
    parity: usize,
}

impl Column {
    /// The column of an epoch of the recording at this index.
    #[inline]
    pub fn of(recording: usize, epoch: u64) -> Self {
        Self { recording, parity: (epoch & 1) as usize }
    }
}

/// The path was not counted: it is new and no segment has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A vCPU's cells besides nodes, index and counts. What every tick reads comes first.
#[repr(C)]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub struct TableCells {
    /// A bit for each condemned segment.
    condemned: AtomicU32,
    /// The segment that new stacks go to.
    current: AtomicU32,
    /// The number of segments begun since the agent started.
    births: AtomicU64,
    segments: [SegmentCells; SEGMENTS],
    /// The number of index entries that the current sweep has not reached.
    unswept: AtomicU32,
    /// The number of buckets of live allocations whose stacks were not moved out of the condemned
    /// segment yet.
    unmoved: AtomicU32,
    /// The newest node's number at two moments, for the rate of new stacks: number and time in ns,
    /// older first.
    rate: [AtomicU64; 4],
}

#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
struct SegmentCells {
    /// The number of its birth; 0 = the segment is free.
    birth: AtomicU64,
    /// The number of nodes in use.
    used: AtomicU32,
    /// Ring records from this position on refer to the present birth; earlier ones refer to stacks
    /// that were given up.
    named_from: AtomicU64,
}

/// A view of one vCPU's stacks.
///
/// A node's *place* is its index among all nodes, counted from 1; 0 is no place. The segments
/// follow one another. A place is valid until its segment is freed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table<'m> {
    cells: &'m TableCells,
    nodes: &'m [Node],
    /// Places with bits of the hash as a tag in the upper bits; 0 = empty.
    index: &'m [AtomicU32],
    segment_nodes: u32,
    /// The bits of an index entry that contain the place.
    place_mask: u32,
    /// The [`reciprocal`] of the number of nodes in a segment.
    reciprocal: u64,
    /// The counts of the recordings after the first, node by node.
    more_counts: &'m [Counts],
}

/// The most nodes of a table: place and tag share 32 bits, and the tag should have at least seven
/// of them.
pub(crate) const MAX_NODES: usize = 1 << 24;

/// 2^48 divided by `divisor`, rounded up, for [`quotient`].
const fn reciprocal(divisor: u32) -> u64 {
    (1_u64 << 48).div_ceil(if divisor == 0 { 1 } else { divisor as u64 })
}

/// `index` divided by the divisor of `reciprocal`: a multiplication takes a tenth of the time of a
/// division. Exact as long as the product of index and divisor is below 2^48; `index` is below
/// [`MAX_NODES`].
#[inline]
const fn quotient(index: u32, reciprocal: u64) -> u32 {
    ((index as u64 * reciprocal) >> 48) as u32
}

const _: () = assert!(MAX_NODES * (MAX_NODES / SEGMENTS) < 1 << 48);

/// Encoded nodes with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first.
    pub first: u64,
    /// The number of nodes.
    pub count: u32,
    /// The bytes that they take.
    pub bytes: usize,
}

/// Encoded counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountRun {
    /// The number of counts.
    pub count: u32,
    /// The bytes that they take.
    pub bytes: usize,
    /// The last number that was examined; continue after it.
    pub until: u64,
}

/// The sums of counts that were taken from a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Counts of stacks that ran.
    pub(crate) ran: u64,
    /// Counts of stacks whose leaf is [`frame_code::BLOCKED`].
    pub(crate) blocked: u64,
}

impl<'m> Table<'m> {
    /// The length of an index for `nodes` nodes: it is at most two thirds full.
    pub const fn index_length(nodes: usize) -> usize {
        nodes.div_ceil(2) * 3
    }

    /// A table over `nodes` and `index`. `more_counts` contains the same number of counts for each
    /// node: one per recording after the first.
    #[inline]
    pub fn new(
        nodes: &'m [Node],
        index: &'m [AtomicU32],
        more_counts: &'m [Counts],
        cells: &'m TableCells,
    ) -> Self {
        let nodes = nodes.get(..MAX_NODES).unwrap_or(nodes);
        let segment_nodes = (nodes.len() / SEGMENTS) as u32;
        // One more than the greatest place, so that no entry equals the tombstone.
        let place_bits = u32::BITS - (nodes.len() as u32 + 1).leading_zeros();
        Self {
            cells,
            nodes,
            index,
            segment_nodes,
            place_mask: (1 << place_bits) - 1,
            reciprocal: reciprocal(segment_nodes),
            more_counts,
        }
    }

    /// The number of nodes in a segment.
    pub fn segment_nodes(&self) -> u32 {
        self.segment_nodes
    }

    /// The number of nodes in use.
    pub fn used(&self) -> u32 {
        let used = self.begun().map(|(_, segment)| segment.used.load(Ordering::Acquire));
        used.sum()
    }

    /// Counts one sample of `path`, which must not be empty, in `column`.
    ///
    /// # Errors
    /// [`Full`].
    #[inline]
    pub fn count(&self, path: &Path<'_>, column: Column) -> Result<(), Full> {
        self.add_to(self.keep(path)?, column, 1);
        Ok(())
    }

    /// Finds or inserts the stack of `path`, which must not be empty; returns the place of its
    /// leaf-most node.
    ///
    /// # Errors
    /// [`Full`].
    #[inline]
    pub(crate) fn keep(&self, path: &Path<'_>) -> Result<u32, Full> {
        self.prefetch_callers(path);
        let hash = path.hash();
        let condemned = self.cells.condemned.load(Ordering::Relaxed);
        let is_kept = |place| condemned == 0 || condemned >> self.segment_of(place) & 1 == 0;
        match self.find(path, path.len(), hash, is_kept) {
            Some(place) => Ok(place),
            None => self.insert(path),
        }
    }

    /// The same for a recording that may not use the segments `barred`, a bit for each: a stack
    /// that lies only in these is inserted again.
    #[cold]
    #[inline(never)]
    pub(crate) fn keep_outside(&self, barred: u32, path: &Path<'_>) -> Result<u32, Full> {
        let excluded = barred | self.cells.condemned.load(Ordering::Relaxed);
        match self.find_outside(excluded, path, path.len(), path.hash()) {
            Some(place) => Ok(place),
            None if barred >> self.cells.current.load(Ordering::Relaxed) & 1 != 0 => Err(Full),
            None => self.insert(path),
        }
    }

    /// Prefetches the nodes of a stack's callers in parallel. Following parents would wait for one
    /// node after another if they are not cached.
    #[inline]
    fn prefetch_callers(&self, path: &Path<'_>) {
        for hash in path.root_hashes() {
            let entry = self.index.get(self.home(hash));
            let entry = entry.map_or(0, |entry| entry.load(Ordering::Relaxed));
            // The entry may belong to another stack; then the prefetch is useless but harmless.
            if let Some(node) = self.node(entry & self.place_mask) {
                prefetch(node);
            }
        }
    }

    /// Adds `weight` to the count of the stack whose leaf-most node is at `place`.
    #[inline]
    pub(crate) fn add_to(&self, place: u32, column: Column, weight: u64) {
        if let Some(count) = self.counter(place, column) {
            add_owned(count, weight);
        }
    }

    /// The segment of a place; an arbitrary number below 32 for an invalid place.
    #[inline]
    pub(crate) fn segment_of(&self, place: u32) -> u32 {
        let index = place.wrapping_sub(1) & self.place_mask;
        quotient(index, self.reciprocal) & (u32::BITS - 1)
    }

    /// The place of the node at `index` in a segment, counted from 0.
    #[inline]
    fn place_of(&self, segment: u32, index: u32) -> u32 {
        segment * self.segment_nodes + index + 1
    }

    /// The index of the node at `place` in its segment, counted from 0.
    fn index_in_segment(&self, place: u32) -> u32 {
        let first = self.place_of(self.segment_of(place), 0);
        place.saturating_sub(first)
    }

    /// The number of the node at a place; 0 if there is none.
    pub(crate) fn number(&self, place: u32) -> u64 {
        self.number_at(place, u64::MAX)
    }

    /// The number of the node that the ring record at `position` refers to by its place; 0 if the
    /// node has been given up since.
    pub(crate) fn number_at(&self, place: u32, position: u64) -> u64 {
        let Some(segment) = self.cells.segments.get(self.segment_of(place) as usize) else {
            return 0;
        };
        let birth = segment.birth.load(Ordering::Acquire);
        let index = u64::from(self.index_in_segment(place));
        if place == 0
            || birth == 0
            || index >= u64::from(segment.used.load(Ordering::Acquire))
            || position < segment.named_from.load(Ordering::Acquire)
        {
            return 0;
        }
        birth * u64::from(self.segment_nodes) + index
    }

    /// The place of the node with this number; `None` if the table does not hold it.
    pub(crate) fn place(&self, number: u64) -> Option<u32> {
        let birth = number.checked_div(u64::from(self.segment_nodes))?;
        let index = (number % u64::from(self.segment_nodes)) as u32;
        let (segment, cells) =
            self.begun().find(|(_, cells)| cells.birth.load(Ordering::Acquire) == birth)?;
        (index < cells.used.load(Ordering::Acquire)).then(|| self.place_of(segment, index))
    }

    /// The number of the newest node; 0 if there is none.
    pub fn newest(&self) -> u64 {
        let newest = self.begun().map(|(_, segment)| {
            let used = u64::from(segment.used.load(Ordering::Acquire));
            (self.first_number(segment) + used).saturating_sub(1)
        });
        newest.max().unwrap_or(0)
    }

    /// The number of the oldest node; 0 if there is none.
    pub fn oldest(&self) -> u64 {
        let oldest = self.begun().map(|(_, segment)| self.first_number(segment));
        oldest.min().unwrap_or(0)
    }

    /// Encodes nodes with numbers above `after` and up to `last`: as many of one segment as fit
    /// `buffer`. `None` if there are none, or if their segment was begun again while they were
    /// read: a crash on one vCPU reads the nodes of another one that is still running.
    pub fn encode(&self, after: u64, last: u64, buffer: &mut [u8]) -> Option<Run> {
        let (segment, mut index) = self.next_after(after)?;
        let cells = self.cells.segments.get(segment as usize)?;
        let base = self.first_number(cells);
        let first = base + u64::from(index);
        let used = cells.used.load(Ordering::Acquire);
        let mut encoder = nodes::Encoder::new(first, buffer);
        let mut count = 0;
        let mut frames = [0; FRAMES_PER_NODE];
        while index < used && first + u64::from(count) <= last && encoder.has_room() {
            let Some(node) = self.node(self.place_of(segment, index)) else {
                break;
            };
            for (frame, cell) in frames.iter_mut().zip(&node.frames) {
                *frame = cell.load(Ordering::Relaxed);
            }
            let padding = frames.iter().take_while(|frame| **frame == 0).count();
            let parent = node.parent.load(Ordering::Relaxed);
            encoder.push(nodes::Node {
                parent: match parent {
                    0 => 0,
                    parent => base + u64::from(self.index_in_segment(parent)),
                },
                frames: frames.get(padding..).unwrap_or_default(),
            });
            count += 1;
            index += 1;
        }
        fence(Ordering::Acquire);
        let is_whole = base != 0 && self.first_number(cells) == base;
        (count > 0 && is_whole).then(|| Run { first, count, bytes: encoder.finish() })
    }

    /// Encodes the non-zero counts of `column` in `segments` (a bit for each), of nodes with
    /// numbers above `after` and up to `last`: as many as fit `buffer`, examining at most `budget`
    /// nodes. `None` if there are no more nodes.
    pub fn encode_counts(
        &self,
        column: Column,
        segments: u32,
        (after, last): (u64, u64),
        mut budget: u32,
        buffer: &mut [u8],
    ) -> Option<CountRun> {
        let mut encoder = counts::Encoder::new(after, buffer);
        let (mut count, mut until) = (0, after);
        while budget > 0 && encoder.has_room() {
            let Some((segment, first)) = self.next_after(until).filter(|_| until < last) else {
                break;
            };
            let cells = self.cells.segments.get(segment as usize)?;
            let used = cells.used.load(Ordering::Acquire);
            let base = self.first_number(cells);
            if segments >> segment & 1 == 0 {
                until = base + u64::from(used) - 1;
                continue;
            }
            for index in first..used {
                let number = base + u64::from(index);
                if budget == 0 || number > last || !encoder.has_room() {
                    break;
                }
                let counter = self.counter(self.place_of(segment, index), column);
                let weight = counter.map_or(0, |cell| cell.load(Ordering::Relaxed));
                if weight > 0 {
                    encoder.push(number, weight);
                    count += 1;
                }
                budget -= 1;
                until = number;
            }
            if until >= last {
                break;
            }
        }
        (until > after).then(|| CountRun { count, bytes: encoder.finish(), until })
    }

    /// The place of the next node towards the root; 0 = none. `None` if `place` is invalid.
    pub(crate) fn parent(&self, place: u32) -> Option<u32> {
        Some(self.node(place)?.parent.load(Ordering::Relaxed))
    }

    #[inline]
    fn node(&self, place: u32) -> Option<&'m Node> {
        self.nodes.get((place as usize).wrapping_sub(1))
    }

    /// The segments that are not free.
    fn begun(&self) -> impl Iterator<Item = (u32, &'m SegmentCells)> + use<'m> {
        let segments = (0_u32..).zip(&self.cells.segments);
        segments.filter(|(_, segment)| segment.birth.load(Ordering::Acquire) != 0)
    }

    fn first_number(&self, segment: &SegmentCells) -> u64 {
        segment.birth.load(Ordering::Acquire) * u64::from(self.segment_nodes)
    }

    /// The segment and the index of the first node with a number above `after`.
    fn next_after(&self, after: u64) -> Option<(u32, u32)> {
        let wanted = after.checked_add(1)?;
        let later = self.begun().filter_map(|(segment, cells)| {
            let first = self.first_number(cells);
            let index = wanted.saturating_sub(first);
            let used = u64::from(cells.used.load(Ordering::Acquire));
            (index < used).then_some((first, segment, index as u32))
        });
        let (_, segment, index) = later.min_by_key(|(first, ..)| *first)?;
        Some((segment, index))
    }

    /// The number of recordings after the first that there is room for.
    fn more_columns(&self) -> usize {
        self.more_counts.len() / self.nodes.len().max(1)
    }

    /// The counts of a node for the recordings after the first.
    fn more_counts_of(&self, place: u32) -> &'m [Counts] {
        let columns = self.more_columns();
        let node = (place as usize).saturating_sub(1);
        let counts = self.more_counts.get(node * columns..(node + 1) * columns);
        counts.unwrap_or_default()
    }

    /// The count of a node in a column.
    #[inline]
    fn counter(&self, place: u32, column: Column) -> Option<&'m AtomicU64> {
        let counts = match column.recording.checked_sub(1) {
            None => &self.node(place)?.counts,
            Some(recording) => self.more_counts_of(place).get(recording)?,
        };
        counts.get(column.parity)
    }

    /// The place of the last node of the path's `length` root-most frames, whose hash is `hash`;
    /// only places for which `wanted` returns true are considered.
    #[inline]
    fn find(
        &self,
        path: &Path<'_>,
        length: usize,
        hash: u64,
        wanted: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        for entry in self.entries(hash) {
            let entry = entry.load(Ordering::Relaxed);
            if entry == 0 {
                return None;
            }
            let place = entry & self.place_mask;
            if entry == self.tagged(place, hash) && wanted(place) && self.holds(place, path, length)
            {
                return Some(place);
            }
        }
        None
    }

    /// The same in all segments but `excluded`, a bit for each.
    #[cold]
    #[inline(never)]
    fn find_outside(
        &self,
        excluded: u32,
        path: &Path<'_>,
        length: usize,
        hash: u64,
    ) -> Option<u32> {
        let is_allowed = |place| excluded >> self.segment_of(place) & 1 == 0;
        self.find(path, length, hash, is_allowed)
    }

    /// Whether the stack that ends at `place` consists of the `length` root-most frames of `path`.
    #[inline]
    fn holds(&self, mut place: u32, path: &Path<'_>, length: usize) -> bool {
        for run in path.root_runs(length) {
            match self.node(place) {
                Some(node) if node.holds(run) => place = node.parent.load(Ordering::Relaxed),
                _ => return false,
            }
        }
        place == 0
    }

    /// Adds the nodes of `path` that the current segment lacks, from the root; returns the place of
    /// the last one.
    #[cold]
    #[inline(never)]
    fn insert(&self, path: &Path<'_>) -> Result<u32, Full> {
        let segment = self.segment_for(path.len().div_ceil(FRAMES_PER_NODE) as u32)?;
        let mut parent = 0;
        let mut length = 0;
        for hash in path.root_hashes().chain([path.hash()]) {
            length = (length + FRAMES_PER_NODE).min(path.len());
            parent = match self.find_outside(!(1 << segment), path, length, hash) {
                Some(place) => place,
                None => self.add(path, length, parent, hash, segment).ok_or(Full)?,
            };
        }
        Ok(parent)
    }

    /// The segment for a stack of `wanted` nodes: the current one, or a free one, which becomes the
    /// current one. If none is free, the current one as long as it has any room, because it may
    /// contain some of the nodes already.
    fn segment_for(&self, wanted: u32) -> Result<u32, Full> {
        let current = self.cells.current.load(Ordering::Relaxed);
        let room = self.room();
        if room >= wanted {
            return Ok(current);
        }
        match self.begin_segment() {
            Some(segment) => Ok(segment),
            None if room > 0 => Ok(current),
            None => Err(Full),
        }
    }

    /// The number of free nodes in the current segment.
    pub(crate) fn room(&self) -> u32 {
        let current = self.cells.current.load(Ordering::Relaxed);
        let segment = self.cells.segments.get(current as usize);
        segment.map_or(0, |segment| match segment.birth.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.segment_nodes - segment.used.load(Ordering::Relaxed),
        })
    }

    fn begin_segment(&self) -> Option<u32> {
        let mut segments = (0_u32..).zip(&self.cells.segments);
        let (number, segment) =
            segments.find(|(_, segment)| segment.birth.load(Ordering::Acquire) == 0)?;
        if self.segment_nodes == 0 {
            return None;
        }
        let birth = self.cells.births.load(Ordering::Relaxed) + 1;
        self.cells.births.store(birth, Ordering::Relaxed);
        segment.used.store(0, Ordering::Relaxed);
        segment.birth.store(birth, Ordering::Release);
        // Pairs with the fence in `encode`: a reader that sees a node of this birth also sees that
        // the previous birth is over.
        fence(Ordering::Release);
        self.cells.current.store(number, Ordering::Relaxed);
        Some(number)
    }

    /// Adds the last node of the path's `length` root-most frames. `None` if the segment is full or
    /// no index entry is free.
    fn add(
        &self,
        path: &Path<'_>,
        length: usize,
        parent: u32,
        hash: u64,
        segment: u32,
    ) -> Option<u32> {
        let cells = self.cells.segments.get(segment as usize)?;
        let used = cells.used.load(Ordering::Relaxed);
        let place = self.place_of(segment, used);
        let node = self.node(place).filter(|_| used < self.segment_nodes)?;
        let mut entries = self.entries(hash);
        let entry = entries.find(|entry| matches!(entry.load(Ordering::Relaxed), 0 | TOMBSTONE))?;
        for (frame, cell) in node.frames.iter().zip(path.root_runs(length).next()?) {
            frame.store(cell.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        node.parent.store(parent, Ordering::Relaxed);
        let counts = self.more_counts_of(place).iter().chain([&node.counts]);
        for count in counts.flatten() {
            count.store(0, Ordering::Relaxed);
        }
        entry.store(self.tagged(place, hash), Ordering::Relaxed);
        // Release: a reader that sees the new number of nodes also sees the node.
        cells.used.store(used + 1, Ordering::Release);
        Some(place)
    }

    /// The position in the index where the search for a hash begins.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.index.len() as u64) >> 32) as usize
    }

    /// The entries of the index for a hash, in search order.
    #[inline]
    fn entries(&self, hash: u64) -> impl Iterator<Item = &'m AtomicU32> + use<'m> {
        let index = self.index;
        let mut next = self.home(hash);
        (0..PROBES).map_while(move |_| {
            let entry = index.get(next)?;
            next = if next + 1 < index.len() { next + 1 } else { 0 };
            Some(entry)
        })
    }

    #[inline]
    fn tagged(&self, place: u32, hash: u64) -> u32 {
        (hash as u32 & !self.place_mask) | place
    }
}

/// The poll's steps of giving up old stacks. The caller must own the slot, except where a method
/// says otherwise.
impl Table<'_> {
    /// The number of free segments. Needs no ownership.
    pub(crate) fn free_segments(&self) -> usize {
        SEGMENTS - self.begun().count()
    }

    /// The condemned segments, a bit for each. Needs no ownership.
    pub(crate) fn condemned(&self) -> u32 {
        // Pairs with the store in `free`: a reader that sees the segment freed does not see its
        // earlier birth.
        self.cells.condemned.load(Ordering::Acquire)
    }

    /// The oldest segment in use, except the current one and those in `except`, a bit for each.
    /// Needs no ownership.
    pub(crate) fn oldest_segment(&self, except: u32) -> Option<u32> {
        let current = self.cells.current.load(Ordering::Relaxed);
        let others =
            self.begun().filter(|(segment, _)| *segment != current && except >> segment & 1 == 0);
        let (segment, _) = others.min_by_key(|(_, cells)| cells.birth.load(Ordering::Relaxed))?;
        Some(segment)
    }

    /// Condemns a segment, which must not be the current one: its stacks are no longer found. Only
    /// one segment may be condemned at a time. `live_buckets`: the size of the table of live
    /// allocations.
    pub(crate) fn condemn(&self, segment: u32, live_buckets: u32) {
        self.cells.unmoved.store(live_buckets, Ordering::Relaxed);
        self.cells.condemned.store(1 << segment, Ordering::Relaxed);
        self.cells.unswept.store(self.index.len() as u32, Ordering::Relaxed);
        // Pairs with the fence in `LiveTable::put_back`: the search of the live allocations comes
        // after this.
        fence(Ordering::SeqCst);
    }

    /// Cancels the condemnation: stacks that were not swept are found again.
    pub(crate) fn reprieve(&self) {
        self.cells.condemned.store(0, Ordering::Relaxed);
    }

    /// Whether the sweep of the condemned segment is complete. Needs no ownership.
    pub(crate) fn is_swept(&self) -> bool {
        self.cells.unswept.load(Ordering::Relaxed) == 0
    }

    /// The number of buckets of live allocations that were not searched for stacks of the condemned
    /// segment yet. Needs no ownership.
    pub(crate) fn unmoved(&self) -> u32 {
        self.cells.unmoved.load(Ordering::Relaxed)
    }

    /// Stores the number of those buckets.
    pub(crate) fn set_unmoved(&self, buckets: u32) {
        self.cells.unmoved.store(buckets, Ordering::Relaxed);
    }

    /// Inserts the stack at `place`, which lies in the condemned segment, into the current one;
    /// returns its new place. `path` must be empty.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn move_stack(&self, mut place: u32, mut path: Path<'_>) -> Result<u32, Full> {
        while let Some(node) = self.node(place) {
            let frames = node.frames.iter().map(|cell| cell.load(Ordering::Relaxed));
            frames.filter(|frame| *frame != 0).for_each(|frame| path.push(frame));
            place = node.parent.load(Ordering::Relaxed);
        }
        if path.is_empty() {
            return Err(Full);
        }
        self.keep_outside(0, &path)
    }

    /// The segments in `own`, a bit for each, and of those that new stacks are expected in (the
    /// current one, a free one, and the newest of the others) the ones in `kept` and up to `more`
    /// others. Needs no ownership.
    pub(crate) fn next_segments(&self, own: u32, kept: u32, mut more: u32) -> u32 {
        let current = self.cells.current.load(Ordering::Relaxed);
        let (mut free, mut newest) = (current, (0, current));
        for (segment, cells) in (0..).zip(&self.cells.segments) {
            match cells.birth.load(Ordering::Relaxed) {
                0 if free == current => free = segment,
                0 => {}
                birth if segment != current => newest = newest.max((birth, segment)),
                _ => {}
            }
        }
        let mut next = own;
        for segment in [current, free, newest.1] {
            let bit = 1 << segment;
            if (own | kept) & bit != 0 {
                next |= bit;
            } else if next & bit == 0 && more > 0 {
                next |= bit;
                more -= 1;
            }
        }
        next
    }

    /// Removes the condemned segment's stacks from the index, `budget` entries at most. It proceeds
    /// from the end to the front, so that a run of removed entries before an empty one becomes
    /// empty too.
    pub(crate) fn sweep(&self, budget: u32) {
        let condemned = self.condemned();
        let end = self.cells.unswept.load(Ordering::Relaxed);
        let start = end.saturating_sub(budget);
        for at in (start..end).rev() {
            let at = at as usize;
            let Some(entry) = self.index.get(at) else {
                continue;
            };
            let value = entry.load(Ordering::Relaxed);
            let segment = self.segment_of(value & self.place_mask);
            if value == TOMBSTONE || value != 0 && condemned >> segment & 1 != 0 {
                let next = self.index.get(at + 1).or(self.index.first());
                let is_last = next.is_none_or(|next| next.load(Ordering::Relaxed) == 0);
                entry.store(if is_last { 0 } else { TOMBSTONE }, Ordering::Relaxed);
            }
        }
        self.cells.unswept.store(start, Ordering::Relaxed);
    }

    /// Frees the condemned segment, which must have been swept and whose counts no recording needs.
    /// Records of the vCPU's ring before the position `named_from` may still refer to its stacks;
    /// they can no longer be resolved.
    pub(crate) fn free(&self, named_from: u64) {
        let condemned = self.condemned();
        let segments = (0_u32..).zip(&self.cells.segments);
        for (_, segment) in segments.filter(|(segment, _)| condemned >> segment & 1 != 0) {
            segment.named_from.store(named_from, Ordering::Release);
            segment.birth.store(0, Ordering::Release);
        }
        self.cells.condemned.store(0, Ordering::Release);
    }

    /// Sets a column's counts in a segment to zero, from the node with the index `from` on,
    /// `budget` nodes at most. Returns their sums and the index to continue at, `None` at the end.
    pub(crate) fn take_counts(
        &self,
        column: Column,
        segment: u32,
        from: u32,
        budget: u32,
    ) -> (Taken, Option<u32>) {
        let cells = self.cells.segments.get(segment as usize);
        let used = cells.map_or(0, |cells| cells.used.load(Ordering::Relaxed));
        let end = from.saturating_add(budget).min(used);
        let mut taken = Taken::default();
        for index in from..end {
            let place = self.place_of(segment, index);
            if let (Some(node), Some(cell)) = (self.node(place), self.counter(place, column)) {
                let weight = cell.load(Ordering::Relaxed);
                if weight != 0 {
                    cell.store(0, Ordering::Relaxed);
                    let sum = match node.leaf() {
                        frame_code::BLOCKED => &mut taken.blocked,
                        _ => &mut taken.ran,
                    };
                    *sum = sum.saturating_add(weight);
                }
            }
        }
        (taken, (end < used).then_some(end))
    }

    /// Stores the number of stacks so far, for [`window_ns`](Self::window_ns). Needs no ownership;
    /// only the poll calls it.
    pub(crate) fn note_rate(&self, now_ns: u64) {
        const EVERY_NS: u64 = 1_000_000_000;
        let [number, at_ns, newer_number, newer_at_ns] = &self.cells.rate;
        let last_ns = newer_at_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(last_ns) >= EVERY_NS {
            number.store(newer_number.load(Ordering::Relaxed), Ordering::Relaxed);
            at_ns.store(last_ns, Ordering::Relaxed);
            newer_number.store(self.newest(), Ordering::Relaxed);
            newer_at_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// Whether new stacks were added in the last second or two. Needs no ownership.
    pub(crate) fn is_growing(&self) -> bool {
        let [_, _, newer_number, _] = &self.cells.rate;
        self.newest() > newer_number.load(Ordering::Relaxed)
    }

    /// The time for which the segments can hold new stacks at the rate of the last seconds, in ns;
    /// `None` if there are no new ones. Needs no ownership.
    pub(crate) fn window_ns(&self, now_ns: u64) -> Option<u64> {
        let [number, at_ns, ..] =
            self.cells.rate.each_ref().map(|cell| cell.load(Ordering::Relaxed));
        let nodes = self.newest().saturating_sub(number.max(u64::from(self.segment_nodes)));
        let ns = now_ns.saturating_sub(at_ns);
        // The current segment and the one that is being freed are not wholly available.
        let held = u64::from(self.segment_nodes) * (SEGMENTS as u64 - 2);
        let window = u128::from(held) * u128::from(ns) / u128::from(nodes.max(1));
        (nodes > 0 && at_ns > 0).then(|| u64::try_from(window).unwrap_or(u64::MAX))
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::collections::{HashMap, HashSet};
    use std::vec::Vec;

    use super::*;
    use crate::stack::path::PathCells;

    struct Memory {
        nodes: Vec<Node>,
        index: Vec<AtomicU32>,
        more_counts: Vec<Counts>,
        cells: TableCells,
    }

    impl Memory {
        fn new(segment_nodes: usize) -> Self {
            let nodes = SEGMENTS * segment_nodes;
            Self {
                nodes: (0..nodes).map(|_| Node::default()).collect(),
                index: (0..Table::index_length(nodes)).map(|_| AtomicU32::new(0)).collect(),
                more_counts: (0..2 * nodes).map(|_| Counts::default()).collect(),
                cells: TableCells::default(),
            }
        }

        fn table(&self) -> Table<'_> {
            Table::new(&self.nodes, &self.index, &self.more_counts, &self.cells)
        }
    }

    const EVEN: Column = Column { recording: 0, parity: 0 };
    const ODD: Column = Column { recording: 0, parity: 1 };
    const ALL: u32 = 0xff;

    fn keep(table: &Table<'_>, frames: &[u32]) -> Result<u32, Full> {
        let cells = PathCells::default();
        let mut path = cells.begin();
        frames.iter().for_each(|frame| path.push(*frame));
        table.keep(&path)
    }

    fn count(table: &Table<'_>, frames: &[u32], column: Column) -> Result<(), Full> {
        table.add_to(keep(table, frames)?, column, 1);
        Ok(())
    }

    /// All stacks by their numbers, decoded from the encoding for clients.
    fn stacks(table: &Table<'_>) -> HashMap<u64, Vec<u32>> {
        let mut stacks: HashMap<u64, Vec<u32>> = HashMap::new();
        let mut buffer = [0; 1000];
        let mut after = 0;
        while let Some(run) = table.encode(after, u64::MAX, &mut buffer) {
            assert!(run.first > after);
            nodes::decode(run.first, run.count, &buffer[..run.bytes], |number, node| {
                let mut stack = node.frames.to_vec();
                if node.parent != 0 {
                    stack.extend_from_slice(&stacks[&node.parent]);
                }
                stacks.insert(number, stack);
            })
            .unwrap();
            after = run.first + u64::from(run.count) - 1;
        }
        assert_eq!(after, table.newest());
        stacks
    }

    /// All counts of a column, decoded from the encoding for clients.
    fn contents(table: &Table<'_>, column: Column) -> HashMap<Vec<u32>, u64> {
        let stacks = stacks(table);
        let mut sums = HashMap::new();
        let mut buffer = [0; 100];
        let mut after = 0;
        let range = |after| (after, table.newest());
        while let Some(run) = table.encode_counts(column, ALL, range(after), 37, &mut buffer) {
            counts::decode(after, run.count, &buffer[..run.bytes], |number, count| {
                *sums.entry(stacks[&number].clone()).or_insert(0) += count;
            })
            .unwrap();
            after = run.until;
        }
        sums
    }

    fn samples(table: &Table<'_>, column: Column) -> u64 {
        contents(table, column).values().sum()
    }

    /// Gives up the oldest segment and its counts.
    fn rotate(table: &Table<'_>, position: u64) {
        let segment = table.oldest_segment(0).unwrap();
        table.condemn(segment, 0);
        while !table.is_swept() {
            table.sweep(7);
        }
        table.free(position);
    }

    /// Generates stacks that share callers, as those of programs do.
    fn stack(seed: u32) -> Vec<u32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = |bound: u32| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state % bound
        };
        let depth = 1 + next(60);
        let mut frames: Vec<u32> = (0..depth).map(|level| 100 + level * 8 + next(3)).collect();
        frames.reverse();
        frames
    }

    #[test]
    fn counts_equal_a_hash_map_of_whole_stacks() {
        let memory = Memory::new(1024);
        let table = memory.table();
        let mut truth: HashMap<Vec<u32>, u64> = HashMap::new();
        for round in 0..3 {
            for seed in 0..1000 {
                let stack = stack(seed % (400 + round * 300));
                count(&table, &stack, EVEN).unwrap();
                *truth.entry(stack).or_default() += 1;
            }
        }
        assert_eq!(contents(&table, EVEN), truth);
        assert!(contents(&table, ODD).is_empty());
    }

    /// Tests the ends of all segments, in tables of all sizes near a power of two or the maximum.
    #[test]
    fn places_are_divided_into_segments_exactly() {
        let greatest = (MAX_NODES / SEGMENTS) as u32;
        let near = |size: u32| size.saturating_sub(9)..size + 9;
        let sizes = (4..22).flat_map(|bits| near(1 << bits));
        for size in sizes.chain(greatest - 9..=greatest) {
            for segment in 0..SEGMENTS as u32 {
                for index in [0, 1, size / 2, size - 1] {
                    let divided = quotient(segment * size + index, reciprocal(size));
                    assert_eq!(divided, segment, "{index} of {size}");
                }
            }
        }
    }

    /// A prefix of a stack, a stack with one changed frame, and the same frames at another depth
    /// are all distinct.
    #[test]
    fn near_stacks_are_distinguished() {
        let memory = Memory::new(64);
        let table = memory.table();
        let long: Vec<u32> = (16..56).collect();
        let mut truth = HashMap::new();
        for length in 1..=long.len() {
            for start in [0, 1] {
                let stack = long[start..length.max(start + 1)].to_vec();
                count(&table, &stack, EVEN).unwrap();
                *truth.entry(stack).or_insert(0) += 1;
            }
        }
        for changed in 0..long.len() {
            let mut stack = long.clone();
            stack[changed] = 7;
            count(&table, &stack, EVEN).unwrap();
            truth.insert(stack, 1);
        }
        assert_eq!(contents(&table, EVEN), truth);
    }

    /// Guards against merging stacks with equal hashes: every entry of this index has the same home
    /// and tag.
    #[test]
    fn hashes_are_never_believed() {
        let memory = Memory::new(40);
        let table = memory.table();
        let segment = table.segment_for(30).unwrap();
        for code in 1..=30 {
            let cells = PathCells::default();
            let mut path = cells.begin();
            path.push(code);
            assert_eq!(table.find(&path, path.len(), 0, |_| true), None);
            let place = table.add(&path, path.len(), 0, 0, segment).unwrap();
            assert_eq!(table.find(&path, path.len(), 0, |_| true), Some(place));
        }
    }

    /// Guards against a hash under which stacks with equally spaced leaves and call sites cluster
    /// in a part of the index: those beyond the last entry searched are lost although there is
    /// room.
    #[test]
    fn equally_spaced_leaves_and_call_sites_are_kept_while_there_is_room() {
        const LEAVES: u32 = 2000;
        const SITES: u32 = 5;
        for depth in 2..=8 {
            let memory = Memory::new((LEAVES * SITES) as usize / SEGMENTS + 1);
            let table = memory.table();
            let mut frames: Vec<u32> = (0..depth).map(|level| 0x9000 + level * 333).collect();
            for leaf in 0..LEAVES {
                for site in 0..SITES {
                    frames[0] = 16 + leaf * 16;
                    frames[depth as usize - 1] = 0x5_0000 + site * 16;
                    let kept = keep(&table, &frames);
                    assert!(kept.is_ok(), "{depth} frames, leaf {leaf}, call site {site}");
                }
            }
        }
    }

    #[test]
    fn a_full_table_refuses_what_is_new_and_counts_what_is_known() {
        let memory = Memory::new(1);
        let table = memory.table();
        let held = SEGMENTS as u32;
        for code in 1..=held {
            assert_eq!(count(&table, &[code], EVEN), Ok(()));
        }
        assert_eq!(table.free_segments(), 0);
        assert_eq!(count(&table, &[held + 1], EVEN), Err(Full));
        assert_eq!(count(&table, &[4], EVEN), Ok(()));
        assert_eq!(samples(&table, EVEN), u64::from(held) + 1);
        assert_eq!(count(&Memory::new(0).table(), &[5], EVEN), Err(Full));
    }

    /// A stack that does not fit into the rest of a segment is stored entirely in the next one.
    #[test]
    fn a_stack_lies_in_one_segment() {
        let memory = Memory::new(16);
        let table = memory.table();
        let mut truth = HashMap::new();
        for seed in 0..20_u32 {
            let stack: Vec<u32> = (0..40).map(|level| 100 + seed * 1000 + level).collect();
            count(&table, &stack, EVEN).unwrap();
            truth.insert(stack, 1);
        }
        for (number, _) in stacks(&table) {
            let mut place = table.place(number).unwrap();
            let segment = table.segment_of(place);
            while place != 0 {
                assert_eq!(table.segment_of(place), segment);
                let parent = table.parent(place).unwrap();
                assert!(parent < place);
                place = parent;
            }
        }
        assert_eq!(contents(&table, EVEN), truth);
    }

    /// Each recording has its own counts, and a stack is stored once for all.
    #[test]
    fn recordings_are_counted_and_cleared_apart() {
        let memory = Memory::new(64);
        let table = memory.table();
        let recordings = [0, 1, 2].map(|recording| Column::of(recording, 6));
        for code in 101..=120 {
            for (recording, column) in recordings.iter().enumerate() {
                (0..=recording).for_each(|_| count(&table, &[code], *column).unwrap());
            }
        }
        count(&table, &[frame_code::BLOCKED, 9], recordings[1]).unwrap();
        assert_eq!(table.used(), 21);
        assert_eq!(recordings.map(|column| samples(&table, column)), [20, 41, 60]);
        let taken = |ran, blocked| Taken { ran, blocked };
        assert_eq!(table.take_counts(recordings[1], 0, 0, 7), (taken(14, 0), Some(7)));
        assert_eq!(table.take_counts(recordings[1], 0, 7, 99), (taken(26, 1), None));
        assert_eq!(recordings.map(|column| samples(&table, column)), [20, 0, 60]);
        let beyond = Column::of(3, 6);
        count(&table, &[101], beyond).unwrap();
        assert_eq!(samples(&table, beyond), 0, "there is no such recording");
    }

    /// The memory can be used for ever: the oldest stacks are given up, the others stay correct,
    /// and no number is used twice.
    #[test]
    fn stacks_age_for_ever() {
        let memory = Memory::new(32);
        let table = memory.table();
        let mut numbers = HashSet::new();
        let mut names: HashMap<u64, Vec<u32>> = HashMap::new();
        for seed in 0..20_000_u32 {
            if table.free_segments() < 2 {
                let oldest = table.oldest();
                rotate(&table, seed.into());
                assert!(table.oldest() > oldest);
            }
            // New stacks among recurring ones, which are inserted again after they were given up.
            let stack = stack(if seed % 3 == 0 { seed } else { seed % 10 });
            let place = keep(&table, &stack).unwrap();
            let number = table.number(place);
            assert_eq!(table.place(number), Some(place));
            match names.get(&number) {
                Some(known) => assert_eq!(*known, stack, "a number names one stack for ever"),
                None => assert!(numbers.insert(number)),
            }
            names.insert(number, stack);
            if seed % 997 == 0 {
                let stacks = stacks(&table);
                for number in numbers.iter().filter(|number| **number >= table.oldest()) {
                    assert_eq!(stacks[number], names[number]);
                }
            }
        }
        assert!(table.newest() > 20_000);
        // The index refers only to stacks that exist.
        let entries = table.index.iter();
        let is_used = |entry: &&AtomicU32| !matches!(entry.load(Ordering::Relaxed), 0 | TOMBSTONE);
        assert_eq!(entries.filter(is_used).count(), table.used() as usize);
    }

    /// A reused node starts from zero in all columns.
    #[test]
    fn counts_of_a_segment_that_was_given_up_are_not_those_of_the_next() {
        let memory = Memory::new(16);
        let table = memory.table();
        let columns = [EVEN, ODD, Column::of(2, 1)];
        for code in 0..1000 {
            if table.free_segments() < 2 {
                rotate(&table, 0);
            }
            for column in columns {
                count(&table, &[100 + code], column).unwrap();
            }
        }
        for column in columns {
            assert!(contents(&table, column).values().all(|count| *count == 1));
        }
    }

    /// The next sample of a condemned stack inserts it again; its earlier counts stay where they
    /// are.
    #[test]
    fn a_condemned_stack_is_counted_in_the_current_segment() {
        let memory = Memory::new(16);
        let table = memory.table();
        (0..17).for_each(|code| count(&table, &[100 + code], EVEN).unwrap());
        let before = keep(&table, &[100]).unwrap();
        table.condemn(table.oldest_segment(0).unwrap(), 0);
        let after = keep(&table, &[100]).unwrap();
        assert_ne!(table.segment_of(before), table.segment_of(after));
        assert_eq!(keep(&table, &[100]), Ok(after));
        table.add_to(after, EVEN, 1);
        assert_eq!(contents(&table, EVEN)[&std::vec![100]], 2);
        table.reprieve();
        assert!(keep(&table, &[101]).is_ok());
        assert_eq!(table.used(), 18);
    }

    /// A ring record refers to a stack by its place; after the segment is used again, that is
    /// another stack.
    #[test]
    fn records_written_before_a_segment_was_freed_do_not_name_its_next_stacks() {
        let memory = Memory::new(16);
        let table = memory.table();
        let old = keep(&table, &[100]).unwrap();
        let number = table.number_at(old, 5);
        assert_ne!(number, 0);
        (0..16 * (SEGMENTS as u32 - 2)).for_each(|code| _ = keep(&table, &[200 + code]).unwrap());
        rotate(&table, 10);
        assert_eq!(table.number_at(old, 5), 0);
        let mut code = 1000;
        let reused = loop {
            let place = keep(&table, &[code]).unwrap();
            if place == old {
                break place;
            }
            code += 1;
        };
        assert_eq!(table.number_at(old, 9), 0, "an old record");
        assert!(table.number_at(reused, 10) > number, "a new one");
    }
}
