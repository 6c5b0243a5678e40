//! The processor: its vCPUs, the way into Xen, the timer, and waiting.

#![allow(unsafe_code, reason = "model-specific registers, and code started on another vCPU")]

use core::arch::{asm, global_asm, naked_asm};
use core::ops::Range;
use core::ptr::NonNull;

use xen_sys_lite::abi::xen::{SharedInfo, VcpuTimeInfo};
use xen_sys_lite::events::{Port, Upcall, Virq};
use xen_sys_lite::vcpu::{self, Registers64, VcpuId, long_mode_registers};
use xen_sys_lite::{Errno, HypercallPage, hvm, timer};

use super::descriptors;
pub(crate) use super::descriptors::MAX_VCPUS;
use super::hypercall_page::hypercall_page;
use super::interrupts::UPCALL_VECTOR;
use crate::hypervisor::{events, shared_info, xen};

/// The way into Xen.
pub(crate) type Calls = HypercallPage;

/// The offset of the image's text in its file: the first segment begins with the file's headers.
#[cfg(feature = "agent")]
pub(crate) const TEXT_FILE_OFFSET: u64 = 0;

static NUMBERS: [u32; MAX_VCPUS] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Makes hypercalls possible.
pub(crate) fn install_calls() -> Result<(), Errno> {
    let page = hypercalls();
    // SAFETY: all memory is mapped one to one and executable, including the text; the page has no
    // other use.
    unsafe { HypercallPage::install(page, page.addr().get() as u64) }
        .map(drop)
        .map_err(|_| Errno::ENODEV)
}

/// The hypercalls. Only after [`install_calls`].
pub(crate) const fn calls() -> Calls {
    // SAFETY: the page is always executable, and `install_calls` has filled it before.
    unsafe { HypercallPage::from_installed(hypercalls()) }
}

const fn hypercalls() -> NonNull<u8> {
    // SAFETY: the address of a symbol is not null.
    unsafe { NonNull::new_unchecked((&raw const hypercall_page).cast_mut()) }
}

/// Has Xen deliver upcalls.
pub(crate) fn deliver_upcalls() -> Result<(), Errno> {
    hvm::set_callback_vector(&xen(), UPCALL_VECTOR)
}

/// The event channel state of all vCPUs.
pub(crate) const fn upcalls(shared: &'static SharedInfo) -> [Upcall<'static>; MAX_VCPUS] {
    let vcpus = &shared.vcpu_info;
    [
        Upcall::new(shared, &vcpus[0]),
        Upcall::new(shared, &vcpus[1]),
        Upcall::new(shared, &vcpus[2]),
        Upcall::new(shared, &vcpus[3]),
        Upcall::new(shared, &vcpus[4]),
        Upcall::new(shared, &vcpus[5]),
        Upcall::new(shared, &vcpus[6]),
        Upcall::new(shared, &vcpus[7]),
    ]
}

/// The parameters of a vCPU's clock, which Xen keeps in the shared page.
pub(crate) fn time_info(vcpu: VcpuId) -> Option<&'static VcpuTimeInfo> {
    Some(&shared_info().vcpu_info.get(vcpu.0 as usize)?.time)
}

/// Called once, before [`attach`].
pub(crate) fn prepare() {
    descriptors::fill_interrupt_table();
}

/// Sets up this vCPU, whose number it is.
pub(crate) fn attach(vcpu: VcpuId) {
    const GS_BASE: u32 = 0xc000_0101;
    let index = vcpu.0 as usize;
    descriptors::load(index);
    let address = &raw const NUMBERS[index] as u64;
    // SAFETY: only `current` uses the segment.
    unsafe {
        asm!(
            "wrmsr",
            in("ecx") GS_BASE,
            in("eax") address as u32,
            in("edx") (address >> 32) as u32,
            options(nostack, preserves_flags),
        );
    }
}

/// The vCPU that this code runs on.
pub(crate) fn current() -> VcpuId {
    let number: u32;
    // SAFETY: `attach` has pointed the segment base at this vCPU's number.
    unsafe {
        asm!("mov {:e}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly))
    };
    VcpuId(number)
}

/// Starts another vCPU, which runs `body` with interrupts on.
///
/// # Safety
/// Only that vCPU uses the stack.
pub(crate) unsafe fn start(
    vcpu: VcpuId,
    body: extern "C" fn(VcpuId) -> !,
    stack: Range<u64>,
) -> Result<(), Errno> {
    unsafe extern "C" {
        static page_level_4: u8;
        static secondary_start: u8;
    }
    let registers = Registers64 {
        rdi: u64::from(vcpu.0),
        rsi: body as usize as u64,
        rdx: stack.start,
        ..long_mode_registers(
            &raw const secondary_start as u64,
            stack.end,
            &raw const page_level_4 as u64,
        )
    };
    // SAFETY: the code at `secondary_start` expects exactly these registers; the stack is the
    // caller's promise.
    unsafe {
        vcpu::initialise(&xen(), vcpu, &registers)?;
        vcpu::up(&xen(), vcpu)
    }
}

global_asm!(
    r#"
    .text
    .globl secondary_start
secondary_start:
    xor ebp, ebp
    call secondary_main
    ud2
"#
);

/// Sleeps until the next interrupt, with interrupts off before and after.
///
/// The processor takes no interrupt between `sti` and the next instruction, so none is missed; Xen
/// handles `hlt` as `SCHEDOP_block`. An emulated processor may take one there all the same: see
/// [`leave_hlt`].
pub(crate) fn wait() {
    // SAFETY: interrupts find their table and stacks, and leave the registers as they were.
    unsafe { asm!("call {}", sym sti_hlt_cli, clobber_abi("C")) };
}

#[unsafe(naked)]
unsafe extern "C" fn sti_hlt_cli() {
    naked_asm!("sti", ".globl idle_hlt", "idle_hlt:", "hlt", "cli", "ret",)
}

/// The address to return to from an interrupt at `pc`: after the `hlt` instead of at it.
///
/// In QEMU's emulation an upcall sometimes comes between the two instructions, once in a minute or
/// two in a guest that sleeps hundreds of times a second. The `hlt` would then miss the event: for
/// ever, if it was the timer and the network at once.
pub(crate) fn leave_hlt(pc: u64) -> u64 {
    unsafe extern "C" {
        static idle_hlt: u8;
    }
    if pc == &raw const idle_hlt as u64 { pc + 1 } else { pc }
}

/// Binds the vCPU's timer interrupt.
pub(crate) fn connect_timer(vcpu: VcpuId) -> Result<Option<Port>, Errno> {
    events().bind_virq(Virq::TIMER, vcpu).map(Some)
}

/// Arms the current vCPU's timer; a deadline in the past fires at once. Returns whether it is
/// armed.
pub(crate) fn arm_timer(_: VcpuId, system_ns: u64) -> bool {
    timer::set_singleshot(&xen(), system_ns).is_ok()
}

/// Faults with an empty interrupt table: the processor gives up, and Xen ends the domain.
pub(crate) fn give_up() -> ! {
    let empty = [0_u16; 5];
    // SAFETY: nothing of the guest runs after this.
    unsafe { asm!("lidt [{}]", "ud2", in(reg) empty.as_ptr(), options(noreturn)) }
}
