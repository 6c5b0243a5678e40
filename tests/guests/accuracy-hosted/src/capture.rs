//! Captures samples of a load for the accuracy suite: the registers and a copy of the stack of each
//! sample.
//!
//! It uses a sampler separate from the agent's: a timer that signals the thread at random
//! intervals, and a handler that copies into preallocated memory.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::fs::File;
use std::hint::black_box;
use std::io::{self, BufWriter, Write};
use std::ptr;
use std::thread;

use unikprof_accuracy_loads::orders::{self, Order, Truth};

use crate::clock::running_ns;
use crate::frameless;

/// The signal, different from the agent's.
const SIGNAL: c_int = libc::SIGUSR1;

/// The maximum number of stack words copied, and the number of words before them.
const MAX_WORDS: usize = 2048;
const HEAD: usize = 6;

/// The red zone, which a function may use below the stack pointer (x86_64 psABI, 3.2.2).
const RED_ZONE: u64 = 128;

/// The mean time between samples. They are 100 to 300 µs apart, so no load is synchronous with
/// them.
const PERIOD_NS: u64 = 200_000;

/// The handler's output; null while nothing is captured.
static WORDS: AtomicPtr<u64> = AtomicPtr::new(ptr::null_mut());
static CAPACITY: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
static STACK_END: AtomicU64 = AtomicU64::new(0);
static TIMER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static RANDOM: AtomicU64 = AtomicU64::new(0x2545_f491_4f6c_dd1d);
static SAMPLES: AtomicUsize = AtomicUsize::new(0);

/// `capture load=NAME samples=N file=PATH`: writes `samples` samples of a leaf load, or of
/// `frameless`, to a file.
pub(crate) fn run(order: Order<'_>) -> io::Result<Option<Truth>> {
    let (Some(samples), Some(path)) = (order.number("samples"), order.text("file")) else {
        return Ok(None);
    };
    let truth = Truth::begin(running_ns);
    let is_frameless = order.text("load") == Some("frameless");
    let leaves = orders::leaf_turn(order);
    // A thread's stack ends a few frames above the load.
    let captured = thread::scope(|scope| {
        let captured = scope.spawn(|| match leaves {
            Some(turn) => capture(samples, turn).map(Some),
            None if is_frameless => {
                let turn = || _ = black_box(frameless::turn(black_box(1)));
                capture(samples, turn).map(Some)
            }
            None => Ok(None),
        });
        captured.join()
    });
    let captured = captured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let Some(words) = captured else {
        return Ok(None);
    };
    let mut file = BufWriter::new(File::create(path)?);
    for word in words {
        file.write_all(&word.to_le_bytes())?;
    }
    file.flush()?;
    Ok(Some(truth))
}

/// Calls `load` until there are enough samples; returns their words.
fn capture(samples: usize, mut load: impl FnMut()) -> io::Result<Vec<u64>> {
    let mut words = vec![0; samples * (MAX_WORDS + HEAD)];
    STACK_END.store(end_of_stack()?, Ordering::Relaxed);
    CAPACITY.store(words.len(), Ordering::Relaxed);
    USED.store(0, Ordering::Relaxed);
    SAMPLES.store(0, Ordering::Relaxed);
    WORDS.store(words.as_mut_ptr(), Ordering::Release);
    install_handler()?;
    let timer = create_timer()?;
    TIMER.store(timer.cast(), Ordering::Relaxed);
    arm(timer.cast());
    while SAMPLES.load(Ordering::Relaxed) < samples {
        load();
    }
    // From here on the handler does nothing if a late signal arrives; it runs in this thread.
    WORDS.store(ptr::null_mut(), Ordering::Release);
    // SAFETY: created above and deleted once.
    unsafe { libc::timer_delete(timer) };
    words.truncate(USED.load(Ordering::Relaxed));
    Ok(words)
}

/// Copies the interrupted registers and stack, and arms the next signal.
extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let words = WORDS.load(Ordering::Acquire);
    if words.is_null() {
        return;
    }
    // SAFETY: with SA_SIGINFO the kernel passes the interrupted context.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |index: c_int| registers[index as usize] as u64;
    let (pc, sp, fp) = (register(libc::REG_RIP), register(libc::REG_RSP), register(libc::REG_RBP));
    let base = sp.saturating_sub(RED_ZONE) & !7;
    let end = STACK_END.load(Ordering::Relaxed);
    let used = USED.load(Ordering::Relaxed);
    let count = (end.saturating_sub(base) / 8).min(MAX_WORDS as u64) as usize;
    if CAPACITY.load(Ordering::Relaxed) - used < HEAD + count {
        return;
    }
    // SAFETY: the room was checked above, and `capture` keeps the memory and accesses it only after
    // the pointer is null, in this same thread. The stack from the red zone to its end is mapped
    // and readable.
    unsafe {
        let head = words.add(used);
        head.copy_from_nonoverlapping([pc, sp, fp, 0, base, count as u64].as_ptr(), HEAD);
        let stack = ptr::with_exposed_provenance::<u64>(base as usize);
        for index in 0..count {
            head.add(HEAD + index).write(stack.add(index).read_volatile());
        }
    }
    USED.store(used + HEAD + count, Ordering::Relaxed);
    SAMPLES.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the calling thread's errno, which must be preserved for the interrupted code.
    let errno = unsafe { *libc::__errno_location() };
    arm(TIMER.load(Ordering::Relaxed).cast());
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Arms the next signal, after half to one and a half periods. Async-signal-safe.
fn arm(timer: libc::timer_t) {
    let mut random = RANDOM.load(Ordering::Relaxed);
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.store(random, Ordering::Relaxed);
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let setting = libc::itimerspec {
        it_interval: zero,
        it_value: libc::timespec {
            tv_sec: 0,
            tv_nsec: (PERIOD_NS / 2 + random % PERIOD_NS) as i64,
        },
    };
    // SAFETY: the structure has the required type; a deleted timer's id is an error, not a fault.
    unsafe { libc::timer_settime(timer, 0, &raw const setting, ptr::null_mut()) };
}

fn install_handler() -> io::Result<()> {
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the type that SA_SIGINFO requires and is async-signal-safe: it
    // accesses atomics and preallocated memory, and sets a timer.
    checked(unsafe { libc::sigaction(SIGNAL, &raw const action, ptr::null_mut()) })
}

fn create_timer() -> io::Result<libc::timer_t> {
    // SAFETY: zeros are a valid `sigevent`.
    let mut event: libc::sigevent = unsafe { core::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = SIGNAL;
    // SAFETY: always succeeds.
    event.sigev_notify_thread_id = unsafe { libc::gettid() };
    let mut timer = ptr::null_mut();
    // SAFETY: the structures have the required types.
    let failed =
        unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
    checked(failed)?;
    Ok(timer)
}

fn end_of_stack() -> io::Result<u64> {
    // SAFETY: zeros are valid, and the call below overwrites them.
    let mut attributes: libc::pthread_attr_t = unsafe { core::mem::zeroed() };
    let (mut start, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the calling thread's attributes, into a structure of the required type; destroyed
    // once.
    let error = unsafe {
        let error = libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes);
        if error == 0 {
            libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
        }
        error
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(start.expose_provenance() as u64 + size as u64)
}

fn checked(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
