//! A client that requests rings.
#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

use unikprof_agent::{Access, Agent, Platform, Service, SessionId};
use unikprof_proto::code::{message_type, mode};
use unikprof_proto::frame::Message;
use unikprof_proto::message::{
    Acknowledge, Acknowledged, EventName, EventNames, EventNamesEnd, Nodes, Pending, Refusal, Ring,
    RingEnd, RingHead, RingRun, Stacks, Start, Started, Stop,
};
use unikprof_proto::ring::{Record, decode, kind};
use unikprof_proto::{nodes, preamble};
use unikprof_test_kit::frames::{self as kit, encoded};

/// A recording of running time, each millisecond.
pub(crate) const RUNNING_TIME: Start<'static> = Start::running_time("test", 1_000_000);

/// A frame from the agent.
pub(crate) struct Answer {
    pub(crate) kind: u16,
    frame: kit::Frame,
}

impl Answer {
    /// The length of its body in bytes.
    pub(crate) fn length(&self) -> usize {
        self.frame.body.len()
    }

    pub(crate) fn decode<'a, M: Message<'a>>(&'a self) -> M {
        self.frame.decode().unwrap()
    }
}

/// Splits bytes into frames.
pub(crate) fn frames(bytes: &[u8]) -> Vec<Answer> {
    let answer = |frame: kit::Frame| Answer {
        kind: frame.kind,
        frame,
    };
    kit::frames(bytes).into_iter().map(answer).collect()
}

/// The records of a run with their positions, without those that the ring uses internally.
pub(crate) fn records(run: &RingRun<'_>) -> Vec<(u64, Record)> {
    let mut records = Vec::new();
    let mut position = run.first;
    decode(run.base_ns, run.count, run.payload, |record| {
        if record.kind != kind::NOTHING {
            records.push((position, record));
        }
        position += 1;
    })
    .unwrap();
    records
}

/// Kind, time and numbers of each record.
pub(crate) fn fields(records: &[(u64, Record)]) -> Vec<(u8, u64, u64, u64)> {
    let fields =
        |(_, record): &(u64, Record)| (record.kind, record.at_ns, record.first, record.second);
    records.iter().map(fields).collect()
}

/// A node's number, then its parent's number and its frames.
pub(crate) type NumberedNode = (u64, (u64, Vec<u32>));

pub(crate) fn nodes_of(answers: &[Answer]) -> Vec<NumberedNode> {
    let mut all = Vec::new();
    for answer in answers.iter().filter(|one| one.kind == Nodes::TYPE) {
        let run: Nodes<'_> = answer.decode();
        nodes::decode(run.first, run.count, run.payload, |number, node| {
            all.push((number, (node.parent, node.frames.to_vec())));
        })
        .unwrap();
    }
    all
}

pub(crate) struct Client<'a, 'm, P: Platform> {
    service: Service<'a, 'm, P>,
    session: SessionId,
}

impl<'a, 'm, P: Platform> Client<'a, 'm, P> {
    pub(crate) fn connect(agent: &'a Agent<'m, P>) -> Self {
        let mut service = Service::new(agent, Access::Open).unwrap();
        let session = service.open().unwrap();
        let mut client = Self { service, session };
        client.send(&preamble::encode(preamble::OPEN));
        assert_eq!(client.take().len(), preamble::LENGTH);
        client
    }

    /// Sends a request; returns the frames up to the one of this type, or to a refusal.
    pub(crate) fn ask<'r>(&mut self, request: &impl Message<'r>, last: u16) -> Vec<Answer> {
        self.send(&encoded(request));
        let answers = frames(&self.take());
        let end = answers.last().unwrap().kind;
        assert!(end == last || end == Refusal::TYPE, "{end:#x}");
        answers
    }

    /// Opens another conversation with the same agent and switches to it; returns the previous one.
    pub(crate) fn open_another(&mut self) -> SessionId {
        let session = self.service.open().unwrap();
        let before = self.switch_to(session);
        self.send(&preamble::encode(preamble::OPEN));
        assert_eq!(self.take().len(), preamble::LENGTH);
        before
    }

    /// Switches to another conversation; returns the previous one.
    pub(crate) fn switch_to(&mut self, session: SessionId) -> SessionId {
        std::mem::replace(&mut self.session, session)
    }

    /// Sends a request; returns the first bytes received, a part of the first frame.
    pub(crate) fn begin_to_ask<'r>(&mut self, request: &impl Message<'r>) -> Vec<u8> {
        self.send(&encoded(request));
        let mut first = [0; 8];
        let length = self.service.transmit(self.session, &mut first);
        first[..length].to_vec()
    }

    /// Returns all frames of an answer whose first bytes were received before.
    pub(crate) fn end_asking(&mut self, mut first: Vec<u8>) -> Vec<Answer> {
        first.extend(self.take());
        frames(&first)
    }

    /// Starts a recording of running time; returns its id.
    pub(crate) fn start(&mut self, period_ns: u64) -> u64 {
        self.start_mode(period_ns, mode::CPU)
    }

    pub(crate) fn start_mode(&mut self, period_ns: u64, mode: u32) -> u64 {
        self.start_as(Start {
            period_ns,
            mode,
            ..RUNNING_TIME
        })
    }

    /// Starts a recording with this request; returns its id.
    pub(crate) fn start_as(&mut self, start: Start<'_>) -> u64 {
        let answers = self.ask(&start, Started::TYPE);
        answers[0].decode::<Started>().recording
    }

    /// Ends the recording and acknowledges it.
    pub(crate) fn stop(&mut self) {
        let epoch = self.end(0);
        self.ask(&Acknowledge { epoch }, Acknowledged::TYPE);
        self.advance();
    }

    /// Ends a recording; returns the epoch that then waits.
    pub(crate) fn end(&mut self, recording: u64) -> u64 {
        let answers = self.ask(&Stop { recording }, Pending::TYPE);
        answers[0].decode::<Pending>().first_epoch
    }

    /// Like a guest's loop.
    pub(crate) fn advance(&mut self) {
        self.service.advance();
    }

    pub(crate) fn ring(&mut self, request: &Ring) -> (RingHead, Vec<(u64, Record)>, RingEnd) {
        let answers = self.ask(request, RingEnd::TYPE);
        let [head, runs @ .., end] = &answers[..] else {
            panic!("a head and an end");
        };
        let runs = runs.iter().flat_map(|run| records(&run.decode()));
        (head.decode(), runs.collect(), end.decode())
    }

    pub(crate) fn names(&mut self) -> Vec<String> {
        let answers = self.ask(&EventNames { first: 0 }, EventNamesEnd::TYPE);
        let names = answers.iter().filter(|one| one.kind == EventName::TYPE);
        names
            .enumerate()
            .map(|(id, answer)| {
                let EventName { id: sent, name } = answer.decode();
                assert_eq!(sent as usize, id);
                name.to_owned()
            })
            .collect()
    }

    pub(crate) fn names_refused(&mut self) -> u64 {
        let answers = self.ask(&EventNames { first: 0 }, EventNamesEnd::TYPE);
        answers.last().unwrap().decode::<EventNamesEnd>().refused
    }

    /// The nodes that a client does not have.
    pub(crate) fn stacks(&mut self, request: &Stacks) -> Vec<NumberedNode> {
        nodes_of(&self.ask(request, message_type::STACKS_END))
    }

    fn send(&mut self, bytes: &[u8]) {
        assert_eq!(self.service.receive(self.session, bytes), bytes.len());
    }

    fn take(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = [0; 1000];
        loop {
            match self.service.transmit(self.session, &mut buffer) {
                0 => return all,
                length => all.extend_from_slice(&buffer[..length]),
            }
        }
    }
}
