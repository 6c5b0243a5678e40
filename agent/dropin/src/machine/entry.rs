//! The entries of the two interrupts, and the stacks that they run on.
//!
//! The processor pushes its frame on the interrupted stack, or on the landing stack if the guest has a TSS. The entry
//! copies the frame to the tick stack and continues there: a tick that interrupts a poll finds the landing stack
//! unused. Until the copy is complete there is no branch, because QEMU 7.2 may deliver an interrupt twice, with
//! interrupts off the second time, at the next one; the second frame has overwritten the first on the landing stack
//! then. Such a frame is copied elsewhere, and ignored. No real processor delivers it.
//!
//! A poll runs with interrupts on, on a stack of its own, to which the saved registers move before.

use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;

use crate::upcall::{self, Next};

const TICK_STACK: usize = 16 * 1024;
/// A poll needs 32 KiB; the start, which builds everything on it, three times the largest frame of 96 KiB.
const POLL_STACK: usize = 256 * 1024;
/// One frame of the processor, and the registers that the entry saves there.
const LANDING_STACK: usize = 512;
/// The size of the area of `fxsave`.
const FX_AREA: usize = 512;

#[repr(C, align(16))]
struct Memory<const SIZE: usize>(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the entries use it, one at a time: interrupts are off, or the poll's flag is set.
unsafe impl<const SIZE: usize> Sync for Memory<SIZE> {}

impl<const SIZE: usize> Memory<SIZE> {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; SIZE]))
    }

    fn top(&self) -> u64 {
        self.0.get().expose_provenance() as u64 + SIZE as u64
    }
}

static LANDING: Memory<LANDING_STACK> = Memory::new();
static TICK: Memory<TICK_STACK> = Memory::new();
static POLL: Memory<POLL_STACK> = Memory::new();
/// Where the second delivery's frame goes.
static IGNORED: Memory<64> = Memory::new();
static FX: Memory<FX_AREA> = Memory::new();

/// The guest's handler of events.
pub(super) static GUESTS_HANDLER: AtomicU64 = AtomicU64::new(0);
/// The stack on which that handler finds the processor's frame.
static GUESTS_STACK: AtomicU64 = AtomicU64::new(0);

/// What was interrupted. The entry restores all of it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Saved {
    rbx: u64,
    pub(crate) rbp: u64,
    others: [u64; 9],
    pub(crate) frame: Frame,
}

/// The processor's part.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) rip: u64,
    cs: u64,
    flags: u64,
    pub(crate) rsp: u64,
    ss: u64,
}

const SAVED: usize = size_of::<Saved>();
const _: () = assert!(SAVED == 128);

global_asm!(
    r#"
    .macro unikprof_save
    push rax
    push rcx
    push rdx
    lea rcx, [rip + {tick}]
    add rcx, {tick_size}
    lea rdx, [rip + {ignored}]
    add rdx, 64
    test dword ptr [rsp + 40], 0x200    /* the interrupted code had interrupts on */
    cmovz rcx, rdx
    mov rax, [rsp + 56]
    mov [rcx - 8], rax
    mov rax, [rsp + 48]
    mov [rcx - 16], rax
    mov rax, [rsp + 40]
    mov [rcx - 24], rax
    mov rax, [rsp + 32]
    mov [rcx - 32], rax
    mov rax, [rsp + 24]
    mov [rcx - 40], rax
    mov rax, [rsp + 16]
    mov [rcx - 48], rax
    mov rax, [rsp + 8]
    mov [rcx - 56], rax
    mov rax, [rsp]
    mov [rcx - 64], rax
    test dword ptr [rsp + 40], 0x200
    jz 9f
    mov rdx, rsp
    lea rsp, [rcx - 64]
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push rbp
    push rbx
    cld
    mov rdi, rsp
    lea rsi, [rdx + 24]
    mov rbx, rsi
    .endm

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
    .type unikprof_dropin_timer_entry, @function
unikprof_dropin_timer_entry:
    unikprof_save
    call {on_timer}
unikprof_dropin_go_on:
    cmp al, {poll_next}
    je 1f
    unikprof_restore
    iretq
9:  pop rdx
    pop rcx
    pop rax
unikprof_dropin_spurious_entry:
    iretq
    /* The poll. Its chain of frames ends here; the interrupted code's follows by `Platform::continuation`. */
1:  mov rsi, rsp
    lea rdi, [rip + {poll}]
    add rdi, {poll_size} - {saved}
    mov rdx, rdi
    mov ecx, {saved} / 8
    rep movsq
    mov rsp, rdx
    xor ebp, ebp
    fxsave64 [rip + {fx}]
    fninit
    push 0x1f80                         /* the default of mxcsr */
    ldmxcsr [rsp]
    add rsp, 8
    mov rdi, rsp
    call {on_poll}
    fxrstor64 [rip + {fx}]
    unikprof_restore
    iretq
    .size unikprof_dropin_timer_entry, . - unikprof_dropin_timer_entry

    .balign 16
    .type unikprof_dropin_event_entry, @function
unikprof_dropin_event_entry:
    unikprof_save
    call {on_event}
    cmp al, {guest_next}
    jne unikprof_dropin_go_on
    mov [rip + {guests_stack}], rbx
    unikprof_restore
    mov rsp, [rip + {guests_stack}]
    jmp [rip + {guests_handler}]
9:  pop rdx
    pop rcx
    pop rax
    jmp [rip + {guests_handler}]
    .size unikprof_dropin_event_entry, . - unikprof_dropin_event_entry

    .purgem unikprof_save
    .purgem unikprof_restore
"#,
    tick = sym TICK,
    tick_size = const TICK_STACK,
    poll = sym POLL,
    poll_size = const POLL_STACK,
    ignored = sym IGNORED,
    fx = sym FX,
    saved = const SAVED,
    poll_next = const Next::Poll as u8,
    guest_next = const Next::Guest as u8,
    guests_stack = sym GUESTS_STACK,
    guests_handler = sym GUESTS_HANDLER,
    on_timer = sym upcall::on_timer,
    on_poll = sym upcall::on_poll,
    on_event = sym upcall::on_event,
);

pub(super) fn timer() -> u64 {
    address_of!("unikprof_dropin_timer_entry")
}

pub(super) fn events() -> u64 {
    address_of!("unikprof_dropin_event_entry")
}

pub(super) fn spurious() -> u64 {
    address_of!("unikprof_dropin_spurious_entry")
}

pub(super) fn landing_stack_top() -> u64 {
    LANDING.top()
}

/// Whether a stack pointer is on the stack of polls.
pub(crate) fn is_on_poll_stack(sp: u64) -> bool {
    (POLL.top() - POLL_STACK as u64..=POLL.top()).contains(&sp)
}

/// Calls `function` on the stack of polls, which must be unused.
pub(crate) fn on_poll_stack(function: extern "C" fn()) {
    // SAFETY: the stack is unused, and the registers that a call may change are named.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) POLL.top(),
            function = in(reg) function,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}
