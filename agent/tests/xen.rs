//! The Xen platform on a fake hypervisor: clocks, both ways of sharing the timer, blocking, resuming.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use unikprof_agent::xen::{Hooks, TickSource, Ticks, XenPlatform};
use unikprof_agent::{Access, Agent, Config, Mapping, Platform, Registers, Service, SessionId};
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{Check, Counters, RecordingStatus, Start};
use unikprof_proto::preamble;
use xen_sys_lite::events::{EventChannels, Port};
use xen_sys_lite::fake::FakeXen;
use xen_sys_lite::runstate::{self, RunstateArea};
use xen_sys_lite::vcpu::VcpuId;

const CODE: u64 = 0x10_0000;
const BOOT: VcpuId = VcpuId(0);

/// A guest with one vCPU on a fake Xen of its own.
struct Guest {
    xen: &'static FakeXen,
    ticks: Ticks<'static, 'static, &'static FakeXen>,
    service: Service<'static, 'static, XenPlatform<&'static FakeXen>>,
    session: SessionId,
    events: EventChannels<&'static FakeXen>,
    kick: Port,
}

/// One test runs one guest, on a thread of its own.
struct Statics {
    area: RunstateArea,
    kick: AtomicU32,
}

thread_local! {
    static STATICS: &'static Statics = Box::leak(Box::new(Statics {
        area: RunstateArea::new(),
        kick: AtomicU32::new(0),
    }));
}

fn stack(_: u64) -> Option<Range<u64>> {
    None
}

impl Guest {
    fn new(source: TickSource) -> Self {
        let xen: &'static FakeXen = Box::leak(Box::new(FakeXen::new()));
        xen.advance(5_000_000_000);
        xen.set_wall_base(1_800_000_000, 0);
        let shared = xen.map_shared_info();
        runstate::enable_update_flag(xen).unwrap();
        STATICS
            .with(|statics| runstate::register(xen, BOOT, &statics.area))
            .unwrap();
        let events = EventChannels::new(xen, shared);
        let kick = events.bind_ipi(BOOT).unwrap();
        STATICS.with(|statics| statics.kick.store(kick.0, Ordering::Relaxed));
        let hooks = Hooks {
            vcpu: || Some(0),
            stack_bounds: stack,
            code_bounds: |_| None,
            kick_port: |_| STATICS.with(|statics| Some(Port(statics.kick.load(Ordering::Relaxed)))),
            runstate: |vcpu| (vcpu == 0).then(|| STATICS.with(|statics| &statics.area)),
            log: |_| {},
        };
        // SAFETY: no stack is named.
        let platform = unsafe { XenPlatform::new(xen, shared, hooks) };
        let mapping = Mapping {
            start: CODE,
            end: 2 * CODE,
            file_offset: 0,
            build_id: &[],
            path: "guest",
        };
        let config = Config {
            vcpus: 1,
            recordings: 1,
            mappings: Box::leak(Box::new([mapping])),
            guest_name: None,
            guest_id: None,
            platform_name: "xen",
            reachable_when_busy: false,
        };
        let memory = Vec::leak(vec![MaybeUninit::uninit(); 1 << 16]);
        let agent = Box::leak(Box::new(Agent::new(platform, config, memory).unwrap()));
        let mut service = Service::new(agent, Access::Open).unwrap();
        let session = service.open().unwrap();
        let mut guest = Self {
            xen,
            ticks: Ticks::new(agent, xen, source),
            service,
            session,
            events,
            kick,
        };
        guest.exchange(&preamble::encode(preamble::OPEN));
        guest
    }

    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        assert_eq!(self.service.receive(self.session, bytes), bytes.len());
        let mut answer = vec![0; 8192];
        let length = self.service.transmit(self.session, &mut answer);
        answer.truncate(length);
        answer
    }

    fn ask<'a, M: Message<'a>>(&mut self, message: &M) -> Vec<u8> {
        let mut buffer = [0; 256];
        let length = frame::encode(message, &mut buffer).unwrap();
        self.exchange(&buffer[..length])
    }

    /// Starts a recording at 1 kHz and takes the kick, as the vCPU would.
    fn record(&mut self) -> Option<u64> {
        self.ask(&Start {
            name: "test",
            period_ns: 1_000_000,
            mode: 0,
            depth: 8,
            duration_ns: 0,
            delay_ns: 0,
            flags: 0,
            caller_table: None,
            max_age_ns: 0,
            max_bytes: 0,
        });
        assert!(self.events.take_pending(self.kick), "the vCPU is kicked");
        self.ticks.on_kick(None)
    }

    fn counters(&mut self) -> Counters {
        let answer = self.ask(&Check {});
        let status = frame::split(&answer).unwrap().unwrap();
        let recording = frame::split(&answer[status.length()..]).unwrap().unwrap();
        let recording: RecordingStatus<'_> = frame::decode(&recording).unwrap();
        recording.counters
    }

    fn armed(&self) -> Option<u64> {
        self.xen.deadline_ns(BOOT)
    }

    /// Runs until the armed deadline and delivers the timer.
    fn fire(&mut self) -> Option<u64> {
        let deadline = self.armed().unwrap();
        self.xen.advance(deadline.saturating_sub(self.xen.now_ns()));
        self.ticks.on_timer(Some(&Registers {
            pc: CODE,
            sp: 0,
            fp: 0,
        }))
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
    assert_eq!(
        (counters.ticks, counters.recorded, counters.early),
        (100, 100, 1)
    );
}

#[test]
fn a_host_programs_what_is_answered() {
    let mut guest = Guest::new(TickSource::Host);
    let first = guest.record().unwrap();
    assert_eq!(guest.armed(), None, "no hypercall of ours");
    let calls = guest.xen.hypercalls();
    guest.xen.advance(first - guest.xen.now_ns());
    let registers = Registers {
        pc: CODE,
        sp: 0,
        fp: 0,
    };
    let next = guest.ticks.on_timer(Some(&registers)).unwrap();
    assert!(next > first && next < first + 1_500_001);
    // The guest's own deadline comes first: the sampler's is kept.
    guest.xen.advance(10);
    assert_eq!(guest.ticks.on_timer(Some(&registers)), Some(next));
    guest.ticks.on_block(None);
    guest.xen.advance(70);
    guest.ticks.on_wake();
    assert_eq!(guest.xen.hypercalls(), calls, "a block costs no hypercall");
    assert_eq!(guest.counters().early, 2);
}

/// 20,000 blocks a second at 1 kHz: the timer is not touched at each of them.
#[test]
fn owned_blocks_cost_less_than_a_hypercall_each() {
    let mut guest = Guest::new(TickSource::Owned);
    guest.record();
    let calls = guest.xen.hypercalls();
    for _ in 0..20_000 {
        guest.ticks.on_block(None);
        guest.ticks.on_wake();
        guest.xen.advance(50_000);
        if guest
            .armed()
            .is_none_or(|deadline| deadline <= guest.xen.now_ns())
        {
            guest.ticks.on_timer(Some(&Registers {
                pc: CODE,
                sp: 0,
                fp: 0,
            }));
        }
    }
    let calls = guest.xen.hypercalls() - calls;
    assert!(
        calls < 2_100,
        "{calls} hypercalls for 20,000 blocks and 1,000 ticks"
    );
    let ticks = guest.counters().ticks;
    assert!(ticks.abs_diff(1000) < 100, "{ticks}");
}

#[test]
fn an_idle_owned_guest_is_woken_once_at_most() {
    let mut guest = Guest::new(TickSource::Owned);
    guest.record();
    guest
        .ticks
        .set_guest_deadline(Some(guest.xen.now_ns() + 10_000_000_000));
    guest.ticks.on_block(None);
    let mut wakes = 0;
    while let Some(deadline) = guest
        .armed()
        .filter(|at| *at < guest.xen.now_ns() + 9_000_000_000)
    {
        guest
            .xen
            .advance(deadline.saturating_sub(guest.xen.now_ns()));
        guest.ticks.on_timer(Some(&Registers {
            pc: CODE,
            sp: 0,
            fp: 0,
        }));
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

/// Stolen time is no running time: the target stays ahead, and the delivery is early.
#[test]
fn steal_does_not_advance_the_sampler() {
    let mut guest = Guest::new(TickSource::Host);
    let first = guest.record().unwrap();
    guest.xen.steal(BOOT, 50_000_000);
    let next = guest
        .ticks
        .on_timer(Some(&Registers {
            pc: CODE,
            sp: 0,
            fp: 0,
        }))
        .unwrap();
    assert_eq!(guest.counters().ticks, 0);
    assert_eq!(next, first + 50_000_000);
    let runstate = guest.ticks.agent().platform().runstate(0).unwrap();
    assert_eq!(runstate.runnable_ns, 50_000_000);
}

/// After a restore Xen's clocks begin anew; ours go on, and so does the recording.
#[test]
fn a_restore_leaves_no_hole_in_running_time() {
    let mut guest = Guest::new(TickSource::Owned);
    guest.record();
    (0..10).for_each(|_| assert_eq!(guest.fire(), None));
    let platform = guest.ticks.agent().platform();
    let (now, running) = (platform.now_ns(), platform.running_ns(0));
    // The area is what a new domain finds: totals from its own start.
    guest.xen.advance(3_600_000_000_000);
    guest.ticks.resume();
    assert_eq!((platform.now_ns(), platform.running_ns(0)), (now, running));
    let before = guest.counters().ticks;
    (0..10).for_each(|_| assert_eq!(guest.fire(), None));
    let counters = guest.counters();
    assert!(
        counters.ticks >= before + 9 && counters.add_up(),
        "{counters:?}"
    );
}
