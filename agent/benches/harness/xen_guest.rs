//! A Xen guest with one vCPU, whose clock the bench advances.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering;

use unikprof_agent::xen::{Hooks, TickSource, Ticks, VcpuAreas, XenPlatform};
use unikprof_agent::{Agent, Registers};
use xen_sys_lite::abi::xen::VcpuTimeInfo;
use xen_sys_lite::fake::FakeXen;
use xen_sys_lite::runstate::RunstateArea;

use super::fake::CONFIG;
use super::fake::stacks::StackImage;

type Guest = Agent<'static, XenPlatform<&'static FakeXen>>;

pub(crate) struct XenGuest {
    agent: &'static Guest,
    ticks: Ticks<'static, 'static, &'static FakeXen>,
}

thread_local! {
    static TIME: Cell<Option<&'static VcpuTimeInfo>> = const { Cell::new(None) };
    static STACK: Cell<Option<&'static StackImage>> = const { Cell::new(None) };
}

/// All time counts as running time, because Xen has never written this area.
static RUNSTATE: RunstateArea = RunstateArea::new();

impl XenGuest {
    /// A guest whose stacks are written to `stack`.
    pub(crate) fn start(stack: &'static StackImage) -> Self {
        STACK.set(Some(stack));
        let xen: &'static FakeXen = Box::leak(Box::new(FakeXen::new()));
        let shared = xen.map_shared_info();
        TIME.set(Some(&shared.vcpu_info[0].time));
        let hooks = Hooks {
            vcpu: || Some(0),
            stack_bounds,
            continuation: |_, _| None,
            code_bounds: |_| None,
            kick_port: |_| None,
            areas,
            log: |_| {},
        };
        // SAFETY: the stack is leaked and never freed.
        let platform = unsafe { XenPlatform::new(xen, shared, hooks) };
        let memory = Vec::leak(vec![MaybeUninit::uninit(); 1 << 20]);
        let agent = Box::leak(Box::new(Agent::new(platform, CONFIG, memory).unwrap()));
        Self { agent, ticks: Ticks::new(agent, xen, TickSource::Host) }
    }

    pub(crate) fn agent(&self) -> &'static Guest {
        self.agent
    }

    /// Advances the time without the fake hypervisor, whose instructions would be counted too.
    pub(crate) fn advance(&self, ns: u64) {
        if let Some(time) = TIME.get() {
            time.system_time.fetch_add(ns, Ordering::Relaxed);
        }
    }

    pub(crate) fn on_timer(&self, registers: &Registers) -> Option<u64> {
        self.ticks.on_timer(Some(registers))
    }
}

fn areas(_: u32) -> Option<VcpuAreas> {
    Some(VcpuAreas { time: TIME.get()?, runstate: Some(&RUNSTATE) })
}

fn stack_bounds(sp: u64) -> Option<Range<u64>> {
    let bounds = STACK.get()?.bounds();
    bounds.contains(&sp).then_some(sp..bounds.end)
}
