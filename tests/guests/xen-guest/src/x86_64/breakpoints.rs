//! The breakpoint exception, by which the profiler traces functions.
//!
//! It has a stack of its own: the profiler may set a breakpoint in any function, also in those that
//! handle upcalls and other exceptions. Its entry saves all registers, since instructions are
//! executed in the handler, and the SSE state, which the compiled handler may use.

#![allow(unsafe_code, reason = "the entry is assembly, and the frame is what it saved")]

use core::arch::global_asm;

use unikprof_agent::{Breakpoint, TrapFrame};

use crate::events;
use crate::interrupts::fatal_at;

global_asm!(
    r#"
    .text
    .balign 16
    .globl breakpoint_entry
breakpoint_entry:
    push qword ptr [rsp + 16]       /* the flags */
    push qword ptr [rsp + 8]        /* the program counter */
    push r15
    push r14
    push r13
    push r12
    push r11
    push r10
    push r9
    push r8
    push rdi
    push rsi
    push rbp
    push qword ptr [rsp + 128]      /* the stack pointer */
    push rbx
    push rdx
    push rcx
    push rax
    mov rdi, rsp
    mov rbx, rsp                    /* kept by the callee */
    sub rsp, 512
    and rsp, -16
    fxsave64 [rsp]
    cld
    call breakpoint_handler
    fxrstor64 [rsp]
    mov rsp, rbx
    pop rax
    pop rcx
    pop rdx
    pop rbx
    pop qword ptr [rsp + 128]       /* the stack pointer to return to */
    pop rbp
    pop rsi
    pop rdi
    pop r8
    pop r9
    pop r10
    pop r11
    pop r12
    pop r13
    pop r14
    pop r15
    pop qword ptr [rsp + 8]         /* the program counter */
    add rsp, 8
    iretq
"#
);

/// The address of the exception's entry.
pub(crate) fn entry() -> u64 {
    unsafe extern "C" {
        safe fn breakpoint_entry();
    }
    breakpoint_entry as *const () as u64
}

#[unsafe(no_mangle)]
extern "C" fn breakpoint_handler(frame: &mut TrapFrame) {
    let handled = events::agent().map(|agent| agent.on_breakpoint(frame));
    if handled != Some(Breakpoint::Handled) {
        fatal_at("breakpoint", frame.pc);
    }
}
