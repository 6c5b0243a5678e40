//! Work for a share of each vCPU's time: requests to the demo service, functions with known shares,
//! or allocations of known sizes and numbers.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use xen_sys_lite::vcpu::VcpuId;

#[cfg(feature = "heap")]
use crate::allocations::Allocations;
#[cfg(feature = "trace")]
use crate::arch::probed;
use crate::chatter::Chatter;
use crate::command_line::CommandLine;
#[cfg(feature = "demo")]
use crate::demo::Demo;
use crate::hotspots;
#[cfg(feature = "gate")]
use crate::signals;
use crate::vcpus::{self, FIRST};
use crate::{idle, timer};

/// The period in which work and rest alternate.
const WINDOW_NS: u64 = 20_000_000;
/// The maximum length of a turn, so that the main loop polls in time.
const TURN_NS: u64 = 1_000_000;

/// The share of time to work, in percent, for the vCPUs that do nothing else.
static SHARE: AtomicU64 = AtomicU64::new(0);

/// One vCPU's work.
pub(crate) struct Load {
    /// Works for a fraction of a millisecond.
    work: Box<dyn FnMut()>,
    /// Work until this time, then rest until the window ends.
    work_end_ns: u64,
    window_end_ns: u64,
}

struct Kind {
    /// Its word on the command line.
    key: &'static str,
    first: fn(VcpuId) -> Load,
    others: extern "C" fn(VcpuId) -> !,
}

/// Starts the work that the command line requests with `load`, `hotspots`, `chatter`,
/// `allocations`, `probed` or `signals=PERCENT`, on all vCPUs, and with `tick=RATE` the ticks that
/// interrupt it.
pub(crate) fn start(command_line: CommandLine) -> Option<Load> {
    let kinds = [
        #[cfg(feature = "demo")]
        Kind { key: "load", first: Load::demo, others: serve_for_ever },
        Kind { key: "hotspots", first: Load::hotspots, others: be_hot_for_ever },
        Kind { key: "chatter", first: Load::chatter, others: be_hot_for_ever },
        #[cfg(feature = "heap")]
        Kind { key: "allocations", first: Load::allocations, others: allocate_for_ever },
        #[cfg(feature = "trace")]
        Kind {
            key: "probed",
            first: |vcpu| Load::new(probed::load(vcpu)),
            others: be_probed_for_ever,
        },
        #[cfg(feature = "gate")]
        Kind {
            key: "signals",
            first: |_| Load::new(signals::sender()),
            others: signals::wait_for_ever,
        },
    ];
    let asked_for = |kind: Kind| Some((command_line.parsed(kind.key)?, kind));
    let (share, kind) = kinds.into_iter().find_map(asked_for)?;
    SHARE.store(u64::min(share, 100), Ordering::Relaxed);
    #[cfg(target_arch = "aarch64")]
    crate::arch::offline::configure(command_line);
    vcpus::start_others(command_line.parsed("vcpus").unwrap_or(1), kind.others);
    Some((kind.first)(FIRST))
}

impl Load {
    #[cfg(feature = "demo")]
    fn demo(vcpu: VcpuId) -> Self {
        let mut demo = Demo::new(vcpu);
        Self::new(move || demo.serve_one())
    }

    fn hotspots(_: VcpuId) -> Self {
        let mut state = 1;
        Self::new(move || state = hotspots::year(state))
    }

    fn chatter(_: VcpuId) -> Self {
        let mut chatter = Chatter::new();
        Self::new(move || chatter.iteration())
    }

    #[cfg(feature = "heap")]
    fn allocations(vcpu: VcpuId) -> Self {
        let mut allocations = Allocations::new(vcpu);
        Self::new(move || allocations.round())
    }

    fn new(work: impl FnMut() + 'static) -> Self {
        Self { work: Box::new(work), work_end_ns: 0, window_end_ns: 0 }
    }

    /// Works for a turn, unless it rests; returns when the next turn begins, on the guest's clock.
    pub(crate) fn turn(&mut self, vcpu: VcpuId) -> u64 {
        #[cfg(target_arch = "aarch64")]
        crate::arch::offline::change_when_due(vcpu);
        let start = timer::now_ns(vcpu);
        if start >= self.window_end_ns {
            self.work_end_ns = start + WINDOW_NS * SHARE.load(Ordering::Relaxed) / 100;
            self.window_end_ns = start + WINDOW_NS;
        }
        let turn_end = self.work_end_ns.min(start + TURN_NS);
        let mut now = start;
        while now < turn_end {
            (self.work)();
            now = timer::now_ns(vcpu);
        }
        if now < self.work_end_ns { now } else { self.window_end_ns }
    }
}

#[cfg(feature = "demo")]
extern "C" fn serve_for_ever(vcpu: VcpuId) -> ! {
    work_for_ever(vcpu, Load::demo(vcpu))
}

extern "C" fn be_hot_for_ever(vcpu: VcpuId) -> ! {
    work_for_ever(vcpu, Load::hotspots(vcpu))
}

#[cfg(feature = "heap")]
extern "C" fn allocate_for_ever(vcpu: VcpuId) -> ! {
    work_for_ever(vcpu, Load::allocations(vcpu))
}

#[cfg(feature = "trace")]
extern "C" fn be_probed_for_ever(vcpu: VcpuId) -> ! {
    work_for_ever(vcpu, Load::new(probed::load(vcpu)))
}

fn work_for_ever(vcpu: VcpuId, mut load: Load) -> ! {
    // The ticks were requested before this vCPU ran.
    vcpus::kick(vcpu);
    loop {
        let next = load.turn(vcpu);
        idle::wait_for_events(vcpu, Some(next));
    }
}
