//! Registered threads: their timers, and the signal handler that serves as their timer upcall.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::ops::Range;
use std::io;

use libc::{sigaction, sigevent, siginfo_t, timer_t, ucontext_t};

use super::alternate_stack::AlternateStack;
use super::platform::{Thread, Timer};
use super::{AGENT, Error, HostedAgent, arch};
use crate::SpanId;
use crate::ground::platform::{Platform, Registers};
use crate::stack::code_map::CodeMap;
use crate::stack::{FRAME_RECORD, ReadStack, StackMemory};

/// A registered thread. Dropping the value ends the registration. It cannot be sent to another
/// thread.
#[derive(Debug)]
pub struct Vcpu {
    agent: &'static HostedAgent,
    id: u32,
    timer: timer_t,
    _stack: AlternateStack,
    _own_thread: PhantomData<*const ()>,
}

impl Vcpu {
    // Not inlined, so that its own frame is not the outermost one.
    #[inline(never)]
    pub(super) fn register(agent: &'static HostedAgent) -> Result<Self, Error> {
        let platform = agent.platform();
        if platform.vcpu().is_some() {
            return Err(Error::Registered);
        }
        let stack = outermost_frame(agent.code(), &stack_of_this_thread()?, &Registers::here());
        // SAFETY: always succeeds.
        let id = unsafe { libc::gettid() };
        let mut clock = 0;
        // SAFETY: the calling thread exists, and `clock` is a clock id.
        let failed = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        check("pthread_getcpuclockid", failed)?;
        let alternate_stack = AlternateStack::install()?;
        let timer = create_timer(id, platform.signal)?;
        let Some(vcpu) = platform.occupy(Thread { id, clock, timer: Timer(timer) }, &stack) else {
            delete_timer(timer);
            return Err(Error::NoFreeVcpu(agent.config().vcpus));
        };
        // A recording may be running already.
        platform.kick(vcpu);
        Ok(Self { agent, id: vcpu, timer, _stack: alternate_stack, _own_thread: PhantomData })
    }

    /// The vCPU's id.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Runs `blocking`, which waits for something. While the thread is recorded, its timer is
    /// disarmed before and armed again behind it, with one system call each, so that the sampler
    /// does not end the wait. The running time left to the next sample is kept.
    #[inline(always)]
    pub fn block<T>(&self, blocking: impl FnOnce() -> T) -> T {
        struct Wake(&'static HostedAgent);
        impl Drop for Wake {
            fn drop(&mut self) {
                if let Some(deadline_ns) = self.0.on_wake() {
                    self.0.charge_arming(|| self.0.platform().arm(deadline_ns));
                }
            }
        }
        self.agent.on_block(Some(&Registers::here()));
        let platform = self.agent.platform();
        if platform.is_armed() {
            self.agent.charge_arming(|| platform.disarm());
        }
        let _wake = Wake(self.agent);
        blocking()
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        // The next thread on this vCPU works for no span of this one.
        self.agent.leave(SpanId::NONE);
        self.agent.platform().leave(self.id);
        delete_timer(self.timer);
    }
}

/// Installs the handler for `signal`.
pub(super) fn install_handler(signal: c_int) -> Result<(), Error> {
    // SAFETY: zeros are a valid `sigaction`: no flags, an empty mask.
    let mut action: sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    // On the alternate stack: the thread's own may be nearly full.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler has the type that SA_SIGINFO requires and is async-signal-safe: it reads
    // clocks, sets a timer, and uses atomics and cells without destructors.
    let failed = unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) };
    check_errno("sigaction", failed)
}

/// The timer upcall.
extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    let Some(agent) = AGENT.get() else {
        return;
    };
    // SAFETY: the calling thread's own errno.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: with SA_SIGINFO the kernel passes the interrupted context.
    let registers = unsafe { arch::registers(&*context.cast::<ucontext_t>()) };
    agent.platform().note_signal();
    if let Some(deadline_ns) = agent.on_tick(Some(&registers)) {
        agent.platform().arm(deadline_ns);
    }
    // SAFETY: as above. The interrupted code must not see the errno of this handler's system calls.
    unsafe { *libc::__errno_location() = errno };
}

fn create_timer(thread: libc::pid_t, signal: c_int) -> Result<timer_t, Error> {
    // SAFETY: zeros are a valid `sigevent`.
    let mut event: sigevent = unsafe { core::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_THREAD_ID;
    event.sigev_signo = signal;
    event.sigev_notify_thread_id = thread;
    let mut timer = core::ptr::null_mut();
    // CLOCK_MONOTONIC: a timer on the thread's CPU clock fires only at the kernel's tick, about
    // 250 times a second.
    // SAFETY: the structures have the required types.
    let failed =
        unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
    check_errno("timer_create", failed)?;
    Ok(timer)
}

fn delete_timer(timer: timer_t) {
    // SAFETY: the timer was created above and is deleted once. The handler of a pending signal
    // finds that the thread is not a vCPU.
    unsafe { libc::timer_delete(timer) };
}

fn stack_of_this_thread() -> Result<Range<u64>, Error> {
    // SAFETY: zeros are a valid value; the call below overwrites them.
    let mut attributes: libc::pthread_attr_t = unsafe { core::mem::zeroed() };
    // SAFETY: the calling thread's own attributes, into a structure of the right type.
    let failed = unsafe { libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) };
    check("pthread_getattr_np", failed)?;
    let mut start = core::ptr::null_mut();
    let mut size = 0;
    // SAFETY: the attributes were set above and are destroyed once.
    let failed = unsafe {
        let failed =
            libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        failed
    };
    check("pthread_attr_getstack", failed)?;
    let start = start.expose_provenance() as u64;
    Ok(start..start + size as u64)
}

/// Cuts the stack's bounds at the end of the outermost frame with a frame pointer.
///
/// The C library code that calls `main` uses the frame pointer for another value, so a chain that
/// reaches it would look broken. This function follows the chain once to find its last good frame.
/// In code without frame pointers the register may hold any value.
fn outermost_frame(code: &CodeMap, stack: &Range<u64>, registers: &Registers) -> Range<u64> {
    let mut fp = registers.fp;
    let is_own = stack.contains(&registers.sp);
    let used = if is_own { registers.sp..stack.end } else { 0..0 };
    // SAFETY: the part of the calling thread's stack that its frames occupy.
    let memory = unsafe { StackMemory::new(used) };
    let mut end = None;
    while let Some([caller_fp, return_address]) = memory.frame_record(fp) {
        if code.code(return_address).is_none() || caller_fp != 0 && caller_fp <= fp {
            break;
        }
        end = Some(fp + FRAME_RECORD);
        fp = caller_fp;
    }
    stack.start..end.unwrap_or(stack.end)
}

/// Checks the result of a call that returns an error number.
fn check(call: &'static str, error: c_int) -> Result<(), Error> {
    if error == 0 { Ok(()) } else { Err(Error::System(call, io::Error::from_raw_os_error(error))) }
}

/// Checks the result of a call that sets `errno`.
pub(super) fn check_errno(call: &'static str, result: c_int) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error::System(call, io::Error::last_os_error())) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::guests::hosted::mappings;

    /// Guards against reads of memory that is not mapped: without frame pointers, the compiler
    /// keeps other values in the register.
    #[test]
    #[inline(never)]
    fn a_frame_pointer_with_another_value_is_not_followed() {
        let code = CodeMap::new(&mappings::of_this_process()).unwrap();
        let stack = stack_of_this_thread().unwrap();
        let here = Registers::here();
        let cut = outermost_frame(&code, &stack, &here);
        assert!(cut.start == stack.start && (here.fp..=stack.end).contains(&cut.end), "{cut:x?}");
        for fp in [0, 1, 8, 4096, here.sp - 8, stack.start, stack.end, stack.end - 8, u64::MAX - 7]
        {
            let cut = outermost_frame(&code, &stack, &Registers { fp, ..here });
            assert_eq!(cut, stack, "{fp:#x}");
        }
        // On a stack that is not the thread's, such as a coroutine's.
        assert_eq!(outermost_frame(&code, &stack, &Registers { sp: 4096, ..here }), stack);
    }
}
