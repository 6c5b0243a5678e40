//! A simulated guest: clocks that the test advances, and a stack in memory.
#![allow(dead_code, unreachable_pub, unsafe_code, clippy::unwrap_used)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use unikprof_agent::{
    Agent, Config, Mapping, Platform, Registers, Runstate, Service, caller_table_bytes,
};

use crate::client;

/// The address of the guest's code.
pub const CODE: u64 = 0x40_0000;

/// The capacity of the caller table in rows.
pub const CALLER_ROWS: usize = 1000;

pub const MAPPINGS: &[Mapping<'static>] = &[Mapping {
    start: CODE,
    end: CODE + 0x10_0000,
    file_offset: 0x1000,
    build_id: &[0xab; 20],
    path: "guest.elf",
}];

thread_local! {
    /// The vCPU that this thread simulates.
    pub static VCPU: Cell<Option<u32>> = const { Cell::new(Some(0)) };
}

/// A platform whose clocks advance only when the test says so.
#[derive(Debug, Default)]
pub struct FakePlatform {
    pub now_ns: AtomicU64,
    pub running_ns: AtomicU64,
    pub stolen_ns: AtomicU64,
    pub kicks: AtomicU64,
    pub random: AtomicU64,
    pub has_no_random: AtomicBool,
    pub logged: Mutex<Vec<String>>,
    /// The time that passes with each read of the clock.
    pub step_ns: AtomicU64,
    /// The rate of the cycle counter per ns; 0 if there is no counter.
    pub cycles_per_ns: AtomicU64,
    /// When the clock began to follow the machine's clock as well.
    pub followed: OnceLock<Instant>,
}

impl FakePlatform {
    /// From now on the monotonic clock follows the machine's clock, for measurements.
    pub fn follow_the_machine(&self) {
        self.followed.get_or_init(Instant::now);
    }

    /// Lets both clocks advance.
    pub fn run(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
        self.running_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Advances the monotonic clock while another domain has the CPU.
    pub fn steal(&self, ns: u64) {
        self.stolen_ns.fetch_add(ns, Ordering::Relaxed);
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Advances the monotonic clock only: nothing runs.
    pub fn idle(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

// SAFETY: `stack_bounds` returns the bounds in `STACK`, those of an array that lives as long as the
// tick.
unsafe impl Platform for FakePlatform {
    fn now_ns(&self) -> u64 {
        if let Some(upcall) = AT_CLOCK.take() {
            upcall();
        }
        let step_ns = self.step_ns.load(Ordering::Relaxed);
        let by_itself = self.followed.get().map(Instant::elapsed);
        let by_itself_ns = by_itself.map_or(0, |passed| passed.as_nanos() as u64);
        self.now_ns.fetch_add(step_ns, Ordering::Relaxed) + step_ns + by_itself_ns
    }

    fn work_ns(&self) -> u64 {
        self.now_ns() - self.stolen_ns.load(Ordering::Relaxed)
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        Some(1_800_000_000_000_000_000 + self.now_ns())
    }

    fn vcpu(&self) -> Option<u32> {
        VCPU.get()
    }

    fn running_ns(&self, _: u32) -> u64 {
        let upcall = UPCALL.take();
        if let Some(upcall) = upcall {
            upcall();
        }
        self.running_ns.load(Ordering::Relaxed)
    }

    fn blocked_ns(&self, vcpu: u32) -> u64 {
        let stolen_ns = self.stolen_ns.load(Ordering::Relaxed);
        self.now_ns().saturating_sub(self.running_ns(vcpu)).saturating_sub(stolen_ns)
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        let running_ns = self.running_ns(vcpu);
        let blocked_ns = self.now_ns.load(Ordering::Relaxed).saturating_sub(running_ns);
        Some(Runstate { running_ns, blocked_ns, ..Runstate::default() })
    }

    fn kick(&self, _: u32) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
    }

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        if let Some(meanwhile) = AT_WALK.take() {
            meanwhile();
        }
        STACK.with(Cell::take).filter(|bounds| bounds.contains(&sp))
    }

    fn random(&self) -> Option<u64> {
        let count = self.random.fetch_add(1, Ordering::Relaxed);
        (!self.has_no_random.load(Ordering::Relaxed))
            .then_some((count + 42).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn cycles(&self) -> u64 {
        self.cycles_per_ns.load(Ordering::Relaxed) * self.now_ns.load(Ordering::Relaxed)
    }

    fn log(&self, line: &str) {
        self.logged.lock().unwrap().push(line.to_owned());
    }
}

thread_local! {
    /// Called once, when the running time is read next: an upcall that interrupts the agent there.
    pub static UPCALL: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    /// The same when the clock is read next.
    pub static AT_CLOCK: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    /// Called once, when a walk asks for the bounds of its stack: what another vCPU does meanwhile.
    pub static AT_WALK: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

thread_local! {
    static STACK: Cell<Option<Range<u64>>> = const { Cell::new(None) };
}

pub type FakeAgent = Agent<'static, FakePlatform>;
pub type FakeService = Service<'static, 'static, FakePlatform>;
pub type Shared = client::Shared<'static, 'static, FakePlatform>;
pub type Client = client::Client<'static, 'static, FakePlatform>;

/// An agent that serves without keys, and its first client.
pub fn connected(vcpus: u32, memory: usize) -> (&'static FakeAgent, Shared, Client) {
    let agent = agent(vcpus, memory);
    let service = client::serve(agent);
    let client = Client::connect(&service);
    (agent, service, client)
}

/// The same with one vCPU and enough memory for a few thousand stacks.
pub fn guest() -> (&'static FakeAgent, Shared, Client) {
    connected(1, 1 << 18)
}

/// The same without a client.
pub fn served() -> (&'static FakeAgent, Shared) {
    let agent = agent(1, 1 << 18);
    (agent, client::serve(agent))
}

/// An agent on a fake platform, with `memory` bytes for stacks.
pub fn agent(vcpus: u32, memory: usize) -> &'static FakeAgent {
    agent_with_ring(vcpus, memory, 0)
}

/// The same with a ring of this length in bytes.
pub fn agent_with_ring(vcpus: u32, memory: usize, ring: usize) -> &'static FakeAgent {
    build(FakePlatform::default(), vcpus, memory, ring)
}

/// An agent with one vCPU, on a platform that `change` has modified.
pub fn agent_with(change: impl FnOnce(&mut FakePlatform)) -> &'static FakeAgent {
    let mut platform = FakePlatform::default();
    change(&mut platform);
    build(platform, 1, 1 << 17, 0)
}

fn build(platform: FakePlatform, vcpus: u32, memory: usize, ring: usize) -> &'static FakeAgent {
    let ring: &'static mut [MaybeUninit<u8>] = Vec::leak(vec![MaybeUninit::uninit(); ring]);
    let memory: &'static mut [MaybeUninit<u8>] = Vec::leak(vec![MaybeUninit::uninit(); memory]);
    let config = Config {
        vcpus,
        recordings: 3,
        mappings: MAPPINGS,
        guest_name: Some("fake"),
        guest_id: None,
        platform_name: "test",
        reachable_when_busy: false,
    };
    let callers: &'static mut [MaybeUninit<u8>] =
        Vec::leak(vec![MaybeUninit::uninit(); caller_table_bytes(CALLER_ROWS)]);
    let agent = Agent::new(platform, config, memory).unwrap();
    Box::leak(Box::new(agent.with_caller_memory(callers).with_ring(ring)))
}

/// Runs to the vCPU's next deadline and delivers the tick, interrupting a stack of functions that
/// are `frames` (leaf first) bytes into the code. Returns `false` if there is no deadline.
pub fn tick(agent: &FakeAgent, frames: &[u64]) -> bool {
    let Some(deadline) = agent.deadline() else {
        return false;
    };
    let now = agent.platform().now_ns();
    agent.platform().run(deadline.saturating_sub(now));
    deliver(agent, frames);
    true
}

/// Delivers a tick now.
pub fn deliver(agent: &FakeAgent, frames: &[u64]) -> Option<u64> {
    on_stack(frames, |registers| agent.on_tick(Some(registers)))
}

/// Blocks in a stack of functions for `ns`, then wakes.
pub fn block(agent: &FakeAgent, frames: &[u64], ns: u64) {
    on_stack(frames, |registers| agent.on_block(Some(registers)));
    agent.platform().idle(ns);
    agent.on_wake();
}

/// Writes a stack of functions that are `frames` (leaf first) bytes into the code, and calls `body`
/// with the registers of the leaf.
pub fn on_stack<T>(frames: &[u64], body: impl FnOnce(&Registers) -> T) -> T {
    let mut words = vec![0_u64; 2 * frames.len()];
    let start = words.as_mut_ptr().expose_provenance() as u64;
    for (index, frame) in frames.iter().enumerate().skip(1) {
        let record = 2 * (index - 1);
        words[record] = if index + 1 < frames.len() { start + 8 * (record as u64 + 2) } else { 0 };
        words[record + 1] = CODE + frame;
    }
    let fp = if frames.len() > 1 { start } else { 0 };
    STACK.set(Some(start..start + 8 * words.len() as u64));
    let registers = Registers::new(CODE + frames.first().copied().unwrap_or(0), start, fp);
    let answer = body(&registers);
    std::hint::black_box(&words);
    answer
}
