//! A platform without clocks and timers: the test sets the time.
#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

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

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let blocked_ns = self.blocked_ns.load(Ordering::Relaxed);
        Some(Runstate { running_ns: self.running_ns(vcpu), blocked_ns, ..Runstate::default() })
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

/// The fake platform with two vCPUs, of which the test selects the current one. Its guest can
/// crash.
pub(crate) struct TwoVcpus {
    pub(crate) fake: FakePlatform,
    current: AtomicU32,
    pub(crate) wall_clock_ns: AtomicU64,
    /// Stolen time; [`UNKNOWN`] if the platform does not know it.
    pub(crate) stolen_ns: AtomicU64,
    /// How long it takes to read a vCPU's times.
    pub(crate) reading_ns: AtomicU64,
    /// Whether the guest panics in the middle of its next tick.
    pub(crate) breaks: AtomicBool,
    /// The number of clock reads until the guest panics.
    pub(crate) looks: AtomicU64,
}

impl TwoVcpus {
    /// vCPUs whose stack has room for `depth` frames.
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            fake: FakePlatform::new(depth),
            current: AtomicU32::new(0),
            wall_clock_ns: AtomicU64::new(1_800_000_000_000_000_000),
            stolen_ns: AtomicU64::new(UNKNOWN),
            reading_ns: AtomicU64::new(0),
            breaks: AtomicBool::new(false),
            looks: AtomicU64::new(u64::MAX),
        }
    }

    pub(crate) fn switch_to(&self, vcpu: u32) {
        self.current.store(vcpu, Ordering::Relaxed);
    }
}

/// An unknown vCPU.
pub(crate) const NOWHERE: u32 = u32::MAX;

const UNKNOWN: u64 = u64::MAX;

// SAFETY: returns what the fake platform returns.
unsafe impl Platform for TwoVcpus {
    fn now_ns(&self) -> u64 {
        let before = self.looks.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "the guest dies while it crashes");
        self.fake.now_ns()
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        Some(self.wall_clock_ns.load(Ordering::Relaxed))
    }

    fn vcpu(&self) -> Option<u32> {
        let current = self.current.load(Ordering::Relaxed);
        (current != NOWHERE).then_some(current)
    }

    fn running_ns(&self, vcpu: u32) -> u64 {
        self.fake.running_ns(vcpu)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        self.fake.advance(self.reading_ns.load(Ordering::Relaxed));
        let runnable_ns = self.stolen_ns.load(Ordering::Relaxed);
        (runnable_ns != UNKNOWN).then(|| Runstate {
            running_ns: self.running_ns(vcpu),
            runnable_ns,
            blocked_ns: self.fake.blocked_ns.load(Ordering::Relaxed),
            ..Runstate::default()
        })
    }

    fn kick(&self, _: u32) {}

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        assert!(!self.breaks.load(Ordering::Relaxed), "the guest crashes");
        self.fake.stack_bounds(sp)
    }

    fn random(&self) -> Option<u64> {
        Some(1)
    }
}
