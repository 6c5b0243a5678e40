//! A second vCPU that stops itself and is started again by the first one.

use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::{self, VcpuId};

use crate::command_line::CommandLine;
use crate::vcpus::{self, FIRST};
use crate::{interrupts, sampler, timer};

const SECOND: VcpuId = VcpuId(1);

/// The time that it runs, and then is stopped; 0 if it always runs.
static PERIOD_NS: AtomicU64 = AtomicU64::new(0);
/// The time of its last start or stop, on the guest's clock.
static CHANGED_NS: AtomicU64 = AtomicU64::new(0);

/// Sets what the command line requests with `offline=MILLISECONDS`.
pub(crate) fn configure(command_line: CommandLine) {
    let period_ns = command_line.parsed::<u64>("offline").unwrap_or(0) * 1_000_000;
    PERIOD_NS.store(period_ns, Ordering::Relaxed);
}

/// Stops or starts the second vCPU if that is due. Called by both, in each turn of their load.
pub(crate) fn change_when_due(current: VcpuId) {
    let period_ns = PERIOD_NS.load(Ordering::Relaxed);
    if period_ns == 0 {
        return;
    }
    let now_ns = timer::now_ns(current);
    if now_ns < CHANGED_NS.load(Ordering::Relaxed) + period_ns {
        return;
    }
    match current {
        SECOND => {
            interrupts::disable();
            sampler::on_block(SECOND);
            CHANGED_NS.store(now_ns, Ordering::Relaxed);
            let errno = vcpu::down();
            panic!("the second vCPU does not stop: {errno}");
        }
        FIRST if vcpu::is_up(SECOND) == Ok(false) => {
            CHANGED_NS.store(now_ns, Ordering::Relaxed);
            vcpus::start_again(SECOND).unwrap_or_else(|errno| panic!("the second vCPU: {errno}"));
        }
        _ => {}
    }
}
