//! A client with a key: the other implementation of the protocol, `snow`, connected to a service
//! without a network.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use snow::{Builder, HandshakeState, TransportState};
use unikprof_agent::{Access, Key, Keys, Role, Service, SessionId};
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{Handshake, HandshakeReply};
use unikprof_proto::{preamble, secure};

use crate::fake_guest::client::FakeService;
pub use crate::fake_guest::client::{framed, frames};
use crate::fake_guest::{FakeAgent, agent};

/// The agent's keys.
pub const VIEW: [u8; 32] = [0x11; 32];
pub const CONTROL: [u8; 32] = [0x22; 32];
/// A key that the agent does not have.
pub const OTHER: [u8; 32] = [0x33; 32];

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
    state: HandshakeState,
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
    let id = Key::from_bytes(key).id();
    let prologue = secure::prologue(&sent, &id.0);
    let mut state = Builder::new(secure::NAME.parse().unwrap())
        .psk(0, &key)
        .unwrap()
        .prologue(&prologue)
        .unwrap()
        .build_initiator()
        .unwrap();
    let mut message = [0; 48];
    assert_eq!(state.write_message(&[], &mut message).unwrap(), 48);
    let first = framed(&Handshake {
        key: id.0,
        ephemeral: message[..32].try_into().unwrap(),
        tag: message[32..].try_into().unwrap(),
    });
    Shaking {
        session,
        state,
        first,
    }
}

impl Shaking {
    /// Sends the first message; returns the answer.
    pub fn send(&self, service: &mut FakeService) -> Vec<u8> {
        exchange(service, self.session, &self.first)
    }
}

impl<S> Shaking<S> {
    /// Reads the agent's answer, which completes the handshake.
    pub fn finish(mut self, answer: &[u8]) -> Client<S> {
        let answer = frames(answer);
        let [(HandshakeReply::TYPE, body)] = &answer[..] else {
            panic!("no reply: {answer:?}");
        };
        let found = frame::Frame {
            kind: HandshakeReply::TYPE,
            body,
        };
        let reply: HandshakeReply = frame::decode(&found).unwrap();
        let message = [&reply.ephemeral[..], &reply.preamble, &reply.tag].concat();
        let mut sealed = [0; preamble::LENGTH];
        let length = self.state.read_message(&message, &mut sealed).unwrap();
        assert_eq!(length, preamble::LENGTH);
        assert_eq!(sealed, preamble::encode(preamble::KEYED));
        Client {
            session: self.session,
            transport: self.state.into_transport_mode().unwrap(),
            sealed: Vec::new(),
        }
    }
}

/// A client after its handshake.
pub struct Client<S = SessionId> {
    pub session: S,
    transport: TransportState,
    sealed: Vec<u8>,
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
    pub fn ask<'a>(
        &mut self,
        service: &mut FakeService,
        message: &impl Message<'a>,
    ) -> Vec<(u16, Vec<u8>)> {
        let record = self.seal(&framed(message));
        let answer = exchange(service, self.session, &record);
        assert!(!service.is_given_up(self.session), "given up");
        frames(&self.open(&answer))
    }
}

impl<S> Client<S> {
    /// Encrypts these bytes in a record.
    pub fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let mut record = vec![0; plaintext.len() + 18];
        let (header, rest) = record.split_at_mut(2);
        let length = self.transport.write_message(plaintext, rest).unwrap();
        header.copy_from_slice(&(length as u16).to_le_bytes());
        record
    }

    /// Decrypts the received records.
    pub fn open(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.sealed.extend_from_slice(bytes);
        let mut plaintext = Vec::new();
        let mut rest = &self.sealed[..];
        while let Some((header, behind)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*header));
            let Some(record) = behind.get(..length) else {
                break;
            };
            let mut text = vec![0; length];
            let length = self.transport.read_message(record, &mut text).unwrap();
            plaintext.extend_from_slice(&text[..length]);
            rest = &behind[record.len()..];
        }
        self.sealed = rest.to_vec();
        plaintext
    }
}
