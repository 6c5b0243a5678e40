//! The path from an interrupt to its handler in Rust.
//!
//! A stub for each vector completes the processor's frame; a common path saves all registers and
//! the SSE state and calls Rust with the saved [`Frame`]. Rust runs with interrupts off, on the
//! vector's own stack. Upcalls arrive as page faults, or with the feature `gate` by their vector:
//! see [`descriptors`](crate::descriptors).

#![allow(unsafe_code, reason = "the entry is assembly, and the frame is what it saved")]

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, Ordering};

use super::processor;
use crate::descriptors::UPCALL_STACK_TOP;
use crate::{early_println, power, upcall};

/// The vector that Xen raises for event channels.
pub(crate) const UPCALL_VECTOR: u8 = 0x40;
/// The vector of [`signals`](crate::signals).
#[cfg(feature = "gate")]
pub(crate) const SIGNAL_VECTOR: u8 = 0x30;
/// The number of vectors with a stub; none above the upcall's is used.
pub(crate) const STUB_COUNT: usize = UPCALL_VECTOR as usize + 1;
const STUB_SIZE: u64 = 16;

const PAGE_FAULT: u64 = 14;
/// The page fault error code of a kernel write to a page that is not present.
const WRITE_TO_NO_PAGE: u64 = 2;
/// The address at which the upcall's frame would begin.
const UPCALL_FRAME: u64 = UPCALL_STACK_TOP - 8;
/// The interrupt flag of rflags.
const INTERRUPTS_ON: u64 = 1 << 9;

global_asm!(
    r#"
    .text
    .balign 16
    .globl interrupt_stubs
interrupt_stubs:
    .set vector, 0
    .rept {count}
    .balign 16
    /* The processor pushes an error code for vectors 8, 10 to 14, 17, 21, 29 and 30. */
    .if ((0x60227d00 >> (vector & 31)) & 1) && (vector < 32)
    .else
    push 0
    .endif
    push vector
    jmp interrupt_entry
    .set vector, vector + 1
    .endr

    .balign 16
interrupt_entry:
    push rax
    push rcx
    push rdx
    push rbx
    push rbp
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push r12
    push r13
    push r14
    push r15
    rdtsc
    shl rdx, 32
    lea rsi, [rax + rdx]            /* when this began */
    mov rdi, rsp
    mov rbx, rsp                    /* kept by the callee */
    sub rsp, 512
    and rsp, -16
    fxsave64 [rsp]
    cld
    call interrupt_handler
    fxrstor64 [rsp]
    mov rsp, rbx
    pop r15
    pop r14
    pop r13
    pop r12
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rbp
    pop rbx
    pop rdx
    pop rcx
    pop rax
    add rsp, 16                     /* vector and error code */
    iretq
"#,
    count = const STUB_COUNT,
);

/// The interrupted state, as saved by the entry.
#[repr(C)]
pub(crate) struct Frame {
    general: [u64; 10],
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    error_code: u64,
    rip: u64,
    code_segment: u64,
    flags: u64,
    rsp: u64,
    stack_segment: u64,
}

pub(crate) use unikprof_agent::Registers;

impl Frame {
    pub(crate) fn registers(&self) -> Registers {
        Registers::new(self.rip, self.rsp, self.rbp)
    }
}

/// The address of a vector's entry.
pub(crate) fn stub(vector: usize) -> u64 {
    unsafe extern "C" {
        static interrupt_stubs: u8;
    }
    &raw const interrupt_stubs as u64 + vector as u64 * STUB_SIZE
}

pub(crate) fn enable() {
    // SAFETY: the interrupt table is loaded before the guest's main code runs.
    unsafe { asm!("sti", options(nomem, nostack)) };
}

pub(crate) fn disable() {
    // SAFETY: only delays interrupts.
    unsafe { asm!("cli", options(nomem, nostack)) };
}

#[unsafe(no_mangle)]
extern "C" fn interrupt_handler(frame: &mut Frame, entered: u64) {
    let is_upcall = match cfg!(feature = "gate") {
        true => frame.vector == u64::from(UPCALL_VECTOR),
        false => {
            frame.vector == PAGE_FAULT
                && frame.error_code == WRITE_TO_NO_PAGE
                && read_cr2() == UPCALL_FRAME
        }
    };
    #[cfg(feature = "gate")]
    if frame.vector == u64::from(SIGNAL_VECTOR) {
        crate::signals::on_signal();
        frame.rip = processor::leave_hlt(frame.rip);
        return;
    }
    if !is_upcall {
        // The profiler executes copies of some instructions elsewhere.
        #[cfg(feature = "trace")]
        if let Some(agent) = crate::events::agent() {
            frame.rip = agent.original_pc(frame.rip);
        }
        fatal("exception", frame);
    }
    // An interrupt with interrupts off is QEMU's fault, and on an interrupt stack it has
    // overwritten the frame to return to. Ending with a message is better than an endless loop.
    if frame.flags & INTERRUPTS_ON == 0 {
        if cfg!(feature = "gate") {
            return;
        }
        fatal("an upcall was delivered twice: vector", frame);
    }
    upcall::on_interrupt(upcall::Cause::Events, frame.registers(), entered);
    frame.rip = processor::leave_hlt(frame.rip);
}

/// Reports the event and its address, and ends the guest.
fn fatal(what: &str, frame: &Frame) -> ! {
    static REPORTING: AtomicBool = AtomicBool::new(false);
    if !REPORTING.swap(true, Ordering::Relaxed) {
        let fault_address = match frame.vector {
            PAGE_FAULT => read_cr2(),
            _ => 0,
        };
        early_println!(
            "{what} {} error {:#x} at {:#x}, address {:#x}, rsp {:#x}, rbp {:#x}",
            frame.vector,
            frame.error_code,
            frame.rip,
            fault_address,
            frame.rsp,
            frame.rbp,
        );
        #[cfg(feature = "agent")]
        crate::crash::leave(&format_args!("{what} {} at {:#x}", frame.vector, frame.rip));
    }
    power::crash()
}

/// The same for an exception of which only the address is known.
#[cfg(feature = "trace")]
pub(crate) fn fatal_at(what: &str, address: u64) -> ! {
    early_println!("{what} at {address:#x}");
    crate::crash::leave(&format_args!("{what} at {address:#x}"));
    power::crash()
}

fn read_cr2() -> u64 {
    let address;
    // SAFETY: reading the fault address has no effect.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}
