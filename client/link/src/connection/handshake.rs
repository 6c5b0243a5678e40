//! The handshake under a key: both sides show that they hold it, and agree on keys for this
//! connection alone.

use std::io::Read as _;
use std::time::Duration;

use snow::{Builder, HandshakeState};
use unikprof_proto::code::refusal;
use unikprof_proto::frame::{self, Frame, HEADER, MAX_BODY, Message};
use unikprof_proto::message::{Handshake, HandshakeReply, Refusal};
use unikprof_proto::preamble;
use unikprof_proto::secure::{KEY, NAME, TAG, prologue};

use super::patient::PatientStream;
use super::sealed::Sealed;
use super::{Address, ConnectionError, broken, refused};
use crate::key::{Key, KeyId};
use unikprof_profile::frame_reader::encoded;

const DOING: &str = "showing the key";

/// The first message: an ephemeral public key and the tag of an empty payload.
const FIRST: usize = 32 + TAG;
/// The second message: an ephemeral public key, the agent's preamble sealed, and its tag.
const SECOND: usize = 32 + preamble::LENGTH + TAG;

/// A handshake whose first message has been made.
pub(super) struct Begun {
    state: Initiator,
    id: KeyId,
}

/// Begins a handshake. Returns it and the first message's frame, which the client sends right
/// behind `ours`, its preamble, without waiting for the agent's: a slow connection then takes one
/// round trip less, and a crowded agent does not reject the client before its key has arrived.
pub(super) fn begin(
    key: &Key,
    ours: &[u8; preamble::LENGTH],
) -> Result<(Begun, Vec<u8>), ConnectionError> {
    let id = key.id();
    let mut state = Initiator::new(key, &prologue(ours, &id.0))?;
    let (ephemeral, tag) = state.first()?;
    let request = Handshake { key: id.0, ephemeral, tag };
    let frame = encoded(&request).map_err(ConnectionError::in_frame(DOING))?;
    Ok((Begun { state, id }, frame))
}

/// Reads the agent's reply; everything that follows is sealed. `theirs` is the agent's preamble as
/// it was received in the clear. `waited` is for the error if the time is up.
pub(super) fn finish(
    mut stream: PatientStream,
    begun: Begun,
    theirs: &[u8; preamble::LENGTH],
    address: &Address,
    waited: Duration,
) -> Result<Sealed<PatientStream>, ConnectionError> {
    let Begun { mut state, id } = begun;
    let mut buffer = [0; HEADER + MAX_BODY];
    let reply = read_frame(&mut stream, &mut buffer, waited)?;
    let wrong = ConnectionError::in_frame(DOING);
    let reply = match reply.kind {
        Refusal::TYPE => {
            let refusal: Refusal<'_> = frame::decode(&reply).map_err(wrong)?;
            return Err(match refusal.code {
                refusal::BAD_KEY => ConnectionError::BadKey { address: address.clone(), key: id },
                refusal::NOT_KEYED => {
                    ConnectionError::OpenAgent { address: address.clone(), key: id }
                }
                _ => refused(&refusal),
            });
        }
        HandshakeReply::TYPE => frame::decode::<HandshakeReply>(&reply).map_err(wrong)?,
        found => {
            return Err(ConnectionError::Unexpected {
                doing: DOING,
                expected: "a handshake reply",
                found,
            });
        }
    };
    // Only who holds the key can have sealed a preamble, and it must be the one that came in the
    // clear.
    if state.second(&reply).as_ref() != Ok(theirs) {
        return Err(ConnectionError::FalseAgent { address: address.clone(), key: id });
    }
    Ok(Sealed::new(stream, state.finish()?))
}

/// Reads one frame and not a byte more: what follows a reply is sealed.
fn read_frame<'b>(
    stream: &mut PatientStream,
    buffer: &'b mut [u8; HEADER + MAX_BODY],
    waited: Duration,
) -> Result<Frame<'b>, ConnectionError> {
    let wrong = ConnectionError::in_frame(DOING);
    let mut length = 0;
    let mut wanted = HEADER;
    loop {
        if length == wanted {
            // A frame of a whole header without a body is whole; `split` refuses what is too long.
            match frame::split(&buffer[..length]).map_err(wrong)? {
                Some(_) => break,
                None => {
                    let body = [buffer[2], buffer[3], buffer[4], buffer[5]];
                    wanted = HEADER + u32::from_le_bytes(body) as usize;
                }
            }
        }
        match stream.read(&mut buffer[length..wanted]) {
            Ok(0) if length == 0 => return Err(ConnectionError::Closed { doing: DOING }),
            Ok(0) => {
                return Err(ConnectionError::Cut { doing: DOING, bytes: length });
            }
            Ok(read) => length += read,
            Err(source) => return Err(broken(DOING, waited, source)),
        }
    }
    match frame::split(&buffer[..length]).map_err(wrong)? {
        Some(frame) => Ok(frame),
        None => Err(ConnectionError::Closed { doing: DOING }),
    }
}

/// The second message cannot be opened.
#[derive(Debug, PartialEq, Eq)]
struct NotOpened;

/// The client's side. Its implementation keeps a copy of the key and does not erase it, so this
/// does: the state stays at one place, and the copy in it is written over whatever becomes of it.
struct Initiator(Option<Box<HandshakeState>>);

impl Initiator {
    fn new(key: &Key, prologue: &[u8]) -> Result<Initiator, ConnectionError> {
        let state = Builder::new(NAME.parse().map_err(unusable)?)
            .prologue(prologue)
            .and_then(Builder::build_initiator)
            .map_err(unusable)?;
        let mut state = Box::new(state);
        state.set_psk(0, key.secret()).map_err(unusable)?;
        Ok(Initiator(Some(state)))
    }

    fn state(&mut self) -> Result<&mut HandshakeState, ConnectionError> {
        let state = self.0.as_deref_mut();
        state.ok_or_else(|| unusable(snow::Error::Input))
    }

    /// The first message: the ephemeral public key and the tag.
    fn first(&mut self) -> Result<([u8; 32], [u8; TAG]), ConnectionError> {
        let mut message = [0; FIRST];
        self.state()?.write_message(&[], &mut message).map_err(unusable)?;
        let (mut ephemeral, mut tag) = ([0; 32], [0; TAG]);
        ephemeral.copy_from_slice(&message[..32]);
        tag.copy_from_slice(&message[32..]);
        Ok((ephemeral, tag))
    }

    /// The agent's preamble, which it has sealed in the second message. An error if the message was
    /// not made with the key, or was altered.
    fn second(&mut self, reply: &HandshakeReply) -> Result<[u8; preamble::LENGTH], NotOpened> {
        let mut message = [0; SECOND];
        let (ephemeral, payload) = message.split_at_mut(32);
        ephemeral.copy_from_slice(&reply.ephemeral);
        payload[..preamble::LENGTH].copy_from_slice(&reply.preamble);
        payload[preamble::LENGTH..].copy_from_slice(&reply.tag);
        // Room for the tag too: an implementation may decrypt in place.
        let mut opened = [0; preamble::LENGTH + TAG];
        let state = self.0.as_deref_mut().ok_or(NotOpened)?;
        match state.read_message(&message, &mut opened) {
            Ok(preamble::LENGTH) => opened[..preamble::LENGTH].try_into().map_err(|_| NotOpened),
            _ => Err(NotOpened),
        }
    }

    fn finish(mut self) -> Result<snow::TransportState, ConnectionError> {
        self.forget();
        let state = self.0.take().ok_or_else(|| unusable(snow::Error::Input))?;
        state.into_transport_mode().map_err(unusable)
    }

    fn forget(&mut self) {
        if let Some(state) = &mut self.0 {
            // It refuses no 32 bytes.
            let _ = state.set_psk(0, &[0; KEY]);
        }
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        self.forget();
    }
}

fn unusable(source: snow::Error) -> ConnectionError {
    ConnectionError::Cryptography { source }
}
