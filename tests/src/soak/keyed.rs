//! The client's half of a conversation under a key, taken apart: each step can be altered, repeated
//! or left out.

use std::io;

use unikprof_proto::message::HandshakeReply;
use unikprof_proto::preamble;
use unikprof_proto::secure::{MAX_ANSWER, MAX_REQUEST, RECORD_HEADER, ciphertext};
use unikprof_test_kit::frames::{Frame, take_frame};
use unikprof_test_kit::noise::{Initiator, Preamble, Records};

use super::line::{End, Line};
use super::target::{Target, TestKey};

/// A conversation whose handshake is over.
pub struct KeyedLine {
    line: Line,
    records: Records,
    plain: Vec<u8>,
}

/// The handshake under `key`, with any id in the clear.
pub fn begin(key: &TestKey, id: [u8; 8]) -> Initiator {
    Initiator::with(&key.0, id, &preamble::encode(preamble::KEYED), None)
}

/// Reads the agent's reply; `theirs` is the agent's preamble as it was received in the clear.
pub(crate) fn finish(
    begun: Initiator,
    mut line: Line,
    theirs: &Preamble,
) -> Result<KeyedLine, End> {
    let frame = line.read_frame()?;
    if let Some(code) = frame.refusal() {
        return Err(End::Refused(code));
    }
    let reply: HandshakeReply = frame.decode().map_err(|_| End::Nonsense)?;
    let (records, sealed) = begun.finish(&reply).ok_or(End::Nonsense)?;
    if sealed != *theirs {
        return Err(End::Nonsense);
    }
    Ok(KeyedLine {
        line,
        records,
        plain: Vec::new(),
    })
}

/// Connects and says that a key will be used; answers the agent's preamble too.
pub fn greet(target: &Target) -> Result<(Line, Preamble), End> {
    let mut line = Line::connect(target.address).map_err(|_| End::Unreachable)?;
    line.send(&preamble::encode(preamble::KEYED))
        .map_err(|error| End::of(&error))?;
    let theirs = line.read_preamble()?;
    Ok((line, theirs))
}

/// A whole conversation under a key of the target's.
pub fn open(target: &Target, key: &TestKey) -> Result<KeyedLine, End> {
    let (mut line, theirs) = greet(target)?;
    let begun = begin(key, key.id());
    line.send_message(&begun.message)
        .map_err(|error| End::of(&error))?;
    finish(begun, line, &theirs)
}

impl KeyedLine {
    /// The bytes of the record that would carry `plain` next; they can be sent once, as they are, or
    /// damaged.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        self.records.seal(plain)
    }

    /// Sends bytes as they are, beside all records.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.line.send(bytes)
    }

    /// Sends bytes sealed, in records as long as may be.
    pub(crate) fn send(&mut self, plain: &[u8]) -> io::Result<()> {
        for piece in plain.chunks(MAX_REQUEST) {
            let record = self.seal(piece);
            self.line.send(&record)?;
        }
        Ok(())
    }

    pub fn read_frame(&mut self) -> Result<Frame, End> {
        loop {
            if let Some(frame) = take_frame(&mut self.plain).map_err(|_| End::Nonsense)? {
                return Ok(frame);
            }
            let mut record = self.line.read_exact(RECORD_HEADER)?;
            let length = ciphertext([record[0], record[1]], MAX_ANSWER).ok_or(End::Nonsense)?;
            record.extend(self.line.read_exact(length)?);
            self.plain
                .extend(self.records.open(&record).ok_or(End::Nonsense)?);
        }
    }

    /// Reads frames until there are no more; answers the last refusal, or the end.
    pub(crate) fn read_to_end(&mut self) -> End {
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
