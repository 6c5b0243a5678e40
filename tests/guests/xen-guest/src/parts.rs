//! Times the two large parts of a sample separately: the stack walk and the count in the table.
//!
//! The agent itself is measured as a whole and has no code for this. Here the same two functions run on the same
//! stacks, during the same work, without the rest.

#![allow(unsafe_code, reason = "a stack is read, and a pointer published")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use unikprof_agent::path::{MAX_DEPTH, PathCells};
use unikprof_agent::stack::StackMemory;
use unikprof_agent::table::{Column, Node, Table, TableCells};
use unikprof_agent::walk::{Guide, walk};
use unikprof_agent::{CodeMap, Registers};
use xen_sys_lite::clock::read_counter;
use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::processor::MAX_VCPUS;
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

/// Prepares the measurement that `parts` on the command line requests, for every running vCPU.
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

/// Walks and counts the stack interrupted at `registers`, if requested. Called in the vCPU's upcall.
pub(crate) fn measure(vcpu: VcpuId, registers: &Registers) {
    // SAFETY: the pointer is null or comes from a box that is never freed, and only this vCPU's upcall uses it.
    let parts = unsafe { PARTS[vcpu.0 as usize].load(Ordering::Acquire).as_ref() };
    let Some(parts) = parts else { return };
    let statistics = statistics::of(vcpu);
    let table = Table::new(&parts.nodes, &parts.index, &[], &parts.cells);
    let started = read_counter();
    let stack = vcpus::stack_bounds(registers.sp).map(|bounds| {
        // SAFETY: the bounds are those of a vCPU's stack, which is always mapped.
        unsafe { StackMemory::new(bounds) }
    });
    let guide = Guide::frame_pointers(&parts.code);
    let mut path = parts.path.begin();
    walk(registers, stack.as_ref(), &guide, MAX_DEPTH, &mut path);
    let walked = read_counter();
    // A full table no longer counts, but costs the same.
    let _ = table.count(&path, Column::of(0, 0));
    statistics.count.add(read_counter().wrapping_sub(walked));
    statistics.walk.add(walked.wrapping_sub(started));
    statistics.frames.add(path.len() as u64);
}
