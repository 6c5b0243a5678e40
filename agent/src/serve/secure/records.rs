//! Received records: a length, and that many bytes of ciphertext.

use core::ops::Range;

use unikprof_proto::secure::{MAX_REQUEST, RECORD_HEADER, TAG, ciphertext};

use super::noise::Transport;

/// A record that is not authentic: not made by the other end, altered, replayed, out of order, or
/// of an invalid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRecord;

/// One record: its ciphertext while it is received, then its plaintext until that is consumed.
#[derive(Debug)]
pub(crate) struct Incoming {
    bytes: [u8; RECORD_HEADER + MAX_REQUEST + TAG],
    length: usize,
    /// The plaintext that was not consumed yet; empty while a record is being received.
    plaintext: Range<usize>,
}

impl Incoming {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; RECORD_HEADER + MAX_REQUEST + TAG], length: 0, plaintext: 0..0 }
    }

    /// Accepts bytes up to the end of the record; returns their number.
    pub(crate) fn receive(&mut self, mut bytes: &[u8]) -> usize {
        if !self.plaintext.is_empty() {
            return 0;
        }
        let mut taken = 0;
        // The header gives the length of the rest.
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

    /// Whether a record was received in part.
    pub(crate) fn has_begun(&self) -> bool {
        self.length > 0
    }

    /// The number of bytes missing until more is known, or the record is complete.
    fn wanted(&self) -> Result<usize, BadRecord> {
        let Some(header) = self.bytes[..self.length].first_chunk() else {
            return Ok(RECORD_HEADER - self.length);
        };
        let length = ciphertext(*header, MAX_REQUEST).ok_or(BadRecord)?;
        Ok(RECORD_HEADER + length - self.length)
    }

    /// Decrypts the record if it is complete; returns whether this call did so.
    ///
    /// # Errors
    ///
    /// [`BadRecord`]; the conversation cannot continue.
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

    /// Erases the record and expects a new one.
    pub(crate) fn erase(&mut self) {
        self.bytes.fill(0);
        self.length = 0;
        self.plaintext = 0..0;
    }

    /// The plaintext that was not consumed yet.
    pub(crate) fn plaintext(&self) -> &[u8] {
        &self.bytes[self.plaintext.clone()]
    }

    /// Consumes plaintext; after the last byte, the next record can be received.
    pub(crate) fn consume(&mut self, bytes: usize) {
        if self.plaintext.is_empty() {
            // A record that is being received has no plaintext.
            return;
        }
        self.plaintext.start += bytes;
        if self.plaintext.is_empty() {
            self.plaintext = 0..0;
            self.length = 0;
        }
    }
}
