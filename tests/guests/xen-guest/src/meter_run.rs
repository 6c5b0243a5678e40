//! Checks that Xen's timer reaches the sampler: a busy second on every vCPU, then a sleep.

use xen_sys_lite::vcpu::VcpuId;

use crate::command_line::CommandLine;
use crate::vcpus::{self, FIRST};
use crate::{busy, idle, meter, println, timer};

const BUSY_NS: u64 = 1_000_000_000;
const SLEEP_NS: u64 = 50_000_000;

/// Runs the check that `meter=RATE_HZ` and `vcpus=COUNT` request, and prints the results of the ticks.
pub(crate) fn run(command_line: CommandLine) {
    let Some(rate_hz) = command_line.parsed::<u64>("meter").filter(|&rate| rate > 0) else {
        return;
    };
    vcpus::start_others(command_line.parsed("vcpus").unwrap_or(1), be_busy);
    meter::set_period(1_000_000_000 / rate_hz);
    busy::run_for(FIRST, BUSY_NS);
    meter::set_period(0);
    let now = timer::now_ns(FIRST);
    for number in 0..vcpus::running() {
        let vcpu = VcpuId(number);
        let ran_ms =
            vcpus::runstate(vcpu).map_or(0, |area| area.read().running_at(now) / 1_000_000);
        println!(
            "xen-guest: vCPU {number}: {}, ran {ran_ms} ms",
            meter::meter(vcpu)
        );
    }

    meter::set_period(1_000_000_000 / rate_hz);
    let before = meter::meter(FIRST).ticks();
    idle::sleep_until(Some(timer::now_ns(FIRST) + SLEEP_NS), || false);
    println!(
        "xen-guest: {} ticks in a sleep",
        meter::meter(FIRST).ticks() - before
    );
    meter::set_period(0);
}

extern "C" fn be_busy(vcpu: VcpuId) -> ! {
    loop {
        busy::run_for(vcpu, BUSY_NS);
    }
}
