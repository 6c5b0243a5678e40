//! The entry of breakpoints.
//!
//! It runs on the interrupted stack, or on the stack that the guest's gate names. It saves all
//! registers, since instructions are executed in the handler, and no SSE state: the archive uses
//! none.

use core::arch::global_asm;

use unikprof_agent::{Breakpoint, TrapFrame};

use crate::machine::{self, descriptors};

// What is not the profiler's continues with the guest's handler, as if it had come there: no flag
// changes after the test.
global_asm!(
    r#"
    .text
    .balign 16
    .globl unikprof_dropin_breakpoint
    .hidden unikprof_dropin_breakpoint
    .type unikprof_dropin_breakpoint, @function
unikprof_dropin_breakpoint:
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
    cld
    mov rdi, rsp
    mov rbp, rsp                    /* kept by the callee */
    and rsp, -16
    call {handler}
    mov rsp, rbp
    test al, al
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
    lea rsp, [rsp + 8]
    jz 2f
    iretq
2:  jmp [rip + {guests_handler}]
    .size unikprof_dropin_breakpoint, . - unikprof_dropin_breakpoint
"#,
    handler = sym on_breakpoint,
    guests_handler = sym descriptors::GUESTS_BREAKPOINTS,
);

extern "C" fn on_breakpoint(frame: &mut TrapFrame) -> bool {
    let handled = super::agent().map(|agent| machine::keeping_cr2(|| agent.on_breakpoint(frame)));
    handled == Some(Breakpoint::Handled)
}
