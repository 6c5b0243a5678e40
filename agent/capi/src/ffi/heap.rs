//! The calls of the guest's allocator.
//!
//! They may be called wherever upcalls may run, inside an upcall too, and on any stack: see
//! [`entry`](super::entry). Nearly all allocations return before they enter the agent:
//! [`COUNTDOWNS`] decide them.
//!
//! Why: docs/design/decisions.md#allocations-before-the-agent.

use core::ffi::{c_char, c_void};

#[cfg(feature = "heap")]
use self::hooks::{COUNTDOWNS, on_alloc, on_free, on_realloc, on_sampled_alloc};
use super::calls::code_of;
use super::{one, read};
use crate::arch::aligned;
#[cfg(feature = "heap")]
use crate::arch::{aligned_with_caller_if_more, aligned_with_caller_of_three};
use crate::status::{Misuse, UNIKPROF_E_EVENT_NAME, UNIKPROF_E_NULL, UNIKPROF_E_UNSUPPORTED};

/// Returns the length in bytes of a block for `live_memory` with room for `samples` sampled
/// allocations, at any alignment. A sample takes 34 bytes. About three quarters of them have room
/// before some are dropped and counted. Returns 0 in an archive that was built without `--heap`.
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_live_bytes(samples: usize) -> usize {
    if cfg!(feature = "heap") { unikprof_agent::live_bytes(samples) } else { 0 }
}

/// The guest's allocator has returned `pointer` for `size` bytes. The stack of a sampled allocation
/// begins at the caller of this function.
///
/// Does nothing for NULL, before `unikprof_init`, on a CPU that is not sampled, and in an archive
/// that was built without `--heap`; any other pointer and size are allowed. May be called wherever
/// `unikprof_on_tick` may, also by an upcall that interrupts another allocation.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_on_alloc(pointer: *const c_void, size: usize) {
    #[cfg(feature = "heap")]
    aligned_with_caller_if_more!(COUNTDOWNS, on_alloc);
    #[cfg(not(feature = "heap"))]
    core::arch::naked_asm!("ret")
}

/// The guest has allocated `size` bytes, and a sampler of its own has drawn them: that of a
/// language's runtime, which draws one byte in `interval` at random. Each recording draws again for
/// its own interval, which must be at least eight times as great: otherwise it lacks allocations
/// that it would always have kept.
///
/// `key` stands for the address, which the runtime may change, until `unikprof_on_free(key)`. No
/// allocation may have it as its address: an odd number, cast to a pointer, is the address of none
/// that an allocator returns. Does nothing for a size or an interval of 0; otherwise like
/// `unikprof_on_alloc`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_on_sampled_alloc(key: *const c_void, size: usize, interval: usize) {
    #[cfg(feature = "heap")]
    aligned_with_caller_of_three!(on_sampled_alloc);
    #[cfg(not(feature = "heap"))]
    core::arch::naked_asm!("ret")
}

/// The guest is about to free `pointer`. Call it before another CPU can allocate the same address.
/// Does nothing for NULL, for a pointer that was not sampled, and for one that was never allocated.
/// Otherwise like `unikprof_on_alloc`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_on_free(pointer: *const c_void) {
    #[cfg(feature = "heap")]
    aligned!(on_free);
    #[cfg(not(feature = "heap"))]
    core::arch::naked_asm!("ret")
}

/// The guest's allocator has moved `old` to `new`, which has `size` bytes: `old` is freed and `new`
/// allocated. If `new` is NULL, a `size` of 0 means that `old` was freed, and any other size that
/// nothing has changed. With several CPUs call it before another one can allocate `old`: inside the
/// allocator's lock. Otherwise like `unikprof_on_alloc`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_on_realloc(old: *const c_void, new: *const c_void, size: usize) {
    #[cfg(feature = "heap")]
    aligned_with_caller_of_three!(on_realloc);
    #[cfg(not(feature = "heap"))]
    core::arch::naked_asm!("ret")
}

/// Records the state of one of the guest's arenas, such as a heap or a pool: the bytes in use and
/// its size. They become the counters `NAME.used` and `NAME.size` in the flight recorder, so it
/// requires an archive that was built with `--heap` and `--ring`. `name` has 1 to 43 bytes of UTF-8
/// without control characters. Call it about once a second.
///
/// Returns UNIKPROF_OK or an error code. May be called wherever `unikprof_on_tick` may.
///
/// # Safety
///
/// For C: `name` is NULL or ends with 0.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unikprof_arena(name: *const c_char, used: u64, size: u64) -> i32 {
    aligned!(arena)
}

unsafe extern "C" fn arena(name: *const c_char, used: u64, size: u64) -> i32 {
    if !cfg!(all(feature = "heap", feature = "ring")) {
        return UNIKPROF_E_UNSUPPORTED;
    }
    // SAFETY: guaranteed by the caller. A text that is too long is not a valid name either.
    let name = unsafe { read::text(name, read::NAME) };
    code_of(
        one::upcall(|agent| {
            let name = name.map_err(|Misuse(_)| Misuse(UNIKPROF_E_EVENT_NAME))?;
            let name = name.ok_or(Misuse(UNIKPROF_E_NULL))?;
            #[cfg(feature = "heap")]
            agent.arena(name, used, size).map_err(super::events::misuse)?;
            let _ = (agent, name, used, size);
            Ok(())
        })
        .and_then(|done| done),
    )
}

#[cfg(feature = "heap")]
pub(super) mod hooks {
    use core::ffi::c_void;
    use core::ptr;
    use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

    use unikprof_agent::{Agent, Platform as _, Registers};

    use crate::ffi::guest::Guest;
    use crate::ffi::one;

    /// Bytes that a vCPU allocates before the agent must look, in a cache line of its own.
    #[repr(C, align(64))]
    pub(super) struct Countdown {
        left: AtomicU64,
        /// The value of `left` when the agent last looked.
        given: AtomicU64,
    }

    impl Countdown {
        #[inline(never)]
        fn begin(&self, bytes: u64) {
            self.given.store(bytes, Ordering::Relaxed);
            self.left.store(bytes, Ordering::Relaxed);
        }
    }

    /// With several vCPUs, those above this number enter the agent for each allocation.
    const COUNTED: usize = 8;

    /// The first is that of a guest's only vCPU, which the assembly code of an allocation counts
    /// down; the others are those of several vCPUs. All are 0 until the agent has looked.
    pub(super) static COUNTDOWNS: [Countdown; 1 + COUNTED] =
        [const { Countdown { left: AtomicU64::new(0), given: AtomicU64::new(0) } }; 1 + COUNTED];

    /// `vcpu` of `struct unikprof_ops`, and its argument. NULL with one vCPU, and before the start.
    static VCPU: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

    /// Prepares for the agent.
    pub(in crate::ffi) fn begin(agent: &Agent<'static, Guest>) {
        if agent.config().vcpus > 1 {
            let ops = agent.platform().ops();
            let vcpu = ops.vcpu.map_or(ptr::null_mut(), |vcpu| vcpu as *mut c_void);
            CONTEXT.store(ops.context, Ordering::Relaxed);
            VCPU.store(vcpu, Ordering::Release);
        }
    }

    /// With several vCPUs: counts an allocation that the agent need not see, and returns true. One
    /// by an upcall between the load and the store is not counted; if the agent looked at that one,
    /// the vCPU's total of bytes is wrong by up to the 8 KiB that the agent allows between two
    /// looks.
    #[inline]
    fn pass(size: usize) -> bool {
        let vcpu = VCPU.load(Ordering::Acquire);
        if vcpu.is_null() {
            return false;
        }
        // SAFETY: not NULL, so `begin` has stored a function of this type and its argument; as the
        // header requires, both stay valid.
        let vcpu = unsafe {
            let vcpu: unsafe extern "C" fn(*mut c_void) -> u32 = core::mem::transmute(vcpu);
            vcpu(CONTEXT.load(Ordering::Relaxed))
        };
        let Some(Countdown { left: cell, .. }) = COUNTDOWNS.get(vcpu as usize + 1) else {
            return false;
        };
        let (left, is_short) = cell.load(Ordering::Relaxed).overflowing_sub(size as u64);
        if !is_short {
            cell.store(left, Ordering::Relaxed);
        }
        !is_short
    }

    pub(super) extern "C" fn on_alloc(
        pointer: *const c_void,
        size: usize,
        pc: u64,
        sp: u64,
        fp: u64,
    ) {
        if !pass(size) {
            allocated(pointer, size, 0, &Registers::new(pc, sp, fp));
        }
    }

    pub(super) extern "C" fn on_sampled_alloc(
        key: *const c_void,
        size: usize,
        interval: usize,
        pc: u64,
        sp: u64,
        fp: u64,
    ) {
        if interval != 0 {
            allocated(key, size, interval, &Registers::new(pc, sp, fp));
        }
    }

    /// Enters with an allocation that may be sampled, or one that another sampler has drawn at the
    /// mean `interval`.
    #[cold]
    #[inline(never)]
    fn allocated(pointer: *const c_void, size: usize, interval: usize, registers: &Registers) {
        let _ = one::upcall(|agent| {
            settle(agent, false);
            if interval == 0 {
                agent.on_alloc_from(pointer.cast(), size, || *registers);
            } else {
                let [key, size, drawn] = [pointer.addr(), size, interval].map(|it| it as u64);
                agent.on_sampled_alloc(key, size, drawn, registers);
            }
            settle(agent, true);
        });
    }

    pub(super) extern "C" fn on_free(pointer: *const c_void) {
        let _ = one::upcall(|agent| agent.on_free(pointer.cast()));
    }

    pub(super) extern "C" fn on_realloc(
        old: *const c_void,
        new: *const c_void,
        size: usize,
        pc: u64,
        sp: u64,
        fp: u64,
    ) {
        if !new.is_null() || size == 0 {
            on_free(old);
        }
        if !new.is_null() {
            on_alloc(new, size, pc, sp, fp);
        }
    }

    /// Tells the agent what this vCPU has allocated since it looked. Until it is called with
    /// `goes_on`, every allocation of this vCPU enters the agent.
    #[inline(never)]
    pub(in crate::ffi) fn settle(agent: &Agent<'static, Guest>, goes_on: bool) {
        let number = match agent.config().vcpus {
            1 => Some(0),
            _ => agent.platform().vcpu().map(|vcpu| vcpu as usize + 1),
        };
        if let Some(countdown) = number.and_then(|number| COUNTDOWNS.get(number)) {
            let given = countdown.given.load(Ordering::Relaxed);
            let left = countdown.left.load(Ordering::Relaxed);
            let next = agent.spend(given.saturating_sub(left));
            countdown.begin(if goes_on { next } else { 0 });
        }
    }
}
