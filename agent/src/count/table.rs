//! The table: call stacks counted in place.
//!
//! Stacks are kept as a tree whose nodes hold runs of [`FRAMES_PER_NODE`] frames, cut from the root:
//! stacks that share their outer callers share nodes, and one stack costs little more than its
//! leaf-most node of 64 bytes, a cache line. An index of hashes finds the leaf-most node of a path
//! at once; the whole path is then compared, node by node, so that two stacks are never mixed up.
//!
//! Nodes are only ever added while a recording runs. Each has two counts, one for the epoch that is
//! being counted and one for the epoch that is being fetched, so that an epoch costs 8 bytes a
//! stack and no copy. All cells are atomics: the reader of one epoch runs beside the writer of the
//! next.

use unikprof_proto::nodes;

use crate::ground::sync::{AtomicU32, AtomicU64, Ordering, add_owned};
pub use crate::stack::path::FRAMES_PER_NODE;
use crate::stack::path::Path;

/// How many entries of the index are looked at before a path counts as not there. At most half of
/// the index is in use, so a run this long is rare; a path behind it counts as overflow.
const PROBES: usize = 64;

/// A run of frames with its counts.
#[repr(C, align(64))]
#[derive(Debug)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub struct Node {
    /// Those of the first lane; the others' lie apart.
    counts: Counts,
    /// The id of the node towards the root; 0 = none.
    parent: AtomicU32,
    /// Leaf first; zeros in front where the run is not full.
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
}

/// Counts of one node: of the two epochs that one recording can have at a time.
pub type Counts = [AtomicU64; 2];

/// One of the columns of counts: each recording has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    lane: usize,
    parity: usize,
}

impl Column {
    /// The column of an epoch of the recording in a lane: neighbours never share one.
    #[inline]
    pub fn of(lane: usize, epoch: u64) -> Self {
        Self {
            lane,
            parity: (epoch & 1) as usize,
        }
    }
}

/// The table is full: the path was not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// One vCPU's stacks. A view: whoever calls [`count`](Self::count) or [`clear`](Self::clear) must be
/// the only one who does, which the slot sees to.
#[derive(Clone, Copy, Debug)]
pub struct Table<'m> {
    nodes: &'m [Node],
    /// Node ids, tagged in their upper bits with bits of the hash; 0 = empty.
    index: &'m [AtomicU32],
    /// Counts of the lanes after the first, node by node.
    more_counts: &'m [Counts],
    used: &'m AtomicU32,
    id_bits: u32,
}

impl<'m> Table<'m> {
    /// How many entries the index of `nodes` nodes should have: it is at most half full.
    pub const fn index_length(nodes: usize) -> usize {
        nodes * 2
    }

    /// A table over `nodes` and `index`, with `used` nodes in it so far. `more_counts` are those of the
    /// lanes after the first: as many for each node as there are.
    #[inline]
    pub fn new(
        nodes: &'m [Node],
        index: &'m [AtomicU32],
        more_counts: &'m [Counts],
        used: &'m AtomicU32,
    ) -> Self {
        let id_bits = u32::BITS - (nodes.len() as u32).leading_zeros();
        Self {
            nodes,
            index,
            more_counts,
            used,
            id_bits,
        }
    }

    /// How many nodes there is room for.
    pub fn capacity(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// How many nodes are in use.
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Acquire)
    }

    /// Counts one sample of `path`, which must not be empty, in `column`.
    ///
    /// # Errors
    /// [`Full`] where the path is new and there is no room for it.
    #[inline]
    pub fn count(&self, path: &Path<'_>, column: Column) -> Result<(), Full> {
        self.add_to(self.keep(path)?, column, 1);
        Ok(())
    }

    /// Keeps the stack of `path`, which must not be empty; answers the id that it is known by until
    /// the table is cleared.
    ///
    /// # Errors
    /// As [`count`](Self::count).
    #[inline]
    pub(crate) fn keep(&self, path: &Path<'_>) -> Result<u32, Full> {
        match self.find(path, 0, path.hash()) {
            Some(id) => Ok(id),
            None => self.insert(path),
        }
    }

    /// Adds `weight` to a stack that is kept.
    #[inline]
    pub(crate) fn add_to(&self, id: u32, column: Column, weight: u64) {
        if let Some(count) = self.counter(id, column) {
            add_owned(count, weight);
        }
    }

    /// Forgets all stacks. Nobody may be counting.
    pub fn clear(&self) {
        for entry in self.index {
            entry.store(0, Ordering::Relaxed);
        }
        self.used.store(0, Ordering::Release);
    }

    /// Zeroes a column from node `from` on, `budget` nodes at the most; answers where to go on, or
    /// `None` at the end. Nobody may be counting in this column.
    pub fn clear_column(&self, column: Column, from: u32, budget: u32) -> Option<u32> {
        let used = self.used();
        let end = from.saturating_add(budget).min(used);
        for id in from + 1..=end {
            if let Some(count) = self.counter(id, column) {
                count.store(0, Ordering::Relaxed);
            }
        }
        (end < used).then_some(end)
    }

    /// Encodes nodes from `first` on with their counts in `column`, or without any, as many as fit `buffer` and at
    /// most `last`; answers how many nodes and how many bytes.
    pub fn encode(
        &self,
        column: Option<Column>,
        first: u32,
        last: u32,
        buffer: &mut [u8],
    ) -> (u32, usize) {
        let mut encoder = nodes::Encoder::new(first, buffer);
        let mut count = 0;
        let mut frames = [0; FRAMES_PER_NODE];
        for id in first..=last.min(self.used()) {
            let Some(node) = self.node(id).filter(|_| encoder.has_room()) else {
                break;
            };
            for (frame, cell) in frames.iter_mut().zip(&node.frames) {
                *frame = cell.load(Ordering::Relaxed);
            }
            let padding = frames.iter().take_while(|frame| **frame == 0).count();
            encoder.push(nodes::Node {
                parent: node.parent.load(Ordering::Relaxed),
                frames: &frames[padding..],
                count: column
                    .and_then(|column| self.counter(id, column))
                    .map_or(0, |count| count.load(Ordering::Relaxed)),
            });
            count += 1;
        }
        (count, encoder.finish())
    }

    /// The node towards the root; 0 = none.
    pub(crate) fn parent(&self, id: u32) -> Option<u32> {
        Some(self.node(id)?.parent.load(Ordering::Relaxed))
    }

    #[inline]
    fn node(&self, id: u32) -> Option<&'m Node> {
        self.nodes.get((id as usize).wrapping_sub(1))
    }

    /// How many lanes there are after the first.
    fn more_lanes(&self) -> usize {
        self.more_counts.len() / self.nodes.len().max(1)
    }

    /// The count of a node in a column.
    #[inline]
    fn counter(&self, id: u32, column: Column) -> Option<&'m AtomicU64> {
        let counts = match column.lane.checked_sub(1) {
            None => &self.node(id)?.counts,
            Some(lane) => {
                let node = (id as usize).checked_sub(1)?;
                let lanes = self.more_lanes();
                self.more_counts
                    .get(node * lanes..(node + 1) * lanes)?
                    .get(lane)?
            }
        };
        counts.get(column.parity)
    }

    /// The node that ends the path, without its `skipped` leaf-most frames, whose hash is `hash`.
    #[inline]
    fn find(&self, path: &Path<'_>, skipped: usize, hash: u64) -> Option<u32> {
        for probe in 0..PROBES {
            let entry = self.entry(hash, probe)?.load(Ordering::Relaxed);
            if entry == 0 {
                return None;
            }
            let id = entry & self.id_mask();
            if entry == self.tagged(id, hash) && self.holds(id, path, path.len() - skipped) {
                return Some(id);
            }
        }
        None
    }

    /// Whether the stack that ends in node `id` is the `length` root-most frames of `path`.
    #[inline]
    fn holds(&self, mut id: u32, path: &Path<'_>, length: usize) -> bool {
        let mut from_root = (length - 1) / FRAMES_PER_NODE * FRAMES_PER_NODE;
        loop {
            let (Some(node), Some(run)) = (self.node(id), path.run(from_root)) else {
                return false;
            };
            id = node.parent.load(Ordering::Relaxed);
            if !node.holds(run) {
                return false;
            }
            if from_root == 0 || id == 0 {
                return from_root == 0 && id == 0;
            }
            from_root -= FRAMES_PER_NODE;
        }
    }

    /// Adds what is missing of `path`, from the root; answers the node that ends it.
    #[cold]
    #[inline(never)]
    fn insert(&self, path: &Path<'_>) -> Result<u32, Full> {
        let mut parent = 0;
        let mut length = 0;
        while length < path.len() {
            let from_root = length;
            length = (length + FRAMES_PER_NODE).min(path.len());
            let hash = path.root_hash(length);
            parent = match self.find(path, path.len() - length, hash) {
                Some(id) => id,
                None => self.add(path, from_root, parent, hash).ok_or(Full)?,
            };
        }
        Ok(parent)
    }

    fn add(&self, path: &Path<'_>, from_root: usize, parent: u32, hash: u64) -> Option<u32> {
        let used = self.used.load(Ordering::Relaxed);
        let node = self.nodes.get(used as usize)?;
        let id = used + 1;
        let entry = (0..PROBES)
            .map_while(|probe| self.entry(hash, probe))
            .find(|entry| entry.load(Ordering::Relaxed) == 0)?;
        for (frame, cell) in node.frames.iter().zip(path.run(from_root)?) {
            frame.store(cell.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        node.parent.store(parent, Ordering::Relaxed);
        let lanes = self.more_lanes();
        let more = self
            .more_counts
            .get(used as usize * lanes..id as usize * lanes);
        for count in more
            .unwrap_or_default()
            .iter()
            .chain([&node.counts])
            .flatten()
        {
            count.store(0, Ordering::Relaxed);
        }
        entry.store(self.tagged(id, hash), Ordering::Relaxed);
        // Whoever sees the new number of nodes sees the node.
        self.used.store(id, Ordering::Release);
        Some(id)
    }

    #[inline]
    fn entry(&self, hash: u64, probe: usize) -> Option<&'m AtomicU32> {
        let length = self.index.len();
        let home = (((hash >> 32) * length as u64) >> 32) as usize;
        let place = home + probe;
        self.index.get(if place < length {
            place
        } else {
            place - length
        })
    }

    #[inline]
    fn id_mask(&self) -> u32 {
        (1_u32 << self.id_bits).wrapping_sub(1)
    }

    #[inline]
    fn tagged(&self, id: u32, hash: u64) -> u32 {
        (hash as u32 & !self.id_mask()) | id
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::collections::HashMap;
    use std::vec::Vec;

    use super::*;
    use crate::stack::path::PathCells;

    struct Memory {
        nodes: Vec<Node>,
        index: Vec<AtomicU32>,
        more_counts: Vec<Counts>,
        used: AtomicU32,
    }

    impl Memory {
        fn new(nodes: usize) -> Self {
            Self {
                nodes: (0..nodes).map(|_| Node::default()).collect(),
                index: (0..Table::index_length(nodes))
                    .map(|_| AtomicU32::new(0))
                    .collect(),
                more_counts: (0..2 * nodes).map(|_| Counts::default()).collect(),
                used: AtomicU32::new(0),
            }
        }

        fn table(&self) -> Table<'_> {
            Table::new(&self.nodes, &self.index, &self.more_counts, &self.used)
        }
    }

    const EVEN: Column = Column { lane: 0, parity: 0 };
    const ODD: Column = Column { lane: 0, parity: 1 };

    fn count(table: &Table<'_>, frames: &[u32], column: Column) -> Result<(), Full> {
        let cells = PathCells::default();
        let mut path = cells.begin();
        frames.iter().for_each(|frame| path.push(*frame));
        table.count(&path, column)
    }

    /// Everything in a column, through the encoding that clients see.
    fn contents(table: &Table<'_>, column: Column) -> HashMap<Vec<u32>, u64> {
        let mut stacks: Vec<Vec<u32>> = std::vec![Vec::new()];
        let mut counts = HashMap::new();
        let mut buffer = [0; 1000];
        let mut first = 1;
        while first <= table.used() {
            let (count, length) = table.encode(Some(column), first, u32::MAX, &mut buffer);
            assert!(count > 0);
            nodes::decode(first, count, &buffer[..length], |_, node| {
                let mut stack = node.frames.to_vec();
                stack.extend_from_slice(&stacks[node.parent as usize]);
                if node.count > 0 {
                    assert_eq!(
                        counts.insert(stack.clone(), node.count),
                        None,
                        "a stack twice"
                    );
                }
                stacks.push(stack);
            })
            .unwrap();
            first += count;
        }
        counts
    }

    fn samples(table: &Table<'_>, column: Column) -> u64 {
        contents(table, column).values().sum()
    }

    /// A generator of stacks that share callers, as programs' stacks do.
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
        let memory = Memory::new(8192);
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

    /// A prefix of a stack, a stack one frame off, the same frames at another place: all distinct.
    #[test]
    fn near_stacks_are_told_apart() {
        let memory = Memory::new(256);
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

    /// Equal hashes must not merge stacks: every entry of this index has the same home and tag.
    #[test]
    fn hashes_are_never_believed() {
        let memory = Memory::new(40);
        let table = memory.table();
        for code in 1..=30 {
            let cells = PathCells::default();
            let mut path = cells.begin();
            path.push(code);
            assert_eq!(table.find(&path, 0, 0), None);
            table.add(&path, 0, 0, 0).unwrap();
            assert_eq!(table.find(&path, 0, 0), Some(code));
        }
    }

    #[test]
    fn a_full_table_refuses_what_is_new_and_counts_what_is_known() {
        let memory = Memory::new(4);
        let table = memory.table();
        for code in 1..=4 {
            assert_eq!(count(&table, &[code], EVEN), Ok(()));
        }
        assert_eq!(count(&table, &[5], EVEN), Err(Full));
        assert_eq!(count(&table, &[4], EVEN), Ok(()));
        assert_eq!(samples(&table, EVEN), 5);
        assert_eq!(count(&Memory::new(0).table(), &[5], EVEN), Err(Full));
    }

    /// Each recording's counts are its own, and a stack is kept once for all.
    #[test]
    fn lanes_are_counted_and_cleared_apart() {
        let memory = Memory::new(64);
        let table = memory.table();
        let lanes = [0, 1, 2].map(|lane| Column::of(lane, 6));
        for code in 1..=20 {
            for (lane, column) in lanes.iter().enumerate() {
                (0..=lane).for_each(|_| count(&table, &[code], *column).unwrap());
            }
        }
        assert_eq!(table.used(), 20);
        assert_eq!(lanes.map(|column| samples(&table, column)), [20, 40, 60]);
        assert_eq!(table.clear_column(lanes[1], 0, 100), None);
        assert_eq!(lanes.map(|column| samples(&table, column)), [20, 0, 60]);
        let beyond = Column::of(3, 6);
        count(&table, &[1], beyond).unwrap();
        assert_eq!(samples(&table, beyond), 0, "there is no such lane");
        table.clear();
        count(&table, &[3], lanes[0]).unwrap();
        assert_eq!(lanes.map(|column| samples(&table, column)), [1, 0, 0]);
    }

    #[test]
    fn columns_are_counted_and_cleared_apart() {
        let memory = Memory::new(64);
        let table = memory.table();
        for code in 1..=20 {
            count(&table, &[code], EVEN).unwrap();
            count(&table, &[code], ODD).unwrap();
        }
        assert_eq!(table.clear_column(EVEN, 0, 7), Some(7));
        assert_eq!(table.clear_column(EVEN, 7, 100), None);
        assert_eq!((samples(&table, EVEN), samples(&table, ODD)), (0, 20));
        table.clear();
        assert_eq!(table.used(), 0);
        count(&table, &[3], ODD).unwrap();
        assert_eq!(
            samples(&table, ODD),
            1,
            "a node that is used again starts from zero"
        );
    }
}
