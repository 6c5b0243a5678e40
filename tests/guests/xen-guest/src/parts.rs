//! The two large parts of a sample, timed one by one: the walk over the stack and the count in the table.
//!
//! The agent itself is measured as a whole, without a line in it for that. Here are the same two functions on
//! the same stacks, between the same work, with nothing else around them.

#![allow(unsafe_code, reason = "a stack is read, and a pointer published")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use unikprof_agent::path::{MAX_DEPTH, PathCells};
use unikprof_agent::stack::StackMemory;
use unikprof_agent::table::{Column, Node, Table, TableCells};
use unikprof_agent::walk::{Guide, walk};
use unikprof_agent::{CodeMap, Registers};
use xen_sys_lite::clock::read_tsc;
use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::descriptors::MAX_VCPUS;
use crate::{profiler, statistics, vcpus};

/// Room for the stacks of one vCPU.
const NODES: usize = 16 * 1024;

struct Parts {
    code: CodeMap,
    path: PathCells,
    nodes: Vec<Node>,
    index: Vec<AtomicU32>,
    cells: TableCells,
}

static PARTS: [AtomicPtr<Parts>; MAX_VCPUS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_VCPUS];

/// Prepares what `parts` on the command line asks for, for every vCPU that runs.
pub(crate) fn prepare(command_line: CommandLine) {
    if command_line.value("parts").is_none() {
        return;
    }
    for parts in &PARTS[..vcpus::running() as usize] {
        let code = CodeMap::new(&[profiler::image()])
            .unwrap_or_else(|error| panic!("the guest's own code: {error}"));
        let new = Box::new(Parts {
            code,
            path: PathCells::default(),
            nodes: (0..NODES).map(|_| Node::default()).collect(),
            index: (0..Table::index_length(NODES))
                .map(|_| AtomicU32::new(0))
                .collect(),
            cells: TableCells::default(),
        });
        parts.store(Box::leak(new), Ordering::Release);
    }
}

/// Walks and counts the stack that `registers` were interrupted on, if that was asked for. In the vCPU's upcall.
pub(crate) fn measure(vcpu: VcpuId, registers: &Registers) {
    // SAFETY: the pointer is null or comes from a box that is never freed, used by this vCPU's upcall alone.
    let parts = unsafe { PARTS[vcpu.0 as usize].load(Ordering::Acquire).as_ref() };
    let Some(parts) = parts else { return };
    let statistics = statistics::of(vcpu);
    let table = Table::new(&parts.nodes, &parts.index, &[], &parts.cells);
    let started = read_tsc();
    let stack = vcpus::stack_bounds(registers.sp).map(|bounds| {
        // SAFETY: the bounds are those of a vCPU's stack, mapped for ever.
        unsafe { StackMemory::new(bounds) }
    });
    let guide = Guide::frame_pointers(&parts.code);
    let mut path = parts.path.begin();
    walk(registers, stack.as_ref(), &guide, MAX_DEPTH, &mut path);
    let walked = read_tsc();
    // A full table counts no more, and costs the same.
    let _ = table.count(&path, Column::of(0, 0));
    statistics.count.add(read_tsc().wrapping_sub(walked));
    statistics.walk.add(walked.wrapping_sub(started));
    statistics.frames.add(path.len() as u64);
}
