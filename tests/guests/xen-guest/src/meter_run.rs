//! Checks that Xen's timer reaches the sampler: ticks of every vCPU while it is busy, then sleeps without any.

use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::vcpus::{self, FIRST};
use crate::{busy, idle, meter, println, statistics, timer};

/// Of each vCPU while it is busy.
const TICKS: u64 = 100;
const SLEEPS: u64 = 10;
/// The periods of the ticks in a sleep.
const SLEEP_PERIODS: u64 = 10;

/// Runs the check that `meter=RATE_HZ` and `vcpus=COUNT` request, and prints the results of the ticks.
pub(crate) fn run(command_line: CommandLine) {
    let Some(rate_hz) = command_line.parsed::<u64>("meter").filter(|&rate| rate > 0) else {
        return;
    };
    let period_ns = 1_000_000_000 / rate_hz;
    vcpus::start_others(command_line.parsed("vcpus").unwrap_or(1), be_busy);
    meter::set_period(period_ns);
    busy::run_until(|| vcpus_running().all(|vcpu| meter::meter(vcpu).ticks() >= TICKS));
    meter::set_period(0);
    let now_ns = timer::now_ns(FIRST);
    for vcpu in vcpus_running() {
        let ran_ns = vcpus::runstate(vcpu).map_or(0, |area| area.read().running_at(now_ns));
        println!(
            "xen-guest: vCPU {}: {}, ran {ran_ns} of {now_ns} ns",
            vcpu.0,
            meter::meter(vcpu)
        );
    }

    meter::set_period(period_ns);
    let statistics = statistics::of(FIRST);
    let [mut sleeps, mut upcalls] = [0; 2];
    while sleeps < SLEEPS {
        let [blocks, fired] = [&statistics.blocks, &statistics.timer_upcalls];
        let before = (blocks.get(), fired.get());
        let end_ns = timer::now_ns(FIRST) + SLEEP_PERIODS * period_ns;
        idle::sleep_until(Some(end_ns), || false);
        // It does not sleep if the end has passed by then: the vCPU may have stood still.
        if blocks.get() > before.0 {
            sleeps += 1;
            upcalls += fired.get() - before.1;
        }
    }
    meter::set_period(0);
    println!(
        "xen-guest: {sleeps} sleeps, {} ticks in them, {upcalls} timer upcalls",
        meter::meter(FIRST).asleep_ticks()
    );
}

fn vcpus_running() -> impl Iterator<Item = VcpuId> {
    (0..vcpus::running()).map(VcpuId)
}

extern "C" fn be_busy(_: VcpuId) -> ! {
    loop {
        busy::run_until(|| false);
    }
}
