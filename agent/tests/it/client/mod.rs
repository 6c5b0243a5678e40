//! Clients that are connected to a service without a network, and decode what they receive.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use unikprof_agent::{Access, Agent, MAX_REQUEST, Platform, Service, SessionId};
use unikprof_proto::code::{frame_code, state};
use unikprof_proto::frame::{HEADER, Message};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Counters, Counts, Dump, Epoch, EventName, EventNames,
    EventNamesEnd, Fetch, Hello, Histogram, LiveSamples, Nodes, Pending, RecordingStatus, Refusal,
    Ring, RingEnd, RingHead, RingRun, Snapshot, Stacks, StacksEnd, Start, Started, Status, Stop,
    TableRows, VcpuEnd, VcpuEpoch,
};
use unikprof_proto::ring::{self, Record, kind};
use unikprof_proto::{counts, live, nodes, preamble};
pub use unikprof_test_kit::frames::{Frame, encoded, frames};

/// A service that the clients of a test share.
pub type Shared<'a, 'm, P> = Rc<RefCell<Service<'a, 'm, P>>>;

/// An agent's service without keys.
pub fn serve<'a, 'm, P: Platform>(agent: &'a Agent<'m, P>) -> Shared<'a, 'm, P> {
    Rc::new(RefCell::new(Service::new(agent, Access::Open).unwrap()))
}

/// A client that is connected to a service without a network.
pub struct Client<'a, 'm, P: Platform> {
    service: Shared<'a, 'm, P>,
    pub session: SessionId,
    pub received: Vec<u8>,
}

impl<'a, 'm, P: Platform> Client<'a, 'm, P> {
    /// Connects and exchanges preambles.
    pub fn connect(service: &Shared<'a, 'm, P>) -> Self {
        let mut client = Self::silent(service);
        client.send_bytes(&preamble::encode(preamble::OPEN));
        let said = preamble::decode(client.received.first_chunk().unwrap());
        assert_eq!(said, Ok(preamble::OPEN));
        client.received.drain(..preamble::LENGTH);
        client
    }

    /// Connects and sends nothing.
    pub fn silent(service: &Shared<'a, 'm, P>) -> Self {
        Self {
            service: Rc::clone(service),
            session: service.borrow_mut().open().unwrap(),
            received: Vec::new(),
        }
    }

    /// Connects and sends a hello with this id, so that the client can take leases.
    pub fn connect_as(service: &Shared<'a, 'm, P>, client: &str, client_id: u64) -> Self {
        let mut connection = Self::connect(service);
        connection.ask(&Hello { client, client_id });
        connection
    }

    /// Another connection to the same service.
    pub fn another(&self) -> Self {
        Self::connect(&self.service)
    }

    pub fn close(self) {
        self.service.borrow_mut().close(self.session);
    }

    pub fn is_over(&self) -> bool {
        self.service.borrow().is_over(self.session)
    }

    /// Like a guest's loop.
    pub fn advance(&self) -> Option<u64> {
        self.service.borrow_mut().advance()
    }

    /// Sends bytes and receives the answers, until nothing moves.
    pub fn send_bytes(&mut self, mut bytes: &[u8]) {
        loop {
            let taken = self.service.borrow_mut().receive(self.session, bytes);
            bytes = &bytes[taken..];
            let got = self.take(100_000);
            if taken + got == 0 {
                assert!(bytes.is_empty(), "{} bytes are not taken", bytes.len());
                return;
            }
        }
    }

    /// Receives at most `limit` bytes in small pieces; returns how many.
    pub fn take(&mut self, limit: usize) -> usize {
        let mut got = 0;
        while got < limit {
            let mut buffer = [0; 777];
            let room = buffer.len().min(limit - got);
            let mut service = self.service.borrow_mut();
            let length = service.transmit(self.session, &mut buffer[..room]);
            if length == 0 {
                break;
            }
            self.received.extend_from_slice(&buffer[..length]);
            got += length;
        }
        got
    }

    pub fn send<'r>(&mut self, request: &impl Message<'r>) {
        self.send_bytes(&encoded(request));
    }

    /// Sends a request and receives nothing yet.
    pub fn send_only<'r>(&mut self, request: &impl Message<'r>) {
        let bytes = encoded(request);
        let taken = self.service.borrow_mut().receive(self.session, &bytes);
        assert_eq!(taken, bytes.len());
    }

    /// All frames received so far.
    pub fn frames(&mut self) -> Vec<Frame> {
        frames(&std::mem::take(&mut self.received))
    }

    /// Sends a request and returns the frames that come back.
    pub fn ask<'r>(&mut self, request: &impl Message<'r>) -> Vec<Frame> {
        self.send(request);
        self.frames()
    }

    /// The same for a request that takes several polls, such as one that clears counts.
    pub fn ask_patiently<'r>(&mut self, request: &impl Message<'r>) -> Vec<Frame> {
        self.send(request);
        for _ in 0..10_000 {
            if !self.received.is_empty() {
                return self.frames();
            }
            assert!(self.advance().is_some(), "the agent forgot the request");
            self.take(100_000);
        }
        panic!("no answer in 10,000 polls");
    }

    /// Sends a request and returns the first frame that comes back.
    pub fn answer<'r, M: for<'f> Message<'f>>(&mut self, request: &impl Message<'r>) -> M {
        read(&self.ask_patiently(request)[0])
    }

    /// Sends a request that is refused; returns why.
    pub fn refusal<'r>(&mut self, request: &impl Message<'r>) -> (u32, String) {
        refusal_code(&self.ask(request))
    }

    /// Starts a recording; returns its id.
    pub fn start(&mut self, start: Start<'_>) -> u64 {
        self.answer::<Started>(&start).recording
    }

    /// Ends a recording, or the only one if this is 0; returns what waits.
    pub fn stop(&mut self, recording: u64) -> Pending {
        self.answer(&Stop { recording })
    }

    /// Ends the epoch of a recording, or of the only one if this is 0; returns what waits.
    pub fn dump(&mut self, recording: u64) -> Pending {
        self.answer(&Dump { recording })
    }

    /// Ends the epoch of the only recording, of which no other one waits; returns the epoch.
    pub fn end_epoch(&mut self) -> u64 {
        let pending = self.dump(0);
        assert_eq!((pending.epochs, pending.complete), (1, true));
        pending.first_epoch
    }

    /// Ends a recording, or the only one if this is 0; fetches and acknowledges what waits of the
    /// first vCPU.
    pub fn collect_stop(&mut self, recording: u64) -> Download {
        let epoch = self.stop(recording).first_epoch;
        self.collect(epoch)
    }

    /// The same for the epoch of a recording that goes on.
    pub fn collect_dump(&mut self, recording: u64) -> Download {
        let epoch = self.dump(recording).first_epoch;
        self.collect(epoch)
    }

    fn collect(&mut self, epoch: u64) -> Download {
        let got = self.fetch(epoch);
        self.acknowledge(epoch);
        got
    }

    /// Ends the only recording, and drops what it has counted.
    pub fn discard(&mut self) {
        let epoch = self.stop(0).first_epoch;
        self.acknowledge(epoch);
        self.advance();
    }

    /// Fetches all of an epoch for the first vCPU; every sample is counted under a stack.
    pub fn fetch(&mut self, epoch: u64) -> Download {
        download_whole(&self.ask(&whole(epoch)))
    }

    pub fn acknowledge(&mut self, epoch: u64) {
        let answer: Acknowledged = self.answer(&Acknowledge { epoch });
        assert_eq!(answer.epoch, epoch);
    }

    pub fn status(&mut self) -> (u32, Counters, u32) {
        let frames = self.ask(&Check {});
        let status: Status = read(&frames[0]);
        assert_eq!(frames.len(), 1 + status.recordings as usize);
        let Some(recording) = frames.get(1) else {
            return (state::IDLE, Counters::default(), 0);
        };
        let recording: RecordingStatus<'_> = read(recording);
        (recording.state, recording.counters, recording.epochs)
    }

    /// A ring's records with their positions.
    pub fn ring(&mut self, request: &Ring) -> (RingHead, Vec<(u64, Record)>, RingEnd) {
        let answers = self.ask(request);
        let [head, runs @ .., end] = &answers[..] else {
            panic!("a head and an end");
        };
        let runs = runs.iter().flat_map(|run| records(&read(run)));
        (read(head), runs.collect(), read(end))
    }

    /// The names of the guest's events, and the number of those that were refused.
    pub fn event_names(&mut self) -> (Vec<String>, u64) {
        let answers = self.ask(&EventNames { first: 0 });
        let (end, names) = answers.split_last().unwrap();
        let name = |(id, frame)| {
            let EventName { id: sent, name } = read(frame);
            assert_eq!(sent as usize, id);
            name.to_owned()
        };
        let names = names.iter().enumerate().map(name).collect();
        (names, read::<EventNamesEnd>(end).refused)
    }

    /// The nodes that a client does not have.
    pub fn stacks(&mut self, request: &Stacks) -> Vec<NumberedNode> {
        let answers = self.ask(request);
        read::<StacksEnd>(answers.last().unwrap());
        nodes_of(&answers)
    }
}

pub fn read<'a, M: Message<'a>>(frame: &'a Frame) -> M {
    let message = frame.decode();
    message.unwrap_or_else(|error| panic!("{error}: {frame:?} {:?}", frame.decode::<Refusal<'_>>()))
}

pub fn refusal_code(frames: &[Frame]) -> (u32, String) {
    assert_eq!(frames.len(), 1);
    let refusal: Refusal<'_> = read(&frames[0]);
    (refusal.code, refusal.text.to_owned())
}

pub const fn one_ms() -> Start<'static> {
    Start::running_time("test", 1_000_000)
}

/// A hello of a client that takes no leases.
pub const HELLO: Hello<'static> = Hello { client: "test", client_id: 0 };

/// Requests all of the first vCPU's ring.
pub const RING: Ring = Ring { vcpu: 0, position: 0, since_ns: 0 };

/// A request as long as possible that has no answer: rows of no upload.
pub fn longest_request() -> Vec<u8> {
    let rows = encoded(&TableRows { upload: 7, first: 0, count: 1, payload: &[0; 1_019] });
    assert_eq!(rows.len(), HEADER + MAX_REQUEST);
    rows
}

/// Requests all of an epoch for the first vCPU.
pub const fn whole(epoch: u64) -> Fetch {
    Fetch { epoch, vcpu: 0, known: 0, counted: 0 }
}

/// The records of a run with their positions, without those that the ring uses internally.
pub fn records(run: &RingRun<'_>) -> Vec<(u64, Record)> {
    let (mut records, mut position) = (Vec::new(), run.first);
    ring::decode(run.base_ns, run.count, run.payload, |record| {
        if record.kind != kind::NOTHING {
            records.push((position, record));
        }
        position += 1;
    })
    .unwrap();
    records
}

/// Kind, time and numbers of each record.
pub fn fields(records: &[(u64, Record)]) -> Vec<(u8, u64, u64, u64)> {
    let fields =
        |(_, record): &(u64, Record)| (record.kind, record.at_ns, record.first, record.second);
    records.iter().map(fields).collect()
}

/// A node's number, then its parent's number and its frames.
pub type NumberedNode = (u64, (u64, Vec<u32>));

pub fn nodes_of(answers: &[Frame]) -> Vec<NumberedNode> {
    let mut all = Vec::new();
    for answer in answers.iter().filter(|one| one.kind == Nodes::TYPE) {
        let run: Nodes<'_> = read(answer);
        nodes::decode(run.first, run.count, run.payload, |number, node| {
            all.push((number, (node.parent, node.frames.to_vec())));
        })
        .unwrap();
    }
    all
}

/// Stacks of one vCPU by number, as a client keeps them: leaf first, as offsets into the code.
pub type Known = HashMap<u64, Vec<u32>>;

/// [`Known`]'s form of a frame whose code is not an address.
pub const fn special(code: u32) -> u32 {
    !code
}

/// A frame as [`Known`] has it.
pub fn frame_of(code: &u32) -> u32 {
    match code.checked_sub(frame_code::FIRST_ADDRESS) {
        Some(offset) => offset,
        None => special(*code),
    }
}

/// One vCPU's part of an epoch as a client sees it: counts by stack, and counters.
#[derive(Debug, PartialEq)]
pub struct Download {
    pub stacks: HashMap<Vec<u32>, u64>,
    /// The counters in this epoch.
    pub counters: Counters,
    pub samples: u64,
    /// Allocations that are still held: stack, size and birth.
    pub live: Vec<(Vec<u32>, u64, u64)>,
    pub running_ns: u64,
    /// The length of the epoch by its head.
    pub epoch_ns: u64,
    /// The difference of the vCPU's clocks over the epoch: the monotonic clock and the blocked
    /// time.
    pub passed_ns: u64,
    pub blocked_ns: u64,
    pub end: Snapshot,
}

/// Reads the answer to a request for all of an epoch.
pub fn download_whole(frames: &[Frame]) -> Download {
    let got = download(frames);
    assert!(got.counters.add_up(), "{:?}", got.counters);
    let counted: u64 = got.stacks.values().sum();
    let held = got.live.len() as u64;
    assert_eq!(counted + held, got.samples, "what the head promises");
    if counted != 0 {
        assert_eq!(counted, got.counters.recorded + got.counters.blocked);
    }
    got
}

/// Receives all of an epoch, frame by frame.
pub fn receive_whole<E>(mut next: impl FnMut() -> Result<Frame, E>) -> Result<Download, E> {
    let mut frames = Vec::new();
    loop {
        let frame = next()?;
        let is_last = frame.kind == VcpuEnd::TYPE;
        frames.push(frame);
        if is_last {
            return Ok(download_whole(&frames));
        }
    }
}

/// Reads the answer to a client that has no nodes.
pub fn download(frames: &[Frame]) -> Download {
    download_to(&mut Known::new(), frames)
}

/// Reads the answer to a client that has these nodes, and adds to them.
pub fn download_to(known: &mut Known, frames: &[Frame]) -> Download {
    let mut stacks: HashMap<Vec<u32>, u64> = HashMap::new();
    let mut live = Vec::new();
    let [head, vcpu, runs @ .., end] = frames else {
        panic!("a head and an end: {frames:?}");
    };
    let head: Epoch<'_> = read(head);
    let vcpu: VcpuEpoch = read(vcpu);
    for frame in runs {
        match frame.kind {
            Nodes::TYPE => add_nodes(known, &read(frame)),
            Counts::TYPE => {
                for (number, count) in counts_of(&read(frame)) {
                    *stacks.entry(known[&number].clone()).or_default() += count;
                }
            }
            Histogram::TYPE => {}
            LiveSamples::TYPE => {
                let run: LiveSamples<'_> = read(frame);
                live::decode(run.base_ns, run.count, run.payload, |sample| {
                    live.push((known[&sample.node].clone(), sample.size, sample.born_ns));
                })
                .unwrap();
            }
            other => panic!("message {other} in an epoch"),
        }
    }
    let end: VcpuEnd = read(end);
    assert_eq!((end.vcpu, end.known), (vcpu.vcpu, newest(known)));
    Download {
        stacks,
        counters: vcpu.end.counters.zip(&vcpu.start.counters, |end, start| end - start),
        samples: end.samples,
        live,
        running_ns: vcpu.end.running_ns - vcpu.start.running_ns,
        epoch_ns: head.ended_ns - head.started_ns,
        passed_ns: vcpu.end.at_ns - vcpu.start.at_ns,
        blocked_ns: vcpu.end.blocked_ns - vcpu.start.blocked_ns,
        end: vcpu.end,
    }
}

/// The number of the newest node; 0 if there is none.
pub fn newest(known: &Known) -> u64 {
    known.keys().max().copied().unwrap_or(0)
}

pub fn add_nodes(known: &mut Known, run: &Nodes<'_>) {
    nodes::decode(run.first, run.count, run.payload, |number, node| {
        let callers = match node.parent {
            0 => &[][..],
            parent => &known[&parent],
        };
        let own = node.frames.iter().map(frame_of);
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
