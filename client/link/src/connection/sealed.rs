//! A stream of bytes inside sealed records: encrypted, authenticated and in order.

use std::fmt;
use std::io::{self, Read, Write};

use snow::TransportState;
use thiserror::Error;
use unikprof_proto::secure::{MAX_ANSWER, MAX_REQUEST, RECORD_HEADER, TAG, ciphertext};

/// Seals what is written and opens what is read; see [`unikprof_proto::secure`].
///
/// Nothing of a record is handed out before all of it has been authenticated. After a record that
/// cannot be opened the stream is at its end for good: every further read says so again.
pub(super) struct Sealed<S> {
    stream: S,
    state: TransportState,
    /// The record being read, its header first: the first `arrived` bytes.
    record: Box<[u8; RECORD_HEADER + MAX_ANSWER + TAG]>,
    arrived: usize,
    /// What the last record held: `handed_out..opened` is still to be read.
    plaintext: Box<[u8; MAX_ANSWER + TAG]>,
    handed_out: usize,
    opened: usize,
    broken: Option<RecordError>,
    /// The record being written.
    outgoing: Box<[u8; RECORD_HEADER + MAX_REQUEST + TAG]>,
}

/// Why a record cannot be opened; inside an [`io::Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    /// It fails its check.
    #[error("a record fails its check")]
    Altered,
    /// Its length cannot be.
    #[error("a record says that it has {0} bytes, which is none of {least} to \
             {most}", least = TAG + 1, most = MAX_ANSWER + TAG)]
    Length(u16),
    /// The connection ended within it.
    #[error("the connection ended within a record")]
    Cut,
}

impl<S> Sealed<S> {
    pub(super) fn new(stream: S, state: TransportState) -> Sealed<S> {
        Sealed {
            stream,
            state,
            record: Box::new([0; _]),
            arrived: 0,
            plaintext: Box::new([0; _]),
            handed_out: 0,
            opened: 0,
            broken: None,
            outgoing: Box::new([0; _]),
        }
    }

    pub(super) fn stream_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Opens the record that has arrived.
    fn open(&mut self) -> Result<(), RecordError> {
        let ciphertext = &self.record[RECORD_HEADER..self.arrived];
        self.arrived = 0;
        let opened = self.state.read_message(ciphertext, self.plaintext.as_mut_slice());
        self.handed_out = 0;
        self.opened = opened.map_err(|_| RecordError::Altered)?;
        Ok(())
    }

    fn fail(&mut self, error: RecordError) -> io::Error {
        self.broken = Some(error);
        self.handed_out = 0;
        self.opened = 0;
        error.into()
    }
}

impl<S: Read> Read for Sealed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(error) = self.broken {
            return Err(error.into());
        }
        while self.handed_out == self.opened {
            let wanted = match self.record.first_chunk() {
                Some(header) if self.arrived >= RECORD_HEADER => {
                    match ciphertext(*header, MAX_ANSWER) {
                        Some(length) => RECORD_HEADER + length,
                        None => {
                            let length = u16::from_le_bytes(*header);
                            return Err(self.fail(RecordError::Length(length)));
                        }
                    }
                }
                _ => RECORD_HEADER,
            };
            if self.arrived < wanted {
                // A wait that ends here goes on where it ended.
                match self.stream.read(&mut self.record[self.arrived..wanted])? {
                    0 if self.arrived == 0 => return Ok(0),
                    0 => return Err(self.fail(RecordError::Cut)),
                    read => self.arrived += read,
                }
            } else if let Err(error) = self.open() {
                return Err(self.fail(error));
            }
        }
        let take = buffer.len().min(self.opened - self.handed_out);
        buffer[..take].copy_from_slice(&self.plaintext[self.handed_out..][..take]);
        self.handed_out += take;
        Ok(take)
    }
}

impl<S: Write> Write for Sealed<S> {
    /// Writes one record, the whole of it: after an error the other side can open nothing more.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let take = bytes.len().min(MAX_REQUEST);
        if take == 0 {
            return Ok(0);
        }
        let (header, room) = self.outgoing.split_at_mut(RECORD_HEADER);
        let length = self.state.write_message(&bytes[..take], room).map_err(io::Error::other)?;
        // At most MAX_REQUEST and TAG.
        header.copy_from_slice(&(length as u16).to_le_bytes());
        self.stream.write_all(&self.outgoing[..RECORD_HEADER + length])?;
        Ok(take)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Shows no keys and no plaintext.
impl<S: fmt::Debug> fmt::Debug for Sealed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl RecordError {
    /// The reason inside an error, if it is one of these.
    pub(super) fn of(error: &io::Error) -> Option<RecordError> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<RecordError> for io::Error {
    fn from(error: RecordError) -> io::Error {
        io::Error::other(error)
    }
}
