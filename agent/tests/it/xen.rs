//! The Xen platform on a fake hypervisor: clocks, both timer modes, blocking, resuming.
#![allow(unsafe_code)]

use crate::client;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use unikprof_agent::xen::{Hooks, TickSource, Ticks, VcpuAreas, XenPlatform};
use unikprof_agent::{Agent, Config, Mapping, Platform, Registers, Runstate};
use unikprof_proto::code::mode;
use unikprof_proto::message::{Counters, Start};
use xen_sys_lite::abi::xen::{SharedInfo, VcpuInfo, VcpuTimeInfo};
use xen_sys_lite::events::{EventChannels, Port};
use xen_sys_lite::fake::{FakeXen, leak_page};
use xen_sys_lite::memory::SharedInfoPage;
use xen_sys_lite::runstate::{self, RunstateArea};
use xen_sys_lite::sched::{self, Woken};
use xen_sys_lite::vcpu::{self, VcpuId};

const CODE: u64 = 0x10_0000;
const BOOT: VcpuId = VcpuId(0);
const SECOND: VcpuId = VcpuId(1);
/// The number of vCPUs that the platform has room for: more than fit the shared page.
const ROOM: usize = 40;
const REGISTERS: Registers = Registers::new(CODE, 0, 0);
const MS: u64 = 1_000_000;

/// A guest on its own fake Xen. [`Guest::run_as`] selects the vCPU that runs.
struct Guest {
    xen: &'static FakeXen,
    ticks: Ticks<'static, 'static, &'static FakeXen, ROOM>,
    client: client::Client<'static, 'static, XenPlatform<&'static FakeXen, ROOM>>,
    events: EventChannels<&'static FakeXen>,
    shared: SharedInfoPage,
    vcpus: Vec<u32>,
}

/// The values that the hooks of a vCPU return. Each test runs one guest on its own thread.
struct VcpuState {
    id: u32,
    time: Cell<&'static VcpuTimeInfo>,
    /// The `vcpu_info` that the vCPU registers.
    own: Option<&'static VcpuInfo>,
    runstate: RunstateArea,
    kick: Cell<Port>,
}

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    /// The agent reads the runstate areas.
    static HAS_AREA: Cell<bool> = const { Cell::new(true) };
    static VCPUS: Cell<&'static [VcpuState]> = const { Cell::new(&[]) };
}

fn state_of(vcpu: u32) -> Option<&'static VcpuState> {
    VCPUS.get().iter().find(|state| state.id == vcpu)
}

fn areas(vcpu: u32) -> Option<VcpuAreas> {
    let state = state_of(vcpu)?;
    Some(VcpuAreas { time: state.time.get(), runstate: HAS_AREA.get().then_some(&state.runstate) })
}

fn stack(_: u64) -> Option<Range<u64>> {
    None
}

impl Guest {
    /// A guest with one vCPU.
    fn new(source: TickSource) -> Self {
        Self::with_vcpus(source, &[(0, false)])
    }

    /// A guest with the vCPUs of these ids; `true`: the vCPU registers its own `vcpu_info`.
    fn with_vcpus(source: TickSource, vcpus: &[(u32, bool)]) -> Self {
        let xen: &'static FakeXen = Box::leak(Box::new(FakeXen::new()));
        xen.advance(5_000_000_000);
        let shared = SharedInfoPage::map(&xen, leak_page()).unwrap();
        xen.set_wall_base(1_800_000_000, 0);
        runstate::enable_update_flag(xen).unwrap();
        let states = vcpus.iter().map(|&(id, registers)| {
            if id != 0 {
                xen.add_vcpu(VcpuId(id));
            }
            let own: Option<&'static VcpuInfo> = registers.then(|| &*Box::leak(Box::default()));
            VcpuState {
                id,
                time: Cell::new(time_of(own, shared.get(), id)),
                own,
                runstate: RunstateArea::new(),
                kick: Cell::new(Port(0)),
            }
        });
        VCPUS.set(Vec::leak(states.collect()));
        let events = EventChannels::new(xen, shared.get());
        connect(xen, events);
        let hooks = Hooks {
            vcpu: || Some(CURRENT.get()),
            areas,
            stack_bounds: stack,
            continuation: |_, _| None,
            code_bounds: |_| None,
            kick_port: |vcpu| Some(state_of(vcpu)?.kick.get()),
            log: |_| {},
        };
        // SAFETY: no stack is returned.
        let platform = unsafe { XenPlatform::new(xen, shared.get(), hooks) };
        let mapping =
            Mapping { start: CODE, end: 2 * CODE, file_offset: 0, build_id: &[], path: "guest" };
        let config = Config {
            vcpus: vcpus.iter().map(|(id, _)| id + 1).max().unwrap(),
            recordings: 1,
            mappings: Box::leak(Box::new([mapping])),
            guest_name: None,
            guest_id: None,
            platform_name: "xen",
            reachable_when_busy: false,
        };
        let memory = Vec::leak(vec![MaybeUninit::uninit(); 1 << 20]);
        let agent = Box::leak(Box::new(Agent::new(platform, config, memory).unwrap()));
        Self {
            xen,
            ticks: Ticks::new(agent, xen, source),
            client: client::Client::connect(&client::serve(agent)),
            events,
            shared,
            vcpus: vcpus.iter().map(|(id, _)| *id).collect(),
        }
    }

    /// The following code runs on this vCPU.
    fn run_as(&self, vcpu: VcpuId) {
        self.xen.run_as(vcpu);
        CURRENT.set(vcpu.0);
    }

    /// Saves the guest and restores it on a host whose system time is `system_time_ns`. Everything
    /// registered with Xen is lost, and set up again in the order of docs/guide/rust-more.md; then
    /// the first vCPU resumes.
    fn restore(&self, system_time_ns: u64) -> Option<u64> {
        self.run_as(BOOT);
        self.xen.set_restored_ns(system_time_ns);
        self.ticks.suspend();
        assert_eq!(sched::suspend(&self.xen), Ok(Woken::InNewDomain));
        self.shared.map_again(&self.xen).unwrap();
        connect(self.xen, self.events);
        self.ticks.resume()
    }

    /// Whether the vCPU has been kicked; clears the kick.
    fn is_kicked(&self, vcpu: VcpuId) -> bool {
        self.events.take_pending(state_of(vcpu.0).unwrap().kick.get())
    }

    /// Starts a recording at 1 kHz, and each vCPU handles its kick; returns the last one's
    /// deadline.
    fn record(&mut self) -> Option<u64> {
        self.client.start(client::one_ms());
        let mut deadline = None;
        for vcpu in self.vcpus.clone().into_iter().map(VcpuId) {
            assert!(self.is_kicked(vcpu), "every vCPU is kicked");
            self.run_as(vcpu);
            deadline = self.ticks.on_kick(None);
        }
        deadline
    }

    fn counters(&mut self) -> Counters {
        self.client.status().1
    }

    /// The deadline of the current vCPU's timer.
    fn armed(&self) -> Option<u64> {
        self.xen.deadline_ns(VcpuId(CURRENT.get()))
    }

    /// Runs until the armed deadline and delivers the timer.
    fn fire(&mut self) -> Option<u64> {
        let deadline = self.armed().unwrap();
        self.xen.advance(deadline.saturating_sub(self.xen.now_ns()));
        self.tick()
    }

    /// Delivers the timer, and again at once if the first ticks of a recording have armed it for a
    /// time that has passed. Returns the next deadline.
    fn tick(&self) -> Option<u64> {
        self.tick_in(&REGISTERS)
    }

    fn tick_in(&self, registers: &Registers) -> Option<u64> {
        let next = self.ticks.on_timer(Some(registers));
        let has_fired = match self.ticks.source() {
            TickSource::Owned => self.armed().is_none(),
            TickSource::Host => next.is_some_and(|at| at <= self.xen.now_ns()),
        };
        if has_fired { self.ticks.on_timer(Some(registers)) } else { next }
    }
}

/// A vCPU's clock, which Xen writes.
fn time_of(
    own: Option<&'static VcpuInfo>,
    shared: &'static SharedInfo,
    id: u32,
) -> &'static VcpuTimeInfo {
    &own.unwrap_or_else(|| &shared.vcpu_info[id as usize]).time
}

/// Registers each vCPU's areas with Xen and binds its kick.
fn connect(xen: &'static FakeXen, events: EventChannels<&'static FakeXen>) {
    for state in VCPUS.get() {
        let vcpu = VcpuId(state.id);
        if let Some(own) = state.own {
            let address = core::ptr::from_ref(own).expose_provenance() as u64;
            // SAFETY: the fake treats addresses of this process as guest-physical ones.
            unsafe { vcpu::register_vcpu_info(xen, vcpu, own, address).unwrap() };
        }
        runstate::register(xen, vcpu, &state.runstate).unwrap();
        state.kick.set(events.bind_ipi(vcpu).unwrap());
    }
}

#[test]
fn an_owned_timer_is_armed_for_each_target() {
    let mut guest = Guest::new(TickSource::Owned);
    assert_eq!(guest.record(), None);
    for _ in 0..100 {
        assert_eq!(guest.fire(), None, "the guest has nothing to program");
    }
    let counters = guest.counters();
    // The kick, and the deliveries that measure what a delivery costs.
    assert_eq!((counters.ticks, counters.recorded, counters.early), (100, 100, 1 + 16));
}

#[test]
fn a_host_programs_what_is_answered() {
    let mut guest = Guest::new(TickSource::Host);
    let first = guest.record().unwrap();
    assert_eq!(guest.armed(), None, "no hypercall of ours");
    let calls = guest.xen.hypercalls();
    guest.xen.advance(first - guest.xen.now_ns());
    // The first ticks are followed by a delivery at once, which measures what a delivery costs.
    assert_eq!(guest.ticks.on_timer(Some(&REGISTERS)), Some(first));
    let next = guest.ticks.on_timer(Some(&REGISTERS)).unwrap();
    assert!(next > first && next < first + 1_500_001);
    // The guest's own deadline comes first; the sampler's is kept.
    guest.xen.advance(10);
    assert_eq!(guest.ticks.on_timer(Some(&REGISTERS)), Some(next));
    guest.ticks.on_block(None);
    guest.xen.advance(70);
    guest.ticks.on_wake();
    assert_eq!(guest.xen.hypercalls(), calls, "a block costs no hypercall");
    assert_eq!(guest.counters().early, 3);
}

/// A block of a recorded guest disarms the sampler's timer, and its wake arms it again; one that is
/// not recorded makes no hypercall.
#[test]
fn owned_blocks_cost_two_hypercalls_and_none_without_a_recording() {
    let mut guest = Guest::new(TickSource::Owned);
    let block = |guest: &Guest| {
        guest.ticks.on_block(None);
        assert_eq!(guest.armed(), None, "the sampler does not end waits");
        guest.ticks.on_wake();
    };
    let calls = guest.xen.hypercalls();
    (0..1_000).for_each(|_| block(&guest));
    assert_eq!(guest.xen.hypercalls(), calls);
    guest.record();
    let calls = guest.xen.hypercalls();
    (0..1_000).for_each(|_| block(&guest));
    assert_eq!(guest.xen.hypercalls(), calls + 2_000);
}

/// The guest's own deadline and the sampler's share the timer: one hypercall at the block sets it
/// to the former, unless it is set to that already.
#[test]
fn a_block_leaves_the_guests_own_deadline_armed() {
    for (wait_ns, calls_expected) in [(2 * MS, 1), (1_000, 0)] {
        let mut guest = Guest::new(TickSource::Owned);
        guest.record();
        let deadline_ns = guest.xen.now_ns() + wait_ns;
        guest.ticks.set_guest_deadline(Some(deadline_ns));
        let calls = guest.xen.hypercalls();
        guest.ticks.on_block(None);
        assert_eq!(guest.armed(), Some(deadline_ns));
        assert_eq!(guest.xen.hypercalls() - calls, calls_expected);
    }
}

/// A guest on a contended CPU sleeps 2 ms, then runs four functions for 200 µs each; a vCPU that is
/// woken gets its CPU 3 ms later. Guards against targets that are locked to wakes: a timer armed in
/// the wait ends it at each target, and if the next one were at least half a period away, what runs
/// after a wake would not be seen. A host that leaves its timer armed, as the drop-in does, has its
/// waits shortened, and right shares all the same.
#[test]
fn what_runs_after_a_wake_is_sampled_in_proportion_on_a_contended_cpu() {
    const WAITS: u64 = 5_000;
    const RUNS_NS: u64 = 200_000;
    for source in [TickSource::Owned, TickSource::Host] {
        let mut guest = Guest::new(source);
        guest.client.start(Start { mode: mode::WALL, ..client::one_ms() });
        let mut next_ns = guest.ticks.on_kick(None);
        let deliver =
            |guest: &Guest, function: u64| guest.tick_in(&Registers::new(CODE + function, 0, 0));
        for _ in 0..WAITS {
            let end_ns = guest.xen.now_ns() + 2 * MS;
            guest.ticks.set_guest_deadline(Some(end_ns));
            guest.ticks.on_block(Some(&REGISTERS));
            while guest.xen.now_ns() < end_ns {
                let woken_ns = next_ns.map_or(end_ns, |at| at.min(end_ns));
                let woken_ns =
                    if source == TickSource::Owned { guest.armed().unwrap() } else { woken_ns };
                guest.xen.sleep(BOOT, woken_ns.saturating_sub(guest.xen.now_ns()));
                guest.xen.steal(BOOT, 3 * MS);
                next_ns = deliver(&guest, 0);
            }
            next_ns = guest.ticks.on_wake();
            for function in 1..=4 {
                let mut left_ns = RUNS_NS;
                while let Some(at_ns) = next_ns.or(guest.armed())
                    && at_ns <= guest.xen.now_ns() + left_ns
                {
                    let ran_ns = at_ns.saturating_sub(guest.xen.now_ns());
                    guest.xen.advance(ran_ns);
                    left_ns -= ran_ns;
                    next_ns = deliver(&guest, function);
                }
                guest.xen.advance(left_ns);
            }
        }
        let runstate = guest.ticks.agent().platform().runstate(0).unwrap();
        let got = guest.client.collect_stop(0);
        let seen = [1, 2, 3, 4].map(|function| {
            let of_function = got.stacks.iter().filter(|(stack, _)| stack[0] == function);
            of_function.map(|(_, count)| count).sum::<u64>()
        });
        // Six deviations of binomial counts of 1,000 are 190, of those of 10,000 are 600.
        let expected = WAITS * RUNS_NS / MS;
        let case = format!("{source:?}: {seen:?} of {expected}, {:?}, {runstate:?}", got.counters);
        assert!(seen.iter().all(|seen| seen.abs_diff(expected) < 190), "{case}");
        assert!(got.counters.blocked.abs_diff(runstate.blocked_ns / MS) < 600, "{case}");
        if source == TickSource::Owned {
            assert_eq!(runstate.blocked_ns, WAITS * 2 * MS, "{case}");
        }
    }
}

#[test]
fn an_idle_owned_guest_is_woken_once_at_most() {
    let mut guest = Guest::new(TickSource::Owned);
    guest.record();
    guest.ticks.set_guest_deadline(Some(guest.xen.now_ns() + 10_000_000_000));
    guest.ticks.on_block(None);
    let mut wakes = 0;
    while let Some(deadline) = guest.armed().filter(|at| *at < guest.xen.now_ns() + 9_000_000_000) {
        guest.xen.advance(deadline.saturating_sub(guest.xen.now_ns()));
        guest.ticks.on_timer(Some(&REGISTERS));
        wakes += 1;
        assert!(wakes <= 1);
    }
    assert!(guest.armed().is_some(), "the guest's own deadline stands");
    let counters = guest.counters();
    assert_eq!(counters.recorded, 0);
    assert!(counters.add_up());
}

#[test]
fn a_guest_deadline_fires_once() {
    let mut guest = Guest::new(TickSource::Owned);
    let at = guest.xen.now_ns() + 1_000;
    guest.ticks.set_guest_deadline(Some(at));
    assert_eq!(guest.armed(), Some(at));
    guest.fire();
    assert_eq!(guest.armed(), None);
}

/// Stolen time is not running time: the target remains in the future, and the delivery is early.
/// Xen is asked where the runstate area is the guest's.
#[test]
fn steal_does_not_advance_the_sampler() {
    for has_area in [true, false] {
        HAS_AREA.set(has_area);
        let mut guest = Guest::new(TickSource::Host);
        let first = guest.record().unwrap();
        guest.xen.steal(BOOT, 50_000_000);
        let next = guest.ticks.on_timer(Some(&REGISTERS)).unwrap();
        assert_eq!(guest.counters().ticks, 0);
        assert_eq!(next, first + 50_000_000);
        let runstate = guest.ticks.agent().platform().runstate(0).unwrap();
        assert_eq!(runstate.runnable_ns, 50_000_000);
    }
}

/// The run states of a recording's end are those of the moment that its elapsed time ends, although
/// the poll that reads them comes later.
#[test]
fn run_states_make_up_the_elapsed_time_of_a_recording_that_ended_before() {
    let work = |xen: &FakeXen, _, ns| xen.advance(ns);
    for later in [FakeXen::sleep, FakeXen::steal, work] {
        let mut guest = Guest::new(TickSource::Owned);
        guest.client.start(Start { duration_ns: 10 * MS, ..client::one_ms() });
        guest.ticks.on_kick(None);
        guest.xen.steal(BOOT, MS);
        guest.ticks.on_timer(Some(&REGISTERS));
        while guest.armed().is_some() {
            guest.fire();
        }
        later(guest.xen, BOOT, 800 * MS);
        let end = guest.client.collect_stop(0).end;
        let Runstate { running_ns, runnable_ns, blocked_ns, offline_ns } = end.runstate.unwrap();
        // The fake Xen's vCPU has run since system time zero.
        assert_eq!(running_ns + runnable_ns + blocked_ns + offline_ns, end.at_ns);
        assert_eq!((running_ns, runnable_ns, blocked_ns), (end.running_ns, MS, 0));
    }
}

/// Xen updates the clock of a vCPU that has registered its `vcpu_info` there, and no longer in the
/// shared page, which has no room for vCPUs from 32 on. Guards against deadlines in the past, which
/// would cause a storm of upcalls.
#[test]
fn clocks_are_read_where_the_vcpu_has_registered_them() {
    let mut guest = Guest::with_vcpus(TickSource::Host, &[(0, false), (1, true), (33, true)]);
    guest.record();
    for vcpu in [0, 1, 33].map(VcpuId) {
        guest.run_as(vcpu);
        let now_ns = guest.xen.now_ns();
        let mut deadline = guest.ticks.on_kick(None).unwrap();
        assert!(deadline > now_ns, "{deadline} on vCPU {} at {now_ns}", vcpu.0);
        for _ in 0..10 {
            guest.xen.advance(deadline - guest.xen.now_ns());
            deadline = guest.tick().unwrap();
            assert!(deadline > guest.xen.now_ns());
        }
    }
    let counters = guest.counters();
    assert!(counters.recorded >= 30 && counters.add_up(), "{counters:?}");
}

/// A vCPU with unknown areas, and one beyond the platform's room: no count and no deadline.
#[test]
fn an_unknown_vcpu_is_not_sampled() {
    for source in [TickSource::Owned, TickSource::Host] {
        for unknown in [7, ROOM as u32, u32::MAX] {
            let mut guest = Guest::with_vcpus(source, &[(0, false), (39, true)]);
            guest.xen.add_vcpu(VcpuId(unknown));
            guest.record();
            guest.run_as(VcpuId(unknown));
            let platform = guest.ticks.agent().platform();
            assert_eq!(platform.vcpu(), None);
            assert_eq!(platform.now_ns(), guest.xen.now_ns(), "the clock of vCPU 0");
            let taken = guest.counters().ticks;
            for _ in 0..10 {
                guest.xen.advance(10_000_000);
                assert_eq!(guest.ticks.on_timer(Some(&REGISTERS)), None);
                assert_eq!(guest.ticks.on_kick(Some(&REGISTERS)), None);
                guest.ticks.on_block(None);
                assert_eq!(guest.ticks.on_wake(), None);
            }
            assert!(!guest.ticks.set_guest_deadline(Some(1)), "refused");
            assert_eq!(guest.armed(), None);
            assert_eq!(guest.counters().ticks, taken);
        }
    }
}

/// After a restore Xen's clocks have another origin, before or after the old one; the agent's
/// clocks and the recording must continue on both vCPUs.
#[test]
fn a_restore_leaves_no_hole_in_running_time() {
    for (source, restored_ns) in [
        (TickSource::Owned, 1_000_000_000),
        (TickSource::Owned, 3_600_000_000_000),
        (TickSource::Host, 1_000_000_000),
    ] {
        let mut guest = Guest::with_vcpus(source, &[(0, false), (1, true)]);
        guest.record();
        let vcpus = [BOOT, SECOND];
        let tick = |guest: &Guest, vcpu: VcpuId, deadline: Option<u64>| {
            guest.run_as(vcpu);
            // A timer that has fired while another vCPU ran is due now.
            let deadline = deadline.or(guest.armed()).unwrap_or(0);
            guest.xen.advance(deadline.saturating_sub(guest.xen.now_ns()));
            guest.tick()
        };
        for vcpu in vcpus {
            guest.run_as(vcpu);
            let mut next = guest.ticks.on_kick(None);
            (0..10).for_each(|_| next = tick(&guest, vcpu, next));
        }
        guest.xen.steal(SECOND, 7_000_000);
        let platform = guest.ticks.agent().platform();
        let times =
            |platform: &XenPlatform<_, ROOM>| vcpus.map(|vcpu| platform.runstate(vcpu.0).unwrap());
        let before = (platform.now_ns(), times(platform));
        let next = guest.restore(restored_ns);
        assert_eq!((platform.now_ns(), times(platform)), before);
        assert_eq!(before.1[1].runnable_ns, 7_000_000);
        let ticks = guest.counters().ticks;
        assert!(!guest.is_kicked(BOOT) && guest.is_kicked(SECOND));
        for (vcpu, mut next) in [(BOOT, next), (SECOND, None)] {
            guest.run_as(vcpu);
            if vcpu == SECOND {
                next = guest.ticks.on_kick(None);
            }
            let now_ns = guest.xen.now_ns();
            let first = next.or(guest.armed()).unwrap_or(now_ns);
            assert!(first.saturating_sub(now_ns) < 3_000_000, "{first} at {now_ns}");
            (0..10).for_each(|_| next = tick(&guest, vcpu, next));
        }
        let counters = guest.counters();
        assert!(counters.ticks >= ticks + 18 && counters.add_up(), "{counters:?}");
    }
}

/// The guest's own deadlines are times of the old origin: the time left must be kept, and vCPUs
/// with a deadline must arm their timers again, even if nothing is recorded.
#[test]
fn deadlines_of_the_guest_survive_a_restore() {
    const PASSED_NS: u64 = 100_000;
    for restored_ns in [1_000_000_000, 3_600_000_000_000] {
        for is_recording in [false, true] {
            let mut guest =
                Guest::with_vcpus(TickSource::Owned, &[(0, false), (1, true), (2, false)]);
            if is_recording {
                guest.record();
            }
            let vcpus = [(BOOT, 400_000), (SECOND, 300_000)];
            for (vcpu, left_ns) in vcpus {
                guest.run_as(vcpu);
                let deadline_ns = guest.xen.now_ns() + left_ns;
                assert!(guest.ticks.set_guest_deadline(Some(deadline_ns)));
            }
            // If nothing is recorded, the clock is not read in between.
            guest.xen.advance(PASSED_NS);
            assert_eq!(guest.restore(restored_ns), None);
            assert_eq!(guest.xen.now_ns(), restored_ns);
            let vcpus = vcpus.map(|(vcpu, left_ns)| (vcpu, left_ns - PASSED_NS));
            for (vcpu, left_ns) in vcpus {
                guest.run_as(vcpu);
                if vcpu != BOOT {
                    assert!(guest.is_kicked(vcpu), "its timer is gone");
                    guest.ticks.on_kick(None);
                }
                let armed = guest.armed();
                assert!(armed.is_some_and(|at| at > restored_ns), "{armed:?} at {restored_ns}");
                assert!(armed.is_some_and(|at| at <= restored_ns + left_ns), "{armed:?}");
                if !is_recording {
                    assert_eq!(armed, Some(restored_ns + left_ns));
                }
            }
            assert_eq!(guest.is_kicked(VcpuId(2)), is_recording, "it has no deadline");
            for (vcpu, left_ns) in vcpus {
                guest.run_as(vcpu);
                guest.xen.advance((restored_ns + left_ns).saturating_sub(guest.xen.now_ns()));
                guest.ticks.on_timer(Some(&REGISTERS));
                if !is_recording {
                    assert_eq!(guest.armed(), None, "it fires once");
                }
            }
        }
    }
}

/// Guards against a crash of a PV guest, which may not execute `cli` and not change CR0: its kernel
/// runs in ring 3, as this test does.
#[cfg(all(target_arch = "x86_64", feature = "trace"))]
#[test]
fn code_is_not_written_outside_ring_0() {
    let guest = Guest::new(TickSource::Owned);
    let code = [0x90_u8];
    let platform = guest.ticks.agent().platform();
    assert!(!platform.write_code(code.as_ptr().expose_provenance() as u64, &code));
}
