//! Where the guest's upcall hands over: ticks, kicks, blocking and waking.

use xen_sys_lite::Hypercall;
use xen_sys_lite::timer::{self, Deadline};
use xen_sys_lite::vcpu::VcpuId;

use super::XenPlatform;
use super::platform::MAX_VCPUS;
use crate::agent::Agent;
use crate::ground::platform::{Platform, Registers};
use crate::ground::sync::{AtomicU64, Ordering};

/// Who has the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickSource {
    /// The guest hands VIRQ_TIMER over; timers are armed by [`Ticks`].
    Owned,
    /// The guest keeps VIRQ_TIMER and programs the deadlines that [`Ticks`] answers.
    Host,
}

/// The agent at the guest's timer. Call its methods on the vCPU concerned, with its upcalls held
/// back, as they are inside an upcall.
#[derive(Debug)]
pub struct Ticks<'a, 'm, H> {
    agent: &'a Agent<'m, XenPlatform<H>>,
    hypercall: H,
    source: TickSource,
    vcpus: [Deadlines; MAX_VCPUS],
}

/// Deadlines in system time; [`NONE`] = none. Only the vCPU itself writes them.
#[derive(Debug)]
struct Deadlines {
    guest_ns: AtomicU64,
    sampler_ns: AtomicU64,
    /// What the timer was programmed with and has not fired for.
    armed_ns: AtomicU64,
}

const NONE: u64 = u64::MAX;

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            guest_ns: AtomicU64::new(NONE),
            sampler_ns: AtomicU64::new(NONE),
            armed_ns: AtomicU64::new(NONE),
        }
    }
}

impl<'a, 'm, H: Hypercall> Ticks<'a, 'm, H> {
    /// The ticks of `agent`.
    pub fn new(agent: &'a Agent<'m, XenPlatform<H>>, hypercall: H, source: TickSource) -> Self {
        let vcpus = core::array::from_fn(|_| Deadlines::default());
        Self {
            agent,
            hypercall,
            source,
            vcpus,
        }
    }

    /// The agent.
    pub fn agent(&self) -> &'a Agent<'m, XenPlatform<H>> {
        self.agent
    }

    /// Who has the timer.
    pub fn source(&self) -> TickSource {
        self.source
    }

    /// VIRQ_TIMER was delivered to this vCPU. `registers` are those of the interrupted code, `None`
    /// where there are none.
    ///
    /// Under [`TickSource::Host`] answers the sampler's next deadline in system time: program the
    /// earlier of it and the guest's own. Under [`TickSource::Owned`] that is done here, and the
    /// answer is `None`.
    pub fn on_timer(&self, registers: Option<&Registers>) -> Option<u64> {
        if let Some((_, deadlines)) = self.current() {
            deadlines.armed_ns.store(NONE, Ordering::Relaxed);
            let platform = self.agent.platform();
            if deadlines.guest_ns.load(Ordering::Relaxed)
                <= platform.timer_deadline(platform.now_ns())
            {
                deadlines.guest_ns.store(NONE, Ordering::Relaxed);
            }
        }
        self.program(self.agent.on_tick(registers))
    }

    /// Another vCPU asks this one to arm its timer: a recording has begun. Answers as
    /// [`on_timer`](Self::on_timer).
    pub fn on_kick(&self, registers: Option<&Registers>) -> Option<u64> {
        self.program(self.agent.on_tick(registers))
    }

    /// The vCPU is about to block. From here to [`on_wake`](Self::on_wake) the sampler has no
    /// deadline: under [`TickSource::Host`] program the guest's own alone, if any.
    #[inline]
    pub fn on_block(&self, registers: Option<&Registers>) {
        self.agent.on_block(registers);
        self.program(None);
    }

    /// The vCPU has woken. Answers as [`on_timer`](Self::on_timer).
    pub fn on_wake(&self) -> Option<u64> {
        self.program(self.agent.on_wake())
    }

    /// Under [`TickSource::Owned`]: when the guest itself wants an upcall of its timer, once, in ns
    /// of system time; `None` = not at all.
    pub fn set_guest_deadline(&self, deadline_ns: Option<u64>) {
        if let Some((vcpu, deadlines)) = self.current() {
            deadlines
                .guest_ns
                .store(deadline_ns.unwrap_or(NONE), Ordering::Relaxed);
            self.arm(vcpu, deadlines);
        }
    }

    /// The guest was restored or has migrated, and its event channels, clocks and runstate areas
    /// work again. Call it on one vCPU. Answers as [`on_timer`](Self::on_timer).
    pub fn resume(&self) -> Option<u64> {
        for deadlines in &self.vcpus {
            deadlines.armed_ns.store(NONE, Ordering::Relaxed);
        }
        self.agent.resume();
        self.program(self.agent.deadline())
    }

    /// Under `Owned` takes the sampler's deadline over, under `Host` passes it on.
    fn program(&self, sampler_ns: Option<u64>) -> Option<u64> {
        if self.source == TickSource::Host {
            return sampler_ns;
        }
        if let Some((vcpu, deadlines)) = self.current() {
            deadlines
                .sampler_ns
                .store(sampler_ns.unwrap_or(NONE), Ordering::Relaxed);
            self.arm(vcpu, deadlines);
        }
        None
    }

    /// Arms the timer for the earlier deadline, unless it fires no later as it is: firing early costs
    /// less than arming at each block.
    fn arm(&self, vcpu: u32, deadlines: &Deadlines) {
        if self.source == TickSource::Host {
            return;
        }
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let wanted_ns = load(&deadlines.guest_ns).min(load(&deadlines.sampler_ns));
        if wanted_ns >= load(&deadlines.armed_ns) {
            return;
        }
        // A deadline that has passed fires at once. Any other error leaves nothing armed, and the
        // next deadline is tried again.
        let armed =
            timer::set_singleshot(&self.hypercall, VcpuId(vcpu), Deadline::at(wanted_ns)).is_ok();
        deadlines
            .armed_ns
            .store(if armed { wanted_ns } else { NONE }, Ordering::Relaxed);
    }

    fn current(&self) -> Option<(u32, &Deadlines)> {
        let vcpu = self.agent.platform().vcpu()?;
        Some((vcpu, self.vcpus.get(vcpu as usize)?))
    }
}
