/* The page that Xen fills with an entry of 32 bytes for each hypercall.
 *
 * It is in the image's text and has symbols, so that a sample taken when a hypercall returns shows which one it
 * was; and it has unwind information, from which the client finds the caller, because an entry sets up no
 * frame. */
    .section .text.hypercall_page, "ax", @progbits
    .balign 4096
    .globl hypercall_page
hypercall_page:
    .cfi_startproc
    .skip 4096
    .cfi_endproc

    .macro entry name, number
    .type hypercall_\name, @function
    .set hypercall_\name, hypercall_page + \number * 32
    .size hypercall_\name, 32
    .endm
    entry memory_op, 12
    entry set_timer_op, 15
    entry grant_table_op, 20
    entry vcpu_op, 24
    entry sched_op, 29
    entry event_channel_op, 32
    entry hvm_op, 34

    .section .note.GNU-stack, "", @progbits
