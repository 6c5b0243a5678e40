//! Breakpoints of traces: the handler of SIGTRAP.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use std::sync::OnceLock;

use libc::{sigaction, siginfo_t, ucontext_t};

use super::thread::check_errno;
use super::{AGENT, Error, arch};
use crate::Breakpoint;

/// The code of a signal for `int3` (Linux, include/uapi/asm-generic/siginfo.h).
const SI_KERNEL: c_int = 0x80;

/// What handled the signal before.
static BEFORE: OnceLock<sigaction> = OnceLock::new();

/// Installs the handler. It runs on the thread's alternate stack with all signals blocked: a signal handler that met a
/// probe inside of this one could not be handled.
pub(super) fn install_handler() -> Result<(), Error> {
    // SAFETY: zeros are a valid `sigaction`.
    let mut action: sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the set is the action's own.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    let mut before = MaybeUninit::uninit();
    // SAFETY: the handler has the type that SA_SIGINFO requires and is async-signal-safe: it reads clocks without system
    // calls, and uses atomics and cells without destructors.
    let failed = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, before.as_mut_ptr()) };
    check_errno("sigaction", failed)?;
    // SAFETY: the call succeeded and has written it.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    Ok(())
}

extern "C" fn on_signal(_: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure.
    let is_breakpoint = unsafe { (*info).si_code } == SI_KERNEL;
    // SAFETY: with SA_SIGINFO the kernel passes the interrupted context, which this handler may change.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    let mut frame = arch::trap_frame(context);
    let agent = AGENT.get().filter(|_| is_breakpoint);
    let handled = agent.map(|agent| agent.on_breakpoint(&mut frame));
    if handled == Some(Breakpoint::Handled) {
        arch::resume_at(context, &frame);
        return;
    }
    // The signal has its previous meaning again, and the breakpoint is executed again.
    if let Some(before) = BEFORE.get() {
        // SAFETY: the kernel returned this action.
        unsafe { libc::sigaction(libc::SIGTRAP, before, core::ptr::null_mut()) };
        if is_breakpoint {
            frame.pc = frame.pc.wrapping_sub(1);
            arch::resume_at(context, &frame);
        } else {
            // SAFETY: always allowed; it is delivered when this handler returns.
            unsafe { libc::raise(libc::SIGTRAP) };
        }
    }
}
