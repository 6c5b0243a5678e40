//! The calls from the guest's upcall and idle loop: ticks, kicks, blocking and waking.
//!
//! Why: docs/design/decisions.md#guest-deadlines-are-on-the-agents-clock.

use xen_sys_lite::Hypercall;

use super::{XenPlatform, arch};
use crate::agent::Agent;
use crate::ground::platform::{Platform, Registers};
use crate::ground::sync::{AtomicU64, Ordering};

/// The side that arms the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickSource {
    /// [`Ticks`] arms the timers and gets every VIRQ_TIMER.
    Owned,
    /// The guest keeps VIRQ_TIMER and programs the deadlines that [`Ticks`] returns.
    Host,
}

/// Connects the agent to the guest's timer. Call the methods on the vCPU concerned, with its
/// upcalls masked, as they are inside an upcall.
#[derive(Debug)]
pub struct Ticks<'a, 'm, H, const VCPUS: usize = 32> {
    agent: &'a Agent<'m, XenPlatform<H, VCPUS>>,
    hypercall: H,
    source: TickSource,
    vcpus: [Deadlines; VCPUS],
}

/// One vCPU's deadlines, or [`NONE`]. Only the vCPU itself and [`Ticks::resume`] write them.
#[derive(Debug)]
struct Deadlines {
    /// On the platform's monotonic clock, which continues over a restore.
    guest_ns: AtomicU64,
    /// The sampler's deadline, in system time.
    sampler_ns: AtomicU64,
    /// The time that the timer is armed for, in system time.
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

impl<'a, 'm, H: Hypercall, const VCPUS: usize> Ticks<'a, 'm, H, VCPUS> {
    /// The ticks of `agent`.
    pub fn new(
        agent: &'a Agent<'m, XenPlatform<H, VCPUS>>,
        hypercall: H,
        source: TickSource,
    ) -> Self {
        let vcpus = core::array::from_fn(|_| Deadlines::default());
        Self { agent, hypercall, source, vcpus }
    }

    /// The agent.
    pub fn agent(&self) -> &'a Agent<'m, XenPlatform<H, VCPUS>> {
        self.agent
    }

    /// The side that arms the timer.
    pub fn source(&self) -> TickSource {
        self.source
    }

    /// Call it when VIRQ_TIMER was delivered to this vCPU. `registers` are those of the interrupted
    /// code, `None` if there are none.
    ///
    /// Under [`TickSource::Host`] returns the sampler's next deadline in system time: program it or
    /// the guest's own, whichever is earlier. Under [`TickSource::Owned`] this method arms the
    /// timer and returns `None`.
    pub fn on_timer(&self, registers: Option<&Registers>) -> Option<u64> {
        if self.source == TickSource::Owned
            && let Some(deadlines) = self.current()
        {
            deadlines.armed_ns.store(NONE, Ordering::Relaxed);
            let guest_ns = deadlines.guest_ns.load(Ordering::Relaxed);
            let platform = self.agent.platform();
            // Without a deadline of the guest the clock is not read.
            if guest_ns != NONE && guest_ns <= platform.now_ns() {
                deadlines.guest_ns.store(NONE, Ordering::Relaxed);
            }
        }
        self.program(self.agent.on_tick(registers))
    }

    /// Call it when another vCPU has kicked this one to make it arm its timer, because a recording
    /// has begun, or because a client wants a snapshot of it. Returns the same as
    /// [`on_timer`](Self::on_timer).
    pub fn on_kick(&self, registers: Option<&Registers>) -> Option<u64> {
        self.program(self.agent.on_tick(registers))
    }

    /// Call it when the vCPU is about to block. Until [`on_wake`](Self::on_wake) the sampler has no
    /// deadline: under [`TickSource::Host`] program only the guest's own, if any. Under
    /// [`TickSource::Owned`] this method does so if the vCPU is recorded, with one hypercall at
    /// most.
    #[inline]
    pub fn on_block(&self, registers: Option<&Registers>) {
        self.agent.on_block(registers);
        // `NONE` under `Host`, too.
        if let Some(deadlines) = self.current()
            && deadlines.sampler_ns.load(Ordering::Relaxed) != NONE
        {
            deadlines.sampler_ns.store(NONE, Ordering::Relaxed);
            let wanted_ns = self.wanted_ns(deadlines);
            if wanted_ns != deadlines.armed_ns.load(Ordering::Relaxed) {
                self.agent.charge_arming(|| self.arm_for(deadlines, wanted_ns));
            }
        }
    }

    /// Call it when the vCPU has woken. Returns the same as [`on_timer`](Self::on_timer).
    pub fn on_wake(&self) -> Option<u64> {
        let sampler_ns = self.agent.on_wake();
        if sampler_ns.is_none() || self.source == TickSource::Host {
            return self.program(sampler_ns);
        }
        self.agent.charge_arming(|| self.program(sampler_ns))
    }

    /// Under [`TickSource::Owned`]: sets the guest's own deadline on this vCPU, in ns of system
    /// time. The timer fires once for it; `None` = no deadline. The time left to it survives a
    /// restore.
    ///
    /// Returns false if the vCPU is [not sampled](super#which-vcpus-are-sampled): its timer is not
    /// changed, and the guest must arm it itself.
    pub fn set_guest_deadline(&self, deadline_ns: Option<u64>) -> bool {
        let Some(deadlines) = self.current() else {
            return false;
        };
        let platform = self.agent.platform();
        let guest_ns = deadline_ns.map_or(NONE, |at| platform.monotonic(at));
        deadlines.guest_ns.store(guest_ns, Ordering::Relaxed);
        self.arm(deadlines);
        true
    }

    /// Call it when the guest is about to suspend itself for a save or a migration, on the vCPU
    /// that makes the hypercall, directly before it, while the other vCPUs have their upcalls
    /// masked. After a restore the clocks and the time left to the guest's deadlines continue from
    /// this moment; without this call, from when they were last read. A cancelled suspend needs no
    /// further call.
    pub fn suspend(&self) {
        self.agent.platform().read_all();
    }

    /// Call it after the guest was restored from a save or has migrated, when its event channels,
    /// clocks and runstate areas work again, on one vCPU, while the others have their upcalls
    /// masked. Returns the same as [`on_timer`](Self::on_timer).
    ///
    /// It kicks the other vCPUs, so that each arms its timer again, if they have a deadline of the
    /// sampler or, under [`TickSource::Owned`], of the guest. Under [`TickSource::Host`] the guest
    /// must arm its own deadlines.
    pub fn resume(&self) -> Option<u64> {
        self.agent.resume();
        let platform = self.agent.platform();
        let current = platform.vcpu();
        for (vcpu, deadlines) in (0..).zip(&self.vcpus) {
            // Times on the old clock, for timers that Xen has not restored.
            deadlines.sampler_ns.store(NONE, Ordering::Relaxed);
            deadlines.armed_ns.store(NONE, Ordering::Relaxed);
            if deadlines.guest_ns.load(Ordering::Relaxed) != NONE && Some(vcpu) != current {
                platform.kick(vcpu);
            }
        }
        self.program(self.agent.deadline())
    }

    /// Under `Owned` stores and arms the sampler's deadline, under `Host` returns it.
    fn program(&self, sampler_ns: Option<u64>) -> Option<u64> {
        if self.source == TickSource::Host {
            return sampler_ns;
        }
        if let Some(deadlines) = self.current() {
            deadlines.sampler_ns.store(sampler_ns.unwrap_or(NONE), Ordering::Relaxed);
            self.arm(deadlines);
        }
        None
    }

    /// Arms the timer for the earlier deadline, unless it is armed for that time or an earlier one:
    /// an occasional spurious wake costs less than a hypercall at each change.
    fn arm(&self, deadlines: &Deadlines) {
        let wanted_ns = self.wanted_ns(deadlines);
        if self.source == TickSource::Owned
            && wanted_ns < deadlines.armed_ns.load(Ordering::Relaxed)
        {
            self.arm_for(deadlines, wanted_ns);
        }
    }

    /// The earlier of the guest's and the sampler's deadline, in system time.
    fn wanted_ns(&self, deadlines: &Deadlines) -> u64 {
        let guest_ns = match deadlines.guest_ns.load(Ordering::Relaxed) {
            NONE => NONE,
            at => self.agent.platform().timer_deadline(at),
        };
        guest_ns.min(deadlines.sampler_ns.load(Ordering::Relaxed))
    }

    /// Arms the timer for a system time, or stops it.
    fn arm_for(&self, deadlines: &Deadlines, wanted_ns: u64) {
        let clock = || self.agent.platform().clock();
        let armed = match wanted_ns {
            NONE => {
                arch::stop_timer(&self.hypercall);
                false
            }
            _ => arch::arm_timer(&self.hypercall, clock, wanted_ns),
        };
        // After an error the timer counts as not armed, and the next deadline is tried.
        deadlines.armed_ns.store(if armed { wanted_ns } else { NONE }, Ordering::Relaxed);
    }

    fn current(&self) -> Option<&Deadlines> {
        let vcpu = self.agent.platform().vcpu()?;
        self.vcpus.get(vcpu as usize)
    }
}
