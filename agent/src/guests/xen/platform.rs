//! The agent's [`Platform`] on Xen.
#![allow(unsafe_code)]

use core::ops::Range;

use xen_sys_lite::Hypercall;
use xen_sys_lite::abi::xen::{SharedInfo, VcpuTimeInfo};
use xen_sys_lite::clock::Clock;
use xen_sys_lite::events::{EventChannels, Port};
use xen_sys_lite::runstate::{self, RunstateArea, State};
use xen_sys_lite::vcpu::VcpuId;

#[cfg(feature = "trace")]
use crate::ground::platform::CallStack;
use crate::ground::platform::{Continuation, Moment, Platform, Runstate};
use crate::ground::sync::{AtomicU64, Ordering};

use super::arch;

/// The functions that the guest provides. All except [`log`](Self::log) are called from upcalls:
/// they must be bounded and must not lock or allocate.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// The vCPU that this code runs on; `None` if it is not sampled.
    pub vcpu: fn() -> Option<u32>,
    /// The memory in which Xen stores a vCPU's times; `None` for a vCPU that is not sampled. vCPU 0
    /// must have it, because vCPUs that have none use its clock.
    pub areas: fn(u32) -> Option<VcpuAreas>,
    /// The bounds of the stack that contains a stack pointer; see [`Platform::stack_bounds`].
    pub stack_bounds: fn(u64) -> Option<Range<u64>>,
    /// Returns where a walk continues at the end of a chain of frames, given its stack and frame
    /// pointers; see [`Platform::continuation`]. `|_, _| None` in a guest whose handlers are not
    /// interrupted and that has no coroutines.
    pub continuation: fn(u64, u64) -> Option<Continuation>,
    /// The bounds of the readable code around a pc, usually the image's text; see
    /// [`Platform::code_bounds`].
    pub code_bounds: fn(u64) -> Option<Range<u64>>,
    /// The port of the event channel that makes a vCPU call
    /// [`Ticks::on_kick`](super::Ticks::on_kick).
    pub kick_port: fn(u32) -> Option<Port>,
    /// Writes a line to the guest's log; see [`Platform::log`]. Not from upcalls.
    pub log: fn(&str),
}

/// The memory in which Xen stores one vCPU's times.
#[derive(Clone, Copy, Debug)]
pub struct VcpuAreas {
    /// The vCPU's clock, in the `vcpu_info` that was registered for this vCPU
    /// ([`register_vcpu_info`](xen_sys_lite::vcpu::register_vcpu_info)). Only if none was
    /// registered it is in
    /// [`SharedInfo::vcpu_info`]: Xen no longer updates that copy after a registration, and has none for vCPUs from
    /// 32 on.
    pub time: &'static VcpuTimeInfo,
    /// The vCPU's registered runstate area. `None`: each read makes a hypercall, which Xen has on
    /// x86 only; for an agent beside a kernel that may register an area of its own, since Xen
    /// updates one area for each vCPU.
    pub runstate: Option<&'static RunstateArea>,
}

/// For traces of a guest that is not the agent's own.
#[cfg(feature = "trace")]
#[derive(Clone, Copy, Debug)]
pub struct TraceHooks {
    /// Tells stacks apart instead of [`Hooks::stack_bounds`]: see [`Platform::call_stack`].
    pub call_stack: fn(u64) -> Option<CallStack>,
    /// Whether a breakpoint on this vCPU would reach the agent. If not, none is set.
    pub handles_breakpoints: fn() -> bool,
}

/// The platform of a Xen guest, for the vCPUs below `VCPUS`.
#[derive(Debug)]
pub struct XenPlatform<H, const VCPUS: usize = 32> {
    events: EventChannels<H>,
    shared: &'static SharedInfo,
    hooks: Hooks,
    #[cfg(feature = "trace")]
    trace_hooks: Option<TraceHooks>,
    /// Added to system time, so that the clock continues over a migration.
    offset_ns: AtomicU64,
    vcpus: [VcpuClock; VCPUS],
}

/// One vCPU's times when they were last read, and the offsets that are added to Xen's times so that
/// they continue over a migration. The arrays are in the order of [`times`]. A tick uses the first
/// cache line only.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct VcpuClock {
    last_now_ns: AtomicU64,
    last_ns: [AtomicU64; 4],
    offset_ns: [AtomicU64; 4],
    /// See [`XenPlatform::at_blocked_ns`].
    back_ns: AtomicU64,
}

impl VcpuClock {
    /// Xen's times with the offsets added.
    #[inline]
    fn continued(&self, mut times: [u64; 4]) -> [u64; 4] {
        for ((time, offset), last) in times.iter_mut().zip(&self.offset_ns).zip(&self.last_ns) {
            *time = time.wrapping_add(offset.load(Ordering::Relaxed));
            last.store(*time, Ordering::Relaxed);
        }
        times
    }
}

/// Running, runnable, blocked and offline time at `now_ns`. Xen's totals are as of the last change
/// of state; the time since then is added to the current state.
#[inline]
fn times(area: &RunstateArea, now_ns: u64) -> [u64; 4] {
    let state = area.read();
    let mut times = [state.running_ns, state.stolen_ns, state.blocked_ns, state.offline_ns];
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

impl<H: Hypercall, const VCPUS: usize> XenPlatform<H, VCPUS> {
    /// The platform of the guest whose `shared` information page is mapped.
    ///
    /// # Safety
    /// [`Hooks::stack_bounds`] and [`Hooks::code_bounds`] must return only memory that is mapped
    /// and readable while an upcall runs.
    pub unsafe fn new(hypercall: H, shared: &'static SharedInfo, hooks: Hooks) -> Self {
        Self {
            events: EventChannels::new(hypercall, shared),
            shared,
            hooks,
            #[cfg(feature = "trace")]
            trace_hooks: None,
            offset_ns: AtomicU64::new(0),
            vcpus: core::array::from_fn(|_| VcpuClock::default()),
        }
    }

    /// Has traces use these functions.
    #[cfg(feature = "trace")]
    #[must_use]
    pub fn with_trace_hooks(self, trace_hooks: TraceHooks) -> Self {
        Self { trace_hooks: Some(trace_hooks), ..self }
    }

    /// The guest's hooks.
    pub fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    /// This platform's and Xen's times of a vCPU; `None` for a vCPU that is not sampled.
    #[inline]
    fn known(&self, vcpu: u32) -> Option<(&VcpuClock, VcpuAreas)> {
        let clock = self.vcpus.get(vcpu as usize)?;
        Some((clock, (self.hooks.areas)(vcpu)?))
    }

    /// The same for the vCPU that this code runs on.
    #[inline]
    fn current(&self) -> Option<(&VcpuClock, VcpuAreas)> {
        self.known((self.hooks.vcpu)()?)
    }

    /// The clock to read on this vCPU. Clocks of different vCPUs agree if Xen reports a stable TSC;
    /// a vCPU without areas uses that of vCPU 0.
    pub(super) fn clock(&self) -> Option<Clock<'static>> {
        let areas = match self.current() {
            Some((_, areas)) => areas,
            None => (self.hooks.areas)(0)?,
        };
        Some(Clock::with_time_info(self.shared, areas.time))
    }

    /// Calls `work` while the blocked time of `vcpu` reads `blocked_ns`, and the clock on this vCPU
    /// as much less than now: for a block that is reported after it has begun, when that was its
    /// blocked time. Call it on that vCPU, with its upcalls masked.
    pub fn at_blocked_ns(&self, vcpu: u32, blocked_ns: u64, work: impl FnOnce()) {
        let since_ns = self.blocked_ns(vcpu).wrapping_sub(blocked_ns);
        let Some((clock, _)) = self.known(vcpu) else {
            return;
        };
        let [_, _, offset_ns, _] = &clock.offset_ns;
        offset_ns.fetch_sub(since_ns, Ordering::Relaxed);
        clock.back_ns.store(since_ns, Ordering::Relaxed);
        work();
        clock.back_ns.store(0, Ordering::Relaxed);
        offset_ns.fetch_add(since_ns, Ordering::Relaxed);
    }

    /// The blocked time of `vcpu` when its times were read last, which costs no hypercall; 0 for a
    /// vCPU that is not sampled.
    pub fn last_blocked_ns(&self, vcpu: u32) -> u64 {
        let clock = self.vcpus.get(vcpu as usize);
        clock.map_or(0, |clock| clock.last_ns[2].load(Ordering::Relaxed))
    }

    /// Xen's system time.
    fn system_time_ns(&self) -> u64 {
        self.clock().map_or(0, |clock| clock.now_ns())
    }

    /// The monotonic clock when system time is `system_time_ns`.
    #[inline]
    pub(super) fn monotonic(&self, system_time_ns: u64) -> u64 {
        system_time_ns.wrapping_add(self.offset_ns.load(Ordering::Relaxed))
    }

    /// Reads all clocks, so that they continue from these values after a
    /// [`resume`](Platform::resume).
    pub(super) fn read_all(&self) {
        self.now_ns();
        for (vcpu, _) in (0..).zip(&self.vcpus) {
            self.times(vcpu);
        }
    }

    /// Running, runnable, blocked and offline time now, continued over migrations.
    fn times(&self, vcpu: u32) -> Option<[u64; 4]> {
        let (clock, areas) = self.known(vcpu)?;
        Some(clock.continued(self.xen_times(vcpu, areas, self.system_time_ns())))
    }

    /// The same as Xen tells them.
    #[inline]
    fn xen_times(&self, vcpu: u32, areas: VcpuAreas, now_ns: u64) -> [u64; 4] {
        match areas.runstate {
            Some(area) => times(area, now_ns),
            // Fails only for a vCPU that does not exist.
            None => runstate::times_now(self.events.hypercall(), VcpuId(vcpu)).unwrap_or_default(),
        }
    }
}

// SAFETY: `stack_bounds` and `code_bounds` are the guest's; the caller of `new` guarantees that
// they return readable memory.
unsafe impl<H: Hypercall, const VCPUS: usize> Platform for XenPlatform<H, VCPUS> {
    fn now_ns(&self) -> u64 {
        let now_ns = self.monotonic(self.system_time_ns());
        let Some((clock, _)) = self.current() else {
            return now_ns;
        };
        let now_ns = now_ns.wrapping_sub(clock.back_ns.load(Ordering::Relaxed));
        clock.last_now_ns.store(now_ns, Ordering::Relaxed);
        now_ns
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        let time = self.clock()?.wall_time();
        // Xen sets it before the guest starts; zero means that it was not set.
        (time.seconds > 0).then(|| {
            time.seconds.saturating_mul(1_000_000_000).saturating_add(u64::from(time.nanoseconds))
        })
    }

    #[inline]
    fn vcpu(&self) -> Option<u32> {
        (self.hooks.vcpu)().filter(|vcpu| self.known(*vcpu).is_some())
    }

    /// All three values come from one fenced read of the TSC.
    #[inline]
    fn moment(&self, vcpu: u32) -> Moment {
        let Some((clock, areas)) = self.known(vcpu) else {
            return Moment::default();
        };
        let reading = Clock::with_time_info(self.shared, areas.time).read();
        let now_ns = self.monotonic(reading.system_time_ns);
        clock.last_now_ns.store(now_ns, Ordering::Relaxed);
        let times = self.xen_times(vcpu, areas, reading.system_time_ns);
        let [running_ns, ..] = clock.continued(times);
        Moment { now_ns, running_ns, cycles: reading.counter }
    }

    #[inline]
    fn running_ns(&self, vcpu: u32) -> u64 {
        self.times(vcpu).map_or(0, |[running_ns, ..]| running_ns)
    }

    #[inline]
    fn blocked_ns(&self, vcpu: u32) -> u64 {
        self.times(vcpu).map_or(0, |[_, _, blocked_ns, _]| blocked_ns)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let [running_ns, runnable_ns, blocked_ns, offline_ns] = self.times(vcpu)?;
        Some(Runstate { running_ns, runnable_ns, blocked_ns, offline_ns })
    }

    fn kick(&self, vcpu: u32) {
        if let Some(port) = (self.hooks.kick_port)(vcpu) {
            // Fails only if the port is closed: then that vCPU does not run and has nothing to arm.
            let _ = self.events.send(port);
        }
    }

    #[inline]
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        (self.hooks.stack_bounds)(sp)
    }

    #[inline]
    fn continuation(&self, sp: u64, fp: u64) -> Option<Continuation> {
        (self.hooks.continuation)(sp, fp)
    }

    fn code_bounds(&self, pc: u64) -> Option<Range<u64>> {
        (self.hooks.code_bounds)(pc)
    }

    fn random(&self) -> Option<u64> {
        arch::random()
    }

    fn log(&self, line: &str) {
        (self.hooks.log)(line);
    }

    fn timer_deadline(&self, monotonic_ns: u64) -> u64 {
        monotonic_ns.wrapping_sub(self.offset_ns.load(Ordering::Relaxed))
    }

    fn resume(&self) {
        let last_ns = |clock: &VcpuClock| clock.last_now_ns.load(Ordering::Relaxed);
        let last_now_ns = self.vcpus.iter().map(last_ns).max().unwrap_or(0);
        let system_time_ns = self.system_time_ns();
        self.offset_ns.store(last_now_ns.wrapping_sub(system_time_ns), Ordering::Relaxed);
        for (vcpu, clock) in (0..).zip(&self.vcpus) {
            let Some(areas) = (self.hooks.areas)(vcpu) else {
                continue;
            };
            let times = self.xen_times(vcpu, areas, system_time_ns);
            for ((time, offset), last) in times.iter().zip(&clock.offset_ns).zip(&clock.last_ns) {
                let last_ns = last.load(Ordering::Relaxed);
                offset.store(last_ns.wrapping_sub(*time), Ordering::Relaxed);
            }
        }
    }

    #[inline]
    fn cycles(&self) -> u64 {
        arch::cycles()
    }

    /// Clears CR0.WP meanwhile, since the text may be mapped read-only. A PV guest may not change
    /// CR0, so its code is not written, and not traced.
    #[cfg(feature = "trace")]
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        let is_handled = || self.trace_hooks.is_none_or(|hooks| (hooks.handles_breakpoints)());
        if !arch::is_in_ring_0() || bytes == [crate::trace::BREAKPOINT] && !is_handled() {
            return false;
        }
        // SAFETY: tracing passes addresses of the guest's mappings and of its own text. The guest
        // runs in ring 0.
        unsafe { arch::write_code(address, bytes) };
        true
    }

    #[cfg(feature = "trace")]
    fn call_stack(&self, sp: u64) -> Option<CallStack> {
        match self.trace_hooks {
            Some(hooks) => (hooks.call_stack)(sp),
            None => {
                self.stack_bounds(sp).map(|bounds| CallStack { id: bounds.end, end: bounds.end })
            }
        }
    }
}
