//! Clients of the agent: their bytes on the way, and what they make of the answers.

use std::collections::BTreeSet;

use unikprof_agent::{Platform, Service, SessionId};
use unikprof_proto::code::state;
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Counters, Counts, Dump, Fetch, Hello, Mapping, Nodes,
    Pending, RecordingStatus, Start, Started, Status, Stop, VcpuEnd, VcpuEpoch, Welcome,
};
use unikprof_proto::{counts, nodes, preamble};
use unikprof_test_kit::frames::encoded;

use crate::fake::{FakePlatform, VCPUS};
use crate::frames;

pub(crate) type FakeService<'s, 'a> = Service<'s, 'a, FakePlatform<'a>>;

/// One connection. Whatever the agent sends on it must be whole messages, in order.
pub(crate) struct Client {
    pub(crate) session: SessionId,
    to_agent: Vec<u8>,
    to_client: Vec<u8>,
    greeted: bool,
}

/// A client with so many bytes that the agent has not read sends no more: this bounds the test.
const MOST_UNREAD: usize = 64 << 10;

impl Client {
    pub(crate) fn connect(service: &mut FakeService<'_, '_>) -> Option<Client> {
        service.open().map(|session| Client {
            session,
            to_agent: Vec::new(),
            to_client: Vec::new(),
            greeted: false,
        })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if self.to_agent.len() < MOST_UNREAD {
            self.to_agent.extend(bytes);
        }
    }

    pub(crate) fn send_message<'m>(&mut self, message: &impl Message<'m>) {
        self.send(&encoded(message));
    }

    /// Hands at most `most` of those bytes to the agent.
    pub(crate) fn deliver(&mut self, service: &mut FakeService<'_, '_>, most: usize) {
        let offered = &self.to_agent[..most.min(self.to_agent.len())];
        let taken = service.receive(self.session, offered);
        assert!(taken <= offered.len());
        self.to_agent.drain(..taken);
    }

    /// Reads at most `most` bytes from the agent, and judges what is whole; answers how many came.
    pub(crate) fn read(&mut self, service: &mut FakeService<'_, '_>, most: usize) -> usize {
        let begin = self.to_client.len();
        self.to_client.resize(begin + most, 0);
        let length = service.transmit(self.session, &mut self.to_client[begin..]);
        assert!(length <= most);
        self.to_client.truncate(begin + length);
        if !self.greeted {
            let Some(head) = self.to_client.first_chunk() else {
                return length;
            };
            assert_eq!(preamble::decode(head), Ok(preamble::OPEN));
            self.to_client.drain(..preamble::LENGTH);
            self.greeted = true;
        }
        while let Some(frame) = frame::split(&self.to_client).expect(SOUND) {
            assert!(frames::message(&frame), "{frame:?} is no message");
            let length = frame.length();
            self.to_client.drain(..length);
        }
        length
    }
}

const SOUND: &str = "the agent's frames are sound";

/// The bytes that a client has received since its last request.
#[derive(Default)]
pub(crate) struct Talk {
    received: Vec<u8>,
}

impl Talk {
    /// Sends requests and receives until nothing more comes. There may be no answer.
    pub(crate) fn ask<P: Platform>(
        &mut self,
        service: &mut Service<'_, '_, P>,
        session: SessionId,
        requests: &[u8],
    ) {
        self.exchange(service, session, requests, false);
    }

    fn exchange<P: Platform>(
        &mut self,
        service: &mut Service<'_, '_, P>,
        session: SessionId,
        mut request: &[u8],
        is_answered: bool,
    ) {
        self.received.clear();
        let mut buffer = [0; 4096];
        // Polls in which nothing came. Some answers take a few, and clearing a table takes many.
        let mut idle = 0;
        for _ in 0..10_000 {
            let taken = service.receive(session, request);
            request = &request[taken..];
            let given = service.transmit(session, &mut buffer);
            self.received.extend_from_slice(&buffer[..given]);
            idle = if taken + given == 0 { idle + 1 } else { 0 };
            if idle > 4 && !(is_answered && self.received.is_empty()) {
                break;
            }
            if idle > 0 {
                service.advance();
            }
        }
        if self.received.starts_with(&preamble::encode(preamble::OPEN)) {
            self.received.drain(..preamble::LENGTH);
        }
    }

    pub(crate) fn all<'a, M: Message<'a>>(&'a self) -> Vec<M> {
        let mut rest = &self.received[..];
        let mut all = Vec::new();
        while let Some(frame) = frame::split(rest).expect(SOUND) {
            rest = &rest[frame.length()..];
            all.extend(frame::decode::<M>(&frame));
        }
        all
    }

    pub(crate) fn last<'a, M: Message<'a>>(&'a self) -> Option<M> {
        self.all().pop()
    }

    /// The only message of a type.
    fn one<'a, M: Message<'a>>(&'a self) -> M {
        let mut all = self.all();
        assert_eq!(all.len(), 1, "messages of type {}", M::TYPE);
        all.remove(0)
    }
}

/// A client that keeps to the protocol, and expects the agent to.
pub(crate) struct Honest<'c, 's, 'a> {
    service: &'c mut FakeService<'s, 'a>,
    session: SessionId,
    talk: Talk,
    /// All frames of answers, as they came.
    received: Vec<u8>,
    /// The numbers of each vCPU's nodes that it has.
    numbers: [BTreeSet<u64>; VCPUS as usize],
}

impl<'c, 's, 'a> Honest<'c, 's, 'a> {
    pub(crate) fn connect(service: &'c mut FakeService<'s, 'a>) -> Honest<'c, 's, 'a> {
        let session = service.open().expect("a session is free");
        let mut talk = Talk::default();
        talk.ask(service, session, &preamble::encode(preamble::OPEN));
        Honest { service, session, talk, received: Vec::new(), numbers: Default::default() }
    }

    pub(crate) fn forget(&mut self) {
        self.received.clear();
        self.numbers = Default::default();
    }

    /// Sends a request, and waits for all of its answer.
    fn ask<'m>(&mut self, request: &impl Message<'m>) -> &Talk {
        let request = encoded(request);
        self.talk.exchange(self.service, self.session, &request, true);
        assert!(!self.talk.received.is_empty(), "no answer");
        assert!(!self.service.is_over(self.session), "cut off");
        self.received.extend(&self.talk.received);
        &self.talk
    }

    /// Asks who the agent is.
    pub(crate) fn hello(&mut self) {
        let talk = self.ask(&Hello { client: "fuzz", client_id: 1 });
        let welcome: Welcome<'_> = talk.one();
        assert_eq!(welcome.vcpus, VCPUS);
        let mappings = talk.all::<Mapping<'_>>().len();
        assert_eq!(mappings, welcome.mappings as usize);
    }

    /// Asks for the recorder's state; returns the ids of the recordings that exist.
    pub(crate) fn check(&mut self) -> Vec<u64> {
        let talk = self.ask(&Check {});
        let status: Status = talk.one();
        assert!(status.nodes_used <= status.nodes_capacity, "{status:?}");
        assert!(status.recordings <= status.max_recordings, "{status:?}");
        let recordings: Vec<RecordingStatus<'_>> = talk.all();
        assert_eq!(recordings.len(), status.recordings as usize);
        assert!(recordings.iter().all(|one| one.counters.add_up()));
        let there = recordings.iter().filter(|one| one.state != state::IDLE);
        there.map(|one| one.recording).collect()
    }

    pub(crate) fn start(&mut self, start: &Start<'_>) {
        self.ask(start).one::<Started>();
    }

    /// Ends all recordings; all of them are fetched and acknowledged.
    pub(crate) fn end_all(&mut self) {
        for recording in self.check() {
            self.collect_of(recording, true);
        }
    }

    /// Ends the only recording, or takes what it has so far; all of it is fetched and acknowledged.
    /// Returns the counters of what was fetched.
    pub(crate) fn collect(&mut self, stop: bool) -> Counters {
        self.collect_of(0, stop)
    }

    fn collect_of(&mut self, recording: u64, stop: bool) -> Counters {
        let mut all = Counters::default();
        // A dump may find an older epoch in its way, once.
        for _ in 0..2 {
            let pending: Pending = match stop {
                true => self.ask(&Stop { recording }).one(),
                false => self.ask(&Dump { recording }).one(),
            };
            for epoch in pending.first_epoch..pending.first_epoch + u64::from(pending.epochs) {
                for vcpu in 0..VCPUS {
                    all = sum(&all, &self.fetch(epoch, vcpu));
                }
                let answer: Acknowledged = self.ask(&Acknowledge { epoch }).one();
                assert_eq!(answer.epoch, epoch);
            }
            if pending.complete {
                return all;
            }
        }
        panic!("the agent keeps older epochs");
    }

    /// Fetches one vCPU's share of an epoch, in which everything must add up. Each count belongs to
    /// a node that was sent.
    fn fetch(&mut self, epoch: u64, vcpu: u32) -> Counters {
        let mut numbers = std::mem::take(&mut self.numbers[vcpu as usize]);
        let talk = self.ask(&Fetch {
            epoch,
            vcpu,
            known: numbers.last().copied().unwrap_or(0),
            counted: 0,
        });
        let share: VcpuEpoch = talk.one();
        assert_eq!((share.epoch, share.vcpu), (epoch, vcpu));
        let delta = share.end.counters.zip(&share.start.counters, |end, start| {
            end.checked_sub(start).expect("counters do not run backwards")
        });
        assert!(delta.add_up(), "{share:?}");
        assert!(share.end.at_ns >= share.start.at_ns, "{share:?}");
        assert!(share.end.running_ns >= share.start.running_ns, "{share:?}");
        for run in talk.all::<Nodes<'_>>() {
            assert_eq!(run.vcpu, vcpu);
            let sound = nodes::decode(run.first, run.count, run.payload, |number, node| {
                assert!(node.parent == 0 || numbers.contains(&node.parent));
                assert!(numbers.last().is_none_or(|last| *last < number));
                numbers.insert(number);
            });
            assert_eq!(sound, Ok(()));
        }
        let mut counted = 0;
        for run in talk.all::<Counts<'_>>() {
            assert_eq!((run.epoch, run.vcpu), (epoch, vcpu));
            let sound = counts::decode(run.after, run.count, run.payload, |number, count| {
                assert!(numbers.contains(&number));
                counted += count;
            });
            assert_eq!(sound, Ok(()));
        }
        let end: VcpuEnd = talk.one();
        assert_eq!((end.epoch, end.vcpu), (epoch, vcpu));
        assert_eq!(end.known, numbers.last().copied().unwrap_or(0));
        let expected = delta.recorded + delta.blocked;
        assert_eq!((counted, end.samples), (expected, expected));
        self.numbers[vcpu as usize] = numbers;
        delta
    }

    pub(crate) fn leave(self) -> Vec<u8> {
        self.service.close(self.session);
        self.received
    }
}

pub(crate) fn sum(a: &Counters, b: &Counters) -> Counters {
    a.zip(b, |a, b| a + b)
}
