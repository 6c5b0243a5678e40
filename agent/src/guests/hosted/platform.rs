//! The platform below a hosted agent: clocks, timers and stacks of registered threads.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::cell::Cell;
use std::format;
use std::os::fd::{FromRawFd as _, IntoRawFd, OwnedFd};
use std::string::String;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use libc::{clockid_t, itimerspec, pid_t, timer_t, timespec};

use super::arch;
use crate::ground::platform::{Platform, Runstate};

/// The platform of a Linux process.
#[derive(Debug)]
pub struct Hosted {
    pub(super) signal: i32,
    program: Range<u64>,
    /// What the signal handler of a vCPU's own thread needs.
    cells: Vec<VcpuCells>,
    /// What others need; never locked in a signal handler.
    threads: Mutex<Vec<ThreadState>>,
}

#[derive(Debug, Default)]
struct VcpuCells {
    stack_start: AtomicU64,
    stack_end: AtomicU64,
    /// CPU time of the threads that were this vCPU before.
    earlier_ns: AtomicU64,
    /// The same of the time that they waited for a processor.
    earlier_waited_ns: AtomicU64,
    /// The thread's scheduler statistics, kept open: the signal handler may not allocate. Negative where
    /// the kernel keeps none.
    statistics: AtomicI32,
}

/// A vCPU's thread, and the time of those before it.
#[derive(Debug)]
struct ThreadState {
    thread: Option<Thread>,
    earlier: Runstate,
    /// Since when there is this thread, or none.
    since_ns: u64,
    /// How long this thread had waited before it was registered.
    waited_before_ns: u64,
    /// The most blocked time told so far: it is what the other clocks leave over, and they are not
    /// read at one moment.
    blocked_ns: u64,
}

/// A registered thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) id: pid_t,
    pub(super) clock: clockid_t,
    pub(super) timer: Timer,
}

/// A timer of the kernel's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer(pub(super) timer_t);

// SAFETY: a timer's id is a handle of the kernel's, valid in every thread of the process.
unsafe impl Send for Timer {}

std::thread_local! {
    /// The vCPU that this thread is, or `NO_VCPU`, and its timer. Without a destructor, so that the
    /// signal handler may look at any moment of the thread's life.
    static VCPU: Cell<(u32, timer_t)> = const { Cell::new((NO_VCPU, core::ptr::null_mut())) };
}

const NO_VCPU: u32 = u32::MAX;

impl Hosted {
    /// The platform of a process whose program has its code at `program`.
    pub(super) fn new(vcpus: u32, signal: i32, program: Range<u64>) -> Self {
        let since_ns = read_clock(libc::CLOCK_MONOTONIC).unwrap_or(0);
        let state = |_| ThreadState {
            thread: None,
            earlier: Runstate::default(),
            since_ns,
            waited_before_ns: 0,
            blocked_ns: 0,
        };
        Self {
            signal,
            program,
            cells: (0..vcpus).map(|_| VcpuCells::default()).collect(),
            threads: Mutex::new((0..vcpus).map(state).collect()),
        }
    }

    /// Makes the calling thread a vCPU whose stack lies in `stack`; `None` where all are taken.
    pub(super) fn occupy(&self, thread: Thread, stack: &Range<u64>) -> Option<u32> {
        let mut threads = self.threads();
        let index = threads.iter().position(|state| state.thread.is_none())?;
        let now_ns = self.now_ns();
        let state = &mut threads[index];
        state.earlier.offline_ns += now_ns.saturating_sub(state.since_ns);
        state.since_ns = now_ns;
        state.thread = Some(thread);
        state.waited_before_ns = waited_ns(thread.id).unwrap_or(0);
        let statistics = std::fs::File::open(statistics_path(thread.id));
        let statistics = statistics.map_or(-1, IntoRawFd::into_raw_fd);
        // The thread may have run before: what counts is the time from here on.
        let ran_ns = read_clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0);
        let cells = &self.cells[index];
        let earlier_ns = state.earlier.running_ns.wrapping_sub(ran_ns);
        cells.earlier_ns.store(earlier_ns, Ordering::Relaxed);
        let earlier_ns = state.earlier.runnable_ns;
        cells.earlier_waited_ns.store(
            earlier_ns.wrapping_sub(state.waited_before_ns),
            Ordering::Relaxed,
        );
        cells.statistics.store(statistics, Ordering::Relaxed);
        cells.stack_start.store(stack.start, Ordering::Relaxed);
        cells.stack_end.store(stack.end, Ordering::Relaxed);
        VCPU.set((index as u32, thread.timer.0));
        Some(index as u32)
    }

    /// Ends what [`occupy`](Self::occupy) began; in the same thread.
    pub(super) fn leave(&self, vcpu: u32) {
        let runstate = self.runstate(vcpu);
        let running_ns = self.running_ns(vcpu);
        // From here on the signal handler does nothing in this thread.
        VCPU.set((NO_VCPU, core::ptr::null_mut()));
        let mut threads = self.threads();
        let Some(state) = threads.get_mut(vcpu as usize) else {
            return;
        };
        state.thread = None;
        state.since_ns = self.now_ns();
        state.earlier = Runstate {
            running_ns,
            ..runstate.unwrap_or(state.earlier)
        };
        let cells = &self.cells[vcpu as usize];
        cells.earlier_ns.store(running_ns, Ordering::Relaxed);
        cells
            .earlier_waited_ns
            .store(state.earlier.runnable_ns, Ordering::Relaxed);
        let statistics = cells.statistics.swap(-1, Ordering::Relaxed);
        if statistics >= 0 {
            // SAFETY: the descriptor came from `occupy`, and only the thread itself reads it.
            drop(unsafe { OwnedFd::from_raw_fd(statistics) });
        }
    }

    /// Arms the timer of the calling thread for `deadline_ns` on the monotonic clock.
    pub(super) fn arm(&self, deadline_ns: u64) {
        let (vcpu, timer) = VCPU.get();
        if vcpu != NO_VCPU {
            // A deadline of 0 would disarm.
            set_timer(timer, libc::TIMER_ABSTIME, deadline_ns.max(1));
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<ThreadState>> {
        // Nothing panics while it is locked; were it so, the numbers would still be numbers.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: `stack_bounds` names the stack of the calling thread from its stack pointer up, which the
// thread's own frames occupy: it is mapped for as long as the thread runs. `code_bounds` names the code
// that this code is part of.
unsafe impl Platform for Hosted {
    fn now_ns(&self) -> u64 {
        read_clock(libc::CLOCK_MONOTONIC).unwrap_or(0)
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        read_clock(libc::CLOCK_REALTIME)
    }

    #[inline]
    fn vcpu(&self) -> Option<u32> {
        let (vcpu, _) = VCPU.get();
        (vcpu != NO_VCPU).then_some(vcpu)
    }

    fn running_ns(&self, vcpu: u32) -> u64 {
        let Some(cells) = self.cells.get(vcpu as usize) else {
            return 0;
        };
        let thread_ns = if self.vcpu() == Some(vcpu) {
            read_clock(libc::CLOCK_THREAD_CPUTIME_ID)
        } else {
            let threads = self.threads();
            let thread = threads.get(vcpu as usize).and_then(|state| state.thread);
            thread.and_then(|thread| read_clock(thread.clock))
        };
        cells
            .earlier_ns
            .load(Ordering::Relaxed)
            .wrapping_add(thread_ns.unwrap_or(0))
    }

    /// What is left of the monotonic clock; what others took is left out where the kernel tells it.
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        let Some(cells) = self.cells.get(vcpu as usize) else {
            return 0;
        };
        let waited = if self.vcpu() == Some(vcpu) {
            waited_by(cells.statistics.load(Ordering::Relaxed))
        } else {
            let threads = self.threads();
            let thread = threads.get(vcpu as usize).and_then(|state| state.thread);
            thread.and_then(|thread| waited_ns(thread.id))
        };
        let earlier_ns = cells.earlier_waited_ns.load(Ordering::Relaxed);
        let waited_ns = earlier_ns.wrapping_add(waited.unwrap_or(0));
        self.now_ns()
            .saturating_sub(self.running_ns(vcpu))
            .saturating_sub(waited_ns)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let running_ns = self.running_ns(vcpu);
        let now_ns = self.now_ns();
        let mut threads = self.threads();
        let state = threads.get_mut(vcpu as usize)?;
        let elapsed_ns = now_ns.saturating_sub(state.since_ns);
        let earlier = state.earlier;
        let Some(thread) = state.thread else {
            return Some(Runstate {
                offline_ns: earlier.offline_ns + elapsed_ns,
                ..earlier
            });
        };
        let waited_ns = waited_ns(thread.id)?.saturating_sub(state.waited_before_ns);
        let runnable_ns = earlier.runnable_ns + waited_ns;
        let ran_ns = running_ns.saturating_sub(earlier.running_ns);
        let blocked_ns = elapsed_ns.saturating_sub(ran_ns).saturating_sub(waited_ns);
        state.blocked_ns = state.blocked_ns.max(earlier.blocked_ns + blocked_ns);
        Some(Runstate {
            running_ns,
            runnable_ns,
            blocked_ns: state.blocked_ns,
            offline_ns: earlier.offline_ns,
        })
    }

    fn kick(&self, vcpu: u32) {
        // Locked, so that the timer is not deleted meanwhile.
        let threads = self.threads();
        if let Some(thread) = threads.get(vcpu as usize).and_then(|state| state.thread) {
            set_timer(thread.timer.0, 0, 1);
        }
    }

    #[inline]
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        let cells = self.cells.get(self.vcpu()? as usize)?;
        let start = cells.stack_start.load(Ordering::Relaxed);
        let end = cells.stack_end.load(Ordering::Relaxed);
        // Below the stack pointer the stack may not be mapped yet.
        (start..end).contains(&sp).then_some(sp & !7..end)
    }

    #[inline]
    fn code_bounds(&self, pc: u64) -> Option<Range<u64>> {
        self.program.contains(&pc).then(|| self.program.clone())
    }

    fn random(&self) -> Option<u64> {
        let mut bytes = [0_u8; 8];
        // SAFETY: the buffer is as long as it is said to be.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        (got == 8).then_some(u64::from_ne_bytes(bytes))
    }

    fn log(&self, line: &str) {
        std::eprintln!("{line}");
    }

    #[inline]
    fn cycles(&self) -> u64 {
        arch::cycles()
    }
}

/// How long a thread of this process was ready to run while others ran, from the scheduler's
/// statistics; `None` where the kernel keeps none.
fn waited_ns(thread: pid_t) -> Option<u64> {
    waited_in(&std::fs::read(statistics_path(thread)).ok()?)
}

/// The same from a file that is open already. Async-signal-safe: one system call, no memory.
fn waited_by(statistics: c_int) -> Option<u64> {
    if statistics < 0 {
        return None;
    }
    let mut text = [0_u8; 64];
    // SAFETY: the buffer is as long as it is said to be; a descriptor that is none is an error.
    let length = unsafe { libc::pread(statistics, text.as_mut_ptr().cast(), text.len(), 0) };
    waited_in(text.get(..usize::try_from(length).ok()?)?)
}

/// Scheduler statistics are three numbers: time run, time waited in ns, turns.
fn waited_in(text: &[u8]) -> Option<u64> {
    let waited = text.split(u8::is_ascii_whitespace).nth(1)?;
    core::str::from_utf8(waited).ok()?.parse().ok()
}

fn statistics_path(thread: pid_t) -> String {
    format!("/proc/self/task/{thread}/schedstat")
}

fn read_clock(clock: clockid_t) -> Option<u64> {
    let mut time = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is the one asked for.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    (!failed).then_some((time.tv_sec as u64).wrapping_mul(1_000_000_000) + time.tv_nsec as u64)
}

fn set_timer(timer: timer_t, flags: i32, ns: u64) {
    let zero = timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = timespec {
        tv_sec: (ns / 1_000_000_000).min(i64::MAX as u64) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    let setting = itimerspec {
        it_interval: zero,
        it_value: value,
    };
    // SAFETY: the structure is the one asked for; an id that is gone is an error, not a fault.
    unsafe { libc::timer_settime(timer, flags, &raw const setting, core::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_waited_is_the_second_number() {
        assert_eq!(waited_in(b"123 456 7\n"), Some(456));
        for other in [
            &b""[..],
            b"123",
            b"123 ",
            b"1 x 2",
            b"1 99999999999999999999 2",
        ] {
            assert_eq!(waited_in(other), None);
        }
        // SAFETY: always succeeds.
        let thread = unsafe { libc::gettid() };
        let told = waited_ns(thread);
        let file = std::fs::File::open(statistics_path(thread));
        let by_file = file.ok().and_then(|file| waited_by(file.into_raw_fd()));
        assert!(by_file >= told, "{by_file:?} after {told:?}");
        assert_eq!(waited_by(-1), None);
    }
}
