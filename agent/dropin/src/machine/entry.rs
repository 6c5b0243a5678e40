//! The entry of interrupts, and the stacks that they run on.
//!
//! The processor pushes its frame on the interrupted stack, or on the stack that the guest's gate
//! names; the entry saves registers below it, as a handler of the guest would, and continues on the
//! vCPU's tick stack. A poll runs with interrupts on, on a stack of its own, to which the frame and
//! the registers move before: so an interrupt of the poll finds the gate's stack unused.

use core::arch::x86_64::__cpuid_count;
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::upcall::{self, Next};
use crate::vcpus::MAX_VCPUS;

const TICK_STACK: usize = 16 * 1024;
/// A poll needs 32 KiB. The start needs three times 96 KiB, the size of what it builds and moves.
const POLL_STACK: usize = 320 * 1024;
/// At the end of the poll stack that only the start reaches, and above it the stack of a crash.
const CRASH_BLOCK: usize = 128 * 1024;
const CRASH_STACK: usize = 64 * 1024;
/// The size of the area of `fxsave`.
const FX_AREA: usize = 512;

#[repr(C, align(16))]
struct Memory<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

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

static TICKS: [Memory<TICK_STACK>; MAX_VCPUS] = [const { Memory::new() }; MAX_VCPUS];
static POLL: Memory<POLL_STACK> = Memory::new();
static FX: Memory<FX_AREA> = Memory::new();

/// The CPUID leaf whose ebx is the number of the vCPU; 0 if there is one vCPU.
static VCPU_LEAF: AtomicU32 = AtomicU32::new(0);
/// The guest's handler of events.
pub(super) static GUESTS_HANDLER: AtomicU64 = AtomicU64::new(0);

/// The interrupted registers. The entry restores all of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Saved {
    rbx: u64,
    pub(crate) rbp: u64,
    r11_to_r8: [u64; 4],
    pub(crate) rdi: u64,
    rsi_rdx_rcx: [u64; 3],
    pub(crate) rax: u64,
    pub(crate) rip: u64,
    cs: u64,
    pub(crate) flags: u64,
    pub(crate) rsp: u64,
    ss: u64,
}

const SAVED: usize = size_of::<Saved>();
const _: () = assert!(SAVED.is_multiple_of(16));

// Code with interrupts off is not interrupted: such a frame is an emulator's mistake (QEMU 7.2 may
// deliver an interrupt twice), and the guest's handler has it as it would without the profiler.
global_asm!(
    r#"
    .macro unikprof_restore
    pop rbx
    pop rbp
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    .endm

    .text
    .balign 16
    .type unikprof_dropin_entry, @function
unikprof_dropin_entry:
    test dword ptr [rsp + 16], 0x200    /* the interrupted code had interrupts on */
    jz 2f
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push rbp
    push rbx
    cld
    mov rbp, rsp
    xor ebx, ebx
    mov eax, [rip + {vcpu_leaf}]
    test eax, eax
    jz 3f
    xor ecx, ecx
    cpuid
3:  mov eax, {guest_next}
    cmp ebx, {vcpus}
    jae 4f
    mov eax, ebx
    imul eax, eax, {tick_size}
    lea rsp, [rip + {ticks} + {tick_size}]
    add rsp, rax
    mov rdi, rbp
    mov esi, ebx
    call {interrupt}
    mov rsp, rbp
4:  cmp al, {poll_next}
    je 1f
    cmp al, {guest_next}
    unikprof_restore
    je 2f
    iretq
2:  jmp [rip + {guests_handler}]
    /* The poll. Its chain of frames ends here; the interrupted code's follows by
        `Platform::continuation`. */
1:  mov rsi, rsp
    lea rdi, [rip + {poll}]
    add rdi, {poll_size} - {saved}
    mov rsp, rdi
    mov ecx, {saved} / 8
    rep movsq
    xor ebp, ebp
    fxsave64 [rip + {fx}]
    fninit
    push 0x1f80                         /* the default of mxcsr */
    ldmxcsr [rsp]
    add rsp, 8
    mov rdi, rsp
    call {poll_function}
    fxrstor64 [rip + {fx}]
    unikprof_restore
    iretq
    .size unikprof_dropin_entry, . - unikprof_dropin_entry
    .purgem unikprof_restore
"#,
    ticks = sym TICKS,
    vcpus = const MAX_VCPUS,
    vcpu_leaf = sym VCPU_LEAF,
    tick_size = const TICK_STACK,
    poll = sym POLL,
    poll_size = const POLL_STACK,
    fx = sym FX,
    saved = const SAVED,
    poll_next = const Next::Poll as u8,
    guest_next = const Next::Guest as u8,
    guests_handler = sym GUESTS_HANDLER,
    interrupt = sym upcall::on_interrupt,
    poll_function = sym upcall::on_poll,
);

pub(super) fn address() -> u64 {
    address_of!("unikprof_dropin_entry")
}

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
