//! Reads of the guest's stacks that may fault.
//!
//! A walk may be led to any address of the guest's memory, and the guest may have unmapped a page
//! of it. The agent reads the words of stacks by one instruction. The gate of page faults leads
//! here first: a fault of that instruction continues behind it, with a word of ones; all others are
//! the guest's.

use core::arch::global_asm;
use core::sync::atomic::AtomicU64;

/// The guest's handler.
pub(super) static GUESTS_HANDLER: AtomicU64 = AtomicU64::new(0);

// Above the error code the processor has pushed the program counter, at which the fault was.
global_asm!(
    r#"
    .text
    .balign 16
    .globl read_stack_word
    .type read_stack_word, @function
read_stack_word:
    mov rax, [rdi]
read_stack_word_end:
    ret
    .size read_stack_word, . - read_stack_word

    .balign 16
    .type unikprof_dropin_fault, @function
unikprof_dropin_fault:
    push rax
    lea rax, [rip + read_stack_word]
    cmp rax, [rsp + 16]
    jne 2f
    lea rax, [rip + read_stack_word_end]
    mov [rsp + 16], rax
    or rax, -1
    add rsp, 16                     /* the word that was pushed first, and the error code */
    iretq
2:  pop rax
    jmp [rip + {guests_handler}]
    .size unikprof_dropin_fault, . - unikprof_dropin_fault
"#,
    guests_handler = sym GUESTS_HANDLER,
);

pub(super) fn address() -> u64 {
    super::address_of!("unikprof_dropin_fault")
}
