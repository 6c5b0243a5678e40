//! Waits for another domain, asleep as in `idle`, so that ticks and other events are served
//! meanwhile.

use xen_sys_lite::events::Port;
use xen_sys_lite::{Channel, Errno};

use crate::hypervisor::events;
use crate::vcpus::{self, FIRST};
use crate::{idle, timer, upcall};

/// An event channel of the first vCPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventChannel {
    port: Port,
}

impl EventChannel {
    /// Lets events of `port` wake the first vCPU.
    pub(crate) fn open(port: Port) -> Result<Self, Errno> {
        upcall::wake_on(port)?;
        Ok(Self { port })
    }
}

impl Channel for EventChannel {
    fn notify(&self) -> Result<(), Errno> {
        events().send(self.port)
    }

    fn now_ns(&self) -> u64 {
        timer::now_ns(vcpus::current())
    }

    fn wait_until(&self, deadline_ns: u64) {
        if vcpus::current() == FIRST {
            idle::sleep_until(Some(deadline_ns), || upcall::take_signal(self.port));
        } else {
            // The event wakes the first vCPU only.
            core::hint::spin_loop();
        }
    }
}
