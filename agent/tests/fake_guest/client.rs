//! A client that is connected to a service without a network, and decodes what it receives.
#![allow(clippy::panic)]

use std::collections::HashMap;

use unikprof_agent::{Access, Service, SessionId};
use unikprof_proto::code::state;
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{
    Check, Counters, Counts, Epoch, Fetch, Hello, Nodes, RecordingStatus, Refusal, Start, Status,
    VcpuEnd, VcpuEpoch,
};
use unikprof_proto::{counts, nodes, preamble};
use unikprof_test_kit::frames as kit;
pub use unikprof_test_kit::frames::encoded as framed;

use super::{FakeAgent, FakePlatform, agent};

pub type FakeService = Service<'static, 'static, FakePlatform>;

/// A client that is connected to a service without a network.
pub struct Client {
    pub session: SessionId,
    pub received: Vec<u8>,
}

impl Client {
    /// Connects and exchanges preambles.
    pub fn connect(service: &mut FakeService) -> Self {
        let mut client = Self {
            session: service.open().unwrap(),
            received: Vec::new(),
        };
        client.send_bytes(service, &preamble::encode(preamble::OPEN));
        let said = preamble::decode(client.received.first_chunk().unwrap());
        assert_eq!(said, Ok(preamble::OPEN));
        client.received.drain(..preamble::LENGTH);
        client
    }

    /// Connects and sends a hello with this id, so that the client can take leases.
    pub fn connect_as(service: &mut FakeService, client: &str, client_id: u64) -> Self {
        let mut connection = Self::connect(service);
        connection.ask(service, &Hello { client, client_id });
        connection
    }

    /// Sends bytes and receives the answers, until nothing moves.
    pub fn send_bytes(&mut self, service: &mut FakeService, mut bytes: &[u8]) {
        loop {
            let taken = service.receive(self.session, bytes);
            bytes = &bytes[taken..];
            let got = self.take(service, 100_000);
            if taken + got == 0 {
                assert!(bytes.is_empty(), "{} bytes are not taken", bytes.len());
                return;
            }
        }
    }

    /// Receives at most `limit` bytes in small pieces; returns how many.
    pub fn take(&mut self, service: &mut FakeService, limit: usize) -> usize {
        let mut got = 0;
        while got < limit {
            let mut buffer = [0; 777];
            let room = buffer.len().min(limit - got);
            let length = service.transmit(self.session, &mut buffer[..room]);
            if length == 0 {
                break;
            }
            self.received.extend_from_slice(&buffer[..length]);
            got += length;
        }
        got
    }

    pub fn send<'a, M: Message<'a>>(&mut self, service: &mut FakeService, message: &M) {
        self.send_bytes(service, &framed(message));
    }

    /// All frames received so far.
    pub fn frames(&mut self) -> Vec<(u16, Vec<u8>)> {
        frames(&std::mem::take(&mut self.received))
    }

    /// Sends a request and returns the frames that come back.
    pub fn ask<'a, M: Message<'a>>(
        &mut self,
        service: &mut FakeService,
        message: &M,
    ) -> Vec<(u16, Vec<u8>)> {
        self.send(service, message);
        self.frames()
    }

    pub fn start(&mut self, service: &mut FakeService, start: Start<'_>) -> Vec<(u16, Vec<u8>)> {
        self.ask(service, &start)
    }

    pub fn status(&mut self, service: &mut FakeService) -> (u32, Counters, u32) {
        let frames = self.ask(service, &Check {});
        let status: Status = read(&frames[0]);
        assert_eq!(frames.len(), 1 + status.recordings as usize);
        let Some(recording) = frames.get(1) else {
            return (state::IDLE, Counters::default(), 0);
        };
        let recording: RecordingStatus<'_> = read(recording);
        (recording.state, recording.counters, recording.epochs)
    }
}

/// Splits `bytes` into frames.
pub fn frames(bytes: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let frames = kit::frames(bytes).into_iter();
    frames.map(|frame| (frame.kind, frame.body)).collect()
}

pub fn read<'a, M: Message<'a>>(frame: &'a (u16, Vec<u8>)) -> M {
    frame::decode(&frame::Frame {
        kind: frame.0,
        body: &frame.1,
    })
    .unwrap_or_else(|error| panic!("{error}: {frame:?}"))
}

pub fn refusal_code(frames: &[(u16, Vec<u8>)]) -> (u32, String) {
    assert_eq!(frames.len(), 1);
    let refusal: Refusal<'_> = read(&frames[0]);
    (refusal.code, refusal.text.to_owned())
}

pub const fn one_ms() -> Start<'static> {
    Start::running_time("test", 1_000_000)
}

pub fn service(vcpus: u32) -> (&'static FakeAgent, FakeService) {
    let agent = agent(vcpus, 1 << 18);
    (agent, Service::new(agent, Access::Open).unwrap())
}

/// Requests all of an epoch for the first vCPU.
pub const fn whole(epoch: u64) -> Fetch {
    Fetch {
        epoch,
        vcpu: 0,
        known: 0,
        counted: 0,
    }
}

/// Stacks of one vCPU by number, as a client keeps them: leaf first, offsets into the code.
pub type Known = HashMap<u64, Vec<u32>>;

/// One vCPU's part of an epoch as a client sees it: counts by stack, and counters.
#[derive(Debug, PartialEq)]
pub struct Download {
    pub stacks: HashMap<Vec<u32>, u64>,
    pub counters: Counters,
    pub samples: u64,
    pub running_ns: u64,
    /// The difference of the vCPU's clocks over the epoch: the monotonic clock and the blocked
    /// time.
    pub passed_ns: u64,
    pub blocked_ns: u64,
}

/// Reads the answer to a client that has no nodes.
pub fn download(frames: &[(u16, Vec<u8>)]) -> Download {
    download_to(&mut Known::new(), frames)
}

/// Reads the answer to a client that has these nodes, and adds to them.
pub fn download_to(known: &mut Known, frames: &[(u16, Vec<u8>)]) -> Download {
    let mut stacks: HashMap<Vec<u32>, u64> = HashMap::new();
    let _: Epoch<'_> = read(&frames[0]);
    let vcpu: VcpuEpoch = read(&frames[1]);
    for frame in &frames[2..frames.len() - 1] {
        match frame.0 {
            Nodes::TYPE => add_nodes(known, &read(frame)),
            Counts::TYPE => {
                for (number, count) in counts_of(&read(frame)) {
                    *stacks.entry(known[&number].clone()).or_default() += count;
                }
            }
            _ => {}
        }
    }
    let end: VcpuEnd = read(frames.last().unwrap());
    let newest = known.keys().max().copied().unwrap_or(0);
    assert_eq!((end.vcpu, end.known), (vcpu.vcpu, newest));
    Download {
        stacks,
        counters: vcpu
            .end
            .counters
            .zip(&vcpu.start.counters, |end, start| end - start),
        samples: end.samples,
        running_ns: vcpu.end.running_ns - vcpu.start.running_ns,
        passed_ns: vcpu.end.at_ns - vcpu.start.at_ns,
        blocked_ns: vcpu.end.blocked_ns - vcpu.start.blocked_ns,
    }
}

pub fn add_nodes(known: &mut Known, run: &Nodes<'_>) {
    nodes::decode(run.first, run.count, run.payload, |number, node| {
        let own = node.frames.iter().map(|code| code.saturating_sub(16));
        let callers = match node.parent {
            0 => &[][..],
            parent => &known[&parent],
        };
        let stack = own.chain(callers.iter().copied()).collect();
        let before = known.insert(number, stack);
        assert_eq!(before, None, "the client has the node {number} already");
    })
    .unwrap();
}

/// The counts of a run by number.
pub fn counts_of(run: &Counts<'_>) -> Vec<(u64, u64)> {
    let mut pairs = Vec::new();
    counts::decode(run.after, run.count, run.payload, |number, count| {
        pairs.push((number, count));
    })
    .unwrap();
    pairs
}
