//! The calls of the guest's allocator.
//!
//! They may be called wherever upcalls may run, inside an upcall too, and on any stack: see
//! [`entry`](super::entry). Nearly all allocations and frees return before they enter the gate:
//! [`LEFT`] and [`HOLDS`] decide them.
//!
//! Why: docs/decisions.md#allocations-before-the-gate.

use core::ffi::{c_char, c_void};

#[cfg(feature = "heap")]
use self::hooks::{HOLDS, LEFT, on_alloc, on_free, on_realloc, on_sampled_alloc};
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
    if cfg!(feature = "heap") {
        unikprof_agent::live_bytes(samples)
    } else {
        0
    }
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
    aligned_with_caller_if_more!(LEFT, on_alloc);
    #[cfg(not(feature = "heap"))]
    core::arch::naked_asm!("ret")
}

/// The guest has allocated `size` bytes, and a sampler of its own has drawn them: that of a language's
/// runtime, which draws one byte in `interval` at random. Each recording draws again for its own
/// interval, which must be at least eight times as great: otherwise it lacks allocations that it would
/// always have kept.
///
/// `key` stands for the address, which the runtime may change, until `unikprof_on_free(key)`. No
/// allocation may have it as its address: an odd number, cast to a pointer, is the address of none that
/// an allocator returns. Does nothing for a size or an interval of 0; otherwise like
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
    crate::arch::aligned_if_set!(HOLDS, on_free);
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
            agent
                .arena(name, used, size)
                .map_err(super::events::misuse)?;
            let _ = (agent, name, used, size);
            Ok(())
        })
        .and_then(|done| done),
    )
}

#[cfg(feature = "heap")]
pub(super) mod hooks {
    use core::ffi::c_void;
    use core::sync::atomic::{AtomicU64, Ordering};

    use unikprof_agent::{Agent, Registers};

    use crate::ffi::guest::Guest;
    use crate::ffi::one;
    use crate::holds::Holds;

    /// Bytes that the guest's only vCPU allocates before the agent must look. Always 0 if there are several vCPUs: they
    /// cannot share a countdown without a locked instruction.
    pub(super) static LEFT: AtomicU64 = AtomicU64::new(0);
    /// The value of [`LEFT`] when the agent last looked.
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    /// Set while there may be live samples, so that frees must look for theirs.
    pub(super) static HOLDS: Holds = Holds::new();

    /// Forgets an earlier agent.
    pub(in crate::ffi) fn reset() {
        LEFT.store(0, Ordering::Relaxed);
        GIVEN.store(0, Ordering::Relaxed);
        HOLDS.reset();
    }

    pub(super) extern "C" fn on_alloc(
        pointer: *const c_void,
        size: usize,
        pc: u64,
        sp: u64,
        fp: u64,
    ) {
        let _ = one::upcall(|agent| allocated(agent, pointer, size, &Registers::new(pc, sp, fp)));
    }

    pub(super) extern "C" fn on_sampled_alloc(
        key: *const c_void,
        size: usize,
        interval: usize,
        pc: u64,
        sp: u64,
        fp: u64,
    ) {
        let _ = one::upcall(|agent| {
            let registers = Registers::new(pc, sp, fp);
            agent.on_sampled_alloc(key.addr() as u64, size as u64, interval as u64, &registers);
            note_samples(agent);
        });
    }

    pub(super) extern "C" fn on_free(pointer: *const c_void) {
        let _ = one::upcall(|agent| freed(agent, pointer));
    }

    pub(super) extern "C" fn on_realloc(
        old: *const c_void,
        new: *const c_void,
        size: usize,
        pc: u64,
        sp: u64,
        fp: u64,
    ) {
        let _ = one::upcall(|agent| {
            if !new.is_null() || size == 0 {
                freed(agent, old);
            }
            allocated(agent, new, size, &Registers::new(pc, sp, fp));
        });
    }

    /// Tells the agent what was allocated since it looked. Until it is called with `goes_on`, every allocation enters the
    /// gate.
    #[inline(never)]
    pub(in crate::ffi) fn settle(agent: &Agent<'static, Guest>, goes_on: bool) {
        if agent.config().vcpus == 1 {
            let left = LEFT.load(Ordering::Relaxed);
            agent.spend(GIVEN.load(Ordering::Relaxed).saturating_sub(left));
            let next = if goes_on { agent.left_to_spend() } else { 0 };
            GIVEN.store(next, Ordering::Relaxed);
            LEFT.store(next, Ordering::Relaxed);
        }
    }

    #[inline(never)]
    fn allocated(
        agent: &Agent<'static, Guest>,
        pointer: *const c_void,
        size: usize,
        registers: &Registers,
    ) {
        settle(agent, false);
        agent.on_alloc_from(pointer.cast(), size, || *registers);
        settle(agent, true);
        note_samples(agent);
    }

    fn note_samples(agent: &Agent<'static, Guest>) {
        if agent.has_live_samples() {
            HOLDS.note();
        }
    }

    #[inline(never)]
    fn freed(agent: &Agent<'static, Guest>, pointer: *const c_void) {
        agent.on_free(pointer.cast());
        HOLDS.clear_if(|| !agent.has_live_samples());
    }
}
