//! The client's half of a conversation under a key, taken apart: each step can be altered, repeated
//! or left out.

use std::io;

use unikprof_proto::message::HandshakeReply;
use unikprof_proto::preamble;
use unikprof_proto::secure::{MAX_ANSWER, MAX_REQUEST, RECORD_HEADER, ciphertext};
use unikprof_test_kit::frames::{Frame, take_frame};
use unikprof_test_kit::noise::{Initiator, Preamble, Records};

use super::line::{End, Line, answer};
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
    let reply: HandshakeReply = answer(&line.read_frame()?)?;
    let (records, sealed) = begun.finish(&reply).ok_or(End::Nonsense)?;
    if sealed != *theirs {
        return Err(End::Nonsense);
    }
    Ok(KeyedLine { line, records, plain: Vec::new() })
}

/// Connects and says that a key will be used; answers the agent's preamble too.
pub fn greet(target: &Target) -> Result<(Line, Preamble), End> {
    let mut line = Line::connect(target.address).map_err(|_| End::Unreachable)?;
    line.send(&preamble::encode(preamble::KEYED))?;
    let theirs = line.read_preamble()?;
    Ok((line, theirs))
}

/// A whole conversation under a key of the target's.
pub fn open(target: &Target, key: &TestKey) -> Result<KeyedLine, End> {
    let (mut line, theirs) = greet(target)?;
    let begun = begin(key, key.id());
    line.send_message(&begun.message)?;
    finish(begun, line, &theirs)
}

impl KeyedLine {
    /// The bytes of the record that would carry `plain` next; they can be sent once, as they are,
    /// or damaged.
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
            self.plain.extend(self.records.open(&record).ok_or(End::Nonsense)?);
        }
    }

    /// The connection below.
    pub fn line(&mut self) -> &mut Line {
        &mut self.line
    }
}
