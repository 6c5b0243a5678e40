//! The handshake under a key: both sides show that they hold it, and agree on keys for this
//! connection alone.

use std::io::{Read as _, Write as _};
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
use crate::key::Key;

const DOING: &str = "showing the key";

/// An ephemeral public key and the tag of an empty payload: either message of the handshake.
const MESSAGE: usize = 32 + TAG;

/// Both preambles, as sent.
pub(super) struct Preambles {
    pub(super) client: [u8; preamble::LENGTH],
    pub(super) agent: [u8; preamble::LENGTH],
}

/// Runs the handshake; all that follows is sealed. `waited` is for the error where the time is up.
pub(super) fn run(
    mut stream: PatientStream,
    key: &Key,
    preambles: &Preambles,
    address: &Address,
    waited: Duration,
) -> Result<Sealed<PatientStream>, ConnectionError> {
    let id = key.id();
    let prologue = prologue(&preambles.client, &preambles.agent, &id.0);
    let mut state = Initiator::new(key, &prologue)?;
    let first = state.first()?;
    let (ephemeral, tag) = parts(&first);
    let mut buffer = [0; HEADER + MAX_BODY];
    let request = Handshake {
        key: id.0,
        ephemeral,
        tag,
    };
    let length = frame::encode(&request, &mut buffer).map_err(|source| ConnectionError::Frame {
        doing: DOING,
        source,
    })?;
    let sent = stream.write_all(&buffer[..length]);
    // An agent that hangs up on us has said why.
    let reply = match read_frame(&mut stream, &mut buffer, waited) {
        Err(ConnectionError::Lost { .. } | ConnectionError::Closed { .. }) if sent.is_err() => {
            sent.map_err(|source| broken(DOING, waited, source))?;
            return Err(ConnectionError::Closed { doing: DOING });
        }
        other => other?,
    };
    let wrong = |source| ConnectionError::Frame {
        doing: DOING,
        source,
    };
    let reply = match reply.kind {
        Refusal::TYPE => {
            let refusal: Refusal<'_> = frame::decode(&reply).map_err(wrong)?;
            return Err(match refusal.code {
                refusal::BAD_KEY => ConnectionError::BadKey {
                    address: address.clone(),
                    key: id,
                },
                refusal::NOT_KEYED => ConnectionError::OpenAgent {
                    address: address.clone(),
                    key: id,
                },
                _ => refused(&refusal),
            });
        }
        HandshakeReply::TYPE => frame::decode::<HandshakeReply>(&reply).map_err(wrong)?,
        found => {
            return Err(ConnectionError::Unexpected {
                doing: DOING,
                expected: "the answer to a handshake",
                found,
            });
        }
    };
    let mut second = [0; MESSAGE];
    second[..32].copy_from_slice(&reply.ephemeral);
    second[32..].copy_from_slice(&reply.tag);
    if state.second(&second).is_err() {
        return Err(ConnectionError::FalseAgent {
            address: address.clone(),
            key: id,
        });
    }
    Ok(Sealed::new(stream, state.finish()?))
}

/// Reads one frame and not a byte more: what follows a reply is sealed.
fn read_frame<'b>(
    stream: &mut PatientStream,
    buffer: &'b mut [u8; HEADER + MAX_BODY],
    waited: Duration,
) -> Result<Frame<'b>, ConnectionError> {
    let wrong = |source| ConnectionError::Frame {
        doing: DOING,
        source,
    };
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
                return Err(ConnectionError::Cut {
                    doing: DOING,
                    bytes: length,
                });
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

fn parts(message: &[u8; MESSAGE]) -> ([u8; 32], [u8; TAG]) {
    let (mut ephemeral, mut tag) = ([0; 32], [0; TAG]);
    ephemeral.copy_from_slice(&message[..32]);
    tag.copy_from_slice(&message[32..]);
    (ephemeral, tag)
}

/// The client's side. Its implementation keeps a copy of the key and does not erase it, so this does:
/// the state stays at one place, and the copy in it is written over whatever becomes of it.
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

    fn first(&mut self) -> Result<[u8; MESSAGE], ConnectionError> {
        let mut message = [0; MESSAGE];
        self.state()?
            .write_message(&[], &mut message)
            .map_err(unusable)?;
        Ok(message)
    }

    fn second(&mut self, message: &[u8; MESSAGE]) -> Result<(), ConnectionError> {
        // Room for the tag too: an implementation may decrypt in place.
        let mut nothing = [0; TAG];
        self.state()?
            .read_message(message, &mut nothing)
            .map_err(unusable)?;
        Ok(())
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
