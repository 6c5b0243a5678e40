//! Interrupts that one vCPU sends another by the local APIC, without an event channel.
//!
//! The second vCPU sleeps until such a signal comes, and acknowledges it. Its handler waits until
//! the upcall's vector is requested, too, as by the profiler's timer. So that interrupt comes as
//! soon as the handler returns, when the sleep's `hlt` is over and the code behind it has not yet
//! seen the signal.

#![allow(unsafe_code, reason = "the local APIC's registers")]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use xen_sys_lite::vcpu::VcpuId;

use crate::interrupts::{SIGNAL_VECTOR, UPCALL_VECTOR};
use crate::vcpus::{self, FIRST};
use crate::{idle, println, timer};

/// Memory is mapped one to one, here, too.
const APIC: usize = 0xfee0_0000;
const ID: usize = 0x20;
const EOI: usize = 0xb0;
const SPURIOUS: usize = 0xf0;
const ENABLED: u32 = 1 << 8;
const REQUESTED: usize = 0x200;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const ASSERT: u32 = 1 << 14;
/// The handler waits no longer.
const MOST_NS: u64 = 30_000_000;
/// Other guests run on the same processor.
const PAUSE_NS: u64 = 100_000_000;
/// Several times what the profiler may take to find out.
const WORK_NS: u64 = 80_000_000;
/// A line on the console tells of so many.
const LINE_EVERY: u32 = 20;

/// The second vCPU's APIC; known when it waits for signals.
static DESTINATION: AtomicU32 = AtomicU32::new(0);
static IS_READY: AtomicBool = AtomicBool::new(false);
static IS_SIGNALLED: AtomicBool = AtomicBool::new(false);
static ACKNOWLEDGED: AtomicU32 = AtomicU32::new(0);
/// Signals during which the upcall's vector was requested.
static BESIDE: AtomicU32 = AtomicU32::new(0);

fn read(register: usize) -> u32 {
    // SAFETY: a register of the APIC, whose page is mapped.
    unsafe { core::ptr::with_exposed_provenance::<u32>(APIC + register).read_volatile() }
}

fn write(register: usize, value: u32) {
    // SAFETY: as above; the effect is the callers' purpose.
    unsafe {
        core::ptr::with_exposed_provenance_mut::<u32>(APIC + register).write_volatile(value);
    }
}

/// The first vCPU's work: sends a signal when the last one was acknowledged, some time after that.
pub(crate) fn sender() -> impl FnMut() {
    let (mut sent, mut told, mut next_ns) = (0, 0, 0);
    move || {
        let now_ns = timer::now_ns(FIRST);
        let is_acknowledged = ACKNOWLEDGED.load(Ordering::Acquire) == sent;
        if IS_READY.load(Ordering::Acquire) && is_acknowledged && now_ns >= next_ns {
            sent += 1;
            next_ns = now_ns + PAUSE_NS;
            write(COMMAND_HIGH, DESTINATION.load(Ordering::Relaxed));
            write(COMMAND_LOW, ASSERT | u32::from(SIGNAL_VECTOR));
        }
        let beside = BESIDE.load(Ordering::Relaxed);
        if beside >= told + LINE_EVERY {
            told += LINE_EVERY;
            println!("xen-guest: {told} signals beside upcalls");
        }
    }
}

/// The second vCPU's work.
pub(crate) extern "C" fn wait_for_ever(_: VcpuId) -> ! {
    write(SPURIOUS, ENABLED | u32::from(UPCALL_VECTOR));
    DESTINATION.store(read(ID), Ordering::Relaxed);
    IS_READY.store(true, Ordering::Release);
    loop {
        idle::sleep_until(None, || IS_SIGNALLED.swap(false, Ordering::Acquire));
        work_after_signal();
        ACKNOWLEDGED.fetch_add(1, Ordering::Release);
    }
}

/// A profile shows its name.
#[inline(never)]
fn work_after_signal() {
    let vcpu = vcpus::current();
    let end_ns = timer::now_ns(vcpu) + WORK_NS;
    while timer::now_ns(vcpu) < end_ns {
        core::hint::spin_loop();
    }
}

/// The handler, with interrupts off.
pub(crate) fn on_signal() {
    let word = REQUESTED + usize::from(UPCALL_VECTOR / 32) * 16;
    let is_requested = || read(word) >> (UPCALL_VECTOR % 32) & 1 != 0;
    let vcpu = vcpus::current();
    let end_ns = timer::now_ns(vcpu) + MOST_NS;
    while !is_requested() && timer::now_ns(vcpu) < end_ns {
        core::hint::spin_loop();
    }
    BESIDE.fetch_add(u32::from(is_requested()), Ordering::Relaxed);
    IS_SIGNALLED.store(true, Ordering::Release);
    write(EOI, 0);
}
