//! The stacks that ticks, polls, the start and a crash run on, and the vCPU that each belongs to.

use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

/// The most vCPUs that are sampled.
pub(crate) const MAX_VCPUS: usize = 8;
pub(crate) const TICK_STACK: usize = 16 * 1024;
/// A poll needs 32 KiB. The start needs three times 96 KiB, the size of what it builds and moves.
pub(crate) const POLL_STACK: usize = 320 * 1024;
/// At the end of the poll stack that only the start reaches, and above it the stack of a crash.
const CRASH_BLOCK: usize = 128 * 1024;
const CRASH_STACK: usize = 64 * 1024;
/// The size of the area of `fxsave`.
const FX_AREA: usize = 512;

#[repr(C, align(16))]
pub(crate) struct Memory<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the entry uses it, one at a time: interrupts are off on the vCPU whose it is, or the
// poll's flag is set.
unsafe impl<const SIZE: usize> Sync for Memory<SIZE> {}

impl<const SIZE: usize> Memory<SIZE> {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; SIZE]))
    }

    fn top(&self) -> u64 {
        self.0.get().expose_provenance() as u64 + SIZE as u64
    }
}

pub(crate) static TICKS: [Memory<TICK_STACK>; MAX_VCPUS] = [const { Memory::new() }; MAX_VCPUS];
pub(crate) static POLL: Memory<POLL_STACK> = Memory::new();
pub(crate) static FX: Memory<FX_AREA> = Memory::new();

/// The CPUID leaf whose ebx is the number of the vCPU; 0 if there is one vCPU.
pub(crate) static VCPU_LEAF: AtomicU32 = AtomicU32::new(0);
/// Whether a stack pointer is on the stack of polls.
pub(crate) fn is_on_poll_stack(sp: u64) -> bool {
    (POLL.top() - POLL_STACK as u64..=POLL.top()).contains(&sp)
}

/// The vCPU whose ticks or polls run on this stack; `None` on the guest's own stacks and in a
/// crash.
pub(crate) fn vcpu_of_stack() -> Option<u32> {
    let here = 0_u8;
    let here = &raw const here as u64;
    let ticks = TICKS[0].top() - TICK_STACK as u64;
    let poll = POLL.top() - POLL_STACK as u64;
    match here.wrapping_sub(ticks) / TICK_STACK as u64 {
        number if number < MAX_VCPUS as u64 => Some(number as u32),
        _ => (poll + (CRASH_BLOCK + CRASH_STACK) as u64..=POLL.top()).contains(&here).then_some(0),
    }
}

/// The vCPU that this runs on, by CPUID.
pub(crate) fn vcpu_by_leaf() -> u32 {
    match VCPU_LEAF.load(Ordering::Relaxed) {
        0 => 0,
        leaf => __cpuid_count(leaf, 0).ebx,
    }
}

/// Has the entry distinguish the vCPUs by this CPUID leaf.
pub(crate) fn set_vcpu_leaf(leaf: u32) {
    VCPU_LEAF.store(leaf, Ordering::Relaxed);
}

/// Calls `function` on the stack of polls, which must be unused.
pub(crate) fn on_poll_stack(function: extern "C" fn()) {
    on_stack(POLL.top(), function);
}

/// Calls `function` on a stack of its own, which neither ticks nor polls use, on whatever vCPU; not
/// at all while the stack is in use, as in a start. There is one call in the guest's life.
pub(crate) fn on_crash_stack(function: extern "C" fn()) {
    let base = POLL.top() - POLL_STACK as u64;
    let top = base + (CRASH_BLOCK + CRASH_STACK) as u64;
    let here = 0_u8;
    if !(base..=top).contains(&(&raw const here as u64)) {
        on_stack(top, function);
    }
}

/// The memory for a crash dump. The start is over, and only one caller has it.
pub(crate) fn crash_block() -> &'static mut [u8] {
    let start = POLL.0.get().cast();
    // SAFETY: the start of the memory, of which the callers' contract is that nobody uses it.
    unsafe { core::slice::from_raw_parts_mut(start, CRASH_BLOCK) }
}

fn on_stack(top: u64, function: extern "C" fn()) {
    // SAFETY: the stack is unused, and the registers that a call may change are named.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}
