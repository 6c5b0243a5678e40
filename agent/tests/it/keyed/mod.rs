//! A client with a key, connected to a service without a network.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use unikprof_agent::{Access, Key, Keys, Role, Service, SessionId};
use unikprof_proto::frame::Message;
use unikprof_proto::preamble;
use unikprof_test_kit::noise::{Initiator, Records, key_id};

use crate::client::{Frame, encoded, frames, read};
use crate::fake_guest::{FakeAgent, FakeService, agent};

/// The agent's keys, of bytes that no text has (0x33 is a digit, which a time may have four times).
pub const VIEW: [u8; 32] = [0xa7; 32];
pub const CONTROL: [u8; 32] = [0xb9; 32];
/// A key that the agent does not have.
pub const OTHER: [u8; 32] = [0xd3; 32];

/// A guest with both keys.
pub fn service() -> (&'static FakeAgent, FakeService) {
    let agent = agent(1, 8 << 20);
    (agent, Service::new(agent, access()).unwrap())
}

/// Access with either of the two keys.
pub fn access() -> Access<'static> {
    let mut keys = Keys::new();
    keys.add(Role::View, Key::from_bytes(VIEW)).unwrap();
    keys.add(Role::Control, Key::from_bytes(CONTROL)).unwrap();
    Access::Keys(Box::leak(Box::new(keys)))
}

/// Sends bytes until nothing moves; returns the answer.
pub fn exchange(service: &mut FakeService, session: SessionId, mut bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    loop {
        let taken = service.receive(session, bytes);
        bytes = &bytes[taken..];
        let mut buffer = [0; 777];
        let given = service.transmit(session, &mut buffer);
        answer.extend_from_slice(&buffer[..given]);
        if taken + given == 0 {
            return answer;
        }
    }
}

/// A handshake in progress, in a session or another kind of connection.
pub struct Shaking<S = SessionId> {
    pub session: S,
    initiator: Initiator,
    /// The first message.
    pub first: Vec<u8>,
}

/// Connects, sends the preamble and makes the first message, which is not sent yet.
pub fn connect(service: &mut FakeService, key: [u8; 32]) -> Shaking {
    let session = service.open().unwrap();
    let said = exchange(service, session, &preamble::encode(preamble::KEYED));
    assert_eq!(said, preamble::encode(preamble::KEYED));
    first_message(session, key, preamble::encode(preamble::KEYED))
}

/// The first message of a client that has sent this preamble, or a peer that pretends so.
pub fn first_message<S>(session: S, key: [u8; 32], sent: [u8; 16]) -> Shaking<S> {
    let initiator = Initiator::with(&key, key_id(&key), &sent, None);
    Shaking { session, first: encoded(&initiator.message), initiator }
}

impl Shaking {
    /// Sends the first message; returns the answer.
    pub fn send(&self, service: &mut FakeService) -> Vec<u8> {
        exchange(service, self.session, &self.first)
    }
}

impl<S> Shaking<S> {
    /// Reads the agent's answer, which completes the handshake.
    pub fn finish(self, answer: &[u8]) -> Client<S> {
        let answer = frames(answer);
        let [reply] = &answer[..] else {
            panic!("no reply: {answer:?}");
        };
        let (records, theirs) = self.initiator.finish(&read(reply)).unwrap();
        assert_eq!(theirs, preamble::encode(preamble::KEYED));
        Client { session: self.session, records }
    }
}

/// A client after its handshake.
pub struct Client<S = SessionId> {
    pub session: S,
    records: Records,
}

impl Client {
    /// Connects and completes the handshake.
    pub fn new(service: &mut FakeService, key: [u8; 32]) -> Self {
        let shaking = connect(service, key);
        // The rate of handshakes is limited.
        service.agent().platform().idle(5_000_000);
        let answer = shaking.send(service);
        shaking.finish(&answer)
    }

    /// Sends a request, and returns the frames that come back.
    pub fn ask<'a>(&mut self, service: &mut FakeService, message: &impl Message<'a>) -> Vec<Frame> {
        let record = self.seal(&encoded(message));
        let answer = exchange(service, self.session, &record);
        assert!(!service.is_given_up(self.session), "given up");
        frames(&self.open(&answer))
    }

    /// Sends a request, and returns the first frame that comes back.
    pub fn answer<'a, M: for<'f> Message<'f>>(
        &mut self,
        service: &mut FakeService,
        message: &impl Message<'a>,
    ) -> M {
        read(&self.ask(service, message)[0])
    }
}

impl<S> Client<S> {
    /// Encrypts these bytes in a record.
    pub fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        self.records.seal(plaintext)
    }

    /// Decrypts the received records.
    pub fn open(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.records.open(bytes).unwrap()
    }
}
