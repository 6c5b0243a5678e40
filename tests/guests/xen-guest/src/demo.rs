//! The demo service and its requests: one service for each vCPU.

use alloc::vec::Vec;

use unikprof_demo_service::{RequestGenerator, Service};
use xen_sys_lite::vcpu::VcpuId;

use crate::{bare, println, statistics, vcpus};

/// The number of notes in each vCPU's service.
const NOTES: usize = 128;
/// The number of timer interrupts that the work must have had before its result is printed.
const TICKS: u64 = 20;

/// One vCPU's service and its requests.
pub(crate) struct Demo {
    service: Service,
    requests: RequestGenerator,
    response: Vec<u8>,
    served: u64,
    has_told: bool,
}

impl Demo {
    /// A service and requests that depend only on the vCPU's number.
    pub(crate) fn new(vcpu: VcpuId) -> Self {
        let seed = 1 + u64::from(vcpu.0);
        Self {
            service: Service::new(seed, NOTES),
            requests: RequestGenerator::new(seed, NOTES),
            response: Vec::new(),
            served: 0,
            has_told: false,
        }
    }

    /// Serves a request. After hundreds of requests it prints the result once, for tests that
    /// compute the same; with ticks, only after some have interrupted it.
    pub(crate) fn serve_one(&mut self) {
        let Some(request) = self.requests.next() else {
            return;
        };
        self.service.handle(&request, &mut self.response);
        let vcpu = vcpus::current();
        let statistics = statistics::of(vcpu);
        statistics.requests.add(1);
        self.served += 1;
        let ticks = statistics.timer_upcalls.get();
        let has_seen = ticks >= TICKS || !bare::is_on();
        if !self.has_told && self.served.is_multiple_of(100) && has_seen {
            self.has_told = true;
            println!(
                "xen-guest: load {}: {} requests, checksum {:#x}, {ticks} ticks",
                vcpu.0,
                self.served,
                self.service.checksum()
            );
        }
    }
}
