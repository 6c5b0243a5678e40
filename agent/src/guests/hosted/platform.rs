//! The platform of a hosted agent: clocks, timers and stacks of registered threads.
#![allow(unsafe_code)]

use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
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
    started_ns: u64,
    program: Range<u64>,
    /// State that the signal handler of a vCPU's own thread uses.
    cells: Vec<VcpuCells>,
    /// The process's memory, through which its code can be written; `None` without tracing.
    #[cfg(feature = "trace")]
    memory: Option<std::fs::File>,
    /// The process that opened it: in a child of it the file is still the parent's memory.
    #[cfg(feature = "trace")]
    process: u32,
    /// Whether the kernel keeps scheduler statistics, without which stolen time is not known.
    keeps_statistics: bool,
    /// State that other threads use. Never locked in a signal handler.
    threads: Mutex<Vec<ThreadState>>,
}

#[derive(Debug, Default)]
struct VcpuCells {
    stack_start: AtomicU64,
    stack_end: AtomicU64,
    /// The vCPU's running time before this thread, minus the thread's CPU time at its registration
    /// (wrapping).
    earlier_ns: AtomicU64,
    /// The same for the time spent waiting for a processor.
    earlier_waited_ns: AtomicU64,
    /// The monotonic clock, less the time that the vCPU has been online.
    offline_ns: AtomicU64,
    /// The greatest blocked time returned so far. Blocked time is the remainder of the other
    /// clocks, which are not read at the same moment: the remainder can go back.
    blocked_ns: AtomicU64,
    /// The greatest time spent waiting for a processor returned so far, with a wait that went on,
    /// whose length is not known exactly.
    runnable_ns: AtomicU64,
    /// An open descriptor of the thread's scheduler statistics, because the signal handler may not
    /// allocate. Negative if the kernel keeps none.
    statistics: AtomicI32,
    /// The thread's timer may be armed for a deadline of the sampler.
    is_armed: AtomicBool,
    /// Another thread has kicked this vCPU, and its signal was not handled yet.
    is_kicked: AtomicBool,
}

/// A vCPU's thread, and how long it has had none.
#[derive(Debug)]
struct ThreadState {
    thread: Option<Thread>,
    /// The time that the vCPU had no thread before this one or the last one.
    offline_ns: u64,
    /// When the last thread left.
    since_ns: u64,
    seen: Seen,
}

/// A vCPU's thread as another one saw it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    at_ns: u64,
    /// The running time of its thread, and its waits for a processor that have ended.
    ran_ns: u64,
    waited_ns: u64,
    is_waiting: bool,
    /// How long its present wait for a processor has lasted, at most. The kernel counts it when it
    /// ends.
    waits_ns: u64,
    /// How much less that may be.
    doubt_ns: u64,
}

/// How uncertain the length of a wait may be. A thread that asks on the vCPU's own CPU has just
/// taken its turn, and never sees it run: without some doubt its times would never be known.
const DOUBT_NS: u64 = 1_000_000;

impl Seen {
    /// The thread is seen again.
    fn again(self, at_ns: u64, ran_ns: u64, waited_ns: u64, is_waiting: bool) -> Self {
        let rest_ns = at_ns.saturating_sub(self.at_ns);
        let (waits_ns, doubt_ns) = match ran_ns.saturating_sub(self.ran_ns) {
            _ if !is_waiting => (0, 0),
            0 if self.is_waiting => (self.waits_ns + rest_ns, self.doubt_ns),
            // The wait began after the thread had been blocked or had run.
            ran_ns => {
                let ended_ns = waited_ns.saturating_sub(self.waited_ns);
                let others_ns = ended_ns.saturating_sub(self.waits_ns);
                let longest_ns = rest_ns.saturating_sub(ran_ns).saturating_sub(others_ns);
                (longest_ns, longest_ns)
            }
        };
        Self { at_ns, ran_ns, waited_ns, is_waiting, waits_ns, doubt_ns }
    }
}

/// A registered thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thread {
    pub(super) id: pid_t,
    pub(super) clock: clockid_t,
    pub(super) timer: Timer,
}

/// A kernel timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer(pub(super) timer_t);

// SAFETY: a timer id is a kernel handle, valid in every thread of the process.
unsafe impl Send for Timer {}

std::thread_local! {
    /// This thread's vCPU id, or `NO_VCPU`, and its timer. It has no destructor, so that the
    /// signal handler may read it at any time.
    static VCPU: Cell<(u32, timer_t)> = const { Cell::new((NO_VCPU, core::ptr::null_mut())) };
}

const NO_VCPU: u32 = u32::MAX;

impl Hosted {
    /// Creates the platform of a process whose program's code is at `program`.
    pub(super) fn new(vcpus: u32, signal: i32, program: Range<u64>) -> Self {
        let started_ns = read_clock(libc::CLOCK_MONOTONIC).unwrap_or(0);
        let seen = Seen::default();
        let state = |_| ThreadState { thread: None, offline_ns: 0, since_ns: started_ns, seen };
        Self {
            started_ns,
            signal,
            program,
            cells: (0..vcpus).map(|_| VcpuCells::default()).collect(),
            #[cfg(feature = "trace")]
            memory: None,
            #[cfg(feature = "trace")]
            process: std::process::id(),
            // SAFETY: always succeeds.
            keeps_statistics: waited(unsafe { libc::gettid() }).is_some(),
            threads: Mutex::new((0..vcpus).map(state).collect()),
        }
    }

    /// Opens the process's memory, so that its code can be written.
    #[cfg(feature = "trace")]
    pub(super) fn open_memory(&mut self) -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        self.memory = Some(options.read(true).write(true).open("/proc/self/mem")?);
        Ok(())
    }

    /// Makes the calling thread a vCPU with this stack; `None` if all vCPUs are in use.
    pub(super) fn occupy(&self, thread: Thread, stack: &Range<u64>) -> Option<u32> {
        let mut threads = self.threads();
        let index = threads.iter().position(|state| state.thread.is_none())?;
        let state = &mut threads[index];
        state.offline_ns += self.now_ns().saturating_sub(state.since_ns);
        state.thread = Some(thread);
        state.seen = Seen::default();
        let statistics = std::fs::File::open(statistics_path(thread.id));
        let statistics = statistics.map_or(-1, IntoRawFd::into_raw_fd);
        // The thread may have run before its registration: only the time from now on counts.
        let ran_ns = read_clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0);
        let waited_ns = waited(thread.id).map_or(0, |waited| waited.ns);
        let cells = &self.cells[index];
        for (earlier, before_ns) in
            [(&cells.earlier_ns, ran_ns), (&cells.earlier_waited_ns, waited_ns)]
        {
            let earlier_ns = earlier.load(Ordering::Relaxed);
            earlier.store(earlier_ns.wrapping_sub(before_ns), Ordering::Relaxed);
        }
        cells.offline_ns.store(self.started_ns + state.offline_ns, Ordering::Relaxed);
        cells.statistics.store(statistics, Ordering::Relaxed);
        cells.stack_start.store(stack.start, Ordering::Relaxed);
        cells.stack_end.store(stack.end, Ordering::Relaxed);
        VCPU.set((index as u32, thread.timer.0));
        Some(index as u32)
    }

    /// Ends the registration that [`occupy`](Self::occupy) began. Called in the same thread.
    pub(super) fn leave(&self, vcpu: u32) {
        self.blocked_ns(vcpu);
        let Some(cells) = self.cells.get(vcpu as usize) else {
            return;
        };
        // From now on the signal handler does nothing in this thread: what it reads later would be
        // more than what is kept.
        VCPU.set((NO_VCPU, core::ptr::null_mut()));
        let (ran_ns, waited_ns) = self.own_times(cells);
        let mut threads = self.threads();
        let Some(state) = threads.get_mut(vcpu as usize) else {
            return;
        };
        state.thread = None;
        state.since_ns = self.now_ns();
        cells.earlier_ns.store(ran_ns, Ordering::Relaxed);
        cells.earlier_waited_ns.store(waited_ns, Ordering::Relaxed);
        let statistics = cells.statistics.swap(-1, Ordering::Relaxed);
        if statistics >= 0 {
            // SAFETY: the descriptor came from `occupy`, and only the thread itself reads it.
            drop(unsafe { OwnedFd::from_raw_fd(statistics) });
        }
    }

    /// Arms the timer of the calling thread for `deadline_ns` on the monotonic clock.
    pub(super) fn arm(&self, deadline_ns: u64) {
        // A deadline of 0 would disarm the timer.
        self.set_own_timer(deadline_ns.max(1), true);
    }

    /// Whether the timer of the calling thread may be armed for a deadline of the sampler.
    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.own_cells().is_some_and(|cells| cells.is_armed.load(Ordering::Relaxed))
    }

    /// Disarms the timer of the calling thread.
    pub(super) fn disarm(&self) {
        self.set_own_timer(0, false);
    }

    /// Notes that the calling thread's timer has fired, before the signal is handled.
    pub(super) fn note_signal(&self) {
        if let Some(cells) = self.own_cells() {
            cells.is_armed.store(false, Ordering::Relaxed);
            cells.is_kicked.store(false, Ordering::SeqCst);
        }
    }

    fn set_own_timer(&self, deadline_ns: u64, is_armed: bool) {
        let Some(cells) = self.own_cells() else {
            return;
        };
        let (_, timer) = VCPU.get();
        cells.is_armed.store(is_armed, Ordering::Relaxed);
        set_timer(timer, libc::TIMER_ABSTIME, deadline_ns);
        // The kick has used the same timer.
        if cells.is_kicked.load(Ordering::SeqCst) {
            set_timer(timer, 0, 1);
        }
    }

    /// The cells of the calling thread's vCPU; `None` if the thread is not a vCPU.
    fn own_cells(&self) -> Option<&VcpuCells> {
        self.cells.get(self.vcpu()? as usize)
    }

    /// The running time of these cells' vCPU and its waits for a processor. Called in its thread.
    fn own_times(&self, cells: &VcpuCells) -> (u64, u64) {
        let ran_ns = read_clock(libc::CLOCK_THREAD_CPUTIME_ID);
        let waited = waited_by(cells.statistics.load(Ordering::Relaxed));
        cells.times(ran_ns, waited.map(|waited| waited.ns))
    }

    /// The same for a vCPU whose thread is not the calling one.
    fn times_of(&self, vcpu: u32, cells: &VcpuCells) -> (u64, u64) {
        // Held until the times are added up: the thread may leave.
        let threads = self.threads();
        let thread = threads.get(vcpu as usize).and_then(|state| state.thread);
        let ran_ns = thread.and_then(|thread| read_clock(thread.clock));
        let waited = thread.and_then(|thread| waited(thread.id));
        cells.times(ran_ns, waited.map(|waited| waited.ns))
    }

    /// The online time in which a vCPU, whose thread is not the calling one, was not blocked, and
    /// the clock read before it.
    fn not_blocked(&self, vcpu: u32, cells: &VcpuCells) -> Look {
        // Held until the times are added up: the thread may leave.
        let mut threads = self.threads();
        let Some(state) = threads.get_mut(vcpu as usize) else {
            return Look::Unknown;
        };
        let Some(thread) = state.thread else {
            return Look::Unknown;
        };
        let waited_before = waited(thread.id);
        let now_ns = self.now_ns();
        let ran_ns = read_clock(thread.clock);
        // A thread that runs meanwhile does not wait.
        let waits = || is_ready(thread.id) && read_clock(thread.clock) == ran_ns;
        let is_waiting = waited_before.is_some() && (waits() || waited(thread.id) != waited_before);
        let waited_ns = waited_before.map(|waited| waited.ns);
        let (ran, ended) = (ran_ns.unwrap_or(0), waited_ns.unwrap_or(0));
        state.seen = state.seen.again(now_ns, ran, ended, is_waiting);
        if state.seen.doubt_ns > DOUBT_NS {
            return Look::Waits;
        }
        let (ran_ns, waited_ns) = cells.times(ran_ns, waited_ns);
        let not_blocked_ns = ran_ns.saturating_add(waited_ns).saturating_add(state.seen.waits_ns);
        Look::At { now_ns, not_blocked_ns }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<ThreadState>> {
        // Nothing panics while it is locked, and every partial update would still be valid numbers.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VcpuCells {
    /// The vCPU's running and waiting time, given those of its thread.
    fn times(&self, ran_ns: Option<u64>, waited_ns: Option<u64>) -> (u64, u64) {
        let earlier_ns = self.earlier_ns.load(Ordering::Relaxed);
        let earlier_waited_ns = self.earlier_waited_ns.load(Ordering::Relaxed);
        (
            earlier_ns.wrapping_add(ran_ns.unwrap_or(0)),
            earlier_waited_ns.wrapping_add(waited_ns.unwrap_or(0)),
        )
    }
}

// SAFETY: `stack_bounds` returns the stack of the calling thread from its stack pointer up, which
// the thread's own frames occupy: it is mapped for as long as the thread runs. `code_bounds`
// returns the code that contains the agent.
unsafe impl Platform for Hosted {
    fn now_ns(&self) -> u64 {
        read_clock(libc::CLOCK_MONOTONIC).unwrap_or(0)
    }

    /// The calling thread's CPU time.
    fn work_ns(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes into a structure of the right type; it cannot fail with this
        // clock, and if it did the zeros would stay.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        let number = |value: i64| u64::try_from(value).unwrap_or(0);
        number(time.tv_sec) * 1_000_000_000 + number(time.tv_nsec)
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
        if self.vcpu() == Some(vcpu) {
            let ran_ns = read_clock(libc::CLOCK_THREAD_CPUTIME_ID);
            return cells.times(ran_ns, None).0;
        }
        self.times_of(vcpu, cells).0
    }

    /// The time that the vCPU was online, minus running time and, if the kernel keeps statistics,
    /// time waiting for a processor. If another thread asks while the vCPU's waits for a processor,
    /// waits for its turn; if that does not come in time, returns what is surely blocked time.
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        /// Some turns of other threads.
        const TRIES: u32 = 50;
        let Some(cells) = self.cells.get(vcpu as usize) else {
            return 0;
        };
        let remainder = |now_ns: u64, not_blocked_ns: u64| {
            let online_ns = now_ns.saturating_sub(cells.offline_ns.load(Ordering::Relaxed));
            let blocked_ns = online_ns.saturating_sub(not_blocked_ns);
            cells.blocked_ns.fetch_max(blocked_ns, Ordering::Relaxed).max(blocked_ns)
        };
        if self.vcpu() == Some(vcpu) {
            // Read first: if the thread is preempted before the other clocks are read, the
            // remainder is too small, and not too large.
            let now_ns = self.now_ns();
            let (ran_ns, waited_ns) = self.own_times(cells);
            return remainder(now_ns, ran_ns.saturating_add(waited_ns));
        }
        for _ in 0..TRIES {
            match self.not_blocked(vcpu, cells) {
                Look::At { now_ns, not_blocked_ns } => return remainder(now_ns, not_blocked_ns),
                Look::Waits => std::thread::sleep(std::time::Duration::from_millis(1)),
                Look::Unknown => break,
            }
        }
        cells.blocked_ns.load(Ordering::Relaxed)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        if !self.keeps_statistics {
            return None;
        }
        let cells = self.cells.get(vcpu as usize)?;
        let blocked_ns = self.blocked_ns(vcpu);
        let (running_ns, ended_ns) = self.times_of(vcpu, cells);
        let now_ns = self.now_ns();
        let threads = self.threads();
        let state = threads.get(vcpu as usize)?;
        let seen = state.seen;
        let goes_on = seen.is_waiting
            && seen.doubt_ns <= DOUBT_NS
            && cells.times(Some(seen.ran_ns), Some(seen.waited_ns)) == (running_ns, ended_ns);
        let runnable_ns = ended_ns.saturating_add(if goes_on { seen.waits_ns } else { 0 });
        let runnable_ns =
            cells.runnable_ns.fetch_max(runnable_ns, Ordering::Relaxed).max(runnable_ns);
        let offline_ns = state.offline_ns
            + match state.thread {
                Some(_) => 0,
                None => now_ns.saturating_sub(state.since_ns),
            };
        Some(Runstate { running_ns, runnable_ns, blocked_ns, offline_ns })
    }

    fn kick(&self, vcpu: u32) {
        // Locked, so that the timer is not deleted at the same time.
        let threads = self.threads();
        if let Some(thread) = threads.get(vcpu as usize).and_then(|state| state.thread)
            && let Some(cells) = self.cells.get(vcpu as usize)
        {
            cells.is_kicked.store(true, Ordering::SeqCst);
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
        // SAFETY: the pointer and the length are those of one buffer.
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

    /// Through the process's memory file, which also writes to pages that are mapped read-only.
    #[cfg(feature = "trace")]
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        use std::os::unix::fs::FileExt as _;
        let memory = self.memory.as_ref();
        let memory = memory.filter(|_| std::process::id() == self.process);
        memory.is_some_and(|memory| memory.write_all_at(bytes, address).is_ok())
    }
}

/// A vCPU's times, as another thread reads them.
enum Look {
    /// At this time of the clock.
    At { now_ns: u64, not_blocked_ns: u64 },
    /// Its thread waits for a processor, or began to run meanwhile, and nothing tells for how much
    /// of the time since it last ran.
    Waits,
    /// It has no thread.
    Unknown,
}

/// The time that a thread waited for a processor, and the number of times that it got one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Waited {
    ns: u64,
    times: u64,
}

/// The time that a thread of this process waited for a processor, from the scheduler's statistics;
/// `None` if the kernel keeps none.
fn waited(thread: pid_t) -> Option<Waited> {
    waited_in(&std::fs::read(statistics_path(thread)).ok()?)
}

/// The same from an open file. Async-signal-safe: one system call, no allocation.
fn waited_by(statistics: c_int) -> Option<Waited> {
    if statistics < 0 {
        return None;
    }
    let mut text = [0_u8; 64];
    // SAFETY: the pointer and the length are those of one buffer; an invalid descriptor is an
    // error.
    let length = unsafe { libc::pread(statistics, text.as_mut_ptr().cast(), text.len(), 0) };
    waited_in(text.get(..usize::try_from(length).ok()?)?)
}

/// Scheduler statistics are three numbers: running time in ns, waiting time in ns, number of time
/// slices.
fn waited_in(text: &[u8]) -> Option<Waited> {
    let mut numbers = text.split(u8::is_ascii_whitespace).skip(1);
    let mut number = || core::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some(Waited { ns: number()?, times: number()? })
}

/// Whether a thread of this process runs or waits for a processor.
fn is_ready(thread: pid_t) -> bool {
    // "ID (NAME) STATE ...", where the name may contain anything.
    let text = std::fs::read(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    let state = text.rsplit(|byte| *byte == b')').next();
    state.is_some_and(|state| state.starts_with(b" R"))
}

fn statistics_path(thread: pid_t) -> String {
    format!("/proc/self/task/{thread}/schedstat")
}

fn read_clock(clock: clockid_t) -> Option<u64> {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure has the required type.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    (!failed).then_some((time.tv_sec as u64).wrapping_mul(1_000_000_000) + time.tv_nsec as u64)
}

fn set_timer(timer: timer_t, flags: i32, ns: u64) {
    let zero = timespec { tv_sec: 0, tv_nsec: 0 };
    let value = timespec {
        tv_sec: (ns / 1_000_000_000).min(i64::MAX as u64) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    let setting = itimerspec { it_interval: zero, it_value: value };
    // SAFETY: the structure has the required type; an id of a deleted timer is an error, not a
    // fault.
    unsafe { libc::timer_settime(timer, flags, &raw const setting, core::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn thread() -> Thread {
        // SAFETY: always succeeds.
        let id = unsafe { libc::gettid() };
        let timer = Timer(core::ptr::null_mut());
        Thread { id, clock: libc::CLOCK_THREAD_CPUTIME_ID, timer }
    }

    /// Guards against time without a thread that is blocked by one account and offline by the
    /// other: in mode `wall` it would be due, and counted as missing.
    #[test]
    fn a_vcpu_without_a_thread_is_offline_by_every_account() {
        const PAUSE: std::time::Duration = std::time::Duration::from_millis(300);
        let platform = Hosted::new(1, 0, 0..0);
        if !platform.keeps_statistics {
            std::println!("SKIPPED: the kernel keeps no scheduler statistics");
            return;
        }
        let seen = |vcpu| (platform.blocked_ns(vcpu), platform.runstate(vcpu).unwrap_or_default());
        let pause_ns = PAUSE.as_nanos() as u64;
        std::thread::sleep(PAUSE);
        let (blocked_ns, states) = seen(0);
        assert_eq!((blocked_ns, states.blocked_ns), (0, 0), "it never had a thread");
        assert!(states.offline_ns >= pause_ns, "{states:?}");

        assert_eq!(platform.occupy(thread(), &(0..0)), Some(0));
        // The test is not blocked as long as that, however busy the machine is.
        assert!(seen(0).0 < pause_ns);
        std::thread::sleep(PAUSE);
        platform.leave(0);
        let (left_ns, states) = seen(0);
        assert!(left_ns >= pause_ns - pause_ns / 100 && states.blocked_ns == left_ns, "{states:?}");
        std::thread::sleep(PAUSE);
        assert_eq!(seen(0).0, left_ns);
        assert_eq!(platform.occupy(thread(), &(0..0)), Some(0));
        let (back_ns, _) = seen(0);
        platform.leave(0);
        assert!(back_ns - left_ns < pause_ns, "{left_ns} {back_ns}");
    }

    /// Restricts this thread, and those that it starts, to one CPU.
    fn use_one_cpu() {
        // SAFETY: zeros are an empty set, and both calls use the set only. `sched_getcpu` returns
        // the number of a CPU that the thread may use.
        unsafe {
            let mut cpus: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap_or(0), &mut cpus);
            libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
        }
    }

    /// A thread that never blocks, among others on its CPU, and another thread that asks for its
    /// blocked time. Guards against a wait for the CPU that is taken for blocked time, for good.
    #[test]
    fn waiting_for_a_processor_is_not_blocked_time() {
        const LOOKS: usize = 20;
        let platform = Hosted::new(1, 0, 0..0);
        if !platform.keeps_statistics {
            std::println!("SKIPPED: the kernel keeps no scheduler statistics");
            return;
        }
        let is_done = AtomicBool::new(false);
        let spin = || {
            while !is_done.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        };
        let (occupied, begun) = std::sync::mpsc::channel();
        let (seen_ns, truth_ns) = std::thread::scope(|scope| {
            let spinner = scope.spawn(|| {
                use_one_cpu();
                let mut clock = 0;
                // SAFETY: the thread is this one, and the pointer that of a clock.
                unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
                platform.occupy(Thread { clock, ..thread() }, &(0..0));
                occupied.send(()).unwrap();
                std::thread::scope(|scope| {
                    (0..3).for_each(|_| drop(scope.spawn(spin)));
                    spin();
                    let cells = &platform.cells[0];
                    let online_ns = platform.now_ns() - cells.offline_ns.load(Ordering::Relaxed);
                    let (ran_ns, waited_ns) = platform.own_times(cells);
                    online_ns - ran_ns - waited_ns
                })
            });
            begun.recv().unwrap();
            let seen = (0..LOOKS).map(|_| platform.blocked_ns(0)).max();
            is_done.store(true, Ordering::Relaxed);
            (seen.unwrap(), spinner.join().unwrap())
        });
        // The clocks are read one after the other. A wait for the CPU takes several milliseconds.
        assert!(seen_ns < truth_ns + 1_000_000, "{seen_ns} of {truth_ns} ns");
    }

    /// Guards half a second of lost ticks: who asks on the vCPU's own CPU never saw it run, and kept
    /// its slot while it asked again and again.
    #[test]
    fn a_thread_that_has_run_waits_no_longer_than_since_then() {
        let waits = |seen: Seen| (seen.waits_ns, seen.doubt_ns);
        let first = Seen::default().again(1_000, 400, 7, false);
        assert_eq!(waits(first), (0, 0));
        // It ran, and may have been blocked, before it waits.
        let second = first.again(2_000, 1_300, 7, true);
        assert_eq!(waits(second), (100, 100));
        // It still waits.
        assert_eq!(waits(second.again(2_700, 1_300, 7, true)), (800, 100));
        // That wait took 120 in all, and it ran before it waits again.
        assert_eq!(waits(second.again(2_700, 1_950, 127, true)), (30, 30));
        // It was blocked until it waited.
        assert_eq!(waits(first.again(1_030, 400, 7, true)), (30, 30));
    }

    #[test]
    fn time_waited_is_the_second_number() {
        assert_eq!(waited_in(b"123 456 7\n").map(|waited| waited.ns), Some(456));
        for other in [&b""[..], b"123", b"123 4", b"1 x 2", b"1 99999999999999999999 2"] {
            assert!(waited_in(other).is_none(), "{other:?}");
        }
        // SAFETY: always succeeds.
        let thread = unsafe { libc::gettid() };
        let by_path = waited(thread).map(|waited| waited.ns);
        let file = std::fs::File::open(statistics_path(thread));
        let by_file = file.ok().and_then(|file| waited_by(file.into_raw_fd()));
        let by_file = by_file.map(|waited| waited.ns);
        assert!(by_file >= by_path, "{by_file:?} after {by_path:?}");
        assert!(waited_by(-1).is_none());
    }
}
