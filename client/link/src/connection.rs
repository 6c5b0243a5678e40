//! A conversation with an agent: TCP, the preambles, and typed requests with their answers.

mod address;
mod dial;
mod error;
mod handshake;
mod line;
mod patient;
mod preambles;
mod sealed;

use std::io::{self, Write as _};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use unikprof_proto::code::{refusal, security};
use unikprof_proto::frame::{self, Frame, Message};
use unikprof_proto::message::{Hello, Mapping, Refusal, Welcome};
use unikprof_proto::preamble;

pub use address::Address;
pub use error::ConnectionError;
pub(crate) use error::TRACING;
use line::Line;
use patient::{PatientStream, WaitEnded};
pub use sealed::RecordError;
pub use unikprof_profile::agent_info::AgentInfo;

use crate::deadline;
use crate::interrupt::Interrupt;
use crate::key::{Key, KeyId};
use unikprof_profile::agent_info::{MAX_MAPPINGS, MappingError};
use unikprof_profile::frame_reader::{FrameReadError, FrameReader, encoded};
use unikprof_profile::messages::{CLIENT, is_known};

static CLIENT_ID: OnceLock<u64> = OnceLock::new();

/// The random number by which agents recognise this process on each of its connections: a lease on
/// a recording belongs to it.
fn client_id() -> u64 {
    *CLIENT_ID.get_or_init(new_client_id)
}

/// 0, which takes no lease, if the system has no random numbers.
pub fn new_client_id() -> u64 {
    getrandom::u64().map_or(0, |id| id.max(1))
}

/// Makes agents take this process for an earlier one that has ended, whose leases it needs. Has no
/// effect after the first connection.
pub fn set_client_id(id: u64) {
    let _ = CLIENT_ID.set(id);
}

/// How long the other side may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To accept the connection and send its preamble.
    pub connect: Duration,
    /// To send the next whole frame of an answer.
    pub answer: Duration,
}

impl Default for Timeouts {
    /// Five seconds to connect, eight for each frame: with the second between two looks at a
    /// recording, a guest that is gone is told within ten.
    fn default() -> Self {
        Timeouts { connect: Duration::from_secs(5), answer: Duration::from_secs(8) }
    }
}

/// What the client has to show, and what it demands: with a key it talks to nobody who does not
/// hold the same, and nothing travels in the clear.
#[derive(Debug, Clone, Default)]
pub enum Access {
    /// Nothing: for an agent that is open.
    #[default]
    Open,
    /// A key that the agent holds too.
    Key(Arc<Key>),
}

impl From<Key> for Access {
    fn from(key: Key) -> Access {
        Access::Key(Arc::new(key))
    }
}

impl Access {
    pub(crate) fn key_id(&self) -> Option<KeyId> {
        match self {
            Access::Open => None,
            Access::Key(key) => Some(key.id()),
        }
    }
}

/// An open conversation in a version that both sides speak.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: FrameReader<Line>,
    /// The key it is sealed under.
    key: Option<KeyId>,
    /// What the agent has said that this client may do.
    role: Option<u32>,
    timeouts: Timeouts,
    version: u16,
}

/// Who answers: as read, and as sent.
#[derive(Debug, Clone)]
pub(crate) struct Greeting {
    /// The welcome and the mappings.
    pub(crate) info: AgentInfo,
    /// Their frames, byte for byte.
    pub(crate) frames: Vec<u8>,
}

impl Connection {
    /// Connects and exchanges preambles, and seals the conversation where there is a key.
    ///
    /// # Errors
    /// [`ConnectionError`]: nothing answers, what answers is no agent, there is no common version, or
    /// the two sides do not agree on a key.
    pub(crate) fn open(
        address: &Address,
        access: &Access,
        timeouts: Timeouts,
        interrupt: &Interrupt,
    ) -> Result<Connection, ConnectionError> {
        let deadline = deadline::after(timeouts.connect);
        let stream = dial::connect(address, timeouts.connect, interrupt)?;
        let lost = |source| ConnectionError::Connect { address: address.clone(), source };
        stream.set_nodelay(true).map_err(lost)?;
        let mut stream = PatientStream::new(stream, interrupt.clone()).map_err(lost)?;
        stream.wait_until(deadline);
        let (begun, first_flight) = match access {
            Access::Open => (None, preamble::encode(preamble::OPEN).to_vec()),
            Access::Key(key) => {
                let ours = preamble::encode(preamble::KEYED);
                let (begun, message) = handshake::begin(key, &ours)?;
                (Some((begun, key)), [&ours[..], &message].concat())
            }
        };
        // A peer that is not an agent may have closed already; what it sent makes the better error.
        let sent = stream.write_all(&first_flight);
        let (theirs, said) = preambles::read(&mut stream, address, timeouts.connect)?;
        // What an agent that has closed had to say comes next.
        drop(sent);
        let version = preamble::VERSIONS.common(said.versions).ok_or_else(|| {
            ConnectionError::NoCommonVersion { address: address.clone(), theirs: said.versions }
        })?;
        let line = match (said.security, begun) {
            (security::OPEN, None) => Line::Clear(stream),
            (security::NOISE, Some((begun, _))) => {
                let waited = timeouts.connect;
                Line::Sealed(handshake::finish(stream, begun, &theirs, address, waited)?)
            }
            (security::NOISE, None) => {
                return Err(ConnectionError::KeyNeeded { address: address.clone() });
            }
            // To go on without the key is what an impostor in the agent's place would want.
            (security::OPEN, Some((_, key))) => {
                return Err(ConnectionError::OpenAgent { address: address.clone(), key: key.id() });
            }
            (found, _) => {
                return Err(ConnectionError::UnknownSecurity { address: address.clone(), found });
            }
        };
        Ok(Connection {
            reader: FrameReader::new(line),
            key: access.key_id(),
            role: None,
            timeouts,
            version,
        })
    }

    /// The protocol version in use.
    pub(crate) fn version(&self) -> u16 {
        self.version
    }

    /// Sets what ends the waits to come early.
    pub(crate) fn set_interrupt(&mut self, interrupt: Interrupt) {
        self.reader.source_mut().stream_mut().set_interrupt(interrupt);
    }

    /// Asks who the agent is.
    pub(crate) fn hello(&mut self) -> Result<Greeting, ConnectionError> {
        const DOING: &str = "exchanging hello messages";
        let hello = Hello { client: CLIENT, client_id: client_id() };
        let welcome: Welcome<'_> = self.ask(&hello, "a welcome", DOING)?;
        let count = welcome.mappings;
        let mut info = AgentInfo::new(&welcome);
        self.role = Some(info.role);
        if count > MAX_MAPPINGS {
            return Err(MappingError::TooMany(count).into());
        }
        let mut frames = self.reader.encoded().to_vec();
        for _ in 0..count {
            let mapping: Mapping<'_> = self.answer("a mapping", DOING)?;
            info.mappings.add(&mapping)?;
            frames.extend_from_slice(self.reader.encoded());
        }
        Ok(Greeting { info, frames })
    }

    /// Sends a request and reads its answer; `doing` is for people.
    pub(crate) fn ask<'a, 'q, Q, A>(
        &'a mut self,
        request: &Q,
        expected: &'static str,
        doing: &'static str,
    ) -> Result<A, ConnectionError>
    where
        Q: Message<'q>,
        A: Message<'a>,
    {
        self.send(request, doing)?;
        self.answer(expected, doing)
    }

    /// Sends a request.
    pub(crate) fn send<'q, Q: Message<'q>>(
        &mut self,
        request: &Q,
        doing: &'static str,
    ) -> Result<(), ConnectionError> {
        let frame = encoded(request).map_err(ConnectionError::in_frame(doing))?;
        self.send_frames(&frame, doing)
    }

    /// Sends frames that are encoded already, within one timeout. What the system took may still be
    /// on its way, so the caller sends no more than the agent takes within one timeout before it
    /// asks for an answer.
    pub(crate) fn send_frames(
        &mut self,
        frames: &[u8],
        doing: &'static str,
    ) -> Result<(), ConnectionError> {
        let wait = self.timeouts.answer;
        let stream = self.reader.source_mut();
        stream.stream_mut().wait_until(deadline::after(wait));
        let sent = stream.write_all(frames);
        sent.map_err(|source| match broken(doing, wait, source) {
            // An agent that has hung up has said why.
            lost @ ConnectionError::Lost { .. } => match self.receive(doing) {
                Err(refused @ ConnectionError::Refused { .. }) => refused,
                _ => lost,
            },
            other => other,
        })
    }

    /// Reads the next frame, which is no refusal.
    pub(crate) fn receive(&mut self, doing: &'static str) -> Result<Frame<'_>, ConnectionError> {
        let wait = self.timeouts.answer;
        let stream = self.reader.source_mut().stream_mut();
        stream.wait_until(deadline::after(wait));
        match self.reader.advance() {
            Ok(Some(kind)) if kind == Refusal::TYPE => Err(self.refusal(doing)),
            Ok(Some(_)) => Ok(self.reader.frame()),
            Ok(None) => Err(ConnectionError::Closed { doing }),
            Err(FrameReadError::Cut(bytes)) => Err(ConnectionError::Cut { doing, bytes }),
            Err(FrameReadError::Frame(source)) => Err(ConnectionError::Frame { doing, source }),
            Err(FrameReadError::Io(source)) => Err(broken(doing, wait, source)),
        }
    }

    /// The bytes of the frame received last.
    pub(crate) fn received(&self) -> &[u8] {
        self.reader.encoded()
    }

    /// Reads frames up to one of the type wanted; passes over types that this client does not know.
    pub(crate) fn answer<'a, A: Message<'a>>(
        &'a mut self,
        expected: &'static str,
        doing: &'static str,
    ) -> Result<A, ConnectionError> {
        loop {
            let found = self.receive(doing)?.kind;
            if found == A::TYPE {
                break;
            }
            if is_known(found) {
                return Err(ConnectionError::Unexpected { doing, expected, found });
            }
        }
        frame::decode(&self.reader.frame()).map_err(ConnectionError::in_frame(doing))
    }

    fn refusal(&self, doing: &'static str) -> ConnectionError {
        match frame::decode::<Refusal<'_>>(&self.reader.frame()) {
            Ok(refusal) if refusal.code == refusal::NOT_ALLOWED => {
                ConnectionError::NotAllowed { doing, key: self.key, role: self.role }
            }
            Ok(refusal) => refused(&refusal),
            Err(source) => ConnectionError::Frame { doing, source },
        }
    }
}

fn refused(refusal: &Refusal<'_>) -> ConnectionError {
    ConnectionError::Refused { code: refusal.code, text: refusal.text.into() }
}

fn broken(doing: &'static str, waited: Duration, source: io::Error) -> ConnectionError {
    match (WaitEnded::of(&source), RecordError::of(&source)) {
        (Some(WaitEnded::Interrupted), _) => ConnectionError::Interrupted,
        (Some(WaitEnded::Deadline), _) => ConnectionError::Silent { doing, waited },
        (None, Some(source)) => ConnectionError::Record { doing, source },
        (None, None) => ConnectionError::Lost { doing, source },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// An agent whose sessions are all in use closes with the client's greeting unread: the line is
    /// reset, and the next request cannot be sent.
    #[test]
    fn a_refusal_on_a_line_that_is_reset_is_the_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let agent = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.peek(&mut [0]).unwrap();
            let refusal = Refusal { code: refusal::BUSY, request: 0, text: "all are taken" };
            stream.write_all(&preamble::encode(preamble::OPEN)).unwrap();
            stream.write_all(&encoded(&refusal).unwrap()).unwrap();
            stream
        });
        let wait = Duration::from_secs(60);
        let timeouts = Timeouts { connect: wait, answer: wait };
        let open = Connection::open(&address, &Access::Open, timeouts, &Interrupt::default());
        let mut connection = open.unwrap();
        drop(agent.join().unwrap());
        let error = connection.hello().unwrap_err();
        assert!(matches!(error, ConnectionError::Refused { code: refusal::BUSY, .. }), "{error}");
    }
}
