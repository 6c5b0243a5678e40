//! The processor: its vCPUs, the way into Xen, the interrupt controller, the timer, and waiting.

#![allow(unsafe_code, reason = "system registers, and instructions that wait")]

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::abi::xen::{SharedInfo, VcpuInfo, VcpuTimeInfo};
use xen_sys_lite::clock::{self, Clock, counter_hz, read_counter};
use xen_sys_lite::events::{Port, Upcall};
use xen_sys_lite::gic::{self, Gic, Registers};
use xen_sys_lite::vcpu::{self, VcpuId};
use xen_sys_lite::{Errno, HypercallInstruction, PageMemory, timer};

use crate::hypervisor::{shared_info, xen};
use crate::vcpus::{self, FIRST};

/// The maximum number of vCPUs of this guest on this processor.
pub(crate) const MAX_VCPUS: usize = 4;

/// The offset of the image's text in its file.
#[cfg(feature = "agent")]
pub(crate) const TEXT_FILE_OFFSET: u64 = 0x1000;

/// The number and length of sleeps at boot from which the guest learns Xen's system time.
const LESSONS: u32 = 8;
const LESSON_NS: u64 = 2_000_000;

/// The way into Xen.
pub(crate) type Calls = HypercallInstruction;

/// The version of the interrupt controller and the addresses of its registers.
static GIC: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Hypercalls are always possible.
pub(crate) fn install_calls() -> Result<(), Errno> {
    Ok(())
}

/// The hypercalls.
pub(crate) const fn calls() -> Calls {
    HypercallInstruction
}

/// Upcalls come as an interrupt, which [`connect_timer`] enables beside the timer's.
pub(crate) fn deliver_upcalls() -> Result<(), Errno> {
    Ok(())
}

/// The event channel state of all vCPUs.
pub(crate) const fn upcalls(shared: &'static SharedInfo) -> [Upcall<'static>; MAX_VCPUS] {
    let later = later_vcpus();
    [
        Upcall::new(shared, &shared.vcpu_info[0]),
        Upcall::new(shared, &later[0]),
        Upcall::new(shared, &later[1]),
        Upcall::new(shared, &later[2]),
    ]
}

/// The information of the vCPUs from 1 on, which the shared page has no room for.
const fn later_vcpus() -> &'static [VcpuInfo; MAX_VCPUS - 1] {
    static PAGE: PageMemory = PageMemory::new();
    // SAFETY: a page for this alone, which is never freed; every field is an atomic, and zeros are
    // valid.
    unsafe { PAGE.base().cast().as_ref() }
}

/// The parameters of the clock, one for all vCPUs: the counter and Xen's system time are the same
/// everywhere. Xen writes none, so [`connect_timer`] does, on the first vCPU.
pub(crate) fn time_info(_: VcpuId) -> Option<&'static VcpuTimeInfo> {
    Some(&shared_info().vcpu_info[0].time)
}

/// Called once, before [`attach`].
pub(crate) fn prepare() {}

/// Sets up this vCPU, whose number it is.
pub(crate) fn attach(_: VcpuId) {}

pub(crate) use vcpu::current;

/// Starts another vCPU, which runs `body` with interrupts on.
///
/// # Safety
/// Only that vCPU uses the stack, which is mapped one to one.
pub(crate) unsafe fn start(
    vcpu: VcpuId,
    body: extern "C" fn(VcpuId) -> !,
    stack: Range<u64>,
) -> Result<(), Errno> {
    let info = (vcpu.0 as usize).checked_sub(1);
    let info = info.and_then(|index| later_vcpus().get(index));
    let info = info.ok_or(Errno::EINVAL)?;
    let arguments: Arguments = [u64::from(vcpu.0), body as usize as u64, stack.start, 0];
    // SAFETY: the stack is the caller's promise, and much larger. Memory is mapped one to one.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<Arguments>(arguments_of(&stack) as usize)
            .write(arguments);
        vcpu::register_vcpu_info(&xen(), vcpu, info, core::ptr::from_ref(info) as u64)?;
        start_again(vcpu, stack)
    }
}

/// Starts a vCPU that has stopped, as [`start`] did before.
///
/// # Safety
/// As `start`, and that was called with this stack.
pub(crate) unsafe fn start_again(vcpu: VcpuId, stack: Range<u64>) -> Result<(), Errno> {
    unsafe extern "C" {
        static secondary_start: u8;
    }
    // SAFETY: the code at `secondary_start` expects to be started so; the vCPU's stack begins below
    // its arguments, which it does not change.
    unsafe { vcpu::up(vcpu, &raw const secondary_start as u64, arguments_of(&stack)) }
}

/// The arguments of `secondary_main`, of which there are three.
type Arguments = [u64; 4];

/// The address of the arguments on a vCPU's stack.
const fn arguments_of(stack: &Range<u64>) -> u64 {
    (stack.end - size_of::<Arguments>() as u64) & !15
}

/// Remembers where the interrupt controller's registers are. Called once, before interrupts are
/// enabled.
pub(crate) fn set_gic(registers: Registers) {
    let words = match registers {
        Registers::V2 { distributor, interface } => [2, distributor, interface],
        Registers::V3 { distributor, redistributors } => [3, distributor, redistributors],
    };
    for (cell, word) in GIC.iter().zip(words) {
        cell.store(word, Ordering::Relaxed);
    }
}

/// The interrupt controller.
pub(crate) fn gic() -> Gic {
    let [version, distributor, other] = GIC.each_ref().map(|cell| cell.load(Ordering::Relaxed));
    let registers = match version {
        2 => Registers::V2 { distributor, interface: other },
        _ => Registers::V3 { distributor, redistributors: other },
    };
    // SAFETY: the addresses are the device tree's, and mapped as devices.
    unsafe { Gic::new(registers) }
}

/// Sleeps until the next interrupt, with interrupts off before and after.
pub(crate) fn wait() {
    // SAFETY: an interrupt that is pending ends the wait also while it is masked, so none is
    // missed; it is handled between the next two instructions, and leaves the registers as they
    // were.
    unsafe {
        asm!(
            "dsb sy",
            "wfi",
            "msr daifclr, #2",
            "isb",
            "msr daifset, #2",
            options(nostack, preserves_flags)
        );
    }
}

/// Enables the timer's interrupt and that of event channels, and on the first vCPU makes the clock:
/// the timer has no event channel.
pub(crate) fn connect_timer(vcpu: VcpuId) -> Result<Option<Port>, Errno> {
    gic().start(vcpu, 1 << timer::INTERRUPT | 1 << gic::EVENTS);
    let time = &shared_info().vcpu_info[0].time;
    if vcpu != FIRST {
        return Ok(None);
    }
    let runstate = vcpus::runstate(vcpu).ok_or(Errno::EINVAL)?;
    clock::set_counter_hz(time, counter_hz());
    let clock = Clock::with_time_info(shared_info(), time);
    for _ in 0..LESSONS {
        timer::set_singleshot(&clock, clock.now_ns() + LESSON_NS);
        // SAFETY: the timer's interrupt, which is masked, ends the wait.
        unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
        let counter = read_counter();
        timer::stop_singleshot();
        clock::catch_up(time, &runstate.read(), counter);
    }
    Ok(None)
}

/// Arms the current vCPU's timer; a deadline in the past fires at once. Returns whether it is
/// armed.
pub(crate) fn arm_timer(vcpu: VcpuId, system_ns: u64) -> bool {
    crate::timer::clock(vcpu).map(|clock| timer::set_singleshot(&clock, system_ns)).is_some()
}

/// Stops for ever: Xen has refused to end the domain.
pub(crate) fn give_up() -> ! {
    loop {
        // SAFETY: nothing of the guest runs after this.
        unsafe { asm!("msr daifset, #0xf", "wfi", options(nomem, nostack)) };
    }
}
