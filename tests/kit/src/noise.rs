//! The handshake and the records of both sides, by `snow`.

use blake2::{Blake2s256, Digest};
use snow::{Builder, HandshakeState, TransportState};
use unikprof_proto::message::{Handshake, HandshakeReply};
use unikprof_proto::preamble;
use unikprof_proto::secure::{
    self, KEY, KEY_ID, KEY_ID_CONTEXT, MAX_ANSWER, MAX_REQUEST, RECORD_HEADER, TAG,
};

/// A preamble as it is sent.
pub type Preamble = [u8; preamble::LENGTH];

/// The length of a handshake message.
const MESSAGE: usize = KEY + TAG;

/// A key's id.
pub fn key_id(key: &[u8; KEY]) -> [u8; KEY_ID] {
    let hash = Blake2s256::new_with_prefix(KEY_ID_CONTEXT).chain_update(key).finalize();
    *hash.first_chunk().expect("a hash is longer than an id")
}

fn builder<'b>(key: &'b [u8; KEY], prologue: &'b [u8]) -> Builder<'b> {
    let parameters = secure::NAME.parse().expect("snow supports the protocol");
    Builder::new(parameters)
        .psk(0, key)
        .and_then(|builder| builder.prologue(prologue))
        .expect("one key and one prologue")
}

/// A client's handshake before the agent's reply.
pub struct Initiator {
    /// The first message.
    pub message: Handshake,
    state: HandshakeState,
}

impl Initiator {
    /// The handshake of a client with this key.
    pub fn new(key: &[u8; KEY]) -> Initiator {
        Initiator::with(key, key_id(key), &preamble::encode(preamble::KEYED), None)
    }

    /// The same with any key id and preamble, and with the same ephemeral key each time if one is
    /// given.
    pub fn with(
        key: &[u8; KEY],
        id: [u8; KEY_ID],
        sent: &Preamble,
        ephemeral: Option<&[u8; KEY]>,
    ) -> Initiator {
        let prologue = secure::prologue(sent, &id);
        let mut builder = builder(key, &prologue);
        if let Some(ephemeral) = ephemeral {
            builder = builder.fixed_ephemeral_key_for_testing_only(ephemeral);
        }
        let mut state = builder.build_initiator().expect("a handshake");
        let mut bytes = [0; MESSAGE];
        let length = state.write_message(&[], &mut bytes).expect("a message");
        assert_eq!(length, MESSAGE, "the message has no payload");
        let (ephemeral, tag) = bytes.split_at(KEY);
        Initiator {
            message: Handshake {
                key: id,
                ephemeral: ephemeral.try_into().expect("its length"),
                tag: tag.try_into().expect("its length"),
            },
            state,
        }
    }

    /// Reads the agent's reply. Returns the records and the agent's preamble, or `None` if the
    /// reply is not authentic.
    pub fn finish(mut self, reply: &HandshakeReply) -> Option<(Records, Preamble)> {
        let message = [&reply.ephemeral[..], &reply.preamble, &reply.tag].concat();
        let mut sealed = [0; preamble::LENGTH];
        self.state.read_message(&message, &mut sealed).ok()?;
        Some((Records::of(self.state, MAX_ANSWER), sealed))
    }
}

/// An agent's handshake after the client's first message.
pub struct Responder(HandshakeState);

impl Responder {
    /// Reads the first message of a client that has sent this preamble; `None` if it is not
    /// authentic.
    pub fn new(key: &[u8; KEY], message: &Handshake, theirs: &Preamble) -> Option<Responder> {
        let prologue = secure::prologue(theirs, &message.key);
        let mut state = builder(key, &prologue).build_responder().expect("a handshake");
        let bytes = [&message.ephemeral[..], &message.tag].concat();
        state.read_message(&bytes, &mut []).ok()?;
        Some(Responder(state))
    }

    /// The reply with this preamble, and the records.
    pub fn reply(mut self, ours: &Preamble) -> (HandshakeReply, Records) {
        let mut bytes = [0; MESSAGE + preamble::LENGTH];
        self.0.write_message(ours, &mut bytes).expect("a reply");
        let (ephemeral, rest) = bytes.split_at(KEY);
        let (preamble, tag) = rest.split_at(preamble::LENGTH);
        let reply = HandshakeReply {
            ephemeral: ephemeral.try_into().expect("its length"),
            preamble: preamble.try_into().expect("its length"),
            tag: tag.try_into().expect("its length"),
        };
        (reply, Records::of(self.0, MAX_REQUEST))
    }
}

/// One side's records after the handshake.
pub struct Records {
    transport: TransportState,
    arrived: Vec<u8>,
    /// The longest plaintext of the other side's records.
    most: usize,
}

impl Records {
    fn of(state: HandshakeState, most: usize) -> Records {
        Records {
            transport: state.into_transport_mode().expect("the handshake is over"),
            arrived: Vec::new(),
            most,
        }
    }

    /// The next record, with this plaintext.
    pub fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let mut record = vec![0; RECORD_HEADER + plaintext.len() + TAG];
        let (header, rest) = record.split_at_mut(RECORD_HEADER);
        let length = self.transport.write_message(plaintext, rest).expect("room");
        header.copy_from_slice(&(length as u16).to_le_bytes());
        record
    }

    /// The plaintext of all records that are complete with these bytes; `None` if one is not
    /// authentic.
    pub fn open(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.arrived.extend_from_slice(bytes);
        let mut plaintext = Vec::new();
        while let Some((header, rest)) = self.arrived.split_first_chunk() {
            let length = secure::ciphertext(*header, self.most)?;
            let Some(record) = rest.get(..length) else {
                break;
            };
            let mut opened = vec![0; length];
            let read = self.transport.read_message(record, &mut opened).ok()?;
            plaintext.extend_from_slice(&opened[..read]);
            self.arrived.drain(..RECORD_HEADER + length);
        }
        Some(plaintext)
    }
}
