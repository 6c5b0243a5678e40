//! A platform without clocks and timers: the test sets the time.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use unikprof_agent::{Platform, Runstate};

use super::stacks::StackImage;

/// One vCPU, on a stack that generated stacks are written to.
#[derive(Debug)]
pub(crate) struct FakePlatform {
    now_ns: AtomicU64,
    blocked_ns: AtomicU64,
    stack: StackImage,
}

impl FakePlatform {
    /// A vCPU whose stack has room for `depth` frames.
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            now_ns: AtomicU64::new(1),
            blocked_ns: AtomicU64::new(0),
            stack: StackImage::new(depth),
        }
    }

    /// The vCPU's stack.
    pub(crate) fn stack(&self) -> &StackImage {
        &self.stack
    }

    /// Advances the time, all of it running.
    pub(crate) fn advance(&self, ns: u64) {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        self.now_ns.store(now_ns + ns, Ordering::Relaxed);
    }

    /// Advances the time, all of it blocked.
    #[allow(dead_code, reason = "shared with benches")]
    pub(crate) fn idle(&self, ns: u64) {
        self.advance(ns);
        self.blocked_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

// SAFETY: `stack_bounds` returns memory that the platform owns.
unsafe impl Platform for FakePlatform {
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
        self.now_ns.load(Ordering::Relaxed) - self.blocked_ns.load(Ordering::Relaxed)
    }

    fn runstate(&self, _: u32) -> Option<Runstate> {
        None
    }

    fn kick(&self, _: u32) {}

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        let bounds = self.stack.bounds();
        bounds.contains(&sp).then_some(sp..bounds.end)
    }

    fn random(&self) -> Option<u64> {
        Some(1)
    }
}
