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

/// The signal's previous handler.
static BEFORE: OnceLock<sigaction> = OnceLock::new();

/// Installs the handler. It runs on the thread's alternate stack with all signals blocked: a signal
/// handler that met a probe inside of this one could not be handled.
pub(super) fn install_handler() -> Result<(), Error> {
    // SAFETY: zeros are a valid `sigaction`.
    let mut action: sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the set is the action's own.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    let mut before = MaybeUninit::uninit();
    // SAFETY: the handler has the type that SA_SIGINFO requires and is async-signal-safe: it reads
    // clocks, and uses atomics and cells without destructors.
    let failed = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, before.as_mut_ptr()) };
    check_errno("sigaction", failed)?;
    // SAFETY: the call succeeded and has written it.
    let _ = BEFORE.set(unsafe { before.assume_init() });
    Ok(())
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure.
    let is_breakpoint = unsafe { (*info).si_code } == SI_KERNEL;
    {
        // SAFETY: with SA_SIGINFO the kernel passes the interrupted context, which this handler may
        // change.
        let context = unsafe { &mut *context.cast::<ucontext_t>() };
        let mut frame = arch::trap_frame(context);
        let agent = AGENT.get().filter(|_| is_breakpoint);
        let handled = agent.map(|agent| agent.on_breakpoint(&mut frame));
        if handled == Some(Breakpoint::Handled) {
            arch::resume_at(context, &frame);
            return;
        }
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: the arguments are the kernel's.
        unsafe { pass_on(before, is_breakpoint, signal, info, context) };
    }
}

/// Does what the program wants at a signal that is not the agent's. This handler stays, since
/// probes may be set.
///
/// # Safety
/// `before` is the action before this handler's, and the others are a signal's arguments.
unsafe fn pass_on(
    before: &sigaction,
    is_breakpoint: bool,
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    match before.sa_sigaction {
        libc::SIG_IGN if !is_breakpoint => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the kernel returned this action. The process ends as it would have: the
            // signal is delivered when this handler returns.
            unsafe {
                libc::sigaction(libc::SIGTRAP, before, core::ptr::null_mut());
                libc::raise(libc::SIGTRAP);
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: a handler with this flag has this type.
            let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                unsafe { core::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: a handler without this flag has this type.
            let handler: extern "C" fn(c_int) = unsafe { core::mem::transmute(handler) };
            handler(signal);
        }
    }
}
