/* Switches from one thread to another: the registers that C functions preserve, and the stack pointer. */
    .text
    .globl thread_switch
    .type thread_switch, @function
/* void thread_switch(uint64_t *save_sp, uint64_t next_sp) */
thread_switch:
    .cfi_startproc
    push %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    push %rbx
    .cfi_adjust_cfa_offset 8
    push %r12
    .cfi_adjust_cfa_offset 8
    push %r13
    .cfi_adjust_cfa_offset 8
    push %r14
    .cfi_adjust_cfa_offset 8
    push %r15
    .cfi_adjust_cfa_offset 8
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    .cfi_adjust_cfa_offset -8
    pop %r14
    .cfi_adjust_cfa_offset -8
    pop %r13
    .cfi_adjust_cfa_offset -8
    pop %r12
    .cfi_adjust_cfa_offset -8
    pop %rbx
    .cfi_adjust_cfa_offset -8
    pop %rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size thread_switch, . - thread_switch

    .globl thread_begin
    .type thread_begin, @function
/* The return address of the first switch to a thread, whose body is in rbx. Events were masked before. */
thread_begin:
    .cfi_startproc
    .cfi_undefined %rip
    call events_unmask
    call *%rbx
    ud2
    .cfi_endproc
    .size thread_begin, . - thread_begin

    .section .note.GNU-stack, "", @progbits
