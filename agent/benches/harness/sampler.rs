//! The work of a tick on the interrupted registers, without an agent.

use std::hint::black_box;
use std::sync::atomic::AtomicU32;

use unikprof_agent::path::PathCells;
use unikprof_agent::stack::{ReadCode, ReadStack, StackMemory};
use unikprof_agent::table::{Column, Node, Table};
use unikprof_agent::walk::{Guide, walk};
use unikprof_agent::{CodeMap, MAX_DEPTH, Registers};

use super::fake::stacks::{MAPPING, StackImage};

/// The number of nodes of an agent with 1 MiB for one vCPU.
pub(crate) const NODES: usize = 14_000;

/// An agent's table, path and code map, without an agent. Their memory is never freed.
pub(crate) struct Sampler {
    pub(crate) nodes: &'static [Node],
    pub(crate) index: &'static [AtomicU32],
    pub(crate) table: Table<'static>,
    pub(crate) cells: PathCells,
    pub(crate) code: CodeMap,
}

impl Sampler {
    /// With the generated program's code.
    pub(crate) fn new() -> Self {
        Self::of(CodeMap::new(&[MAPPING]).unwrap())
    }

    pub(crate) fn of(code: CodeMap) -> Self {
        let nodes: Vec<Node> = (0..NODES).map(|_| Node::default()).collect();
        let index: Vec<AtomicU32> =
            (0..Table::index_length(NODES)).map(|_| AtomicU32::new(0)).collect();
        let (nodes, index) = (nodes.leak(), index.leak());
        let cells = Box::leak(Box::default());
        Self {
            nodes,
            index,
            table: Table::new(nodes, index, &[], cells),
            cells: PathCells::default(),
            code,
        }
    }

    /// The work of a tick on the interrupted registers after it has taken the slot.
    pub(crate) fn sample(&self, registers: &Registers, image: &StackImage) {
        self.sample_by(&Guide::frame_pointers(&self.code), registers, image);
    }

    /// The same with another guide.
    #[inline]
    pub(crate) fn sample_by(
        &self,
        guide: &Guide<'_, impl ReadCode>,
        registers: &Registers,
        image: &StackImage,
    ) {
        self.cells.prefetch();
        // SAFETY: the bounds are those of the image's memory.
        let stack = unsafe { StackMemory::new(image.bounds()) };
        self.count(guide, registers, &stack);
    }

    /// Walks any stack and counts it; returns the number of its frames.
    #[inline]
    pub(crate) fn count(
        &self,
        guide: &Guide<'_, impl ReadCode>,
        registers: &Registers,
        stack: &impl ReadStack,
    ) -> usize {
        let mut path = self.cells.begin();
        let walked = walk(registers, Some(stack), guide, MAX_DEPTH, &mut path);
        black_box(walked);
        black_box(self.table.count(&path, Column::of(0, 0)).is_ok());
        path.len()
    }
}

/// The minimum work of any walker: each record's address comes from the record before it.
pub(crate) fn chase(registers: &Registers) -> u64 {
    let (mut fp, mut seen) = (registers.fp, 0);
    while fp != 0 {
        let record = std::ptr::with_exposed_provenance::<u64>(fp as usize);
        // SAFETY: `StackImage::lay` has written the whole chain, which ends with 0.
        unsafe {
            seen ^= record.add(1).read_volatile();
            fp = record.read_volatile();
        }
    }
    seen
}
