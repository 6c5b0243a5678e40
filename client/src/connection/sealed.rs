//! A stream of bytes inside sealed records: encrypted, authenticated and in order.

use std::fmt;
use std::io::{self, Read, Write};

use snow::TransportState;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordError {
    /// It fails its check.
    Altered,
    /// Its length cannot be.
    Length(u16),
    /// The connection ended within it.
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
        let opened = self
            .state
            .read_message(ciphertext, self.plaintext.as_mut_slice());
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
        let length = self
            .state
            .write_message(&bytes[..take], room)
            .map_err(io::Error::other)?;
        // At most MAX_REQUEST and TAG.
        header.copy_from_slice(&(length as u16).to_le_bytes());
        self.stream
            .write_all(&self.outgoing[..RECORD_HEADER + length])?;
        Ok(take)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Shows no keys and no plaintext.
impl<S: fmt::Debug> fmt::Debug for Sealed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

impl RecordError {
    /// The reason inside an error, if it is one of these.
    pub(super) fn of(error: &io::Error) -> Option<RecordError> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordError::Altered => f.write_str("a record fails its check"),
            RecordError::Length(length) => {
                let most = MAX_ANSWER + TAG;
                write!(
                    f,
                    "a record says that it has {length} bytes, which is none of {} to {most}",
                    TAG + 1
                )
            }
            RecordError::Cut => f.write_str("the connection ended within a record"),
        }
    }
}

impl std::error::Error for RecordError {}

impl From<RecordError> for io::Error {
    fn from(error: RecordError) -> io::Error {
        io::Error::other(error)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::VecDeque;

    use snow::Builder;
    use unikprof_proto::secure;

    use super::*;

    /// What was sent, in pieces; between them the wait ends once.
    #[derive(Default)]
    struct Pieces {
        incoming: VecDeque<Vec<u8>>,
        outgoing: Vec<u8>,
        pause: bool,
    }

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.pause = !self.pause;
            if self.pause {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let Some(piece) = self.incoming.front_mut() else {
                return Ok(0);
            };
            let take = piece.len().min(buffer.len());
            buffer[..take].copy_from_slice(&piece[..take]);
            piece.drain(..take);
            if piece.is_empty() {
                self.incoming.pop_front();
            }
            Ok(take)
        }
    }

    impl Write for Pieces {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // A little at a time, as a busy guest takes it.
            let take = bytes.len().min(7);
            self.outgoing.extend_from_slice(&bytes[..take]);
            Ok(take)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Both ends of a line after its handshake: the client's, the agent's.
    fn ends() -> (TransportState, TransportState) {
        let builder = || Builder::new(secure::NAME.parse().unwrap());
        let key = [7; 32];
        let mut client = builder().psk(0, &key).unwrap().build_initiator().unwrap();
        let mut agent = builder().psk(0, &key).unwrap().build_responder().unwrap();
        let (mut first, mut second, mut none) = ([0; 48], [0; 48], [0; 0]);
        client.write_message(&[], &mut first).unwrap();
        agent.read_message(&first, &mut none).unwrap();
        agent.write_message(&[], &mut second).unwrap();
        client.read_message(&second, &mut none).unwrap();
        (
            client.into_transport_mode().unwrap(),
            agent.into_transport_mode().unwrap(),
        )
    }

    fn record(agent: &mut TransportState, plaintext: &[u8]) -> Vec<u8> {
        let mut record = vec![0; RECORD_HEADER + plaintext.len() + TAG];
        let length = agent
            .write_message(plaintext, &mut record[RECORD_HEADER..])
            .unwrap();
        record[..RECORD_HEADER].copy_from_slice(&(length as u16).to_le_bytes());
        record
    }

    fn reader(state: TransportState, pieces: impl IntoIterator<Item = Vec<u8>>) -> Sealed<Pieces> {
        let incoming = pieces.into_iter().collect();
        let pieces = Pieces {
            incoming,
            ..Pieces::default()
        };
        Sealed::new(pieces, state)
    }

    /// Reads to the end or to the first error that is no wait's end.
    fn read_all(sealed: &mut Sealed<Pieces>) -> (Vec<u8>, Option<RecordError>) {
        let mut all = Vec::new();
        loop {
            let mut buffer = [0; 100];
            match sealed.read(&mut buffer) {
                Ok(0) => return (all, None),
                Ok(read) => all.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
                Err(error) => return (all, Some(RecordError::of(&error).unwrap())),
            }
        }
    }

    #[test]
    fn what_is_sealed_is_opened_however_it_is_cut_up() {
        let (client, mut agent) = ends();
        let text: Vec<u8> = (0..9000_u32).map(|at| at as u8).collect();
        let records: Vec<u8> = [&text[..1], &text[1..4097], &text[4097..8193], &text[8193..]]
            .iter()
            .flat_map(|part| record(&mut agent, part))
            .collect();
        let pieces = records.chunks(13).map(<[u8]>::to_vec);
        let (read, error) = read_all(&mut reader(client, pieces));
        assert_eq!((read, error), (text, None));
    }

    #[test]
    fn what_is_written_can_be_opened_and_is_not_to_be_read() {
        let (client, mut agent) = ends();
        let mut sealed = reader(client, []);
        let text = b"profile".repeat(500);
        sealed.write_all(&text).unwrap();
        assert_eq!(sealed.write(b"").unwrap(), 0);
        let sent = std::mem::take(&mut sealed.stream.outgoing);
        assert!(!sent.windows(7).any(|window| window == b"profile"));
        let (mut rest, mut opened) = (&sent[..], Vec::new());
        while let Some((header, after)) = rest.split_first_chunk() {
            let length = ciphertext(*header, MAX_REQUEST).unwrap();
            let mut plaintext = [0; MAX_REQUEST + TAG];
            let read = agent.read_message(&after[..length], &mut plaintext);
            opened.extend_from_slice(&plaintext[..read.unwrap()]);
            rest = &after[length..];
        }
        assert_eq!(opened, text);
    }

    /// Every bit of a record, its length included; nothing of it may be taken.
    #[test]
    fn an_altered_record_is_not_opened() {
        for at in 0..(RECORD_HEADER + 5 + TAG) * 8 {
            let (client, mut agent) = ends();
            let mut record = record(&mut agent, b"hello");
            record[at / 8] ^= 1 << (at % 8);
            let mut sealed = reader(client, [record]);
            let (read, error) = read_all(&mut sealed);
            assert_eq!(read, b"", "bit {at}");
            assert!(error.is_some(), "bit {at}");
            // And no record after it.
            assert_eq!(read_all(&mut sealed), (Vec::new(), error));
        }
    }

    #[test]
    fn repeated_and_exchanged_records_are_not_opened() {
        let (client, mut agent) = ends();
        let first = record(&mut agent, b"one");
        let (read, error) = read_all(&mut reader(client, [first.clone(), first]));
        assert_eq!((read, error), (b"one".to_vec(), Some(RecordError::Altered)));

        let (client, mut agent) = ends();
        let (first, second) = (record(&mut agent, b"one"), record(&mut agent, b"two"));
        let (read, error) = read_all(&mut reader(client, [second, first]));
        assert_eq!((read, error), (Vec::new(), Some(RecordError::Altered)));
    }

    #[test]
    fn an_end_within_a_record_is_told_from_an_end_between_records() {
        let whole = RECORD_HEADER + 5 + TAG;
        for cut in 0..=2 * whole {
            let (client, mut agent) = ends();
            let records = [record(&mut agent, b"hello"), record(&mut agent, b"again")].concat();
            let (read, error) = read_all(&mut reader(client, [records[..cut].to_vec()]));
            assert_eq!(read.len(), cut / whole * 5, "cut at {cut}");
            let expected = (cut % whole != 0).then_some(RecordError::Cut);
            assert_eq!(error, expected, "cut at {cut}");
        }
    }

    #[test]
    fn impossible_lengths_are_refused_before_anything_is_waited_for() {
        for length in [0, 1, TAG as u16, (MAX_ANSWER + TAG) as u16 + 1, u16::MAX] {
            let (client, _) = ends();
            let (read, error) = read_all(&mut reader(client, [length.to_le_bytes().to_vec()]));
            assert_eq!(
                (read, error),
                (Vec::new(), Some(RecordError::Length(length)))
            );
        }
    }
}
