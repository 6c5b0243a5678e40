//! What the agent asks of a Xen guest.
#![allow(unsafe_code)]

use core::ops::Range;

use xen_sys_lite::Hypercall;
use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::{EventChannels, Port};
use xen_sys_lite::runstate::{RunstateArea, State};
use xen_sys_lite::vcpu::VcpuId;

use crate::ground::platform::{Platform, Runstate};
use crate::ground::sync::{AtomicU64, Ordering};

use super::random::random;

/// The most vCPUs whose clocks lie in the shared information page.
pub(super) const MAX_VCPUS: usize = 32;

/// What only the guest knows. All of it is called from upcalls: bounded, no lock, no allocation.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The vCPU this code runs on; `None` where it is not sampled.
    pub vcpu: fn() -> Option<u32>,
    /// The stack that a stack pointer lies on; see [`Platform::stack_bounds`].
    pub stack_bounds: fn(u64) -> Option<Range<u64>>,
    /// The code around a pc whose bytes can be read, the image's text as a rule; see
    /// [`Platform::code_bounds`].
    pub code_bounds: fn(u64) -> Option<Range<u64>>,
    /// The port of the event channel that makes a vCPU call [`Ticks::on_kick`](super::Ticks::on_kick).
    pub kick_port: fn(u32) -> Option<Port>,
    /// The area that Xen keeps a vCPU's runstate in.
    pub runstate: fn(u32) -> Option<&'static RunstateArea>,
    /// The guest's log, line by line; see [`Platform::log`]. Not from upcalls.
    pub log: fn(&str),
}

/// The platform of a Xen guest.
#[derive(Debug)]
pub struct XenPlatform<H> {
    events: EventChannels<H>,
    shared: &'static SharedInfo,
    hooks: Hooks,
    /// Added to system time, so that the clock goes on over a migration.
    offset_ns: AtomicU64,
    vcpus: [VcpuClock; MAX_VCPUS],
}

/// One vCPU's times: what they were when they were read last, and what is added to Xen's so that they
/// go on from there after a migration. In the order of [`times`].
#[derive(Debug, Default)]
struct VcpuClock {
    last_now_ns: AtomicU64,
    last_ns: [AtomicU64; 4],
    offset_ns: [AtomicU64; 4],
}

/// Running, runnable, blocked and offline time at `now_ns`. Xen's totals stand as of the last change
/// of state; the time since belongs to the state it changed to.
fn times(area: &RunstateArea, now_ns: u64) -> [u64; 4] {
    let state = area.read();
    let mut times = [
        state.running_ns,
        state.stolen_ns,
        state.blocked_ns,
        state.offline_ns,
    ];
    let current = match state.state {
        State::Running => Some(0),
        State::Runnable => Some(1),
        State::Blocked => Some(2),
        State::Offline => Some(3),
        State::Unsupported(_) => None,
    };
    if let Some(time) = current.and_then(|current| times.get_mut(current)) {
        *time = time.saturating_add(now_ns.saturating_sub(state.entered_ns));
    }
    times
}

impl<H: Hypercall> XenPlatform<H> {
    /// The platform of the guest whose `shared` information page is mapped.
    ///
    /// # Safety
    /// [`Hooks::stack_bounds`] and [`Hooks::code_bounds`] name only memory that is mapped and readable
    /// while an upcall runs.
    pub unsafe fn new(hypercall: H, shared: &'static SharedInfo, hooks: Hooks) -> Self {
        Self {
            events: EventChannels::new(hypercall, shared),
            shared,
            hooks,
            offset_ns: AtomicU64::new(0),
            vcpus: core::array::from_fn(|_| VcpuClock::default()),
        }
    }

    /// The guest's hooks.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    fn clock(&self, vcpu: u32) -> Option<Clock<'static>> {
        Clock::new(self.shared, VcpuId(vcpu))
    }

    /// System time, as Xen counts it.
    fn system_time_ns(&self) -> u64 {
        let vcpu = (self.hooks.vcpu)().unwrap_or(0);
        self.clock(vcpu).map_or(0, |clock| clock.now_ns())
    }

    /// Running, runnable, blocked and offline time now, over all migrations.
    fn times(&self, vcpu: u32) -> Option<[u64; 4]> {
        let clock = self.vcpus.get(vcpu as usize)?;
        let mut times = times((self.hooks.runstate)(vcpu)?, self.system_time_ns());
        for ((time, offset), last) in times.iter_mut().zip(&clock.offset_ns).zip(&clock.last_ns) {
            *time = time.wrapping_add(offset.load(Ordering::Relaxed));
            last.store(*time, Ordering::Relaxed);
        }
        Some(times)
    }
}

// SAFETY: `stack_bounds` and `code_bounds` are the guest's, whose promise `new` asks for.
unsafe impl<H: Hypercall> Platform for XenPlatform<H> {
    #[inline]
    fn now_ns(&self) -> u64 {
        let now_ns = self
            .system_time_ns()
            .wrapping_add(self.offset_ns.load(Ordering::Relaxed));
        if let Some(clock) = self.vcpu().and_then(|vcpu| self.vcpus.get(vcpu as usize)) {
            clock.last_now_ns.store(now_ns, Ordering::Relaxed);
        }
        now_ns
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        let time = self.clock((self.hooks.vcpu)().unwrap_or(0))?.wall_time();
        // Xen fills it before the guest starts; zero means that it did not.
        (time.seconds > 0).then(|| {
            time.seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(u64::from(time.nanoseconds))
        })
    }

    #[inline]
    fn vcpu(&self) -> Option<u32> {
        (self.hooks.vcpu)()
    }

    #[inline]
    fn running_ns(&self, vcpu: u32) -> u64 {
        self.times(vcpu).map_or(0, |[running_ns, ..]| running_ns)
    }

    #[inline]
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        self.times(vcpu)
            .map_or(0, |[_, _, blocked_ns, _]| blocked_ns)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let [running_ns, runnable_ns, blocked_ns, offline_ns] = self.times(vcpu)?;
        Some(Runstate {
            running_ns,
            runnable_ns,
            blocked_ns,
            offline_ns,
        })
    }

    fn kick(&self, vcpu: u32) {
        if let Some(port) = (self.hooks.kick_port)(vcpu) {
            // Fails only where the port is closed: that vCPU does not run, and has nothing to arm.
            let _ = self.events.send(port);
        }
    }

    #[inline]
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        (self.hooks.stack_bounds)(sp)
    }

    #[inline]
    fn code_bounds(&self, pc: u64) -> Option<Range<u64>> {
        (self.hooks.code_bounds)(pc)
    }

    fn random(&self) -> Option<u64> {
        random()
    }

    fn log(&self, line: &str) {
        (self.hooks.log)(line);
    }

    fn timer_deadline(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.wrapping_sub(self.offset_ns.load(Ordering::Relaxed))
    }

    fn resume(&self) {
        let last_ns = |clock: &VcpuClock| clock.last_now_ns.load(Ordering::Relaxed);
        let stood_ns = self.vcpus.iter().map(last_ns).max().unwrap_or(0);
        let system_time_ns = self.system_time_ns();
        self.offset_ns
            .store(stood_ns.wrapping_sub(system_time_ns), Ordering::Relaxed);
        for (vcpu, clock) in (0..).zip(&self.vcpus) {
            let Some(area) = (self.hooks.runstate)(vcpu) else {
                continue;
            };
            let times = times(area, system_time_ns);
            for ((time, offset), last) in times.iter().zip(&clock.offset_ns).zip(&clock.last_ns) {
                let stood_ns = last.load(Ordering::Relaxed);
                offset.store(stood_ns.wrapping_sub(*time), Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn cycles(&self) -> u64 {
        xen_sys_lite::clock::read_tsc()
    }
}
