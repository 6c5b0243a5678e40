//! The path from an interrupt to its handler in Rust.
//!
//! A common path saves all registers on the interrupted stack, below which there is no red zone,
//! and calls Rust with the saved [`Frame`]. Rust runs with interrupts off.

#![allow(unsafe_code, reason = "the entry is assembly, and the frame is what it saved")]

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

use xen_sys_lite::{gic, timer};

use super::processor;
use crate::upcall::{self, Cause};
use crate::{early_println, power};

global_asm!(
    r#"
    .text
    .macro save_all
    sub sp, sp, #800
    stp x0, x1, [sp, #0]
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    add x1, sp, #800
    stp x30, x1, [sp, #240]
    mrs x1, elr_el1
    mrs x2, spsr_el1
    stp x1, x2, [sp, #256]
    mrs x1, fpcr
    mrs x2, fpsr
    stp x1, x2, [sp, #272]
    stp q0, q1, [sp, #288]
    stp q2, q3, [sp, #320]
    stp q4, q5, [sp, #352]
    stp q6, q7, [sp, #384]
    stp q8, q9, [sp, #416]
    stp q10, q11, [sp, #448]
    stp q12, q13, [sp, #480]
    stp q14, q15, [sp, #512]
    stp q16, q17, [sp, #544]
    stp q18, q19, [sp, #576]
    stp q20, q21, [sp, #608]
    stp q22, q23, [sp, #640]
    stp q24, q25, [sp, #672]
    stp q26, q27, [sp, #704]
    stp q28, q29, [sp, #736]
    stp q30, q31, [sp, #768]
    .endm

interrupt_entry:
    save_all
    mov x0, sp
    mrs x1, cntvct_el0              /* when this began */
    bl interrupt_handler
    ldp q0, q1, [sp, #288]
    ldp q2, q3, [sp, #320]
    ldp q4, q5, [sp, #352]
    ldp q6, q7, [sp, #384]
    ldp q8, q9, [sp, #416]
    ldp q10, q11, [sp, #448]
    ldp q12, q13, [sp, #480]
    ldp q14, q15, [sp, #512]
    ldp q16, q17, [sp, #544]
    ldp q18, q19, [sp, #576]
    ldp q20, q21, [sp, #608]
    ldp q22, q23, [sp, #640]
    ldp q24, q25, [sp, #672]
    ldp q26, q27, [sp, #704]
    ldp q28, q29, [sp, #736]
    ldp q30, q31, [sp, #768]
    ldp x1, x2, [sp, #272]
    msr fpcr, x1
    msr fpsr, x2
    ldp x1, x2, [sp, #256]
    msr elr_el1, x1
    msr spsr_el1, x2
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldr x30, [sp, #240]
    ldp x0, x1, [sp, #0]
    add sp, sp, #800
    eret

exception_entry:
    save_all
    mov x0, sp
    mrs x1, esr_el1
    mrs x2, far_el1
    bl exception_handler
    brk #0

    .balign 2048
    .globl vectors
vectors:
    .rept 5
    .balign 128
    b exception_entry
    .endr
    .balign 128
    b interrupt_entry               /* of the current level, on its own stack */
    .rept 10
    .balign 128
    b exception_entry
    .endr
    .balign 128
"#,
);

/// The interrupted state, as saved by the entry.
#[repr(C)]
pub(crate) struct Frame {
    general: [u64; 31],
    sp: u64,
    elr: u64,
    spsr: u64,
    floating_point_control: [u64; 2],
    floating_point: [[u64; 2]; 32],
}
const _: () = assert!(size_of::<Frame>() == 800);

pub(crate) use unikprof_agent::Registers;

impl Frame {
    pub(crate) fn registers(&self) -> Registers {
        Registers::new(self.elr, self.sp, self.general[29]).with_lr(self.general[30])
    }
}

pub(crate) fn enable() {
    // SAFETY: the vectors are set before the guest's main code runs.
    unsafe { asm!("msr daifclr, #2", options(nomem, nostack)) };
}

pub(crate) fn disable() {
    // SAFETY: only delays interrupts.
    unsafe { asm!("msr daifset, #2", options(nomem, nostack)) };
}

#[unsafe(no_mangle)]
extern "C" fn interrupt_handler(frame: &mut Frame, entered: u64) {
    let gic = processor::gic();
    while let Some(interrupt) = gic.acknowledge() {
        let cause = match interrupt.number() {
            timer::INTERRUPT => {
                // Its deadline has passed: until the next one it must not interrupt again.
                timer::stop_singleshot();
                Some(Cause::Timer)
            }
            gic::EVENTS => Some(Cause::Events),
            _ => None,
        };
        if let Some(cause) = cause {
            upcall::on_interrupt(cause, frame.registers(), entered);
        }
        gic.end(interrupt);
    }
}

/// Reports an exception and its address, and ends the guest.
#[unsafe(no_mangle)]
extern "C" fn exception_handler(frame: &Frame, syndrome: u64, address: u64) -> ! {
    static REPORTING: AtomicBool = AtomicBool::new(false);
    if !REPORTING.swap(true, Ordering::Relaxed) {
        early_println!(
            "exception {syndrome:#x} at {:#x}, address {address:#x}, lr {:#x}, sp {:#x}, fp {:#x}",
            frame.elr,
            frame.general[30],
            frame.sp,
            frame.general[29],
        );
        #[cfg(feature = "agent")]
        crate::crash::leave(&format_args!("exception {syndrome:#x} at {:#x}", frame.elr));
    }
    power::crash()
}
