//! A guest that ticks wherever it can: also in the middle of what the service does.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ops::Range;

use unikprof_agent::{Agent, Config, Mapping, Platform, Registers, Runstate};

pub(crate) const VCPUS: u32 = 3;

const CODE: u64 = 0x40_0000;
const WORDS: usize = 64;

pub(crate) const MAPPINGS: [Mapping<'static>; 2] = [
    Mapping {
        start: CODE,
        end: CODE + 0x1_0000,
        file_offset: 0x1000,
        build_id: &[1, 2, 3, 4],
        path: "/guest",
    },
    Mapping {
        start: 0x7f00_0000_0000,
        end: 0x7f00_0000_4000,
        file_offset: 0,
        build_id: &[],
        path: "/library",
    },
];

/// A configuration with at most so many recordings.
pub(crate) const fn config(recordings: u32) -> Config<'static> {
    Config {
        vcpus: VCPUS,
        recordings,
        mappings: &MAPPINGS,
        guest_name: Some("fuzz"),
        guest_id: None,
        platform_name: "fuzz",
        reachable_when_busy: true,
    }
}

pub(crate) type FakeAgent<'a> = Agent<'a, FakePlatform<'a>>;

pub(crate) struct Fake<'a> {
    agent: Cell<Option<&'a FakeAgent<'a>>>,
    now_ns: Cell<u64>,
    running_ns: [Cell<u64>; VCPUS as usize],
    /// The vCPU whose code runs; the others run beside it.
    current: Cell<Option<u32>>,
    /// The vCPUs that are inside their upcall: it does not interrupt itself.
    in_upcall: Cell<u32>,
    /// The number of calls of the platform, of 256, that a tick interrupts.
    interrupts: Cell<u8>,
    random: Cell<u64>,
    stack: Vec<Cell<u64>>,
    registers: RefCell<Option<Registers>>,
}

/// The platform as the agent sees it.
#[derive(Clone, Copy)]
pub(crate) struct FakePlatform<'a>(pub(crate) &'a Fake<'a>);

impl<'a> Fake<'a> {
    pub(crate) fn new() -> Self {
        Self {
            agent: Cell::new(None),
            now_ns: Cell::new(1),
            running_ns: [const { Cell::new(0) }; VCPUS as usize],
            current: Cell::new(None),
            in_upcall: Cell::new(0),
            interrupts: Cell::new(0),
            random: Cell::new(88_172_645_463_325_252),
            stack: vec![Cell::new(0); WORDS],
            registers: RefCell::new(None),
        }
    }

    /// Says which agent the upcalls are for.
    pub(crate) fn attach(&self, agent: &'a FakeAgent<'a>) {
        self.agent.set(Some(agent));
    }

    /// Lets time pass; all vCPUs run.
    pub(crate) fn pass(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get().saturating_add(ns));
        for running_ns in &self.running_ns {
            running_ns.set(running_ns.get().saturating_add(ns));
        }
    }

    /// Sets the number of calls of the platform, of 256, that a tick interrupts from here on.
    pub(crate) fn set_interrupts(&self, of_256: u8) {
        self.interrupts.set(of_256);
    }

    /// Writes a word of the stack that is a frame pointer, a return address or neither.
    pub(crate) fn put(&self, index: usize, choice: u8, value: u64) {
        let word = match choice % 4 {
            0 => self.bounds().start + 8 * (value % (WORDS as u64 + 2)),
            1 => CODE + value % 0x1_0000,
            2 => 0,
            _ => value,
        };
        self.stack[index % WORDS].set(word);
    }

    /// Sets the registers that the next ticks interrupt; `None`: delivered without registers.
    pub(crate) fn interrupt_at(&self, at: Option<(u64, usize, usize)>) {
        let start = self.bounds().start;
        *self.registers.borrow_mut() = at.map(|(pc, sp, fp)| {
            Registers::new(CODE + pc % 0x2_0000, start + 8 * sp as u64, start + 8 * fp as u64)
        });
    }

    /// The registers that the next ticks interrupt.
    pub(crate) fn registers(&self) -> Option<Registers> {
        *self.registers.borrow()
    }

    pub(crate) fn on<T>(&self, vcpu: Option<u32>, run: impl FnOnce() -> T) -> T {
        let before = self.current.replace(vcpu);
        let result = run();
        self.current.set(before);
        result
    }

    /// Delivers a tick; answers the next deadline.
    pub(crate) fn tick(&self, vcpu: u32) -> Option<u64> {
        let agent = self.agent.get()?;
        let before = self.in_upcall.get();
        if before & 1 << vcpu != 0 {
            return None;
        }
        self.in_upcall.set(before | 1 << vcpu);
        let registers = self.registers();
        let next = self.on(Some(vcpu), || agent.on_tick(registers.as_ref()));
        self.in_upcall.set(before);
        next
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn bounds(&self) -> Range<u64> {
        let words = self.stack.as_ptr_range();
        words.start.expose_provenance() as u64..words.end.expose_provenance() as u64
    }

    /// A place where a tick may come.
    fn maybe_interrupt(&self) {
        let of_256 = u64::from(self.interrupts.get());
        if of_256 == 0 {
            return;
        }
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        if random & 0xff < of_256 {
            self.pass(random >> 8 & 0xf_ffff);
            self.tick((random >> 32) as u32 % VCPUS);
        }
    }
}

// SAFETY: `stack_bounds` names a vector of the fake's own, which lives as long as the agent.
unsafe impl Platform for FakePlatform<'_> {
    fn now_ns(&self) -> u64 {
        self.0.maybe_interrupt();
        self.0.now_ns()
    }

    fn wall_clock_ns(&self) -> Option<u64> {
        self.0.maybe_interrupt();
        Some(self.0.now_ns() ^ 0x1800_0000_0000_0000)
    }

    fn vcpu(&self) -> Option<u32> {
        self.0.current.get()
    }

    fn running_ns(&self, vcpu: u32) -> u64 {
        self.0.maybe_interrupt();
        self.0.running_ns[vcpu as usize].get()
    }

    fn runstate(&self, vcpu: u32) -> Option<Runstate> {
        self.0.maybe_interrupt();
        let running_ns = self.0.running_ns[vcpu as usize].get();
        let blocked_ns = self.0.now_ns().saturating_sub(running_ns);
        Some(Runstate { running_ns, blocked_ns, ..Runstate::default() })
    }

    fn kick(&self, vcpu: u32) {
        self.0.maybe_interrupt();
        self.0.tick(vcpu);
    }

    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        Some(self.0.bounds()).filter(|bounds| bounds.contains(&sp))
    }

    fn random(&self) -> Option<u64> {
        let random = self.0.random.get();
        self.0.random.set(random.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Some(random)
    }

    fn cycles(&self) -> u64 {
        self.0.maybe_interrupt();
        self.0.now_ns() * 3
    }
}
