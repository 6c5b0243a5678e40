//! Clients of the agent: their bytes on the way, and what they make of the answers.

use std::collections::BTreeSet;

use unikprof_agent::{Service, SessionId};
use unikprof_proto::code::state;
use unikprof_proto::frame::{self, Frame, Message};
use unikprof_proto::message::{
    Acknowledge, Acknowledged, Check, Counts, Dump, Fetch, Hello, Mapping, Nodes, Pending,
    RecordingStatus, Start, Started, Status, Stop, VcpuEnd, VcpuEpoch, Welcome,
};
use unikprof_proto::{counts, nodes, preamble};
use unikprof_test_kit::frames::{encoded, framed};

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

/// What a client has not read yet, the agent does not have to produce: this bounds the test.
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
        while self.take(|frame| assert!(frames::message(frame), "{frame:?} is no message")) {}
        length
    }

    /// Hands the next whole frame to `judge`; answers whether there was one.
    fn take(&mut self, judge: impl FnOnce(&Frame<'_>)) -> bool {
        if !self.greeted {
            let Some(head) = self.to_client.first_chunk() else {
                return false;
            };
            assert_eq!(preamble::decode(head), Ok(preamble::OPEN));
            self.to_client.drain(..preamble::LENGTH);
            self.greeted = true;
        }
        let frame = frame::split(&self.to_client).expect("the agent's frames are sound");
        let Some(frame) = frame else { return false };
        let length = frame.length();
        judge(&frame);
        self.to_client.drain(..length);
        true
    }
}

/// A client that keeps to the protocol, and expects the agent to.
pub(crate) struct Honest<'c, 's, 'a> {
    service: &'c mut FakeService<'s, 'a>,
    client: Client,
    /// All frames of answers, as they came.
    received: Vec<u8>,
    /// The numbers of each vCPU's nodes that it has.
    numbers: [BTreeSet<u64>; VCPUS as usize],
}

/// What an epoch held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Fetched {
    pub(crate) ticks: u64,
    pub(crate) recorded: u64,
    pub(crate) overflow: u64,
}

/// How often an answer is waited for: clearing a table takes some calls.
const PATIENCE: u32 = 10_000;

impl<'c, 's, 'a> Honest<'c, 's, 'a> {
    pub(crate) fn connect(service: &'c mut FakeService<'s, 'a>) -> Honest<'c, 's, 'a> {
        let mut client = Client::connect(service).expect("a session is free");
        client.send(&preamble::encode(preamble::OPEN));
        Honest {
            service,
            client,
            received: Vec::new(),
            numbers: Default::default(),
        }
    }

    pub(crate) fn forget(&mut self) {
        self.received.clear();
        self.numbers = Default::default();
    }

    /// Asks, and hands the frames of the answer to `visit` until it says that that was all.
    fn ask<'m, T>(
        &mut self,
        request: &impl Message<'m>,
        mut visit: impl FnMut(&Frame<'_>) -> Option<T>,
    ) -> T {
        self.client.send_message(request);
        for _ in 0..PATIENCE {
            self.service.advance();
            self.client.deliver(self.service, usize::MAX);
            let mut buffer = [0; 4096];
            let length = self.service.transmit(self.client.session, &mut buffer);
            self.client.to_client.extend(&buffer[..length]);
            let (mut answer, received) = (None, &mut self.received);
            while answer.is_none()
                && self.client.take(|frame| {
                    received.extend(framed(frame.kind, frame.body));
                    answer = visit(frame);
                })
            {}
            if let Some(answer) = answer {
                return answer;
            }
            assert!(!self.service.is_over(self.client.session), "cut off");
        }
        panic!("no answer");
    }

    /// Who is there?
    pub(crate) fn hello(&mut self) {
        let mut left = None;
        self.ask(
            &Hello {
                client: "fuzz",
                client_id: 1,
            },
            |frame| {
                if let Ok(welcome) = frame::decode::<Welcome<'_>>(frame) {
                    assert_eq!(welcome.vcpus, VCPUS);
                    left = Some(welcome.mappings);
                } else {
                    frame::decode::<Mapping<'_>>(frame).expect("a mapping");
                    left = left.and_then(|left: u32| left.checked_sub(1));
                }
                (left.expect("mappings after their welcome") == 0).then_some(())
            },
        );
    }

    /// What is the recorder at? Answers the ids of the recordings there are.
    pub(crate) fn check(&mut self) -> Vec<u64> {
        let mut left = None;
        let mut there = Vec::new();
        self.ask(&Check {}, |frame| {
            if let Ok(status) = frame::decode::<Status>(frame) {
                assert!(status.nodes_used <= status.nodes_capacity, "{status:?}");
                assert!(status.recordings <= status.max_recordings, "{status:?}");
                left = Some(status.recordings);
            } else {
                let one: RecordingStatus<'_> = frame::decode(frame).expect("a recording's status");
                assert!(one.counters.add_up(), "{one:?}");
                if one.state != state::IDLE {
                    there.push(one.recording);
                }
                left = left.and_then(|left: u32| left.checked_sub(1));
            }
            (left.expect("recordings after their status") == 0).then_some(())
        });
        there
    }

    pub(crate) fn start(&mut self, start: &Start<'_>) {
        self.ask(start, |frame| {
            let started = frame::decode::<Started>(frame);
            Some(started.unwrap_or_else(|_| panic!("{frame:?}")))
        });
    }

    /// Ends all recordings; all of them are fetched and acknowledged.
    pub(crate) fn end_all(&mut self) {
        for recording in self.check() {
            self.collect_of(recording, true);
        }
    }

    /// Ends the only recording, or takes what it has so far; all of it is fetched and acknowledged.
    pub(crate) fn collect(&mut self, stop: bool) -> Fetched {
        self.collect_of(0, stop)
    }

    fn collect_of(&mut self, recording: u64, stop: bool) -> Fetched {
        let mut all = Fetched::default();
        // A dump may find an older epoch in its way, once.
        for _ in 0..2 {
            let pending =
                |frame: &Frame<'_>| Some(frame::decode::<Pending>(frame).expect("pending"));
            let pending = if stop {
                self.ask(&Stop { recording }, pending)
            } else {
                self.ask(&Dump { recording }, pending)
            };
            for epoch in pending.first_epoch..pending.first_epoch + u64::from(pending.epochs) {
                let fetched = self.fetch(epoch);
                all.ticks += fetched.ticks;
                all.recorded += fetched.recorded;
                all.overflow += fetched.overflow;
                self.ask(&Acknowledge { epoch }, |frame| {
                    let answer: Acknowledged = frame::decode(frame).expect("acknowledged");
                    assert_eq!(answer.epoch, epoch);
                    Some(())
                });
            }
            if pending.complete {
                return all;
            }
        }
        panic!("the agent keeps older epochs");
    }

    /// Fetches an epoch, in which everything must add up.
    fn fetch(&mut self, epoch: u64) -> Fetched {
        let mut all = Fetched::default();
        for vcpu in 0..VCPUS {
            let share = self.fetch_share(epoch, vcpu);
            all.ticks += share.ticks;
            all.recorded += share.recorded;
            all.overflow += share.overflow;
        }
        all
    }

    /// Fetches one vCPU's share of an epoch. Each count belongs to a node that was sent.
    fn fetch_share(&mut self, epoch: u64, vcpu: u32) -> Fetched {
        let mut fetched = None;
        let (mut expected, mut counted) = (0, 0);
        let mut numbers = std::mem::take(&mut self.numbers[vcpu as usize]);
        let request = Fetch {
            epoch,
            vcpu,
            known: numbers.last().copied().unwrap_or(0),
            counted: 0,
        };
        self.ask(&request, |frame| {
            if let Ok(share) = frame::decode::<VcpuEpoch>(frame) {
                assert_eq!((share.epoch, share.vcpu), (epoch, vcpu));
                let delta = share.end.counters.zip(&share.start.counters, |end, start| {
                    end.checked_sub(start)
                        .expect("counters do not run backwards")
                });
                assert!(delta.add_up(), "{share:?}");
                assert!(share.end.at_ns >= share.start.at_ns, "{share:?}");
                assert!(share.end.running_ns >= share.start.running_ns, "{share:?}");
                expected = delta.recorded + delta.blocked;
                fetched = Some(Fetched {
                    ticks: delta.ticks,
                    recorded: delta.recorded,
                    overflow: delta.overflow,
                });
            }
            if let Ok(run) = frame::decode::<Nodes<'_>>(frame) {
                assert_eq!(run.vcpu, vcpu);
                let sound = nodes::decode(run.first, run.count, run.payload, |number, node| {
                    assert!(node.parent == 0 || numbers.contains(&node.parent));
                    assert!(numbers.last().is_none_or(|last| *last < number));
                    numbers.insert(number);
                });
                assert_eq!(sound, Ok(()));
            }
            if let Ok(run) = frame::decode::<Counts<'_>>(frame) {
                assert_eq!((run.epoch, run.vcpu), (epoch, vcpu));
                let sound = counts::decode(run.after, run.count, run.payload, |number, count| {
                    assert!(numbers.contains(&number));
                    counted += count;
                });
                assert_eq!(sound, Ok(()));
            }
            let end = frame::decode::<VcpuEnd>(frame).ok()?;
            assert_eq!((end.epoch, end.vcpu), (epoch, vcpu));
            assert_eq!(end.known, numbers.last().copied().unwrap_or(0));
            assert_eq!((counted, end.samples), (expected, expected));
            Some(())
        });
        self.numbers[vcpu as usize] = numbers;
        fetched.expect("counters before the end")
    }

    pub(crate) fn leave(self) -> Vec<u8> {
        self.service.close(self.client.session);
        self.received
    }
}
