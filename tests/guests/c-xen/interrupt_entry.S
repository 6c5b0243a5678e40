/* From an interrupt to C, on the interrupted stack: therefore the whole kernel is compiled with -mno-red-zone.
 * No SSE register is saved: neither this kernel nor the agent's upcall uses one, which -mgeneral-regs-only
 * ensures.
 *
 * The processor has aligned the stack to 16 bytes before it pushed five words; the words pushed here align it
 * again at the call, as the C ABI requires. */

#define INTERRUPTS_ON 0x200

    .macro save_registers
    push %rbp
    push %rax
    push %rcx
    push %rdx
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    cld
    mov %rsp, %rdi                  /* struct interrupt_frame */
    .endm

    .text
    .balign 16
    .globl upcall_entry
    .type upcall_entry, @function
upcall_entry:
    /* QEMU 7.2 may deliver the vector a second time before the first handler's next exit to Xen, with
     * interrupts off; no processor does. The first is still to do its work. */
    testl $INTERRUPTS_ON, 16(%rsp)
    jz 1f
    sub $16, %rsp                   /* number and error of exceptions */
    save_registers
    sub $8, %rsp
    call on_upcall
    add $8, %rsp
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    pop %rdx
    pop %rcx
    pop %rax
    pop %rbp
    add $16, %rsp
1:  iretq
    .size upcall_entry, . - upcall_entry

    /* Breakpoints of the profiler, on the interrupted stack too. All registers are saved, as struct
     * unikprof_trap_frame, since instructions are executed in the handler; it may change the stack pointer to
     * return to, which the processor pops. */
    .balign 16
    .globl breakpoint_entry
    .type breakpoint_entry, @function
breakpoint_entry:
    pushq 16(%rsp)                  /* the flags */
    pushq 8(%rsp)                   /* the program counter */
    push %r15
    push %r14
    push %r13
    push %r12
    push %r11
    push %r10
    push %r9
    push %r8
    push %rdi
    push %rsi
    push %rbp
    pushq 128(%rsp)                 /* the stack pointer */
    push %rbx
    push %rdx
    push %rcx
    push %rax
    mov %rsp, %rdi
    sub $8, %rsp
    cld
    call on_breakpoint
    add $8, %rsp
    pop %rax
    pop %rcx
    pop %rdx
    pop %rbx
    popq 128(%rsp)                  /* the stack pointer to return to */
    pop %rbp
    pop %rsi
    pop %rdi
    pop %r8
    pop %r9
    pop %r10
    pop %r11
    pop %r12
    pop %r13
    pop %r14
    pop %r15
    popq 8(%rsp)                    /* the program counter */
    add $8, %rsp
    iretq
    .size breakpoint_entry, . - breakpoint_entry

    .balign 16
    .globl exception_entries
exception_entries:
    .set number, 0
    .rept 32
    .balign 16
    /* For these the processor pushes an error code. */
    .if (number == 8) || (number >= 10 && number <= 14) || (number == 17) || (number == 21) || (number == 29) || (number == 30)
    .else
    push $0
    .endif
    push $number
    jmp exception
    .set number, number + 1
    .endr

exception:
    save_registers
    sub $8, %rsp
    call on_exception

    .section .note.GNU-stack, "", @progbits
