//! What the service thread's longest piece of work was made of: its own CPU time, or the machine's doing.
#![allow(unsafe_code)]

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// The longest piece of the service thread's work so far, from the wait before it to the wait after it.
///
/// Time that is not its CPU time it was not running: another thread was, or the machine's own work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestWork {
    /// How long it took, by the clock, in ns.
    pub took_ns: u64,
    /// The thread's CPU time in it, in ns.
    pub cpu_ns: u64,
    /// How often others took the CPU meanwhile.
    pub preempted: u64,
    /// Page faults in it that needed no I/O.
    pub faults: u64,
    /// The most CPU time in any one piece, in ns.
    pub most_cpu_ns: u64,
}

static LONGEST: Mutex<LongestWork> = Mutex::new(LongestWork {
    took_ns: 0,
    cpu_ns: 0,
    preempted: 0,
    faults: 0,
    most_cpu_ns: 0,
});

/// The longest piece of work that this process's agent did on its network so far; zeros before the first, and where
/// its network is a TAP device.
pub fn longest_work() -> LongestWork {
    *LONGEST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A piece of work under way, of the calling thread.
pub(super) struct Piece {
    began: Instant,
    usage: Usage,
}

/// What the calling thread has used.
struct Usage {
    cpu_ns: u64,
    preempted: u64,
    faults: u64,
}

impl Piece {
    pub(super) fn begin() -> Self {
        Self {
            began: Instant::now(),
            usage: Usage::now(),
        }
    }

    pub(super) fn end(self) {
        let took_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let usage = Usage::now();
        let cpu_ns = usage.cpu_ns.saturating_sub(self.usage.cpu_ns);
        let mut longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
        let most_cpu_ns = longest.most_cpu_ns.max(cpu_ns);
        longest.most_cpu_ns = most_cpu_ns;
        if took_ns > longest.took_ns {
            *longest = LongestWork {
                took_ns,
                cpu_ns,
                preempted: usage.preempted.saturating_sub(self.usage.preempted),
                faults: usage.faults.saturating_sub(self.usage.faults),
                most_cpu_ns,
            };
        }
    }
}

impl Usage {
    fn now() -> Self {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: zeros are a valid `rusage`: numbers all.
        let mut used: libc::rusage = unsafe { core::mem::zeroed() };
        // SAFETY: both write into a structure of the right type, which outlives the call; neither can fail with
        // these first arguments, and if so, zeros are kept.
        unsafe {
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut used);
        }
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        Self {
            cpu_ns: number(time.tv_sec) * 1_000_000_000 + number(time.tv_nsec),
            preempted: number(used.ru_nivcsw),
            faults: number(used.ru_minflt),
        }
    }
}
