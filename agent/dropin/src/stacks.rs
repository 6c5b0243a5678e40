//! The guest's stacks, as traces tell them apart.
#![allow(unsafe_code, reason = "the guest's function is called by its address")]

use core::sync::atomic::{AtomicUsize, Ordering};

use unikprof_agent::CallStack;

/// The guest's function: see `unikprof_dropin_call_stacks`.
pub(crate) type Ask = unsafe extern "C" fn(sp: u64, id: *mut u64, end: *mut u64) -> i32;

/// The address of that function, or 0 if the guest has given none.
static ASK: AtomicUsize = AtomicUsize::new(0);

/// The size of blocks within which calls are paired without that function. The entry and the exit
/// of a call have the same stack pointer, so that they are in the same block; only what calls of
/// different blocks have to do with each other is not known.
const BLOCK: u64 = 64 << 10;

pub(crate) fn set(ask: Option<Ask>) {
    ASK.store(ask.map_or(0, |ask| ask as usize), Ordering::Release);
}

pub(crate) fn call_stack(sp: u64) -> Option<CallStack> {
    let ask = core::ptr::with_exposed_provenance::<()>(ASK.load(Ordering::Acquire));
    if ask.is_null() {
        // The word above the stack pointer of a function at its entry belongs to its caller.
        let end = sp.checked_next_multiple_of(BLOCK)?;
        return Some(CallStack { id: end, end });
    }
    // SAFETY: only `set` stores an address, that of such a function.
    let ask: Ask = unsafe { core::mem::transmute(ask) };
    let (mut id, mut end) = (0, 0);
    // SAFETY: its contract allows the call in a breakpoint's handler.
    let is_known = unsafe { ask(sp, &raw mut id, &raw mut end) } != 0;
    // A stack that ends below the address is wrong.
    (is_known && sp < end).then_some(CallStack { id, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fibres of 4 KiB in one block, the last one with a wrong end.
    unsafe extern "C" fn fibres(sp: u64, id: *mut u64, end: *mut u64) -> i32 {
        let found = match sp {
            0x1_1000..0x1_2000 => (1, 0x1_2000),
            0x1_2000..0x1_3000 => (2, 0x1_3000),
            0x1_3000..0x1_4000 => (3, 0x1_3000),
            _ => return 0,
        };
        // SAFETY: the caller passes places for both.
        unsafe { (*id, *end) = found };
        1
    }

    #[test]
    fn the_guest_tells_its_stacks_apart() {
        let stack = |id, end| Some(CallStack { id, end });
        assert_eq!(call_stack(0x1_1ff8), stack(0x2_0000, 0x2_0000));
        set(Some(fibres));
        assert_eq!(call_stack(0x1_1ff8), stack(1, 0x1_2000));
        assert_eq!(call_stack(0x1_2000), stack(2, 0x1_3000));
        assert_eq!(call_stack(0x1_3000), None, "its end is below");
        assert_eq!(call_stack(0x1_4000), None);
        set(None);
        assert_eq!(call_stack(u64::MAX), None);
        assert_eq!(call_stack(0x1_4000), stack(0x2_0000, 0x2_0000));
    }
}
