//! The stack that the timer upcall runs on, beside the thread's own.
#![allow(unsafe_code)]

use core::mem::MaybeUninit;
use std::boxed::Box;

use libc::stack_t;

use super::Error;
use super::thread::check_errno;

/// Room for a tick of a build without optimisation, below the processor's state, which the kernel puts
/// there too; the standard library's alternate stacks are for less.
const BYTES: usize = 64 * 1024;

/// This thread's alternate stack, until it is dropped: then the thread has the former one again.
#[derive(Debug)]
pub(super) struct AlternateStack {
    _memory: Box<[MaybeUninit<u8>]>,
    before: stack_t,
}

impl AlternateStack {
    pub(super) fn install() -> Result<Self, Error> {
        let mut memory = Box::new_uninit_slice(BYTES);
        let stack = stack_t {
            ss_sp: memory.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: memory.len(),
        };
        let mut before = MaybeUninit::uninit();
        // SAFETY: the memory is the stack's alone until `drop` has taken it away; the place is a stack's.
        let failed = unsafe { libc::sigaltstack(&raw const stack, before.as_mut_ptr()) };
        check_errno("sigaltstack", failed)?;
        Ok(Self {
            _memory: memory,
            // SAFETY: written by the call, which has not failed.
            before: unsafe { before.assume_init() },
        })
    }
}

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: what the thread had before is its own still. Nothing runs on this stack: who drops is
        // not a signal handler.
        unsafe { libc::sigaltstack(&raw const self.before, core::ptr::null_mut()) };
    }
}
