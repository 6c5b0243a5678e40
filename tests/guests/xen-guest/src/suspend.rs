//! Save and restore, or migration: Xen's state of the guest is lost, and the guest continues.
//!
//! The other vCPUs wait inside an upcall meanwhile, where Xen saves and restores them. The first
//! vCPU sets up the domain again, in the order of `xen_sys_lite`, and then releases them. A
//! recording continues, and notes the gap.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use xen_sys_lite::sched::{self, Woken};
use xen_sys_lite::vcpu::VcpuId;

use crate::hypervisor::xen;
use crate::served::Served;
use crate::store::{self, GuestStore};
use crate::vcpus::{self, FIRST};
use crate::{console, hypervisor, interrupts, network_device, println, sampler, timer, upcall};

/// Whether the other vCPUs must wait.
static STOPPING: AtomicBool = AtomicBool::new(false);
/// The number of waiting vCPUs.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// Suspends the domain; returns when it runs again, with everything as before. Called on the first
/// vCPU, as part of a poll, so that no rescue uses the network meanwhile.
pub(crate) fn suspend(store: &mut GuestStore, served: Option<&mut Served>) {
    println!("xen-guest: suspending");
    console::drain();
    stop_others();
    interrupts::disable();
    let stood_ns = timer::now_ns(FIRST);
    sampler::suspend();
    let woken = sched::suspend(&xen());
    if woken == Ok(Woken::InNewDomain) {
        connect(stood_ns);
    }
    interrupts::enable();
    STOPPING.store(false, Ordering::Release);
    if woken == Ok(Woken::InNewDomain) {
        // Before the guest's own, which keep the rings' indices.
        #[cfg(feature = "gate")]
        crate::dropin::resume();
        reconnect(store, served);
    }
    match woken {
        Ok(woken) => println!("xen-guest: resumed, {woken:?}"),
        Err(errno) => println!("xen-guest: not suspended: {errno}"),
    }
}

/// Waits while the first vCPU suspends the domain. Called at the end of each upcall of the others.
pub(crate) fn wait_while_stopped() {
    if STOPPING.load(Ordering::Acquire) {
        WAITING.fetch_add(1, Ordering::AcqRel);
        while STOPPING.load(Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // The profiler refuses it on this vCPU.
        #[cfg(feature = "gate")]
        crate::dropin::resume();
        WAITING.fetch_sub(1, Ordering::AcqRel);
    }
}

fn stop_others() {
    STOPPING.store(true, Ordering::Release);
    (1..vcpus::running()).for_each(|number| vcpus::kick(VcpuId(number)));
    while WAITING.load(Ordering::Acquire) + 1 < vcpus::running() {
        core::hint::spin_loop();
    }
}

/// Sets up everything that upcalls need, for all vCPUs. Called with interrupts off.
fn connect(stood_ns: u64) {
    hypervisor::connect().unwrap_or_else(|errno| panic!("Xen: {errno}"));
    timer::go_on_from(FIRST, stood_ns);
    upcall::disown_all();
    for vcpu in (0..vcpus::running()).map(VcpuId) {
        vcpus::connect(vcpu).unwrap_or_else(|errno| panic!("vCPU {}: {errno}", vcpu.0));
    }
    sampler::resume(FIRST);
    timer::arm(FIRST);
}

/// Reconnects xenstore, the console and the network.
fn reconnect(store: &mut GuestStore, served: Option<&mut Served>) {
    *store = store::connect().unwrap_or_else(|error| panic!("xenstore: {error}"));
    console::connect().unwrap_or_else(|errno| panic!("the console: {errno}"));
    if let Some(served) = served
        && let Err(error) = network_device::resume(served.network.device(), store)
    {
        // The main loop tries again.
        println!("xen-guest: no network yet: {error}");
    }
}
