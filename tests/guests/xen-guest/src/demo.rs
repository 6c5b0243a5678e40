//! The demo service with the requests it serves: one for each vCPU.

use alloc::vec::Vec;

use unikprof_demo_service::{RequestGenerator, Service};
use xen_sys_lite::vcpu::VcpuId;

use crate::{meter, println, statistics, vcpus};

/// Notes in each vCPU's service.
const NOTES: usize = 128;
/// Ticks that are to have interrupted the work before it says what it came to.
const TICKS: u64 = 20;

/// One vCPU's service and the requests it serves.
pub(crate) struct Demo {
    service: Service,
    requests: RequestGenerator,
    response: Vec<u8>,
    served: u64,
    has_told: bool,
}

impl Demo {
    /// A service and requests that depend on the vCPU's number alone.
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

    /// Serves a request. After hundreds of them it says once what they came to, for tests that compute the same;
    /// where ticks are to interrupt it, only when some have.
    pub(crate) fn serve_one(&mut self) {
        let Some(request) = self.requests.next() else {
            return;
        };
        self.service.handle(&request, &mut self.response);
        let vcpu = vcpus::current();
        statistics::of(vcpu).requests.add(1);
        self.served += 1;
        if !self.has_told && self.served.is_multiple_of(100) && meter::has_seen(vcpu, TICKS) {
            self.has_told = true;
            println!(
                "xen-guest: load {}: {} requests, checksum {:#x}, {}",
                vcpu.0,
                self.served,
                self.service.checksum(),
                meter::meter(vcpu)
            );
        }
    }
}
