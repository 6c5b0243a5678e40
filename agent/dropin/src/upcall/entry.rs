//! The entry of interrupts.
//!
//! The processor pushes its frame on the interrupted stack, or on the stack that the guest's gate
//! names; the entry saves registers below it, as a handler of the guest would, and continues on the
//! vCPU's tick stack. A poll runs with interrupts on, on a stack of its own, to which the frame and
//! the registers move before: so an interrupt of the poll finds the gate's stack unused.

use core::arch::global_asm;

use super::Next;
use crate::machine::descriptors;
use crate::machine::own_stacks::{FX, MAX_VCPUS, POLL, POLL_STACK, TICK_STACK, TICKS, VCPU_LEAF};

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
    .globl unikprof_dropin_entry
    .hidden unikprof_dropin_entry
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
    guests_handler = sym descriptors::GUESTS_EVENTS,
    interrupt = sym super::on_interrupt,
    poll_function = sym super::on_poll,
);
