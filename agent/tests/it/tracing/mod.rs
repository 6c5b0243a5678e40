//! A client that traces functions of its own process, and the plan of their probes.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    unsafe_code,
    reason = "each test that includes this uses a part of it"
)]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    BUCKETS, Hello, Mapping, Refusal, Ring, RingEnd, RingHead, RingRun, TraceArm, TraceArmed,
    TraceBegin, TraceCallers, TraceEnd, TraceFetch, TraceFunctions, TraceProbes, TraceReady,
    TraceRefused, TraceState, TraceStop, TraceTotals, Welcome,
};
use unikprof_proto::preamble;
use unikprof_proto::ring::{self, Record};
use unikprof_proto::trace::{
    Caller, Encoder, Function, FunctionTotals, MAX_FUNCTION_BYTES, MAX_PROBE_BYTES, Probe,
    decode_callers, decode_totals, probe_kind,
};
use unikprof_test_kit::frames::{Frame, encoded, read_once, take_frame};

/// The longest payload of functions or probes, so that the request stays below 1,024 bytes.
const PAYLOAD: usize = 900;

/// A function to trace, with its probes.
#[derive(Clone, Debug)]
pub struct Planned {
    pub flags: u32,
    pub start: u64,
    pub length: u32,
    pub probes: Vec<PlannedProbe>,
}

#[derive(Clone, Debug)]
pub struct PlannedProbe {
    pub kind: u8,
    pub address: u64,
    pub displacement: u8,
    pub bytes: Vec<u8>,
}

/// Plans the probes of the function of `length` bytes at `start`: its first instruction, and each
/// one that leaves it.
pub fn plan(start: u64, length: usize) -> Planned {
    let code = core::ptr::with_exposed_provenance::<u8>(start as usize);
    // SAFETY: a function of this process.
    let code = unsafe { std::slice::from_raw_parts(code, length) };
    plan_of(start, code)
}

/// The same for the bytes of a function.
pub fn plan_of(start: u64, code: &[u8]) -> Planned {
    let mut decoder = Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let inside = start..start + code.len() as u64;
    let mut probes = Vec::new();
    let mut has_entry = false;
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.code() == iced_x86::Code::Endbr64 {
            continue;
        }
        let leaves = match instruction.flow_control() {
            FlowControl::Return | FlowControl::IndirectBranch => true,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                !inside.contains(&instruction.near_branch_target())
            }
            _ => false,
        };
        let kind = if has_entry { 0 } else { probe_kind::ENTRY }
            | if leaves { probe_kind::EXIT } else { 0 };
        has_entry = true;
        if kind == 0 {
            continue;
        }
        let offsets = decoder.get_constant_offsets(&instruction);
        let is_relative = instruction.is_ip_rel_memory_operand();
        let offset = (instruction.ip() - start) as usize;
        probes.push(PlannedProbe {
            kind,
            address: instruction.ip(),
            displacement: if is_relative { offsets.displacement_offset() as u8 } else { 0 },
            bytes: code[offset..offset + instruction.len()].to_vec(),
        });
    }
    Planned { flags: 0, start, length: code.len() as u32, probes }
}

/// The number of functions in `many_functions.s`.
pub const MANY: usize = 250;

/// Plans the 1,000 probes of `many_functions.s`, whose code is `code`.
pub fn plan_of_many(start: u64, code: &[u8]) -> Vec<Planned> {
    let plan = |number: usize| {
        // Up to the third return: alignment follows.
        let bytes = &code[64 * number..];
        let mut returns = (0..64).filter(|at| bytes[*at] == 0xc3);
        plan_of(start + 64 * number as u64, &bytes[..=returns.nth(2).unwrap()])
    };
    let plan: Vec<Planned> = (0..MANY).map(plan).collect();
    let probes = plan.iter().map(|one| one.probes.len());
    assert_eq!(probes.sum::<usize>(), 4 * MANY);
    plan
}

/// The fetched parts of a trace.
#[derive(Debug)]
pub struct Fetched {
    pub state: TraceState,
    pub totals: HashMap<u32, (FunctionTotals, [u64; BUCKETS])>,
    pub callers: Vec<Caller>,
}

impl Fetched {
    /// The totals of a function; zeros if it was not called.
    pub fn of(&self, function: u32) -> FunctionTotals {
        self.totals.get(&function).map_or_else(FunctionTotals::default, |it| it.0)
    }
}

/// A client.
pub struct Client<S> {
    stream: S,
    input: Vec<u8>,
    mappings: Vec<(u64, u64, u32)>,
    pub welcome_capabilities: u64,
}

impl Client<TcpStream> {
    pub fn connect(address: SocketAddr, id: u64) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self::new(stream, id)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn new(mut stream: S, id: u64) -> Self {
        stream.write_all(&preamble::encode(preamble::OPEN)).unwrap();
        let mut bytes = [0; preamble::LENGTH];
        stream.read_exact(&mut bytes).unwrap();
        let mut client =
            Self { stream, input: Vec::new(), mappings: Vec::new(), welcome_capabilities: 0 };
        client.send(&Hello { client: "tracing test", client_id: id });
        let answer = client.answer();
        let welcome: Welcome<'_> = answer.decode().unwrap();
        client.welcome_capabilities = welcome.capabilities;
        for _ in 0..welcome.mappings {
            let answer = client.answer();
            let mapping: Mapping<'_> = answer.decode().unwrap();
            client.mappings.push((mapping.start, mapping.end, mapping.code_base));
        }
        client
    }

    pub fn send<'m>(&mut self, message: &impl Message<'m>) {
        self.stream.write_all(&encoded(message)).unwrap();
    }

    pub fn answer(&mut self) -> Frame {
        loop {
            if let Some(frame) = take_frame(&mut self.input).unwrap() {
                return frame;
            }
            let mut buffer = [0; 4096];
            let length = read_once(&mut self.stream, &mut buffer).unwrap();
            assert!(length > 0, "the agent has closed the connection");
            self.input.extend_from_slice(&buffer[..length]);
        }
    }

    /// The next answer, which is not a refusal.
    pub fn granted(&mut self) -> Frame {
        let answer = self.answer();
        if let Ok(refusal) = answer.decode::<Refusal<'_>>() {
            panic!("refused: {refusal:?}");
        }
        answer
    }

    /// The frame code of an address.
    pub fn code(&self, address: u64) -> u32 {
        let found = self.mappings.iter().find(|(start, end, _)| (*start..*end).contains(&address));
        let (start, _, base) = found.unwrap_or_else(|| panic!("{address:#x} is in no mapping"));
        base + (address - start) as u32
    }

    /// Begins a trace.
    pub fn begin(&mut self, plan: &[Planned], flags: u32, cost: u32, slow_ns: u64) -> TraceReady {
        self.send(&TraceBegin {
            functions: plan.len() as u32,
            probes: plan.iter().map(|one| one.probes.len() as u32).sum(),
            flags,
            max_cost_permille: cost,
            slow_ns,
        });
        self.granted().decode().unwrap()
    }

    /// Sends the functions and probes of a trace.
    pub fn send_plan(&mut self, trace: u64, plan: &[Planned]) {
        let mut first = 0;
        while (first as usize) < plan.len() {
            let mut payload = [0; PAYLOAD];
            let mut encoder = Encoder::new(&mut payload);
            let mut count = 0;
            for one in &plan[first as usize..] {
                if !encoder.has_room(MAX_FUNCTION_BYTES) {
                    break;
                }
                encoder.function(&Function {
                    flags: one.flags,
                    parts: &[(self.code(one.start), one.length)],
                });
                count += 1;
            }
            let length = encoder.finish();
            self.send(&TraceFunctions { trace, first, count, payload: &payload[..length] });
            first += count;
        }
        let probes: Vec<(u32, &PlannedProbe)> = (0..)
            .zip(plan)
            .flat_map(|(function, one)| one.probes.iter().map(move |probe| (function, probe)))
            .collect();
        let mut first = 0;
        while (first as usize) < probes.len() {
            let mut payload = [0; PAYLOAD];
            let mut encoder = Encoder::new(&mut payload);
            let mut count = 0;
            for (function, probe) in &probes[first as usize..] {
                if !encoder.has_room(MAX_PROBE_BYTES) {
                    break;
                }
                encoder.probe(&Probe {
                    function: *function,
                    kind: probe.kind,
                    code: self.code(probe.address),
                    displacement: probe.displacement,
                    instruction: &probe.bytes,
                });
                count += 1;
            }
            let length = encoder.finish();
            self.send(&TraceProbes { trace, first, count, payload: &payload[..length] });
            first += count;
        }
    }

    /// Sets the probes; returns the answer and the refusals.
    pub fn arm(&mut self, trace: u64) -> (TraceArmed, Vec<TraceRefused>) {
        self.send(&TraceArm { trace });
        let armed: TraceArmed = self.granted().decode().unwrap();
        let refused = (0..armed.refused).map(|_| self.granted().decode().unwrap());
        let refused = refused.collect();
        (armed, refused)
    }

    /// Begins a trace, sends its plan and sets its probes, none of which is refused. Returns its
    /// id.
    pub fn trace(&mut self, plan: &[Planned], flags: u32) -> u64 {
        let ready = self.begin(plan, flags, 0, 0);
        self.send_plan(ready.trace, plan);
        let (armed, refused) = self.arm(ready.trace);
        assert_eq!(refused, [], "{armed:?}");
        let probes: usize = plan.iter().map(|one| one.probes.len()).sum();
        assert_eq!(armed.probes as usize, probes);
        ready.trace
    }

    /// Ends a trace; what it counted can be fetched.
    pub fn stop(&mut self, trace: u64) -> TraceState {
        self.send(&TraceStop { trace });
        self.granted().decode().unwrap()
    }

    /// Fetches what a trace has counted.
    pub fn fetch(&mut self, trace: u64) -> Fetched {
        self.send(&TraceFetch { trace });
        let mut fetched = Fetched {
            state: self.granted().decode().unwrap(),
            totals: HashMap::new(),
            callers: Vec::new(),
        };
        loop {
            let answer = self.granted();
            if let Ok(totals) = answer.decode::<TraceTotals<'_>>() {
                decode_totals(totals.count, totals.payload, |totals, histogram| {
                    let before = fetched.totals.insert(totals.function, (totals, *histogram));
                    assert_eq!(before, None);
                })
                .unwrap();
            } else if let Ok(callers) = answer.decode::<TraceCallers<'_>>() {
                decode_callers(callers.count, callers.payload, |caller| {
                    fetched.callers.push(caller);
                })
                .unwrap();
            } else {
                let end: TraceEnd = answer.decode().unwrap();
                assert_eq!(end.functions as usize, fetched.totals.len());
                assert_eq!(end.callers as usize, fetched.callers.len());
                return fetched;
            }
        }
    }

    /// The records of a vCPU's ring.
    pub fn ring(&mut self, vcpu: u32) -> Vec<Record> {
        self.send(&Ring { vcpu, since_ns: 0, position: 0 });
        let mut records = Vec::new();
        let _: RingHead = self.granted().decode().unwrap();
        loop {
            let answer = self.granted();
            if let Ok(run) = answer.decode::<RingRun<'_>>() {
                ring::decode(run.base_ns, run.count, run.payload, |record| {
                    records.push(record);
                })
                .unwrap();
            } else {
                let _: RingEnd = answer.decode().unwrap();
                return records;
            }
        }
    }
}
