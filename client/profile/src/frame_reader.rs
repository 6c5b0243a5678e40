//! Whole frames out of a stream of bytes, a socket or a recording file; and those of messages.

use std::io::{self, Read};

use thiserror::Error;
use unikprof_proto::frame::{self, Frame, FrameError, HEADER, MAX_BODY, Message};

/// A message's frame.
pub fn encoded<'m>(message: &impl Message<'m>) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; HEADER + MAX_BODY];
    let length = frame::encode(message, &mut frame)?;
    frame.truncate(length);
    Ok(frame)
}

/// Why there is no next frame.
#[derive(Debug, Error)]
pub enum FrameReadError {
    /// The source cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The frame is damaged.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The source ends in the middle of a frame.
    #[error("the data ends in the middle of a frame ({0} bytes read)")]
    Cut(usize),
}

/// Reads frame after frame into one buffer of the longest frame's size.
#[derive(Debug)]
pub struct FrameReader<R> {
    source: R,
    buffer: Box<[u8]>,
    /// The bytes read and not yet passed over are `start..end`; the current frame is their head.
    start: usize,
    end: usize,
    /// The length of the current frame; 0 before the first.
    current: usize,
    /// Where the current frame begins, in bytes from where this reader began.
    offset: u64,
}

impl<R: Read> FrameReader<R> {
    /// A reader before the first frame.
    pub fn new(source: R) -> Self {
        FrameReader {
            source,
            buffer: vec![0; HEADER + MAX_BODY].into(),
            start: 0,
            end: 0,
            current: 0,
            offset: 0,
        }
    }

    /// What is read from.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// Goes to the next frame and tells its type; `None` where the source ends between frames.
    pub fn advance(&mut self) -> Result<Option<u16>, FrameReadError> {
        self.start += self.current;
        self.offset += self.current as u64;
        self.current = 0;
        loop {
            if self.holds_a_frame()?
                && let Some(frame) = frame::split(&self.buffer[self.start..self.end])?
            {
                self.current = frame.length();
                return Ok(Some(frame.kind));
            }
            if self.fill()? == 0 {
                return match self.end - self.start {
                    0 => Ok(None),
                    bytes => Err(FrameReadError::Cut(bytes)),
                };
            }
        }
    }

    /// The frame that [`FrameReader::advance`] went to; an empty one of type 0 before that.
    pub fn frame(&self) -> Frame<'_> {
        match self.encoded() {
            [low, high, rest @ ..] => Frame {
                kind: u16::from_le_bytes([*low, *high]),
                body: rest.get(HEADER - 2..).unwrap_or_default(),
            },
            _ => Frame { kind: 0, body: &[] },
        }
    }

    /// The current frame's bytes, header and all.
    pub fn encoded(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.current]
    }

    /// Where the current frame begins, in bytes from where this reader began.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the bytes read hold all of a frame: spares checksumming its beginnings.
    fn holds_a_frame(&self) -> Result<bool, FrameError> {
        let Some((header, rest)) = self.buffer[self.start..self.end].split_first_chunk::<HEADER>()
        else {
            return Ok(false);
        };
        let length = u32::from_le_bytes([header[2], header[3], header[4], header[5]]) as usize;
        if length > MAX_BODY {
            return frame::split(header).map(|_| false);
        }
        Ok(rest.len() >= length)
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    return Ok(read);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::message::{Acknowledge, Nodes};

    use super::*;

    /// A source that hands out one byte at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let take = self.0.len().min(1);
            buffer[..take].copy_from_slice(&self.0[..take]);
            self.0 = &self.0[take..];
            Ok(take)
        }
    }

    fn two_frames() -> Vec<u8> {
        let payload = vec![7; MAX_BODY - 16];
        let mut bytes = vec![0; 2 * (HEADER + MAX_BODY)];
        let first = frame::encode(&Acknowledge { epoch: 300 }, &mut bytes).unwrap();
        let nodes = Nodes { vcpu: 2, first: 3, count: 4, payload: &payload };
        let second = frame::encode(&nodes, &mut bytes[first..]).unwrap();
        bytes.truncate(first + second);
        bytes
    }

    #[test]
    fn frames_come_whole_from_a_trickle() {
        let bytes = two_frames();
        let mut reader = FrameReader::new(Trickle(&bytes));
        assert_eq!(reader.frame().body, b"");
        reader.advance().unwrap().unwrap();
        let first = reader.encoded().to_vec();
        assert_eq!(frame::decode::<Acknowledge>(&reader.frame()).unwrap().epoch, 300);
        reader.advance().unwrap().unwrap();
        assert_eq!(reader.offset(), first.len() as u64);
        assert_eq!([first, reader.encoded().to_vec()].concat(), bytes);
        assert_eq!(reader.advance().unwrap(), None);
        assert_eq!(reader.advance().unwrap(), None);
    }

    #[test]
    fn an_end_within_a_frame_is_told_from_an_end_between_frames() {
        let bytes = two_frames();
        for cut in 0..bytes.len() {
            let mut reader = FrameReader::new(&bytes[..cut]);
            let end = loop {
                match reader.advance() {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            let between = cut == 0 || cut == frame::split(&bytes).unwrap().unwrap().length();
            assert_eq!(matches!(end, Ok(None)), between, "cut at {cut}: {end:?}");
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_header() {
        let mut header = [0; HEADER];
        header[2..6].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut reader = FrameReader::new(&header[..]);
        assert!(matches!(
            reader.advance(),
            Err(FrameReadError::Frame(FrameError::TooLong(0, u32::MAX)))
        ));
    }
}
