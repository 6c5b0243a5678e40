//! The vCPUs, and what the profiler keeps of each.
//!
//! All vCPUs that use the first one's interrupt table pass by the same entry. There a vCPU is known
//! by CPUID, elsewhere in the profiler by its stack. A vCPU's first event, which the profiler sends
//! it, prepares its APIC; so no matter when the guest starts it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use xen_sys_lite::Hypercall;
use xen_sys_lite::abi::xen::{SharedInfo, VcpuInfo, VcpuTimeInfo};
use xen_sys_lite::clock;
use xen_sys_lite::events::{EventChannels, Port};
use xen_sys_lite::vcpu::{self, VcpuId};

use crate::machine::own_stacks::{self, MAX_VCPUS};

/// Used as a time: never.
pub(crate) const NEVER: u64 = u64::MAX;
/// Times that two copies of a clock are compared: Xen may update them meanwhile.
const TRIES: u32 = 3;

static VCPUS: [Vcpu; MAX_VCPUS] = [
    Vcpu::new(0),
    Vcpu::new(1),
    Vcpu::new(2),
    Vcpu::new(3),
    Vcpu::new(4),
    Vcpu::new(5),
    Vcpu::new(6),
    Vcpu::new(7),
];
/// The number of the domain's vCPUs that are sampled.
static COUNT: AtomicU32 = AtomicU32::new(1);

/// The profiler's state of a vCPU. It is used on that vCPU only, except for `kick_port`,
/// `is_kicked` and `state`.
pub(crate) struct Vcpu {
    number: u32,
    /// A second copy of the vCPU's clock; the first vCPU has none.
    time: VcpuTimeInfo,
    /// The event channel by which the first vCPU interrupts it; 0 for none.
    kick_port: AtomicU32,
    /// It is to look at the agent.
    pub(crate) is_kicked: AtomicBool,
    /// Its timer can be armed.
    pub(crate) is_ready: AtomicBool,
    /// It cannot be sampled: its timer is the guest's, or its events come elsewhere.
    pub(crate) is_unusable: AtomicBool,
    /// When the timer fires, in system time.
    pub(crate) armed_ns: AtomicU64,
    /// When the next tick is due, in system time.
    pub(crate) tick_at_ns: AtomicU64,
    /// The guest waits.
    pub(crate) is_waiting: AtomicBool,
    /// The agent has been told of the wait.
    pub(crate) is_block: AtomicBool,
    /// The hypercall to which the last interrupt has returned, or 0.
    pub(crate) waits_at: AtomicU64,
    /// The blocked time when Xen was last asked for it.
    pub(crate) blocked_ns: AtomicU64,
}

impl Vcpu {
    const fn new(number: u32) -> Self {
        Self {
            number,
            time: VcpuTimeInfo::new(),
            kick_port: AtomicU32::new(0),
            is_kicked: AtomicBool::new(false),
            is_ready: AtomicBool::new(false),
            is_unusable: AtomicBool::new(false),
            armed_ns: AtomicU64::new(NEVER),
            tick_at_ns: AtomicU64::new(NEVER),
            is_waiting: AtomicBool::new(false),
            is_block: AtomicBool::new(false),
            waits_at: AtomicU64::new(0),
            blocked_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn id(&self) -> VcpuId {
        VcpuId(self.number)
    }

    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Its clock, by the shared information page until it has one of its own.
    pub(crate) fn time(&'static self, shared: &'static SharedInfo) -> &'static VcpuTimeInfo {
        if !self.is_first() && self.is_ready.load(Ordering::Relaxed) {
            &self.time
        } else {
            &shared.vcpu_info[0].time
        }
    }

    /// Its events, if the guest has not moved them.
    pub(crate) fn info(&self, shared: &'static SharedInfo) -> &'static VcpuInfo {
        &shared.vcpu_info[self.number as usize]
    }

    /// Registers its clock's copy, on this vCPU.
    pub(crate) fn register_time(&'static self, xen: &impl Hypercall) -> bool {
        clock::register_copy(xen, self.id(), Some(&self.time)).is_ok()
    }

    /// Whether the events of a vCPU with a clock of its own come elsewhere than to the shared
    /// information page: the clock there, which Xen updates together with the own one, is another.
    pub(crate) fn has_moved(&self, shared: &'static SharedInfo) -> bool {
        let clocks = [&self.time, &self.info(shared).time];
        !(0..TRIES).any(|_| {
            let [own, there] = clocks.map(|time| time.tsc_timestamp.load(Ordering::Relaxed));
            own == there && own != 0
        })
    }

    pub(crate) fn kick_port(&self) -> Option<Port> {
        let port = self.kick_port.load(Ordering::Relaxed);
        (port != 0).then_some(Port(port))
    }

    /// Has the vCPU look at the agent as soon as it takes events. One that the guest has not
    /// started, or that cannot be sampled, is sent none: another vCPU might find the event and
    /// report it as unknown. The kick is [repeated](repeat_kicks) until it is seen.
    pub(crate) fn kick(&self, events: &EventChannels<impl Hypercall>) {
        if let Some(port) = self.kick_port() {
            // It is seen before the look at the event: the vCPU may be taking an earlier one.
            self.is_kicked.swap(true, Ordering::SeqCst);
            let is_up = vcpu::is_up(events.hypercall(), self.id()) == Ok(true);
            if !is_up || self.is_unusable.load(Ordering::Relaxed) {
                return;
            }
            // Fail only for a port that does not exist.
            if events.is_masked(port) {
                let _ = events.unmask(port);
            }
            if !events.is_pending(port) {
                let _ = events.send(port);
            }
        }
    }

    /// Makes the event channel by which it is interrupted, in a new domain.
    pub(crate) fn connect(&self, events: &EventChannels<impl Hypercall>) {
        let port = events.bind_ipi(self.id()).map_or(0, |port| port.0);
        self.kick_port.store(port, Ordering::Relaxed);
        self.is_ready.store(false, Ordering::Relaxed);
        self.is_unusable.store(false, Ordering::Relaxed);
        self.kick(events);
    }
}

/// Counts the vCPUs of the domain, up to one more than are sampled.
pub(crate) fn count(xen: &impl Hypercall) -> u32 {
    let last = MAX_VCPUS as u32;
    (1..=last).find(|number| vcpu::is_up(xen, VcpuId(*number)).is_err()).unwrap_or(last + 1)
}

/// Samples the first `count` vCPUs.
pub(crate) fn set_count(count: u32) {
    COUNT.store(count, Ordering::Relaxed);
}

/// The sampled vCPUs.
pub(crate) fn all() -> &'static [Vcpu] {
    &VCPUS[..COUNT.load(Ordering::Relaxed) as usize]
}

/// The first vCPU.
pub(crate) fn first() -> &'static Vcpu {
    &VCPUS[0]
}

/// The sampled vCPUs, without the first.
pub(crate) fn others() -> &'static [Vcpu] {
    &all()[1..]
}

/// Kicks those again that have not seen their last kick: the guest may have taken the event, or may
/// have started the vCPU since.
pub(crate) fn repeat_kicks(events: &EventChannels<impl Hypercall>) {
    let is_kicked = |it: &&Vcpu| it.is_kicked.load(Ordering::Relaxed);
    others().iter().filter(is_kicked).for_each(|it| it.kick(events));
}

/// A vCPU by its number, if it is sampled.
pub(crate) fn of(number: u32) -> Option<&'static Vcpu> {
    all().get(number as usize)
}

/// The vCPU that this runs on.
pub(crate) fn current() -> Option<u32> {
    if all().len() == 1 {
        return Some(0);
    }
    Some(own_stacks::vcpu_of_stack().unwrap_or_else(own_stacks::vcpu_by_leaf))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use xen_sys_lite::fake::FakeXen;

    /// Guards a guest that looks for the events of all vCPUs on its only one: it logged an unknown
    /// event at each poll.
    #[test]
    fn a_vcpu_that_was_not_started_is_sent_no_event() {
        let xen = FakeXen::new();
        xen.add_vcpu(VcpuId(1));
        let events = EventChannels::new(&xen, xen.map_shared_info());
        let vcpu = Vcpu::new(1);
        vcpu.connect(&events);
        let port = vcpu.kick_port().unwrap();
        for _ in 0..3 {
            assert!(!events.is_pending(port));
            vcpu.kick(&events);
        }
        assert!(vcpu.is_kicked.load(Ordering::Relaxed), "it is kicked again");
        xen.start_vcpu(VcpuId(1));
        vcpu.kick(&events);
        assert!(events.is_pending(port));
    }
}
