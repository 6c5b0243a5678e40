//! The platform below each agent: one vCPU that always runs, until the guest rests.
//!
//! The clock stands still between batches of ticks. Each tick is delivered with the clock at its
//! deadline, as if it had come in time, however busy this machine is; a client sees the guest
//! between batches only, when the clock is the machine's.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unikprof_agent::{Platform, Runstate};

#[derive(Debug)]
pub(super) struct Simulated {
    origin: Instant,
    /// The origin's time of day, in ns since 1970.
    origin_unix_ns: u64,
    now_ns: Cell<u64>,
    /// The running time at the guest's rest.
    rests_at_ns: Cell<Option<u64>>,
    /// The bounds of the interrupted stack during a tick; taken when the agent reads it.
    stack: RefCell<Option<Range<u64>>>,
    kicked: Cell<bool>,
}

impl Simulated {
    /// One whose clock shows this date, in s since 1970, or this machine's.
    pub(super) fn new(date: Option<u64>) -> Self {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Simulated {
            origin: Instant::now(),
            origin_unix_ns: date.map_or_else(now, Duration::from_secs).as_nanos() as u64,
            now_ns: Cell::new(0),
            rests_at_ns: Cell::new(None),
            stack: RefCell::new(None),
            kicked: Cell::new(false),
        }
    }

    /// Calls `tick` with a stack in these bounds. Answers whether the stack was read.
    pub(super) fn interrupt(&self, stack: Range<u64>, tick: impl FnOnce()) -> bool {
        self.stack.replace(Some(stack));
        tick();
        self.stack.take().is_none()
    }

    /// Lets the clock go on to this time, if it has not reached it.
    pub(super) fn advance_to(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get().max(ns));
    }

    /// The machine's clock, on which the guest's is to be after the ticks that are due.
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
}

// SAFETY: the only bounds are those given to `interrupt`, of stacks in a `Program`, which outlives
// the agent's calls: it is called with its own.
unsafe impl Platform for Simulated {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn work_ns(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the pointer is that of a `timespec`, which the call writes.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        Some(self.origin_unix_ns + self.now_ns())
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
            blocked_ns: self.now_ns() - self.running_ns(vcpu),
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
