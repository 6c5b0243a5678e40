//! Records on their way in: a length, and so many bytes of ciphertext.

use core::ops::Range;

use unikprof_proto::secure::{MAX_REQUEST, RECORD_HEADER, TAG, ciphertext};

use super::noise::Transport;

/// A record that was not made by who holds the other end's key, or not now: altered, replayed, out of
/// order, or of a length that none has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRecord;

/// One record: its bytes while they come, then its plaintext until that is taken.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: [u8; RECORD_HEADER + MAX_REQUEST + TAG],
    length: usize,
    /// Where the plaintext lies that was not taken yet; empty while the record is coming.
    plaintext: Range<usize>,
}

impl Incoming {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; RECORD_HEADER + MAX_REQUEST + TAG],
            length: 0,
            plaintext: 0..0,
        }
    }

    /// Takes bytes of the record, none beyond its end; answers how many.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> usize {
        if !self.plaintext.is_empty() {
            return 0;
        }
        let mut taken = 0;
        // The header says how much the rest is.
        while let Ok(wanted) = self.wanted()
            && wanted > 0
            && !bytes.is_empty()
        {
            let (part, rest) = bytes.split_at(wanted.min(bytes.len()));
            let Some(room) = self.bytes.get_mut(self.length..self.length + part.len()) else {
                break;
            };
            room.copy_from_slice(part);
            self.length += part.len();
            taken += part.len();
            bytes = rest;
        }
        taken
    }

    /// Whether a record has begun that is not whole.
    pub(crate) fn has_begun(&self) -> bool {
        self.length > 0
    }

    /// How many bytes are still to come before more is known, or the record is whole.
    fn wanted(&self) -> Result<usize, BadRecord> {
        let Some(header) = self.bytes[..self.length].first_chunk() else {
            return Ok(RECORD_HEADER - self.length);
        };
        let length = ciphertext(*header, MAX_REQUEST).ok_or(BadRecord)?;
        Ok(RECORD_HEADER + length - self.length)
    }

    /// Opens the record if it is whole. Answers whether one was opened by this call.
    ///
    /// # Errors
    /// [`BadRecord`]; the conversation cannot go on.
    pub(crate) fn open(&mut self, transport: &mut Transport) -> Result<bool, BadRecord> {
        if !self.plaintext.is_empty() || self.wanted()? > 0 {
            return Ok(false);
        }
        let record = &mut self.bytes[RECORD_HEADER..self.length];
        let (text, tag) = record.split_last_chunk_mut::<TAG>().ok_or(BadRecord)?;
        transport.open(text, tag).ok_or(BadRecord)?;
        self.plaintext = RECORD_HEADER..RECORD_HEADER + text.len();
        Ok(true)
    }

    /// Erases the record, and expects a new one.
    pub(crate) fn erase(&mut self) {
        self.bytes.fill(0);
        self.length = 0;
        self.plaintext = 0..0;
    }

    /// The plaintext that was not taken yet.
    pub(crate) fn plaintext(&self) -> &[u8] {
        &self.bytes[self.plaintext.clone()]
    }

    /// Takes some of it; behind the last, the next record may come.
    pub(crate) fn consume(&mut self, bytes: usize) {
        if self.plaintext.is_empty() {
            // A record that is coming is none to take from.
            return;
        }
        self.plaintext.start += bytes;
        if self.plaintext.is_empty() {
            self.plaintext = 0..0;
            self.length = 0;
        }
    }
}
