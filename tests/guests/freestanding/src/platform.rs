//! One vCPU, a clock that the test advances, and a stack of words.
#![allow(unsafe_code)]

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use unikprof_agent::{Mapping, Platform, Registers, Runstate};

/// The pretended address of the code.
const CODE: u64 = 0x40_0000;

pub(crate) const MAPPINGS: [Mapping<'static>; 1] = [Mapping {
    start: CODE,
    end: CODE + 0x1000,
    file_offset: 0,
    build_id: &[],
    path: "",
}];

/// Three callers, and the end of the chain.
const RETURNS: [u64; 3] = [CODE + 0x100, CODE + 0x200, CODE + 0x300];

/// The frames of a sample: the interrupted function and its callers.
pub(crate) const FRAMES: usize = 1 + RETURNS.len();

pub(crate) struct OneVcpu {
    now_ns: AtomicU64,
    stack: [AtomicU64; 2 * RETURNS.len()],
}

impl OneVcpu {
    pub(crate) fn new() -> Self {
        Self {
            now_ns: AtomicU64::new(1),
            stack: [const { AtomicU64::new(0) }; 2 * RETURNS.len()],
        }
    }

    pub(crate) fn pass(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Writes the chain of frames; returns the registers of the interrupted code.
    pub(crate) fn interrupted(&self) -> Registers {
        let Range { start, end } = self.bounds();
        for (index, (record, address)) in self.stack.chunks_exact(2).zip(RETURNS).enumerate() {
            let next = start + 16 * (index as u64 + 1);
            let caller_fp = if next == end { 0 } else { next };
            record[0].store(caller_fp, Ordering::Relaxed);
            record[1].store(address, Ordering::Relaxed);
        }
        Registers::new(CODE, start, start)
    }

    fn bounds(&self) -> Range<u64> {
        let words = self.stack.as_ptr_range();
        words.start.expose_provenance() as u64..words.end.expose_provenance() as u64
    }
}

// SAFETY: `stack_bounds` returns the bounds of the value's own array, which outlives every call.
unsafe impl Platform for OneVcpu {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        None
    }

    fn vcpu(&self) -> Option<u32> {
        Some(0)
    }

    fn running_ns(&self, _: u32) -> u64 {
        self.now_ns()
    }

    fn runstate(&self, _: u32) -> Option<Runstate> {
        None
    }

    fn kick(&self, _: u32) {}

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        Some(self.bounds()).filter(|bounds| bounds.contains(&sp))
    }

    fn random(&self) -> Option<u64> {
        None
    }
}
