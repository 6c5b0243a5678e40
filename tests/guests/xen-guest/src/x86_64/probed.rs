//! Work for traces of a thousand probes, `probed=PERCENT`, and whether the guest's code is as it
//! was at its start.
//!
//! The statistic `text.changed` is the number of bytes that differ. Who reads it while [`doomed`]
//! is traced lets it panic, after which the console has that number too.

#![allow(unsafe_code, reason = "the code is assembly, and compared byte by byte")]

use alloc::boxed::Box;
use core::arch::global_asm;
use core::hint::black_box;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::profiler;
use crate::vcpus::FIRST;

global_asm!(
    include_str!("../../../../../agent/tests/it/tracing/many_functions.s"),
    options(att_syntax)
);

const BREAKPOINT: u8 = 0xcc;
const FUNCTIONS: u64 = 250;
/// The number of functions that a turn calls.
const CALLS: u64 = 64;
/// The number of traced turns before the panic, which show in its dump.
const LAST_TURNS: u64 = 200;

unsafe extern "C" {
    safe static many_functions: u8;
    safe static trace_slots_of_unikprof: u8;
    safe static trace_breakpoint_of_unikprof: u8;
}

/// A copy of the code from when the load began; null without this load.
static BEFORE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Whether [`doomed`] may panic.
static IS_DUE: AtomicBool = AtomicBool::new(false);
static TRACED_TURNS: AtomicU64 = AtomicU64::new(0);

/// One vCPU's work.
pub(crate) fn load(vcpu: VcpuId) -> impl FnMut() + 'static {
    if vcpu == FIRST {
        let before: Box<[u8]> = profiler::text().map(byte).collect();
        BEFORE.store(Box::leak(before).as_mut_ptr(), Ordering::Release);
    }
    let mut number = u64::from(vcpu.0);
    move || {
        for _ in 0..CALLS {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let address = &raw const many_functions as u64 + 64 * ((number >> 33) % FUNCTIONS);
            let function = ptr::with_exposed_provenance::<()>(address as usize);
            // SAFETY: one of the functions, all of this type.
            let function: extern "C" fn(u64) -> u64 = unsafe { core::mem::transmute(function) };
            assert_eq!(function(number), number.wrapping_add(1));
        }
        if vcpu == FIRST {
            doomed(black_box(number));
        }
    }
}

/// Panics when it has been traced for a while, as soon as it is due.
#[inline(never)]
extern "C" fn doomed(number: u64) {
    if IS_DUE.load(Ordering::Relaxed) && TRACED_TURNS.fetch_add(1, Ordering::Relaxed) == LAST_TURNS
    {
        panic!("traced to its end by {number}");
    }
}

/// The number of bytes of code, without the profiler's slots, that are not as at the start.
pub(crate) fn changed_bytes() -> usize {
    if byte(doomed as *const () as u64) == BREAKPOINT {
        IS_DUE.store(true, Ordering::Relaxed);
    }
    let slots: Range<u64> =
        &raw const trace_slots_of_unikprof as u64..&raw const trace_breakpoint_of_unikprof as u64;
    let text = profiler::text();
    let before = BEFORE.load(Ordering::Acquire);
    if before.is_null() {
        return 0;
    }
    let is_changed = |address: &u64| {
        let offset = (address - text.start) as usize;
        // SAFETY: the copy is as long as the code.
        !slots.contains(address) && byte(*address) != unsafe { *before.add(offset) }
    };
    text.clone().filter(is_changed).count()
}

/// A byte of the code, which the profiler changes.
fn byte(address: u64) -> u8 {
    let place = ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: all code is mapped for reading.
    unsafe { place.read_volatile() }
}
