//! Keeps a stuck guest reachable: the upcall polls what the guest's loop should poll, when the loop
//! does not.
//!
//! A guest in an endless loop never polls its network, and that is when its owner wants the
//! profile. Keep what is polled (device, interface, sockets, [`Service`](crate::Service)) in a
//! [`PollCell`], and use it in three places:
//!
//! - The loop polls with [`PollCell::poll`], and reports with [`on_block`](PollCell::on_block) and
//!   [`on_wake`](PollCell::on_wake) that it sleeps: a sleeping loop is not stuck.
//! - The upcall calls [`notice`](PollCell::notice) for an event of the device, and at its end
//!   [`rescue`](PollCell::rescue). That polls if there is a reason to and the loop has not polled
//!   for [`OVERDUE_NS`], but never while a poll is in progress. One rescue is one bounded poll, on
//!   its own [`RescueStack`], since upcall stacks are small.
//! - Both then make sure that there is an upcall at [`look_at_ns`](PollCell::look_at_ns), since a
//!   stuck guest that records nothing has no other timer: the device's event arrives only once,
//!   when the loop is not yet overdue. Programming the timer only if that time is earlier than its
//!   deadline costs at most one hypercall in 50 ms, and none if no client is connected or the guest
//!   sleeps.
//!
//! Ticks during a rescue are delivered at its end, like other upcalls, and sample the code that is
//! stuck.
//!
//! The polled code must allow this: the device and the stack must be used only through the cell,
//! and polling must take no lock that the loop may hold, such as an allocator's or a console's. A
//! guest whose own TCP stack does not meet this cannot be reached while it is stuck.
#![allow(unsafe_code)]

// The architecture-specific part: `switch`.
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;

use core::cell::UnsafeCell;

use crate::ground::sync::{AtomicU32, AtomicU64, Ordering};

/// The time without a poll of the loop after which the upcall polls, in ns.
pub const OVERDUE_NS: u64 = 50_000_000;
/// [`PollCell::look_at_ns`] is never sooner than this, so that a stuck guest does not spend all its
/// time in rescues.
const PAUSE_NS: u64 = 1_000_000;
/// Used as a time: never.
const NEVER: u64 = u64::MAX;

/// Something that is polled by the guest's loop or, when that is stuck, by the upcall.
#[derive(Debug)]
pub struct PollCell<T> {
    polled: UnsafeCell<T>,
    busy: AtomicU32,
    /// When the loop's last poll began; [`NEVER`] while it sleeps.
    last_ns: AtomicU64,
    /// When the last poll asked to be called again even if nothing arrives.
    wanted_ns: AtomicU64,
    /// 1 if something has arrived since the last poll. Relaxed, also on several vCPUs: a poll
    /// clears it before it looks, and a device's last look comes after a full fence.
    noticed: AtomicU32,
    rescues: AtomicU64,
}

// SAFETY: `busy` admits one user at a time, on any vCPU, so T moves between vCPUs but is never
// shared.
unsafe impl<T: Send> Sync for PollCell<T> {}

impl<T> PollCell<T> {
    /// Creates a cell around `polled`; `now_ns` counts as the last poll.
    pub fn new(polled: T, now_ns: u64) -> Self {
        Self {
            polled: UnsafeCell::new(polled),
            busy: AtomicU32::new(0),
            last_ns: AtomicU64::new(now_ns),
            wanted_ns: AtomicU64::new(NEVER),
            noticed: AtomicU32::new(0),
            rescues: AtomicU64::new(0),
        }
    }

    /// The loop's poll. `poll` returns when it must be called again even if nothing arrives, on the
    /// clock of `now_ns`, and this returns the same; if another poll is in progress, it returns
    /// `now_ns`.
    pub fn poll(&self, now_ns: u64, poll: impl FnOnce(&mut T) -> Option<u64>) -> Option<u64> {
        let Some(_entered) = self.enter() else {
            return Some(now_ns);
        };
        self.last_ns.store(now_ns, Ordering::Relaxed);
        self.noticed.store(0, Ordering::Relaxed);
        // SAFETY: entered, so this is the only reference until `_entered` is dropped.
        let next_ns = poll(unsafe { &mut *self.polled.get() });
        self.wanted_ns.store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
        next_ns
    }

    /// The loop is about to sleep until it has to poll again. Call it with upcalls masked, like
    /// [`Agent::on_block`](crate::Agent::on_block).
    pub fn on_block(&self) {
        self.last_ns.store(NEVER, Ordering::Relaxed);
    }

    /// The loop has woken, and should poll within [`OVERDUE_NS`].
    pub fn on_wake(&self, now_ns: u64) {
        self.last_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Something to be polled may have arrived: the device has sent an event. Called from an
    /// upcall.
    pub fn notice(&self) {
        self.noticed.store(1, Ordering::Relaxed);
    }

    /// The upcall's poll, if the loop is overdue. Returns whether it polled.
    pub fn rescue(
        &self,
        now_ns: u64,
        stack: &RescueStack<'_>,
        mut poll: impl FnMut(&mut T) -> Option<u64>,
    ) -> bool {
        if self.due_ns().is_none_or(|due_ns| now_ns < due_ns) {
            return false;
        }
        let Some(_entered) = self.enter() else {
            return false;
        };
        self.noticed.store(0, Ordering::Relaxed);
        // SAFETY: as in `poll`.
        let polled = unsafe { &mut *self.polled.get() };
        let mut next_ns = None;
        let ran = stack.run(&mut || next_ns = poll(polled));
        if ran {
            self.rescues.fetch_add(1, Ordering::Relaxed);
            self.wanted_ns.store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
        } else {
            self.notice();
        }
        ran
    }

    /// When there should be an upcall that calls [`rescue`](Self::rescue), on the clock of
    /// `now_ns`; `None` if nothing waits for a poll, or if the loop sleeps. Call it after each poll
    /// and each upcall.
    pub fn look_at_ns(&self, now_ns: u64) -> Option<u64> {
        let due_ns = self.due_ns()?;
        Some(due_ns.max(now_ns.saturating_add(PAUSE_NS)))
    }

    /// The number of polls by the upcall.
    pub fn rescues(&self) -> u64 {
        self.rescues.load(Ordering::Relaxed)
    }

    /// When the upcall has to poll, in the current state.
    fn due_ns(&self) -> Option<u64> {
        let last_ns = self.last_ns.load(Ordering::Relaxed);
        let wanted_ns = match self.noticed.load(Ordering::Relaxed) {
            0 => self.wanted_ns.load(Ordering::Relaxed),
            _ => 0,
        };
        if last_ns == NEVER || wanted_ns == NEVER {
            return None;
        }
        Some(last_ns.saturating_add(OVERDUE_NS).max(wanted_ns))
    }

    fn enter(&self) -> Option<Entered<'_>> {
        let entered = self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        // Lazily, since dropping an `Entered` admits the next user.
        entered.is_ok().then(|| Entered(&self.busy))
    }
}

struct Entered<'a>(&'a AtomicU32);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A stack for rescues. All vCPUs share it, one at a time.
#[derive(Debug)]
pub struct RescueStack<'m> {
    top: *mut u8,
    busy: AtomicU32,
    _memory: core::marker::PhantomData<&'m mut [u8]>,
}

// SAFETY: this value has exclusive access to the memory, and `busy` admits one vCPU at a time.
unsafe impl Send for RescueStack<'_> {}
// SAFETY: as above.
unsafe impl Sync for RescueStack<'_> {}

impl<'m> RescueStack<'m> {
    /// Creates a stack in `memory`. 32 KiB is enough for the agent's own poll.
    ///
    /// # Safety
    ///
    /// The memory is large enough for everything that is polled on it: nothing guards its lower
    /// end.
    pub unsafe fn new(memory: &'m mut [u8]) -> Self {
        let end = memory.as_mut_ptr_range().end;
        // The ABI wants stacks aligned to 16 bytes.
        let top = end.wrapping_sub(end.addr() & 15);
        Self { top, busy: AtomicU32::new(0), _memory: core::marker::PhantomData }
    }

    /// Runs `work` on this stack; returns `false` if the stack is in use.
    fn run(&self, work: &mut dyn FnMut()) -> bool {
        let entered = self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        let Some(_entered) = entered.is_ok().then(|| Entered(&self.busy)) else {
            return false;
        };
        let mut work = work;
        // SAFETY: the stack is unused, large enough by the contract of `new`, and stays borrowed;
        // `call` gets the pointer that it expects, and does not unwind (a panic in a guest ends the
        // guest).
        unsafe { arch::switch(self.top, call, (&raw mut work).cast()) };
        true
    }
}

extern "C" fn call(work: *mut u8) {
    // SAFETY: `run` passes a pointer to its own `&mut dyn FnMut()`, which outlives the call.
    let work = unsafe { &mut *work.cast::<&mut dyn FnMut()>() };
    work();
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use super::*;

    fn stack() -> RescueStack<'static> {
        let memory = std::boxed::Box::leak(std::vec![0; 65536].into_boxed_slice());
        // SAFETY: 64 KiB for closures that count.
        unsafe { RescueStack::new(memory) }
    }

    /// Counts polls; the next one is wanted at `next_ns`.
    fn count(next_ns: Option<u64>) -> impl FnMut(&mut u32) -> Option<u64> {
        move |count| {
            *count += 1;
            next_ns
        }
    }

    fn polls(cell: PollCell<u32>) -> u32 {
        cell.polled.into_inner()
    }

    #[test]
    fn a_loop_that_polls_is_left_alone() {
        let (stack, cell) = (stack(), PollCell::new(0, 1000));
        cell.notice();
        assert!(!cell.rescue(1000 + OVERDUE_NS - 1, &stack, count(None)));
        assert_eq!(cell.look_at_ns(1000), Some(1000 + OVERDUE_NS));
        assert_eq!(cell.poll(2000, count(None)), None);
        assert_eq!(cell.look_at_ns(2000), None, "the loop has seen it");
        cell.notice();
        assert!(!cell.rescue(1000 + OVERDUE_NS, &stack, count(None)));
        assert!(cell.rescue(2000 + OVERDUE_NS, &stack, count(None)));
        assert_eq!((cell.rescues(), polls(cell)), (1, 2));
    }

    /// A stuck guest at 10 kHz should be sampled in its loop, not in ten thousand polls.
    #[test]
    fn without_anything_to_poll_for_nothing_is_polled() {
        let (stack, cell) = (stack(), PollCell::new(0, 0));
        assert_eq!(cell.look_at_ns(0), None);
        assert!(!cell.rescue(10 * OVERDUE_NS, &stack, count(None)));
        cell.notice();
        assert!(cell.rescue(10 * OVERDUE_NS, &stack, count(None)));
        assert!(!cell.rescue(11 * OVERDUE_NS, &stack, count(None)));
        assert_eq!(polls(cell), 1);
    }

    /// Retransmissions and timeouts must continue while the guest is stuck, even if no packet
    /// arrives.
    #[test]
    fn what_a_poll_wants_is_polled_in_time() {
        let (stack, cell) = (stack(), PollCell::new(0, 0));
        assert_eq!(cell.poll(0, count(Some(1000))), Some(1000));
        assert_eq!(cell.look_at_ns(0), Some(OVERDUE_NS), "the loop's time first");
        let late_ns = 10 * OVERDUE_NS;
        assert!(cell.rescue(OVERDUE_NS, &stack, count(Some(late_ns))));
        assert_eq!(cell.look_at_ns(OVERDUE_NS), Some(late_ns));
        assert!(!cell.rescue(late_ns - 1, &stack, count(None)));
        assert!(cell.rescue(late_ns, &stack, count(Some(late_ns))));
        assert_eq!(cell.look_at_ns(late_ns), Some(late_ns + PAUSE_NS));
    }

    #[test]
    fn a_loop_that_sleeps_is_not_stuck() {
        let (stack, cell) = (stack(), PollCell::new(0, 0));
        cell.poll(0, count(Some(1000)));
        cell.on_block();
        cell.notice();
        assert_eq!(cell.look_at_ns(0), None);
        assert!(!cell.rescue(10 * OVERDUE_NS, &stack, count(None)));
        cell.on_wake(20 * OVERDUE_NS);
        assert!(!cell.rescue(21 * OVERDUE_NS - 1, &stack, count(None)));
        assert!(cell.rescue(21 * OVERDUE_NS, &stack, count(None)));
    }

    /// An upcall that interrupts a poll must not begin another one.
    #[test]
    fn a_poll_under_way_is_not_entered_again() {
        let (stack, cell) = (stack(), PollCell::new(0, 0));
        let next_ns = cell.poll(0, |_| {
            cell.notice();
            assert!(!cell.rescue(OVERDUE_NS, &stack, count(None)));
            assert_eq!(cell.poll(5, count(None)), Some(5), "come back soon");
            Some(7)
        });
        assert_eq!(next_ns, Some(7));
        assert_eq!(cell.look_at_ns(0), Some(OVERDUE_NS), "noticed meanwhile");
        assert_eq!(cell.poll(0, |_| None), None, "left again");
    }

    /// The work must run inside the given memory, with an aligned stack, and return.
    #[test]
    fn a_rescue_runs_on_its_own_stack() {
        let mut memory = std::vec![0_u8; 65536 + 8];
        let bounds = memory.as_ptr_range();
        for cut in 0..8 {
            let end = memory.len() - cut;
            // SAFETY: 64 KiB for closures that format a number.
            let stack = unsafe { RescueStack::new(&mut memory[..end]) };
            let mut place = core::ptr::null();
            assert!(stack.run(&mut || {
                let local = core::hint::black_box(0_u128);
                place = (&raw const local).cast::<u8>();
                assert!(!stack.run(&mut || ()), "in use");
                // Needs an aligned stack: formatting uses aligned SSE stores.
                assert_eq!(std::format!("{:.3}", core::hint::black_box(1.5)), "1.500");
            }));
            assert!(bounds.contains(&place));
        }
    }
}
