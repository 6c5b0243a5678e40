//! A client that lies about what it wants to trace, in a guest whose code is any bytes. Whatever it
//! says: only first bytes of instructions change, each breakpoint continues as the processor would
//! have, by another decoder, and in the end the code is as before.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use unikprof_agent::{
    Access, Agent, Breakpoint, Config, Mapping, Platform, Runstate, Service, TrapFrame, trace_bytes,
};
use unikprof_proto::code::{frame_code, trace_state};
use unikprof_proto::message::{
    Hello, TraceArm, TraceBegin, TraceFetch, TraceFunctions, TraceProbes, TraceReady, TraceState,
    TraceStop, TraceTotals,
};
use unikprof_proto::preamble;
use unikprof_proto::trace::{Encoder, Function, Probe, decode_totals, probe_kind};
use unikprof_test_kit::frames::encoded;

use crate::client::Talk;
use crate::fake;
use crate::input::Input;

const CODE: usize = 512;
const WORDS: usize = 256;
/// The longest instruction.
const LONGEST: usize = 15;
const BREAKPOINT: u8 = 0xcc;
/// The index of the stack pointer among the registers.
const RSP: usize = 4;

/// The guest's memory.
#[repr(C, align(64))]
struct Memory {
    code: [u8; CODE],
    stack: [u64; WORDS],
}

/// In the program, so that slots in its text reach it. Used in turns.
static mut MEMORY: Memory = Memory { code: [0; CODE], stack: [0; WORDS] };
static TURN: Mutex<()> = Mutex::new(());

fn memory() -> *mut Memory {
    &raw mut MEMORY
}

fn code_start() -> u64 {
    memory().expose_provenance() as u64
}

fn code() -> [u8; CODE] {
    // SAFETY: the memory is the turn's, and nobody writes meanwhile.
    unsafe { (*memory()).code }
}

fn stack() -> Range<u64> {
    let start = code_start() + CODE as u64;
    start..start + 8 * WORDS as u64
}

/// A readable word of the guest's memory.
fn word(address: u64) -> Option<u64> {
    let readable = code_start()..stack().end - 7;
    let place = std::ptr::with_exposed_provenance::<u64>(address as usize);
    // SAFETY: inside the memory.
    readable.contains(&address).then(|| unsafe { place.read_unaligned() })
}

#[derive(Default)]
struct Guest {
    now_ns: Cell<u64>,
    cycles: Cell<u64>,
    /// The bytes written outside of the guest's code: slots, by their addresses.
    slots: RefCell<HashMap<u64, Vec<u8>>>,
}

// SAFETY: the memory is static.
unsafe impl Platform for Guest {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }
    fn wall_clock_ns(&self) -> Option<u64> {
        None
    }
    fn vcpu(&self) -> Option<u32> {
        Some(0)
    }
    fn running_ns(&self, _: u32) -> u64 {
        self.now_ns.get()
    }
    fn runstate(&self, _: u32) -> Option<Runstate> {
        None
    }
    fn kick(&self, _: u32) {}
    fn stack_bounds(&self, sp: u64) -> Option<Range<u64>> {
        Some(stack()).filter(|bounds| bounds.contains(&sp))
    }
    fn random(&self) -> Option<u64> {
        None
    }
    fn cycles(&self) -> u64 {
        self.cycles.set(self.cycles.get() + 100);
        self.cycles.get()
    }
    fn write_code(&self, address: u64, bytes: &[u8]) -> bool {
        let offset = address.wrapping_sub(code_start());
        if offset < CODE as u64 {
            for (place, byte) in (offset as usize..CODE).zip(bytes) {
                // SAFETY: inside the code.
                unsafe { (*memory()).code[place] = *byte };
            }
        } else {
            let before = self.slots.borrow_mut().insert(address, bytes.to_owned());
            let is_own = bytes == [BREAKPOINT];
            assert!(before.is_none() || is_own, "a slot is written once");
        }
        true
    }
}

/// The breakpoint whose cost the agent measures.
extern "C" fn on_breakpoint(_: libc::c_int) {}

/// Interprets the bytes as code and as what happens; returns how many breakpoints were handled.
pub fn check(bytes: &[u8]) -> u64 {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the handler has the required type and does nothing.
    unsafe { libc::signal(libc::SIGTRAP, on_breakpoint as *const () as usize) };
    let mut input = Input::new(bytes);
    let length = usize::from(input.byte()) * 2;
    let given = input.bytes(length);
    let target = code_start() + 64;
    // SAFETY: the memory is this turn's.
    unsafe {
        (*memory()).code.fill(0x90);
        (&mut (*memory()).code)[..given.len()].copy_from_slice(given);
        (*memory()).stack.fill(target);
    }
    let mappings = [Mapping {
        start: code_start(),
        end: code_start() + CODE as u64,
        file_offset: 0,
        build_id: &[],
        path: "",
    }];
    let config = Config { vcpus: 1, mappings: &mappings, ..fake::config(1) };
    let mut own = vec![MaybeUninit::uninit(); 200 << 10];
    let mut block = vec![MaybeUninit::uninit(); trace_bytes(8, 2)];
    let agent = Agent::new(Guest::default(), config, &mut own).expect("there is room");
    let agent = agent.with_trace(&mut block, 2);
    let mut service = Service::new(&agent, Access::Open).expect("it is the first");
    service.set_cpu_share(1000);
    let mut world = World {
        before: code(),
        code_base: frame_code::FIRST_ADDRESS,
        agent: &agent,
        service,
        client: Talk::default(),
        session: None,
        trace: 0,
        sent: (0, 0),
        offered: BTreeSet::new(),
        handled: 0,
    };
    world.greet();
    while !input.is_empty() {
        world.act(&mut input);
        world.judge_code();
    }
    world.end();
    world.handled
}

struct World<'a, 'm> {
    before: [u8; CODE],
    code_base: u32,
    agent: &'a Agent<'m, Guest>,
    service: Service<'a, 'm, Guest>,
    client: Talk,
    session: Option<unikprof_agent::SessionId>,
    /// The last trace, and how many functions and probes of it were sent.
    trace: u64,
    sent: (u32, u32),
    /// The offsets at which a probe was ever offered.
    offered: BTreeSet<usize>,
    handled: u64,
}

impl World<'_, '_> {
    fn ask(&mut self, request: &[u8]) {
        // What cannot be decoded ends a session.
        let over = self.session.filter(|it| self.service.is_over(*it));
        if let Some(over) = over {
            self.service.close(over);
            self.session = None;
            self.greet();
        }
        let session = self.session.or_else(|| self.service.open());
        self.session = session;
        let session = session.expect("there is one client");
        self.client.ask(&mut self.service, session, request);
    }

    fn greet(&mut self) {
        let hello = Hello { client: "fuzz", client_id: 7 };
        let request = [&preamble::encode(preamble::OPEN)[..], &encoded(&hello)].concat();
        self.ask(&request);
    }

    /// One thing that happens.
    fn act(&mut self, input: &mut Input<'_>) {
        let trace = match input.byte() {
            0 => input.number(),
            _ => self.trace,
        };
        match input.below(16) {
            0 => self.begin(1 + input.below(10) as u32, 1 + input.below(80) as u32, input),
            1 => {
                let count = 1 + input.below(4) as u32;
                self.send_functions(trace, count, input);
            }
            2 => {
                let count = 1 + input.below(8) as u32;
                self.send_probes(trace, count, input);
            }
            3..=5 => {
                let (functions, probes) = (1 + input.below(6) as u32, 1 + input.below(12) as u32);
                self.begin(functions, probes, input);
                self.send_functions(self.trace, functions, input);
                while self.sent.1 < probes {
                    self.send_probes(self.trace, 8.min(probes - self.sent.1), input);
                }
                self.arm(self.trace, input);
            }
            6 => self.arm(trace, input),
            7 => {
                self.ask(&encoded(&TraceStop { trace }));
                if self.client.last::<TraceState>().is_some() {
                    assert_eq!(code(), self.before, "restored");
                }
            }
            8 => self.fetch(trace),
            9 => {
                self.agent.stop_tracing();
                assert_eq!(code(), self.before, "restored");
            }
            10 => {
                let ns = input.number() >> 28;
                self.agent.platform().now_ns.set(self.now_ns() + ns);
                self.service.advance();
            }
            _ => self.trap(input),
        }
    }

    fn now_ns(&self) -> u64 {
        self.agent.platform().now_ns.get()
    }

    fn begin(&mut self, functions: u32, probes: u32, input: &mut Input<'_>) {
        self.ask(&encoded(&TraceBegin {
            functions,
            probes,
            flags: u32::from(input.byte() & 1),
            max_cost_permille: u32::from(input.byte() / 128),
            slow_ns: u64::from(input.byte() / 128),
        }));
        if let Some(ready) = self.client.last::<TraceReady>() {
            self.trace = ready.trace;
            self.sent = (0, 0);
        }
    }

    /// Has the probes set, or leaves the agent in the middle of that.
    fn arm(&mut self, trace: u64, input: &mut Input<'_>) {
        let request = encoded(&TraceArm { trace });
        match self.session.filter(|_| input.byte() & 1 == 0) {
            Some(session) => {
                self.service.receive(session, &request);
                self.service.transmit(session, &mut []);
                self.service.advance();
            }
            None => self.ask(&request),
        }
    }

    fn send_functions(&mut self, trace: u64, count: u32, input: &mut Input<'_>) {
        let mut payload = [0; 900];
        let mut encoder = Encoder::new(&mut payload);
        for _ in 0..count {
            let parts: Vec<(u32, u32)> = (0..1 + input.below(3))
                .map(|_| {
                    let start = input.below(CODE) as u32;
                    (self.code_base + start, 1 + input.below(64) as u32)
                })
                .collect();
            encoder.function(&Function { flags: u32::from(input.byte() & 3), parts: &parts });
        }
        let length = encoder.finish();
        let first = lie(input, self.sent.0);
        self.ask(&encoded(&TraceFunctions {
            trace,
            first,
            count: lie(input, count),
            payload: &payload[..length],
        }));
        self.sent.0 += count;
    }

    fn send_probes(&mut self, trace: u64, count: u32, input: &mut Input<'_>) {
        let mut payload = [0; 900];
        let mut encoder = Encoder::new(&mut payload);
        for _ in 0..count {
            let at = match input.below(8) {
                0 => input.below(CODE),
                _ => self.boundary(input.below(CODE)),
            };
            let instruction = self.instruction(at);
            let may_leave = match instruction.flow_control() {
                FlowControl::Next | FlowControl::Call => 0,
                _ => probe_kind::EXIT,
            };
            let kind = input.byte() & probe_kind::ENTRY | may_leave;
            let length = lie(input, instruction.len() as u32) as usize;
            let length = length.clamp(1, LONGEST).min(CODE - at);
            let displacement = lie(input, self.displacement(at).into()) as u8;
            let mut bytes = self.before[at..at + length].to_owned();
            if input.byte() == 0 {
                bytes[0] ^= input.byte();
            }
            let code = lie(input, self.code_base + at as u32);
            self.offered.insert(code.wrapping_sub(self.code_base) as usize);
            encoder.probe(&Probe {
                function: input.below(self.sent.0.clamp(1, 8) as usize) as u32,
                kind: lie(input, kind.into()) as u8,
                code,
                displacement,
                instruction: &bytes,
            });
        }
        let length = encoder.finish();
        let first = lie(input, self.sent.1);
        self.ask(&encoded(&TraceProbes { trace, first, count, payload: &payload[..length] }));
        self.sent.1 += count;
    }

    fn fetch(&mut self, trace: u64) {
        self.ask(&encoded(&TraceFetch { trace }));
        for run in self.client.all::<TraceTotals<'_>>() {
            let decoded = decode_totals(run.count, run.payload, |totals, histogram| {
                let ended = totals.unwound + totals.replaced;
                let returned: u64 = histogram.iter().sum();
                assert!(totals.calls >= ended + returned, "{totals:?}");
                assert!(totals.self_ns <= totals.total_ns || totals.calls > 1);
            });
            decoded.expect("a run of totals");
        }
    }

    /// The first offset of the instruction that holds an offset, if all are decoded from the first
    /// one on.
    fn boundary(&self, within: usize) -> usize {
        let mut at = 0;
        loop {
            let next = at + self.instruction(at).len().max(1);
            if next > within {
                return at;
            }
            at = next;
        }
    }

    /// The instruction at an offset in the original code, by another decoder than the agent's.
    fn instruction(&self, at: usize) -> Instruction {
        decoded(&self.before[at..CODE.min(at + LONGEST)], code_start() + at as u64)
    }

    fn displacement(&self, at: usize) -> u8 {
        let bytes = &self.before[at..CODE.min(at + LONGEST)];
        let mut decoder =
            Decoder::with_ip(64, bytes, code_start() + at as u64, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if !instruction.is_ip_rel_memory_operand() {
            return 0;
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        offsets.displacement_offset() as u8
    }

    /// Only first bytes of whole instructions of the client's choice are changed, and none lies
    /// within another.
    fn judge_code(&self) {
        let mut free = 0;
        for (at, (now, before)) in code().into_iter().zip(self.before).enumerate() {
            if now == before {
                continue;
            }
            assert_eq!(now, BREAKPOINT, "at {at}");
            assert!(self.offered.contains(&at), "at {at}");
            assert!(at >= free, "inside another probe's instruction: {at}");
            let instruction = self.instruction(at);
            // One that the other decoder does not know faults in its slot as it would have at its
            // place.
            if !instruction.is_invalid() {
                free = at + instruction.len();
            }
        }
    }

    /// A breakpoint, at a probe or anywhere.
    fn trap(&mut self, input: &mut Input<'_>) {
        let now = code();
        let set: Vec<usize> = (0..CODE).filter(|at| now[*at] != self.before[*at]).collect();
        let at = match (input.below(4), &set[..]) {
            (0, _) | (_, []) => input.below(CODE),
            (_, set) => set[input.below(set.len())],
        };
        let address = code_start() + at as u64;
        let mut start = TrapFrame {
            pc: address + 1,
            flags: 0x202 | u64::from(input.short() & 0x8d5),
            ..TrapFrame::default()
        };
        for register in &mut start.registers {
            *register = stack().start + 8 * input.below(WORDS - 1) as u64;
        }
        let mut frame = start;
        if now[at] == self.before[at] {
            // It was removed, or is not the agent's.
            let handled = self.agent.on_breakpoint(&mut frame);
            if handled == Breakpoint::Handled {
                assert!(self.offered.contains(&at));
                start.pc = address;
            }
            assert_eq!(frame, start);
            return;
        }
        let instruction = self.instruction(at);
        let Some(expected) = self.expected(&instruction, &start) else {
            return;
        };
        assert_eq!(self.agent.on_breakpoint(&mut frame), Breakpoint::Handled);
        self.handled += 1;
        let (pc, sp) = match expected {
            Expected::At(pc, sp) => (pc, sp),
            Expected::InSlot => (self.judged_slot(frame.pc, &instruction), start.sp()),
        };
        let mut wanted = start;
        wanted.pc = pc;
        wanted.registers[RSP] = sp;
        assert_eq!(frame, wanted, "{instruction}");
    }

    /// The target of an instruction; `None` if it reads what is no memory, or the other decoder
    /// does not know it.
    fn expected(&self, instruction: &Instruction, start: &TrapFrame) -> Option<Expected> {
        if instruction.is_invalid() {
            return None;
        }
        let sp = start.sp();
        let target = instruction.near_branch_target();
        let register = |register: Register| {
            if register.is_segment_register() {
                return 0;
            }
            start.registers[register.full_register().number()]
        };
        Some(match instruction.flow_control() {
            FlowControl::Next | FlowControl::Call => Expected::InSlot,
            FlowControl::Return => {
                let pop = if instruction.op_count() == 1 {
                    u64::from(instruction.immediate16())
                } else {
                    0
                };
                Expected::At(word(sp)?, sp + 8 + pop)
            }
            FlowControl::UnconditionalBranch => Expected::At(target, sp),
            FlowControl::ConditionalBranch => {
                let is_taken = is_true(instruction.condition_code(), start.flags);
                let next = instruction.next_ip();
                Expected::At(if is_taken { target } else { next }, sp)
            }
            FlowControl::IndirectBranch if instruction.op0_kind() == OpKind::Register => {
                Expected::At(register(instruction.op0_register()), sp)
            }
            FlowControl::IndirectBranch => {
                let place = instruction.virtual_address(0, 0, |it, _, _| Some(register(it)));
                Expected::At(word(place?)?, sp)
            }
            other => panic!("a probe at {instruction}: {other:?}"),
        })
    }

    /// Asserts that a slot stands for an instruction; returns its address.
    fn judged_slot(&self, slot: u64, instruction: &Instruction) -> u64 {
        let slots = self.agent.platform().slots.borrow();
        let code = slots.get(&slot).expect("a slot");
        let first = decoded(code, slot);
        let jump = decoded(&code[first.len()..], first.next_ip());
        assert_eq!(jump.mnemonic(), Mnemonic::Jmp, "{instruction}: {jump}");
        let behind = match instruction.flow_control() {
            FlowControl::Call => {
                assert_eq!(first.mnemonic(), Mnemonic::Push, "{instruction}: {first}");
                let place = first.ip_rel_memory_address().wrapping_sub(slot) as usize;
                assert!(place >= first.len() + jump.len(), "behind the jump");
                let pushed = code[place..].first_chunk().expect("a word");
                assert_eq!(u64::from_le_bytes(*pushed), instruction.next_ip());
                instruction.near_branch_target()
            }
            _ => {
                // Their memory operands are compared by address.
                assert_eq!(&first, instruction);
                instruction.next_ip()
            }
        };
        assert_eq!(jump.near_branch_target(), behind, "{instruction}");
        let original = |offset| self.agent.original_pc(slot + offset);
        assert_eq!(original(0), instruction.ip());
        assert_eq!(original(first.len() as u64), behind);
        slot
    }

    /// An honest end: the code is as before, and the same client can trace again.
    fn end(&mut self) {
        self.ask(&encoded(&TraceStop { trace: self.trace }));
        assert_eq!(code(), self.before);
        let state = self.client.last::<TraceState>();
        assert!(
            self.trace == 0 || state.is_some_and(|state| state.state != trace_state::ARMED),
            "{state:?}"
        );
    }
}

enum Expected {
    /// At an address, with this stack pointer.
    At(u64, u64),
    InSlot,
}

fn decoded(bytes: &[u8], address: u64) -> Instruction {
    Decoder::with_ip(64, bytes, address, DecoderOptions::NONE).decode()
}

/// Mostly the truth.
fn lie(input: &mut Input<'_>, truth: u32) -> u32 {
    match input.byte() {
        0 => input.number() as u32,
        1 => truth.wrapping_add(1),
        _ => truth,
    }
}

/// Intel's manual, volume 1, appendix B.
fn is_true(condition: ConditionCode, flags: u64) -> bool {
    let flag = |bit: u32| flags & 1 << bit != 0;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    match condition {
        ConditionCode::None => panic!("a jump without a condition"),
        ConditionCode::o => overflow,
        ConditionCode::no => !overflow,
        ConditionCode::b => carry,
        ConditionCode::ae => !carry,
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::be => carry || zero,
        ConditionCode::a => !carry && !zero,
        ConditionCode::s => sign,
        ConditionCode::ns => !sign,
        ConditionCode::p => parity,
        ConditionCode::np => !parity,
        ConditionCode::l => sign != overflow,
        ConditionCode::ge => sign == overflow,
        ConditionCode::le => zero || sign != overflow,
        ConditionCode::g => !zero && sign == overflow,
    }
}
