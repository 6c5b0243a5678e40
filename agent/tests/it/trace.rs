//! Traces of a guest that is simulated: its breakpoints, stacks and clock are the test's.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::tracing::{Client, Planned, plan_of};
use unikprof_agent::{
    Access, Agent, Breakpoint, CallStack, Config, Mapping, Platform, Runstate, Service, SessionId,
    TrapFrame, ring_bytes, trace_bytes,
};
use unikprof_proto::code::{refusal, trace_flag, trace_refusal, trace_state};
use unikprof_proto::message::{
    Refusal, TraceArm, TraceArmed, TraceBegin, TraceFetch, TraceState, TraceStop,
};
use unikprof_proto::ring::{Leave, kind};
use unikprof_proto::trace::{function_flag, probe_kind, totals_flag};

/// A function of 16 bytes: push %rbx, 8 NOPs, a conditional jump out, pop %rbx, ret.
const FUNCTION: [u8; 16] =
    [0x53, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x84, 0x00, 0x01, 0, 0, 0xc3];
const RETURN: u64 = 15;
const FUNCTIONS: usize = 4;

/// The guest's memory: its code, and two stacks.
#[repr(C, align(64))]
struct Memory {
    code: [u8; 1024],
    stacks: [[u64; 512]; 2],
}

/// The number of guests of all tests together.
const WORLDS: usize = 32;

/// The memory of each guest, near enough to the program's text for slots.
static mut MEMORIES: [Memory; WORLDS] =
    [const { Memory { code: [0; 1024], stacks: [[0; 512]; 2] } }; WORLDS];
static USED: AtomicUsize = AtomicUsize::new(0);

struct Guest {
    memory: *mut Memory,
    now_ns: Rc<Cell<u64>>,
    /// The vCPU that this code runs on, and how long it did not run.
    vcpu: Cell<u32>,
    waited_ns: Cell<u64>,
    /// Advances by 100 whenever it is read.
    cycles: Cell<u64>,
    /// The addresses that were written.
    written: RefCell<Vec<u64>>,
    /// Whether both stacks are one fibre's, which moves from one to the other.
    is_fibre: Cell<bool>,
    /// The agent, if another vCPU crashes just before the next breakpoint is written.
    crashes: Cell<Option<NonNull<Agent<'static, Guest>>>>,
    /// The result for a third vCPU that then executed this breakpoint, and whether it continued
    /// elsewhere.
    met_while_written: Cell<Option<(Breakpoint, bool)>>,
}

// SAFETY: the memory lives as long as the test.
unsafe impl Platform for Guest {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }
    fn wall_clock_ns(&self) -> Option<u64> {
        None
    }
    fn vcpu(&self) -> Option<u32> {
        Some(self.vcpu.get())
    }
    fn running_ns(&self, vcpu: u32) -> u64 {
        self.now_ns.get() - self.waited_ns.get() - 500 * u64::from(vcpu)
    }
    fn runstate(&self, _: u32) -> Option<Runstate> {
        None
    }
    fn kick(&self, _: u32) {}
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        (0..2).map(|number| stack(self.memory, number)).find(|bounds| bounds.contains(&sp))
    }
    fn call_stack(&self, sp: u64) -> Option<CallStack> {
        self.stack_bounds(sp).map(|bounds| CallStack {
            id: if self.is_fibre.get() { 1 } else { bounds.end },
            end: bounds.end,
        })
    }
    fn random(&self) -> Option<u64> {
        None
    }
    fn cycles(&self) -> u64 {
        self.cycles.set(self.cycles.get() + 100);
        self.cycles.get()
    }
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        if *bytes == [0xcc]
            && let Some(agent) = self.crashes.take()
        {
            // SAFETY: this platform's agent, which the test keeps.
            let agent = unsafe { agent.as_ref() };
            agent.stop_tracing();
            self.write_code(address, bytes);
            let mut frame = TrapFrame { pc: address + 1, ..TrapFrame::default() };
            let met = agent.on_breakpoint(&mut frame);
            self.met_while_written.set(Some((met, frame.pc != address + 1)));
            return true;
        }
        self.written.borrow_mut().push(address);
        let start = self.memory.expose_provenance() as u64;
        let offset = address.wrapping_sub(start);
        if offset < 1024 {
            for (place, byte) in (offset as usize..).zip(bytes) {
                // SAFETY: inside the code.
                unsafe { (*self.memory).code[place] = *byte };
            }
        }
        // Nothing is executed in the slots, which are in this program's text.
        true
    }
}

fn stack(memory: *mut Memory, number: usize) -> Range<u64> {
    // SAFETY: computes an address.
    let start = unsafe { (&raw const (*memory).stacks[number]).expose_provenance() } as u64;
    start..start + 4096
}

/// A connection to the service.
struct Wire<'a, 'm> {
    service: Rc<RefCell<Service<'a, 'm, Guest>>>,
    session: SessionId,
}

impl Read for Wire<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut service = self.service.borrow_mut();
        for _ in 0..16 {
            let length = service.transmit(self.session, buffer);
            if length > 0 {
                return Ok(length);
            }
            service.advance();
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

impl Write for Wire<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut service = self.service.borrow_mut();
        // If the input is full, the agent reads what is there first.
        let taken = service.receive(self.session, bytes);
        if taken == 0 {
            service.transmit(self.session, &mut []);
            return Ok(service.receive(self.session, bytes));
        }
        Ok(taken)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The guest and its agent, with a service.
struct World<'a, 'm> {
    agent: &'a Agent<'m, Guest>,
    memory: *mut Memory,
    now_ns: Rc<Cell<u64>>,
    service: Rc<RefCell<Service<'a, 'm, Guest>>>,
    functions: usize,
    sessions: Vec<SessionId>,
    clients: u64,
}

/// The handler of the one breakpoint that is executed: the agent's own, whose cost it measures.
extern "C" fn on_breakpoint(_: libc::c_int) {}

/// Runs a test with a guest.
fn with_world(test: impl FnOnce(&mut World<'_, '_>)) {
    with_functions(FUNCTIONS, test);
}

/// Runs a test with a guest of so many functions.
fn with_functions(functions: usize, test: impl FnOnce(&mut World<'_, '_>)) {
    // SAFETY: the handler has the required type and does nothing.
    unsafe { libc::signal(libc::SIGTRAP, on_breakpoint as *const () as usize) };
    let number = USED.fetch_add(1, Ordering::Relaxed);
    assert!(number < WORLDS, "more worlds are needed");
    // SAFETY: each number is used once.
    let memory = unsafe {
        let memory = (&raw mut MEMORIES).cast::<Memory>().add(number);
        (*memory).code.fill(0x90);
        (*memory).stacks = [[0x1000; 512]; 2];
        for function in (*memory).code.chunks_mut(16).take(functions) {
            function.copy_from_slice(&FUNCTION);
        }
        memory
    };
    let now_ns = Rc::new(Cell::new(1_000_000_000));
    let start = memory.expose_provenance() as u64;
    let mappings = [Mapping { start, end: start + 1024, file_offset: 0, build_id: &[], path: "" }];
    let config = Config {
        vcpus: 2,
        recordings: 1,
        mappings: &mappings,
        guest_name: None,
        guest_id: None,
        platform_name: "fake",
        reachable_when_busy: false,
    };
    let guest = Guest {
        memory,
        now_ns: Rc::clone(&now_ns),
        vcpu: Cell::new(0),
        waited_ns: Cell::new(0),
        cycles: Cell::new(0),
        written: RefCell::default(),
        is_fibre: Cell::new(false),
        crashes: Cell::new(None),
        met_while_written: Cell::new(None),
    };
    let mut own = vec![MaybeUninit::uninit(); 1 << 20];
    let mut block = vec![MaybeUninit::uninit(); trace_bytes(functions.max(8), 4)];
    let mut ring = vec![MaybeUninit::uninit(); ring_bytes(2, 300)];
    let agent = Agent::new(guest, config, &mut own).unwrap().with_trace(&mut block, 4);
    let agent = agent.with_ring(&mut ring);
    assert!(agent.can_trace());
    let service = Rc::new(RefCell::new(Service::new(&agent, Access::Open).unwrap()));
    service.borrow_mut().set_cpu_share(1000);
    test(&mut World {
        agent: &agent,
        memory,
        now_ns,
        service,
        functions,
        sessions: Vec::new(),
        clients: 0,
    });
}

impl<'a, 'm> World<'a, 'm> {
    fn connect(&mut self) -> Client<Wire<'a, 'm>> {
        self.clients += 1;
        let session = self.service.borrow_mut().open().unwrap();
        self.sessions.push(session);
        let service = Rc::clone(&self.service);
        Client::new(Wire { service, session }, self.clients)
    }

    fn start(&self, function: usize) -> u64 {
        self.memory.expose_provenance() as u64 + 16 * function as u64
    }

    fn code(&self) -> [u8; 1024] {
        // SAFETY: nobody writes meanwhile.
        unsafe { (*self.memory).code }
    }

    /// The plan of all functions. Their jumps out are exits.
    fn plan(&self) -> Vec<Planned> {
        (0..self.functions).map(|number| plan_of(self.start(number), &FUNCTION)).collect()
    }

    /// One poll, which writes at most 64 bytes of the code.
    fn poll(&self) {
        let written = &self.agent.platform().written;
        written.borrow_mut().clear();
        let mut service = self.service.borrow_mut();
        for session in &self.sessions {
            service.transmit(*session, &mut []);
        }
        service.advance();
        let code = self.start(0)..self.start(64);
        let written = written.borrow();
        let written = written.iter().filter(|it| code.contains(it)).count();
        assert!(written <= 64, "{written}");
    }

    fn poll_until(&self, is_reached: impl Fn() -> bool) {
        for _ in 0..8 {
            if is_reached() {
                return;
            }
            self.poll();
        }
        assert!(is_reached(), "not after 8 polls");
    }

    fn pass(&self, ns: u64) {
        self.now_ns.set(self.now_ns.get() + ns);
    }

    /// A breakpoint at `address`, with this distance of the stack pointer from the end of a stack.
    fn trap(&self, address: u64, number: usize, depth: u64) -> (Breakpoint, TrapFrame) {
        let mut frame = TrapFrame { pc: address + 1, ..TrapFrame::default() };
        frame.registers[4] = stack(self.memory, number).end - 8 * depth;
        (self.agent.on_breakpoint(&mut frame), frame)
    }

    fn enter(&self, function: usize, depth: u64) {
        let (handled, frame) = self.trap(self.start(function), 0, depth);
        assert_eq!(handled, Breakpoint::Handled);
        // The copy of the push, and what is behind it.
        assert_eq!(self.agent.original_pc(frame.pc), self.start(function));
        assert_eq!(self.agent.original_pc(frame.pc + 1), self.start(function) + 1);
    }

    fn leave(&self, function: usize, depth: u64) {
        let (handled, frame) = self.trap(self.start(function) + RETURN, 0, depth);
        assert_eq!(handled, Breakpoint::Handled);
        assert_eq!(frame.pc, 0x1000, "the return address");
        assert_eq!(frame.sp(), stack(self.memory, 0).end - 8 * depth + 8);
    }
}

/// Total and self time of nested and recursive calls are as the clock says.
#[test]
fn times_of_nested_and_recursive_calls_add_up() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), trace_flag::COUNT);
        world.enter(0, 10);
        world.pass(100);
        world.enter(1, 20);
        world.pass(1_000);
        world.enter(0, 30);
        world.pass(10);
        world.leave(0, 30);
        world.pass(2_000);
        world.leave(1, 20);
        world.pass(300);
        world.leave(0, 10);
        let fetched = client.fetch(trace);
        let (outer, inner) = (fetched.of(0), fetched.of(1));
        assert_eq!((outer.calls, inner.calls), (2, 1));
        // Of the recursive calls the outermost alone.
        assert_eq!((outer.total_ns, outer.self_ns), (3_410, 410));
        assert_eq!((inner.total_ns, inner.self_ns), (3_010, 3_000));
        assert_eq!((outer.min_ns, outer.max_ns), (10, 3_410));
        assert_eq!((fetched.state.traps, fetched.state.mismatched), (6, 0));
    });
}

/// Time in which the vCPU does not run is that of the innermost call, whether or not it is blocked.
#[test]
fn a_call_has_waited_as_long_as_its_vcpu_did_not_run() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), 0);
        let wait = |ns: u64| {
            world.pass(ns);
            let waited_ns = &world.agent.platform().waited_ns;
            waited_ns.set(waited_ns.get() + ns);
        };
        wait(163_840);
        world.enter(0, 10);
        world.pass(5_120);
        world.enter(1, 20);
        wait(40_960);
        world.pass(81_920);
        world.leave(1, 20);
        wait(20_480);
        world.pass(10_240);
        world.leave(0, 10);
        let fetched = client.fetch(trace);
        let (outer, inner) = (fetched.of(0), fetched.of(1));
        assert_eq!((outer.self_ns, inner.self_ns), (35_840, 122_880));
        assert_eq!((outer.waited_ns, inner.waited_ns), (20_480, 40_960));
        let records = client.ring(0);
        let ends = records.iter().filter(|record| record.kind == kind::LEAVE);
        let ends = ends.map(|record| Leave::from_number(record.first));
        // Those of the rehearsal are of trace 0.
        let ends = ends.filter(|leave| leave.trace != 0);
        let ends: Vec<_> = ends.map(|leave| (leave.function, leave.waited_ns)).collect();
        assert_eq!(ends, [(1, 40_960), (0, 20_480)]);
    });
}

/// Running clocks that cannot be compared, since they are two vCPUs' or one went back, tell of no
/// wait.
#[test]
fn no_call_waits_between_running_clocks_that_differ() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), trace_flag::COUNT);
        let platform = world.agent.platform();
        for (vcpu, waited_ns) in [(1, 0), (0, 0), (0, 500_000)] {
            world.enter(0, 10);
            world.pass(1_000);
            platform.vcpu.set(vcpu);
            platform.waited_ns.set(waited_ns);
            world.leave(0, 10);
        }
        let totals = client.fetch(trace).of(0);
        assert_eq!((totals.self_ns, totals.waited_ns), (3_000, 0));
    });
}

/// However calls end, each is counted in one way.
#[test]
fn calls_that_end_in_odd_ways_are_counted_as_such() {
    with_world(|world| {
        let mut client = world.connect();
        let mut plan = world.plan();
        plan[1].flags = function_flag::LOOPS;
        let trace = client.trace(&plan, trace_flag::COUNT);
        // An exception leaves two functions; their caller returns.
        world.enter(0, 10);
        world.enter(1, 20);
        world.enter(2, 30);
        world.leave(0, 10);
        // An exception again; the caller calls another function.
        world.enter(0, 10);
        world.enter(1, 20);
        world.enter(2, 15);
        world.leave(2, 15);
        world.leave(0, 10);
        // A jump that was not seen, to another function; and one back to the entry.
        world.enter(0, 10);
        world.enter(1, 10);
        world.enter(1, 10);
        world.leave(1, 10);
        // A loop that calls a function again after each of its exceptions.
        for _ in 0..100 {
            world.enter(3, 10);
        }
        world.leave(3, 10);
        // A return that is not at the call's stack pointer, but further up.
        world.enter(3, 20);
        world.leave(3, 10);
        // An exit of another function than the innermost.
        world.enter(2, 10);
        world.leave(1, 10);
        // An exit of a call that began before the trace.
        world.leave(3, 50);
        let fetched = client.fetch(trace);
        let counts = |function| {
            let totals = fetched.of(function);
            (totals.calls, totals.unwound, totals.replaced, totals.orphans)
        };
        assert_eq!(counts(0), (3, 0, 1, 0));
        assert_eq!(counts(1), (3, 2, 0, 0));
        assert_eq!(counts(2), (3, 1, 1, 0));
        assert_eq!(counts(3), (101, 100, 0, 1));
        assert_eq!(fetched.state.mismatched, 1);
        // Durations whose ends were not seen are not among the others.
        let (_, histogram) = fetched.totals[&1];
        assert_eq!(histogram.iter().sum::<u64>(), 1);
    });
}

/// A handler on a stack of its own that interrupts a traced call is paired by itself, and calls on
/// a stack that is not known are not counted.
#[test]
fn each_stack_has_its_own_calls() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), trace_flag::COUNT);
        world.enter(0, 10);
        // Deeper on its own stack than the interrupted call on its: that would close it on one
        // stack.
        let (entered, _) = world.trap(world.start(1), 1, 3);
        let (left, _) = world.trap(world.start(1) + RETURN, 1, 3);
        assert_eq!((entered, left), (Breakpoint::Handled, Breakpoint::Handled));
        world.leave(0, 10);
        let mut strange = TrapFrame { pc: world.start(2) + 1, ..TrapFrame::default() };
        let elsewhere = [0_u64; 2];
        strange.registers[4] = elsewhere.as_ptr().expose_provenance() as u64;
        assert_eq!(world.agent.on_breakpoint(&mut strange), Breakpoint::Handled);
        assert_eq!(world.agent.original_pc(strange.pc), world.start(2));
        let fetched = client.fetch(trace);
        assert_eq!((fetched.of(0).calls, fetched.of(1).calls), (1, 1));
        assert_eq!((fetched.of(0).unwound, fetched.of(2).calls), (0, 0));
        assert_eq!(fetched.state.unplaced, 1);
    });
}

/// A fibre whose stack grows is moved within its calls: they are paired by the distance from its
/// end.
#[test]
fn a_stack_that_moves_keeps_its_calls() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), trace_flag::COUNT);
        world.agent.platform().is_fibre.set(true);
        let events = [
            (0, world.start(0), 10),
            (0, world.start(1), 20),
            (1, world.start(2), 30),
            (1, world.start(2) + RETURN, 30),
            (1, world.start(1) + RETURN, 20),
            (0, world.start(0) + RETURN, 10),
        ];
        for (stack, address, depth) in events {
            let (handled, _) = world.trap(address, stack, depth);
            assert_eq!(handled, Breakpoint::Handled);
        }
        let fetched = client.fetch(trace);
        for function in 0..3 {
            let (totals, histogram) = fetched.totals[&function];
            assert_eq!((totals.calls, totals.orphans), (1, 0), "{function}");
            assert_eq!(histogram.iter().sum::<u64>(), 1, "{function} has returned");
        }
    });
}

/// Calls deeper than the memory are not measured, and what is above them is.
#[test]
fn calls_that_are_too_deep_are_counted() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), trace_flag::COUNT);
        for depth in 1..=200 {
            world.enter(0, 2 * depth);
        }
        for depth in (1..=200).rev() {
            world.leave(0, 2 * depth);
        }
        let fetched = client.fetch(trace);
        let totals = fetched.of(0);
        assert_eq!(totals.calls, 128);
        assert_eq!(fetched.state.too_deep, 72);
        assert_eq!(totals.orphans, 72);
        let (_, histogram) = fetched.totals[&0];
        assert_eq!(histogram.iter().sum::<u64>(), 128, "each was closed by its return");
    });
}

/// A call that is open when its function's probes are removed has no end: its time is not counted.
#[test]
fn an_open_call_of_a_removed_function_has_no_duration() {
    with_world(|world| {
        let mut client = world.connect();
        let plan = world.plan();
        let ready = client.begin(&plan, trace_flag::COUNT, 1, 0);
        client.send_plan(ready.trace, &plan);
        client.arm(ready.trace);
        world.enter(0, 10);
        for _ in 0..256 {
            world.pass(1_000_000);
            // From some call on the probes are removed.
            for address in [world.start(0), world.start(0) + RETURN] {
                assert_eq!(world.trap(address, 0, 20).0, Breakpoint::Handled);
            }
        }
        let before = client.fetch(ready.trace);
        assert_eq!(before.of(0).flags, totals_flag::REMOVED);
        world.pass(10_000_000_000);
        world.enter(1, 5);
        world.leave(1, 5);
        let after = client.fetch(ready.trace);
        // The outermost, and the one that was entered by the breakpoint at which they were removed,
        // stay open.
        assert_eq!((after.of(0).unwound, after.of(0).replaced), (0, 0));
        let returned: u64 = after.totals[&0].1.iter().sum();
        assert_eq!(after.of(0).calls, returned + 2);
        assert_eq!(after.of(0).total_ns, before.of(0).total_ns);
        assert_eq!(after.of(0).self_ns, before.of(0).self_ns);
    });
}

/// The code is as before after a stop, when the client is gone, and after a crash; and a breakpoint
/// that comes late continues there.
#[test]
fn every_end_restores_the_code() {
    with_world(|world| {
        let before = world.code();
        let plan = world.plan();
        let address = world.start(0);
        let mut client = world.connect();
        let trace = client.trace(&plan, trace_flag::COUNT);
        assert_ne!(world.code(), before);
        assert_eq!(client.stop(trace).state, trace_state::STOPPED);
        assert_eq!(world.code(), before);
        let (handled, frame) = world.trap(address, 0, 10);
        assert_eq!((handled, frame.pc), (Breakpoint::Handled, address));
        assert_eq!(client.fetch(trace).state.stale, 1);
        // What is no probe, or another debugger's breakpoint, is not the agent's.
        assert_eq!(world.trap(address + 1, 0, 10).0, Breakpoint::NotOurs);
        assert!(world.agent.platform().write_code(address, &[0xcc]));
        let (handled, frame) = world.trap(address, 0, 10);
        assert_eq!((handled, frame.pc), (Breakpoint::NotOurs, address + 1));
        assert!(world.agent.platform().write_code(address, &before[..1]));

        // A client that is gone: its connection is not even closed.
        let trace = client.trace(&plan, trace_flag::COUNT);
        world.pass(29_000_000_000);
        world.service.borrow_mut().advance();
        assert_ne!(world.code(), before);
        world.pass(2_000_000_000);
        world.service.borrow_mut().advance();
        assert_eq!(world.code(), before);
        assert_eq!(client.fetch(trace).state.state, trace_state::ABANDONED);

        client.trace(&plan, trace_flag::COUNT);
        assert_ne!(world.code(), before);
        let mut at_dump = None;
        world.agent.crash_dump(&mut |_| {
            at_dump.get_or_insert(world.code());
        });
        assert_eq!(at_dump, Some(before), "before anything is written");
        // A client begins again.
        let trace = client.trace(&plan, trace_flag::COUNT);
        world.enter(0, 10);
        world.leave(0, 10);
        assert_eq!(client.fetch(trace).of(0).calls, 1);
        client.stop(trace);
        assert_eq!(world.code(), before);
    });
}

/// However many probes there are, a poll sets or removes 64 at most. Those that are set already
/// count nothing, and each end in the middle restores the code.
#[test]
fn probes_are_set_and_removed_in_steps() {
    with_functions(64, |world| {
        let before = world.code();
        let plan = world.plan();
        let is_restored = |world: &World<'_, '_>| world.code() == before;
        let until_amid = |world: &World<'_, '_>| {
            let set = || world.code().iter().filter(|byte| **byte == 0xcc).count();
            assert!([0, 192].contains(&set()));
            world.poll_until(|| (1..192).contains(&set()));
        };
        let begin_to_arm = |client: &mut Client<Wire<'_, '_>>| {
            let ready = client.begin(&plan, trace_flag::COUNT, 0, 0);
            client.send_plan(ready.trace, &plan);
            client.send(&TraceArm { trace: ready.trace });
            ready.trace
        };
        let call = |world: &World<'_, '_>, function| {
            world.enter(function, 10);
            world.leave(function, 10);
        };

        let mut client = world.connect();
        let trace = begin_to_arm(&mut client);
        until_amid(world);
        call(world, 0);
        let armed: TraceArmed = client.granted().decode().unwrap();
        assert_eq!((armed.probes, armed.refused), (192, 0));
        call(world, 0);
        client.send(&TraceStop { trace });
        until_amid(world);
        call(world, 63);
        let stopped: TraceState = client.granted().decode().unwrap();
        assert_eq!((stopped.probes, stopped.traps, stopped.stale), (0, 2, 2));
        assert!(is_restored(world));
        let fetched = client.fetch(trace);
        assert_eq!((fetched.of(0).calls, fetched.of(63).calls), (1, 0));

        // The client is gone in the middle.
        begin_to_arm(&mut client);
        until_amid(world);
        world.service.borrow_mut().close(world.sessions[0]);
        world.pass(31_000_000_000);
        world.poll_until(|| is_restored(world));

        // A crash in the middle, of a guest that goes on.
        let mut client = world.connect();
        let trace = begin_to_arm(&mut client);
        until_amid(world);
        world.agent.stop_tracing();
        for _ in 0..8 {
            assert!(is_restored(world));
            world.poll();
        }
        let armed: TraceArmed = client.granted().decode().unwrap();
        assert_eq!((armed.trace, armed.probes), (trace, 0));

        // On another vCPU, while a breakpoint is being written.
        begin_to_arm(&mut client);
        until_amid(world);
        let agent = NonNull::from(world.agent).cast();
        world.agent.platform().crashes.set(Some(agent));
        let armed: TraceArmed = client.granted().decode().unwrap();
        assert_eq!(armed.probes, 0);
        assert!(is_restored(world));
        let met = world.agent.platform().met_while_written.take();
        assert_eq!(met, Some((Breakpoint::Handled, true)));

        // The same while they are removed.
        let trace = client.trace(&plan, trace_flag::COUNT);
        client.send(&TraceStop { trace });
        until_amid(world);
        world.agent.stop_tracing();
        for _ in 0..8 {
            assert!(is_restored(world));
            world.poll();
        }
        let stopped: TraceState = client.granted().decode().unwrap();
        assert_eq!(stopped.state, trace_state::STOPPED);
        let trace = client.trace(&plan, trace_flag::COUNT);
        call(world, 63);
        assert_eq!(client.fetch(trace).of(63).calls, 1);
        client.stop(trace);
        assert!(is_restored(world));
    });
}

/// Breakpoints that are met while others are still being set belong to the cost, too.
#[test]
fn the_hottest_function_is_removed_while_probes_are_set() {
    with_functions(64, |world| {
        let before = world.code();
        let mut client = world.connect();
        let plan = world.plan();
        let ready = client.begin(&plan, trace_flag::COUNT, 5000, 0);
        client.send_plan(ready.trace, &plan);
        client.send(&TraceArm { trace: ready.trace });
        let is_set = |function: u64| world.code()[16 * function as usize] == 0xcc;
        world.poll_until(|| is_set(0));
        world.enter(1, 10);
        for _ in 0..200 {
            world.enter(0, 10);
        }
        world.pass(100_000_000);
        world.poll_until(|| !is_set(0));
        assert!(!is_set(63), "others are still to be set");
        let armed: TraceArmed = client.granted().decode().unwrap();
        assert_eq!((armed.probes, armed.refused), (189, 0));
        assert!(is_set(1) && !is_set(0));
        let fetched = client.fetch(ready.trace);
        assert_eq!(fetched.of(0).flags, totals_flag::REMOVED);
        assert_eq!((fetched.state.traps, fetched.state.stale), (0, 0));
        client.stop(ready.trace);
        assert_eq!(world.code(), before);
    });
}

/// A trace that does not fit in the memory says what does, and what to do.
#[test]
fn a_trace_that_does_not_fit_says_what_to_do() {
    with_world(|world| {
        let mut client = world.connect();
        client.send(&TraceBegin {
            functions: 1001,
            probes: 3000,
            flags: 0,
            max_cost_permille: 0,
            slow_ns: 0,
        });
        let answer = client.answer();
        let refused: Refusal<'_> = answer.decode().unwrap();
        assert_eq!(refused.code, refusal::BAD_TRACE);
        let end =
            "asked for 1001 and 3000: trace fewer functions, or give it more memory for traces";
        assert!(refused.text.ends_with(end), "{}", refused.text);
    });
}

/// Only the client that has begun a trace may add to it and keeps it going; others wait, but may
/// stop it.
#[test]
fn a_trace_belongs_to_its_client() {
    with_world(|world| {
        let plan = world.plan();
        let mut first = world.connect();
        let mut other = world.connect();
        let ready = first.begin(&plan, trace_flag::COUNT, 0, 0);
        first.send_plan(ready.trace, &plan);
        other.send(&TraceArm { trace: ready.trace });
        assert_eq!(other.answer().refusal(), Some(refusal::TRACING));
        first.arm(ready.trace);
        other.send(&TraceBegin {
            functions: 1,
            probes: 1,
            flags: 0,
            max_cost_permille: 0,
            slow_ns: 0,
        });
        let answer = other.answer();
        let refused: Refusal<'_> = answer.decode().unwrap();
        assert_eq!(refused.code, refusal::TRACING);
        assert!(refused.text.contains("tracing test"), "{}", refused.text);
        // Another one that looks does not keep it going.
        for _ in 0..16 {
            world.pass(2_000_000_000);
            other.fetch(ready.trace);
            world.service.borrow_mut().advance();
        }
        let fetched = other.fetch(ready.trace);
        assert_eq!(fetched.state.state, trace_state::ABANDONED);
        let trace = other.trace(&plan, trace_flag::COUNT);
        let mut third = world.connect();
        third.send(&TraceStop { trace });
        let stopped: TraceState = third.granted().decode().unwrap();
        assert_eq!((stopped.state, stopped.probes), (trace_state::STOPPED, 0));
        third.send(&TraceFetch { trace: trace + 1 });
        assert_eq!(third.answer().refusal(), Some(refusal::NO_TRACE));
    });
}

/// A plan that does not fit the guest's code changes nothing of what it does not fit.
#[test]
fn probes_that_do_not_fit_the_code_are_refused() {
    type Change = fn(&mut Planned);
    let changes: [(Change, u32); 7] = [
        (|one| one.probes[0].bytes = vec![0x55], trace_refusal::OTHER_BYTES),
        (|one| one.probes[0].bytes = vec![0x53, 0x90], trace_refusal::INSTRUCTION),
        (|one| one.probes[0].kind = probe_kind::EXIT, trace_refusal::INSTRUCTION),
        (
            |one| {
                one.probes[1].address += 1;
                one.probes[1].bytes.remove(0);
            },
            trace_refusal::INSTRUCTION,
        ),
        (|one| one.probes[1].displacement = 2, 0),
        (|one| one.probes.push(one.probes[0].clone()), trace_refusal::OVERLAP),
        (
            |one| {
                let mut inside = one.probes[0].clone();
                // The last byte of the conditional jump's displacement, and the return.
                inside.address += 13;
                inside.bytes = vec![0, 0];
                one.probes.push(inside);
            },
            trace_refusal::OVERLAP,
        ),
    ];
    for (number, (change, reason)) in changes.into_iter().enumerate() {
        with_world(|world| {
            let before = world.code();
            let mut plan = world.plan();
            change(&mut plan[1]);
            let mut client = world.connect();
            let ready = client.begin(&plan, trace_flag::COUNT, 0, 0);
            client.send_plan(ready.trace, &plan);
            let (_, refused) = client.arm(ready.trace);
            let own = 16..32;
            if reason == 0 {
                // A displacement of a jump says nothing that the agent does not know.
                assert_eq!(refused, [], "{number}");
            } else {
                assert_eq!(refused.len(), 1, "{number}");
                assert_eq!((refused[0].function, refused[0].reason), (1, reason), "{number}");
                assert_eq!(world.code()[own.clone()], before[own], "{number}");
            }
            assert_ne!(world.code()[..16], before[..16], "the others are traced");
            client.stop(ready.trace);
            assert_eq!(world.code(), before, "{number}");
        });
    }
}

/// A thread that was preempted in a slot of an earlier agent may still run there when the next
/// agent starts.
#[test]
fn a_new_agent_writes_to_no_slot() {
    with_world(|world| {
        let mut client = world.connect();
        let trace = client.trace(&world.plan(), trace_flag::COUNT);
        let (_, frame) = world.trap(world.start(0), 0, 10);
        let slot = frame.pc;
        client.stop(trace);
        with_world(|other| {
            let written = other.agent.platform().written.borrow();
            // What it tries to write lies behind all slots.
            assert_eq!(written.len(), 1);
            assert!(written[0] > slot, "{written:x?} {slot:x}");
        });
    });
}
