//! The client's half of a conversation under a key, taken apart: each step can be altered, repeated
//! or left out.

use std::io;

use snow::{HandshakeState, TransportState};
use unikprof_proto::message::{Handshake, HandshakeReply};
use unikprof_proto::preamble;
use unikprof_proto::secure::{MAX_ANSWER, MAX_REQUEST, NAME, RECORD_HEADER, ciphertext, prologue};

use super::line::{End, Line, OwnedFrame, encoded, take_frame};
use super::target::{Target, TestKey};

/// A handshake begun: what the client would send next, and what it needs to go on.
pub struct Begun {
    /// The message, not sent yet.
    pub message: Handshake,
    state: HandshakeState,
}

/// A conversation whose handshake is over.
pub struct KeyedLine {
    line: Line,
    transport: TransportState,
    plain: Vec<u8>,
}

impl Begun {
    /// The first message under `key`.
    ///
    /// # Errors
    /// [`snow`]'s, as an error of input.
    pub fn new(key: &TestKey) -> io::Result<Begun> {
        Begun::named(key, key.id())
    }

    /// The same with any id in the clear.
    ///
    /// # Errors
    /// [`snow`]'s, as an error of input.
    pub fn named(key: &TestKey, id: [u8; 8]) -> io::Result<Begun> {
        let ours = preamble::encode(preamble::KEYED);
        let bound = prologue(&ours, &id);
        let parameters = NAME.parse().map_err(failed)?;
        let mut state = snow::Builder::new(parameters)
            .prologue(&bound)
            .and_then(|builder| builder.psk(0, &key.0))
            .and_then(snow::Builder::build_initiator)
            .map_err(failed)?;
        let mut bytes = [0; 48];
        let length = state.write_message(&[], &mut bytes).map_err(failed)?;
        let (Some(ephemeral), Some(tag), 48) = (bytes.first_chunk(), bytes.last_chunk(), length)
        else {
            return Err(io::Error::other("the first message has 48 bytes"));
        };
        Ok(Begun {
            message: Handshake {
                key: id,
                ephemeral: *ephemeral,
                tag: *tag,
            },
            state,
        })
    }

    /// Reads the agent's reply; `theirs` is the agent's preamble as it was received in the clear.
    ///
    /// # Errors
    /// [`End`]: a refusal, or no reply that fits.
    pub fn finish(
        mut self,
        mut line: Line,
        theirs: &[u8; preamble::LENGTH],
    ) -> Result<KeyedLine, End> {
        let frame = line.read_frame()?;
        if let Some(code) = frame.refusal() {
            return Err(End::Refused(code));
        }
        let reply: HandshakeReply = frame.decode().ok_or(End::Nonsense)?;
        let bytes = [&reply.ephemeral[..], &reply.preamble, &reply.tag].concat();
        let mut sealed = [0; preamble::LENGTH];
        self.state
            .read_message(&bytes, &mut sealed)
            .map_err(|_| End::Nonsense)?;
        if sealed != *theirs {
            return Err(End::Nonsense);
        }
        Ok(KeyedLine {
            line,
            transport: self
                .state
                .into_transport_mode()
                .map_err(|_| End::Nonsense)?,
            plain: Vec::new(),
        })
    }
}

/// Connects and says that a key will be used; answers the agent's preamble too.
///
/// # Errors
/// [`End`].
pub fn greet(target: &Target) -> Result<(Line, [u8; preamble::LENGTH]), End> {
    let mut line = Line::connect(target.address).map_err(|_| End::Unreachable)?;
    line.send(&preamble::encode(preamble::KEYED))
        .map_err(|error| End::of(&error))?;
    let theirs = line.read_preamble()?;
    Ok((line, theirs))
}

/// A whole conversation under a key of the target's.
///
/// # Errors
/// [`End`].
pub fn open(target: &Target, key: &TestKey) -> Result<KeyedLine, End> {
    let (mut line, theirs) = greet(target)?;
    let begun = Begun::new(key).map_err(|_| End::Nonsense)?;
    line.send_message(&begun.message)
        .map_err(|error| End::of(&error))?;
    begun.finish(line, &theirs)
}

impl KeyedLine {
    /// The bytes of the record that would carry `plain` next; they can be sent once, as they are, or
    /// damaged.
    ///
    /// # Errors
    /// [`snow`]'s, as an error of input.
    pub fn seal(&mut self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut sealed = vec![0; RECORD_HEADER + plain.len() + 16];
        let length = self
            .transport
            .write_message(plain, &mut sealed[RECORD_HEADER..])
            .map_err(failed)?;
        sealed[..RECORD_HEADER].copy_from_slice(&(length as u16).to_le_bytes());
        Ok(sealed)
    }

    /// Sends bytes as they are, beside all records.
    ///
    /// # Errors
    /// The system's.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.line.send(bytes)
    }

    /// Sends bytes sealed, in records as long as may be.
    ///
    /// # Errors
    /// The system's.
    pub fn send(&mut self, plain: &[u8]) -> io::Result<()> {
        for piece in plain.chunks(MAX_REQUEST) {
            let record = self.seal(piece)?;
            self.line.send(&record)?;
        }
        Ok(())
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The system's.
    pub fn send_message<'m, M: unikprof_proto::frame::Message<'m>>(
        &mut self,
        message: &M,
    ) -> io::Result<()> {
        self.send(&encoded(message))
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// [`End`].
    pub fn read_frame(&mut self) -> Result<OwnedFrame, End> {
        loop {
            if let Some(frame) = take_frame(&mut self.plain)? {
                return Ok(frame);
            }
            let header = self.line.read_exact(RECORD_HEADER)?;
            let header = [header[0], header[1]];
            let length = ciphertext(header, MAX_ANSWER).ok_or(End::Nonsense)?;
            let sealed = self.line.read_exact(length)?;
            let mut opened = vec![0; length];
            let length = self
                .transport
                .read_message(&sealed, &mut opened)
                .map_err(|_| End::Nonsense)?;
            self.plain.extend_from_slice(&opened[..length]);
        }
    }

    /// Reads frames until there are no more; answers the last refusal, or the end.
    pub fn read_to_end(&mut self) -> End {
        let mut last = None;
        loop {
            match self.read_frame() {
                Ok(frame) => last = frame.refusal().or(last),
                Err(end) => return last.map_or(end, End::Refused),
            }
        }
    }

    /// The connection below.
    pub fn line(&mut self) -> &mut Line {
        &mut self.line
    }
}

fn failed(error: snow::Error) -> io::Error {
    io::Error::other(error)
}
