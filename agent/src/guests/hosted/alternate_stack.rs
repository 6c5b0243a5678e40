//! The signal stack that the timer upcall runs on.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use std::boxed::Box;

use libc::stack_t;

use super::Error;
use super::thread::check_errno;

/// Room for a tick of an unoptimised build and for the processor state that the kernel saves there.
/// The standard library's alternate stacks are smaller.
const BYTES: usize = 64 * 1024;

/// This thread's alternate stack. Dropping it restores the previous one.
#[derive(Debug)]
pub(super) struct AlternateStack {
    _memory: Box<[MaybeUninit<u8>]>,
    before: stack_t,
}

impl AlternateStack {
    pub(super) fn install() -> Result<Self, Error> {
        let mut memory = Box::new_uninit_slice(BYTES);
        let stack =
            stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        let mut before = MaybeUninit::uninit();
        // SAFETY: nothing else uses the memory until `drop` has removed the stack; `before` is a
        // `stack_t`.
        let failed = unsafe { libc::sigaltstack(&raw const stack, before.as_mut_ptr()) };
        check_errno("sigaltstack", failed)?;
        Ok(Self {
            _memory: memory,
            // SAFETY: the call succeeded and has written it.
            before: unsafe { before.assume_init() },
        })
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: the previous stack still belongs to the thread. No signal handler drops this
        // value, so nothing runs on this stack.
        unsafe { libc::sigaltstack(&raw const self.before, core::ptr::null_mut()) };
    }
}
