//! The platform below each agent: one vCPU that always runs, until the guest rests.
//!
//! Ticks are delivered in batches, each with the clock at its deadline, as if it had come in time: a client sees the guest
//! between batches only. Otherwise the clock is the machine's.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unikprof_agent::{Platform, Runstate};

#[derive(Debug)]
pub(super) struct Simulated {
    origin: Instant,
    /// The latest time that the clock has shown.
    shown_ns: Cell<u64>,
    /// During a tick: the only time that the clock shows.
    stopped_ns: Cell<Option<u64>>,
    /// The running time at the guest's rest.
    rests_at_ns: Cell<Option<u64>>,
    /// The bounds of the interrupted stack during a tick; taken when the agent reads it.
    stack: RefCell<Option<Range<u64>>>,
    kicked: Cell<bool>,
}

impl Simulated {
    pub(super) fn new() -> Self {
        Simulated {
            origin: Instant::now(),
            shown_ns: Cell::new(0),
            stopped_ns: Cell::new(None),
            rests_at_ns: Cell::new(None),
            stack: RefCell::new(None),
            kicked: Cell::new(false),
        }
    }

    /// Calls `tick` with the clock stopped at `ns`, or later if it has shown a later time, and with a stack in these
    /// bounds. Answers whether the stack was read.
    pub(super) fn at(&self, ns: u64, stack: Range<u64>, tick: impl FnOnce()) -> bool {
        self.show(ns);
        self.stopped_ns.set(Some(self.shown_ns.get()));
        self.stack.replace(Some(stack));
        tick();
        self.stopped_ns.set(None);
        self.stack.take().is_none()
    }

    /// The machine's clock. Unlike `now_ns` it may be ahead of the ticks that are still to be delivered.
    pub(super) fn elapsed_ns(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    /// This time of the clock on the machine's.
    pub(super) fn instant(&self, ns: u64) -> Instant {
        self.origin + Duration::from_nanos(ns)
    }

    /// From now on no time is running time.
    pub(super) fn rest(&self) {
        self.rests_at_ns.set(Some(self.running_ns(0)));
    }

    /// Whether the agent has asked for a tick since the last call.
    pub(super) fn take_kick(&self) -> bool {
        self.kicked.take()
    }

    fn show(&self, ns: u64) -> u64 {
        self.shown_ns.set(self.shown_ns.get().max(ns));
        self.shown_ns.get()
    }
}

// SAFETY: the only bounds are those given to `at`, of stacks in a `Program`, which outlives the agent's calls: `at` is
// called with its own.
unsafe impl Platform for Simulated {
    fn now_ns(&self) -> u64 {
        match self.stopped_ns.get() {
            Some(ns) => ns,
            None => self.show(self.elapsed_ns()),
        }
    }

    fn work_ns(&self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the pointer is that of a `timespec`, which the call writes.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(since.as_nanos() as u64)
    }

    fn vcpu(&self) -> Option<u32> {
        Some(0)
    }

    fn running_ns(&self, _: u32) -> u64 {
        self.rests_at_ns.get().unwrap_or_else(|| self.now_ns())
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        Some(Runstate {
            running_ns: self.running_ns(vcpu),
            blocked_ns: self.blocked_ns(vcpu),
            ..Runstate::default()
        })
    }

    fn kick(&self, _: u32) {
        self.kicked.set(true);
    }

    fn stack_bounds(&self, _: u64) -> Option<Range<u64>> {
        self.stack.take()
    }

    fn random(&self) -> Option<u64> {
        // The keys of these guests protect nothing.
        Some(fastrand::u64(..))
    }
}
