//! The page that Xen fills with an entry for each hypercall, in the image's text.
//!
//! There it is part of the guest's mapping and has symbols, so that a sample taken when a hypercall
//! returns shows which one it was, and unwind information, so that its caller is found.

#![allow(unsafe_code, reason = "the page is a symbol of the assembly below")]

use core::arch::global_asm;

global_asm!(
    r#"
    .pushsection .text.hypercall_page, "ax", @progbits
    .balign 4096
    .globl hypercall_page
hypercall_page:
    .cfi_startproc
    .skip 4096
    .cfi_endproc

    /* An entry is at most: mov eax, NUMBER; vmcall; ret. Numbers: xen/include/public/xen.h. */
    .macro entry name, number
    .type hypercall_\name, @function
    .set hypercall_\name, hypercall_page + \number * 32
    .size hypercall_\name, 32
    .endm
    entry memory_op, 12
    entry xen_version, 17
    entry console_io, 18
    entry grant_table_op, 20
    entry vm_assist, 21
    entry set_timer_op, 15
    entry vcpu_op, 24
    entry sched_op, 29
    entry event_channel_op, 32
    entry hvm_op, 34
    .purgem entry
    .popsection
"#
);

unsafe extern "C" {
    /// Its first byte. Filled by `hypervisor::connect`.
    pub(crate) static hypercall_page: u8;
}
