//! The vCPUs: identifies the current one, and starts the others.

#![allow(
    unsafe_code,
    reason = "model-specific registers, and code started on another vCPU"
)]

use alloc::boxed::Box;
use core::arch::{asm, global_asm};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xen_sys_lite::events::Port;
use xen_sys_lite::runstate::RunstateArea;
use xen_sys_lite::vcpu::{self, Registers64, VcpuId, long_mode_registers};
use xen_sys_lite::{Errno, runstate};

use crate::boot::STACK_SIZE;
use crate::descriptors::{self, MAX_VCPUS};
use crate::hypervisor::{events, xen};
use crate::{early_println, interrupts, power, timer, upcall};

/// The vCPU that Xen starts; it polls and serves.
pub(crate) const FIRST: VcpuId = VcpuId(0);

static NUMBERS: [u32; MAX_VCPUS] = [0, 1, 2, 3, 4, 5, 6, 7];
static RUNSTATES: [RunstateArea; MAX_VCPUS] = [const { RunstateArea::new() }; MAX_VCPUS];
/// The lowest and highest address of each vCPU's stack; zeros if it has none.
static STACKS: [[AtomicU64; 2]; MAX_VCPUS] =
    [const { [const { AtomicU64::new(0) }; 2] }; MAX_VCPUS];
/// The port through which other vCPUs interrupt each vCPU.
static KICKS: [AtomicU32; MAX_VCPUS] = [const { AtomicU32::new(u32::MAX) }; MAX_VCPUS];
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// The vCPU that this code runs on.
pub(crate) fn current() -> VcpuId {
    let number: u32;
    // SAFETY: `attach` has pointed the segment base at this vCPU's number.
    unsafe {
        asm!("mov {:e}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly))
    };
    VcpuId(number)
}

/// The number of running vCPUs.
pub(crate) fn running() -> u32 {
    RUNNING.load(Ordering::Acquire)
}

/// Xen's runstate of a vCPU; `None` if it does not exist.
pub(crate) fn runstate(vcpu: VcpuId) -> Option<&'static RunstateArea> {
    RUNSTATES.get(vcpu.0 as usize)
}

/// The bounds of the stack that contains `sp`, if it is a vCPU's main stack.
pub(crate) fn stack_bounds(sp: u64) -> Option<Range<u64>> {
    STACKS
        .iter()
        .map(|[low, high]| low.load(Ordering::Relaxed)..high.load(Ordering::Relaxed))
        .find(|stack| stack.contains(&sp))
}

/// Sets up the first vCPU for Rust code: descriptors, its number, its stack's bounds.
pub(crate) fn attach_first() {
    unsafe extern "C" {
        static boot_stack: u8;
        static boot_stack_end: u8;
    }
    descriptors::fill_interrupt_table();
    attach(
        FIRST,
        &raw const boot_stack as u64..&raw const boot_stack_end as u64,
    );
}

fn attach(vcpu: VcpuId, stack: Range<u64>) {
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
    STACKS[index][0].store(stack.start, Ordering::Relaxed);
    STACKS[index][1].store(stack.end, Ordering::Relaxed);
}

/// Interrupts a vCPU, so that its sampler checks its deadline: only the vCPU itself can arm its timer.
pub(crate) fn kick(vcpu: VcpuId) {
    if let Some(port) = kick_port(vcpu) {
        // Fails only if the vCPU does not run; then it has nothing to arm.
        let _ = events().send(port);
    }
}

/// The port through which other vCPUs interrupt a vCPU; `None` if it does not run.
pub(crate) fn kick_port(vcpu: VcpuId) -> Option<Port> {
    let port = KICKS.get(vcpu.0 as usize)?.load(Ordering::Relaxed);
    (port != u32::MAX).then_some(Port(port))
}

pub(crate) fn is_kick(vcpu: VcpuId, port: Port) -> bool {
    KICKS[vcpu.0 as usize].load(Ordering::Relaxed) == port.0
}

/// Registers this vCPU's runstate, timer and kicks with Xen; from now on it counts as running.
pub(crate) fn connect_current() -> Result<(), Errno> {
    connect(current())?;
    RUNNING.fetch_add(1, Ordering::Release);
    Ok(())
}

/// The same for a running vCPU after a restore; it may differ from the current one.
pub(crate) fn connect(vcpu: VcpuId) -> Result<(), Errno> {
    runstate::register(&xen(), vcpu, &RUNSTATES[vcpu.0 as usize])?;
    timer::connect(vcpu)?;
    let port = events().bind_ipi(vcpu)?;
    KICKS[vcpu.0 as usize].store(port.0, Ordering::Relaxed);
    upcall::of(vcpu).own(port);
    events().unmask(port)
}

/// Starts another vCPU, which runs `body` with interrupts on.
fn start(vcpu: VcpuId, body: extern "C" fn(VcpuId) -> !) -> Result<(), Errno> {
    unsafe extern "C" {
        static page_level_4: u8;
        static secondary_start: u8;
    }
    if vcpu.0 as usize >= MAX_VCPUS {
        return Err(Errno::EINVAL);
    }
    let stack = Box::leak(alloc::vec![0_u8; STACK_SIZE].into_boxed_slice()).as_ptr_range();
    let (low, high) = (stack.start as u64, stack.end as u64);
    let registers = Registers64 {
        rdi: u64::from(vcpu.0),
        rsi: body as usize as u64,
        rdx: low,
        ..long_mode_registers(
            &raw const secondary_start as u64,
            high,
            &raw const page_level_4 as u64,
        )
    };
    // SAFETY: the code at `secondary_start` expects exactly these registers; only this vCPU uses the stack.
    unsafe {
        vcpu::initialise(&xen(), vcpu, &registers)?;
        vcpu::up(&xen(), vcpu)
    }
}

/// Starts all of `count` vCPUs except the first, and waits until they run.
pub(crate) fn start_others(count: u32, body: extern "C" fn(VcpuId) -> !) {
    for number in 1..count {
        start(VcpuId(number), body).unwrap_or_else(|errno| panic!("vCPU {number}: {errno}"));
    }
    while running() < count {
        core::hint::spin_loop();
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

#[unsafe(no_mangle)]
extern "C" fn secondary_main(number: u64, body: extern "C" fn(VcpuId) -> !, stack_low: u64) -> ! {
    let vcpu = VcpuId(number as u32);
    attach(vcpu, stack_low..stack_low + STACK_SIZE as u64);
    if let Err(errno) = connect_current() {
        early_println!("vCPU {number}: {errno}");
        power::crash();
    }
    interrupts::enable();
    body(vcpu)
}
