//! Admits calls to the agent, and closes only while no call is inside.
//!
//! Calls enter at any time, on several vCPUs at once, and nest. Each call increments one of several
//! counters before it reads the pointer to the agent, and decrements it when it leaves. Each
//! counter has a cache line of its own, and the stack that a call runs on selects the counter: two
//! vCPUs run on two stacks, and write to the same line only if both stacks select the same counter.
//!
//! [`Gate::close`] marks the pointer, reads all counters, and takes the pointer away if all are 0
//! and the mark is still set. A call that finds the mark removes it and enters. So a failed close
//! never refuses a call, and after a successful close no call is inside.
//!
//! Neither side waits. `close` reads each counter with a read-modify-write: either it sees a call's
//! increment, or that increment comes later in the counter's modification order and the call sees
//! the mark. Acquire and release ordering is enough. The loom tests run this code.

use core::ptr;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The number of counters.
#[cfg(not(loom))]
const LINES: usize = 16;
#[cfg(loom)]
const LINES: usize = 2;

/// Set in the pointer while the gate is being closed.
const CLOSING: usize = 1;

/// The size of a stack is usually a multiple of this power of two, so two stacks never share such a
/// block.
const STACK_BITS: u32 = 12;

/// A cache line of its own: the pointer is read by every call and seldom written.
#[repr(align(64))]
struct Line<T>(T);

/// A pointer to a `T` in memory that can be taken away.
pub(crate) struct Gate<T> {
    /// NULL while closed.
    to: Line<AtomicPtr<T>>,
    /// Calls that are inside.
    inside: [Line<AtomicUsize>; LINES],
}

/// Why a gate could not be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotClosed {
    /// The gate was closed already.
    Closed,
    /// A call is inside, or has entered during the close.
    Busy,
}

impl<T> Gate<T> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            to: Line(AtomicPtr::new(ptr::null_mut())),
            inside: [const { Line(AtomicUsize::new(0)) }; LINES],
        }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            to: Line(AtomicPtr::new(ptr::null_mut())),
            inside: [(); LINES].map(|()| Line(AtomicUsize::new(0))),
        }
    }

    /// Calls `work` with the pointer, which stays valid until `work` returns; returns `None` if the
    /// gate is closed. Never waits.
    #[inline]
    pub(crate) fn enter<R>(&self, work: impl FnOnce(*const T) -> R) -> Option<R> {
        self.enter_by(line_of_stack(), work)
    }

    /// Like [`enter`](Self::enter), with this counter.
    #[inline]
    fn enter_by<R>(&self, line: usize, work: impl FnOnce(*const T) -> R) -> Option<R> {
        let _inside = Inside::count(&self.inside[line % LINES].0);
        let mut to = self.to.0.load(Ordering::Acquire);
        if to.addr() & CLOSING != 0 {
            to = self.stay_open(to);
        }
        if to.is_null() {
            return None;
        }
        Some(work(to))
    }

    /// Removes the mark and returns the pointer as it is then.
    #[cold]
    fn stay_open(&self, marked: *mut T) -> *mut T {
        let to = marked.map_addr(|address| address & !CLOSING);
        match self.to.0.compare_exchange(marked, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => to,
            // Closed, or open again. It cannot be marked again: the next close also sees this call.
            Err(now) => now.map_addr(|address| address & !CLOSING),
        }
    }

    /// The pointer, or NULL while the gate is closed. Only for the caller that opens and closes it.
    pub(crate) fn get(&self) -> *mut T {
        self.to.0.load(Ordering::Acquire)
    }

    /// Lets calls in to `to`. Only one caller at a time may use `open`, `close` and `get`.
    pub(crate) fn open(&self, to: *mut T) {
        const { assert!(align_of::<T>() > CLOSING) };
        self.to.0.store(to, Ordering::Release);
    }

    /// Closes the gate unless a call is inside, and returns the pointer, which no call uses any
    /// more. If closing fails, every call that came in the meantime has entered.
    pub(crate) fn close(&self) -> Result<*mut T, NotClosed> {
        let to = self.get();
        if to.is_null() {
            return Err(NotClosed::Closed);
        }
        let marked = to.map_addr(|address| address | CLOSING);
        self.to.0.store(marked, Ordering::Release);
        let is_empty =
            self.inside.iter().all(|Line(count)| count.fetch_add(0, Ordering::AcqRel) == 0);
        let next = if is_empty { ptr::null_mut() } else { to };
        let was = self.to.0.compare_exchange(marked, next, Ordering::AcqRel, Ordering::Relaxed);
        if was.is_ok() && is_empty { Ok(to) } else { Err(NotClosed::Busy) }
    }
}

/// A call that is inside, until it is dropped.
struct Inside<'g>(&'g AtomicUsize);

impl<'g> Inside<'g> {
    #[inline]
    fn count(calls: &'g AtomicUsize) -> Self {
        calls.fetch_add(1, Ordering::AcqRel);
        Self(calls)
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The counter that the current stack selects.
#[inline(always)]
fn line_of_stack() -> usize {
    let here = core::mem::MaybeUninit::<u8>::uninit();
    line_of(here.as_ptr().addr())
}

/// The counter for an address in a stack; neighbouring stacks select different ones.
#[inline(always)]
fn line_of(address: usize) -> usize {
    const GOLDEN_RATIO: u32 = 0x9e37_79b9;
    let block = (address >> STACK_BITS) as u32;
    (block.wrapping_mul(GOLDEN_RATIO) >> (32 - LINES.ilog2())) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address<T>(of: &mut T) -> *mut T {
        ptr::from_mut(of)
    }

    #[test]
    fn a_gate_closes_only_while_no_call_is_inside() {
        let mut value = 7_u32;
        let gate = Gate::new();
        assert_eq!(gate.close(), Err(NotClosed::Closed));
        assert_eq!(gate.enter(|_| ()), None);
        let to = address(&mut value);
        gate.open(to);
        let nested =
            gate.enter(|it| (it.cast_mut(), gate.close(), gate.enter(<*const u32>::cast_mut)));
        assert_eq!(nested, Some((to, Err(NotClosed::Busy), Some(to))));
        assert_eq!(gate.close(), Ok(to));
        assert_eq!(gate.enter(|_| ()), None);
    }

    /// vCPUs whose interrupt stacks follow each other must not write to the same line.
    #[test]
    fn stacks_next_to_each_other_select_different_lines() {
        for pages in [1, 2, 4, 16] {
            for first in 0..1000 {
                let stack = |at| line_of((first + at * pages) << STACK_BITS);
                let lines: [usize; 2] = core::array::from_fn(stack);
                assert!(lines[0] != lines[1], "stacks of {pages} pages from {first}: {lines:?}");
            }
        }
    }
}

#[cfg(all(test, loom))]
mod gate_model {
    extern crate std;
    use std::boxed::Box;

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Behind the gate: loom reports a call that reads it while it is written.
    struct Agent(UnsafeCell<u32>);

    struct Guest {
        gate: Gate<Agent>,
        agent: *mut Agent,
    }

    // SAFETY: the gate guards the pointer; that is what this model tests.
    #[allow(unsafe_code)]
    unsafe impl Send for Guest {}
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe impl Sync for Guest {}

    impl Guest {
        fn new() -> Arc<Self> {
            let agent = Box::into_raw(Box::new(Agent(UnsafeCell::new(1))));
            let gate = Gate::new();
            gate.open(agent);
            Arc::new(Self { gate, agent })
        }

        /// Makes a call on this vCPU, and returns whether it found the agent.
        #[allow(unsafe_code)]
        fn call(&self, line: usize) -> bool {
            let found = self.gate.enter_by(line, |agent| {
                // SAFETY: leaked above; never freed.
                let value = unsafe { (*agent).0.with(|value| *value) };
                assert_eq!(value, 1, "a call is inside, so the memory is not the guest's yet");
            });
            found.is_some()
        }

        /// Stops the agent and writes to its memory; returns whether it was stopped.
        #[allow(unsafe_code)]
        fn stop(&self) -> bool {
            let Ok(agent) = self.gate.close() else {
                return false;
            };
            // SAFETY: as above.
            unsafe { (*agent).0.with_mut(|value| *value = 0) };
            true
        }

        #[allow(unsafe_code)]
        fn start(&self) {
            // SAFETY: as above.
            unsafe { (*self.agent).0.with_mut(|value| *value = 1) };
            self.gate.open(self.agent);
        }
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// A refused call disarms its vCPU, so only a stop that succeeds may refuse calls.
    #[test]
    fn a_stop_that_is_busy_has_refused_no_call() {
        check(|| {
            let guest = Guest::new();
            let calls = [0, 1].map(|line| {
                let guest = guest.clone();
                thread::spawn(move || guest.call(line))
            });
            let stopped = guest.stop();
            let found = calls.map(|call| call.join().unwrap());
            assert!(stopped || found == [true, true]);
        });
    }

    /// A call that saw the mark of one stop may remove the mark of the next one.
    #[test]
    fn a_call_outlives_a_stop_and_a_start() {
        check(|| {
            let guest = Guest::new();
            let call = {
                let guest = guest.clone();
                thread::spawn(move || guest.call(0))
            };
            let first = guest.stop();
            if first {
                guest.start();
            }
            let second = guest.stop();
            let found = call.join().unwrap();
            assert!(found || first || second);
        });
    }
}
