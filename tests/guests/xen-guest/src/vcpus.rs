//! The vCPUs: identifies the current one, and starts the others.

#![allow(unsafe_code, reason = "code is started on another vCPU")]

use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use xen_sys_lite::events::Port;
use xen_sys_lite::runstate::RunstateArea;
use xen_sys_lite::vcpu::VcpuId;
use xen_sys_lite::{Errno, runstate};

use crate::boot::STACK_SIZE;
use crate::hypervisor::{events, xen};
pub(crate) use crate::processor::current;
use crate::processor::{self, MAX_VCPUS};
use crate::{early_println, interrupts, power, sampler, timer, upcall};

/// The vCPU that Xen starts; it polls and serves.
pub(crate) const FIRST: VcpuId = VcpuId(0);

static RUNSTATES: [RunstateArea; MAX_VCPUS] = [const { RunstateArea::new() }; MAX_VCPUS];
/// The lowest and highest address of each vCPU's stack; zeros if it has none.
static STACKS: [[AtomicU64; 2]; MAX_VCPUS] =
    [const { [const { AtomicU64::new(0) }; 2] }; MAX_VCPUS];
/// The port through which other vCPUs interrupt each vCPU.
static KICKS: [AtomicU32; MAX_VCPUS] = [const { AtomicU32::new(u32::MAX) }; MAX_VCPUS];
static RUNNING: AtomicU32 = AtomicU32::new(0);

/// The number of running vCPUs.
pub(crate) fn running() -> u32 {
    RUNNING.load(Ordering::Acquire)
}

/// Xen's runstate of a vCPU; `None` if it does not exist.
pub(crate) fn runstate(vcpu: VcpuId) -> Option<&'static RunstateArea> {
    RUNSTATES.get(vcpu.0 as usize)
}

/// The bounds of the stack that contains `sp`, if it is a vCPU's main stack.
#[cfg(feature = "agent")]
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
    processor::prepare();
    attach(FIRST, &raw const boot_stack as u64..&raw const boot_stack_end as u64);
}

fn attach(vcpu: VcpuId, stack: Range<u64>) {
    let index = vcpu.0 as usize;
    processor::attach(vcpu);
    STACKS[index][0].store(stack.start, Ordering::Relaxed);
    STACKS[index][1].store(stack.end, Ordering::Relaxed);
}

/// Interrupts a vCPU, so that its sampler checks its deadline: only the vCPU itself can arm its
/// timer.
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
    if vcpu.0 as usize >= MAX_VCPUS {
        return Err(Errno::EINVAL);
    }
    let stack = Box::leak(alloc::vec![0_u8; STACK_SIZE].into_boxed_slice()).as_ptr_range();
    // SAFETY: only this vCPU uses the stack.
    unsafe { processor::start(vcpu, body, stack.start as u64..stack.end as u64) }
}

/// Starts a vCPU that has run before and has stopped itself.
#[cfg(target_arch = "aarch64")]
pub(crate) fn start_again(vcpu: VcpuId) -> Result<(), Errno> {
    let [low, high] = STACKS.get(vcpu.0 as usize).ok_or(Errno::EINVAL)?;
    let stack = low.load(Ordering::Relaxed)..high.load(Ordering::Relaxed);
    // SAFETY: it was started with this stack, which nothing else uses.
    unsafe { processor::start_again(vcpu, stack) }
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

/// The first Rust code of the vCPUs that [`start`] starts.
#[unsafe(no_mangle)]
extern "C" fn secondary_main(number: u64, body: extern "C" fn(VcpuId) -> !, stack_low: u64) -> ! {
    let vcpu = VcpuId(number as u32);
    attach(vcpu, stack_low..stack_low + STACK_SIZE as u64);
    // What Xen knows of a vCPU stays when it stops.
    let runs_again = kick_port(vcpu).is_some();
    let connected = match runs_again {
        true => timer::connect(vcpu),
        false => connect_current(),
    };
    if let Err(errno) = connected {
        early_println!("vCPU {number}: {errno}");
        power::crash();
    }
    if runs_again {
        sampler::on_wake(vcpu);
        timer::arm(vcpu);
    }
    interrupts::enable();
    body(vcpu)
}
