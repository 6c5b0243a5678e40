//! Frames: the encoding of messages on a byte stream.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 2 | message type, little endian |
//! | 2 | 4 | length of the body, little endian, at most [`MAX_BODY`] |
//! | 6 | 4 | CRC-32C over the type, the length and the body, little endian |
//! | 10 | length | the body |
//!
//! A reader skips a frame of an unknown type by its length. The frame has a checksum because TCP's
//! 16-bit checksum misses one damaged segment in 65,536, and because recording files consist of the
//! same frames.

use core::fmt;

use crc::{CRC_32_ISCSI, Crc};
use serde::{Deserialize, Serialize};

/// The length of a frame's header in bytes.
pub const HEADER: usize = 10;

/// The longest body in bytes, in both directions. A receiver closes the connection at a longer one.
pub const MAX_BODY: usize = 16 * 1024;

/// A message: the decoded body of a frame.
pub trait Message<'a>: Serialize + Deserialize<'a> {
    /// The type in its frames' headers; see [`code::message_type`](crate::code::message_type).
    const TYPE: u16;
}

/// A complete frame, borrowed from the stream. Its checksum is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The message type, known or not.
    pub kind: u16,
    /// The body, still encoded.
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// The length of header and body in bytes: the offset of the next frame.
    pub fn length(&self) -> usize {
        HEADER + self.body.len()
    }
}

/// Why bytes are not a frame, or a frame is not the expected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The header announces a body longer than [`MAX_BODY`]: the frame's type and the length in
    /// bytes.
    TooLong(u16, u32),
    /// The checksum does not match the bytes: the frame's type.
    Checksum(u16),
    /// Another message was expected: the expected type and the type found.
    Type(u16, u16),
    /// The body is not a valid encoding of the message: the frame's type.
    Body(u16),
    /// The message does not fit into the given buffer.
    Buffer,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As integers of the sizes that an agent formats anyway.
        let word = |kind: &u16| u32::from(*kind);
        match self {
            Self::TooLong(kind, length) => write!(
                f,
                "a frame of type {:#06x} announces {} bytes, the limit is {MAX_BODY}",
                word(kind),
                u64::from(*length)
            ),
            Self::Checksum(kind) => {
                write!(f, "the checksum of a frame of type {:#06x} is wrong", word(kind))
            }
            Self::Type(want, found) => write!(
                f,
                "expected a message of type {:#06x}, found {:#06x}",
                word(want),
                word(found)
            ),
            Self::Body(kind) => {
                write!(f, "the body of a message of type {:#06x} is malformed", word(kind))
            }
            Self::Buffer => f.write_str("the message does not fit the buffer"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Writes `message` as one frame at the start of `buffer`; returns the frame's length in bytes.
///
/// # Errors
/// [`FrameError::Buffer`] if it does not fit into `buffer`, or its body is longer than
/// [`MAX_BODY`].
pub fn encode<'a, M: Message<'a>>(message: &M, buffer: &mut [u8]) -> Result<usize, FrameError> {
    let length = postcard::serialize_with_flavor(message, Body::of(buffer))
        .map_err(|_| FrameError::Buffer)?;
    put_header(M::TYPE, length, buffer)
}

/// A body that is being written. Bytes that do not fit are only counted, so that the code for each
/// field needs no error handling.
struct Body<'b> {
    room: &'b mut [u8],
    length: usize,
}

impl<'b> Body<'b> {
    /// The body of the frame in `buffer`.
    #[inline(never)]
    fn of(buffer: &'b mut [u8]) -> Self {
        Self { room: buffer.get_mut(HEADER..).unwrap_or_default(), length: 0 }
    }
}

impl postcard::ser_flavors::Flavor for Body<'_> {
    /// The body's length, even if it did not fit.
    type Output = usize;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        let room = self.room.get_mut(self.length..).unwrap_or_default();
        if let Some(room) = room.get_mut(..bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.length = self.length.saturating_add(bytes.len());
        Ok(())
    }

    fn finalize(self) -> postcard::Result<usize> {
        Ok(self.length)
    }
}

/// Writes the header in front of a body in `frame`, if the body is not too long; returns the
/// frame's length. Out of line, so that all message types share one copy.
#[inline(never)]
fn put_header(kind: u16, length: usize, frame: &mut [u8]) -> Result<usize, FrameError> {
    let (header, body) = frame.split_first_chunk_mut::<HEADER>().ok_or(FrameError::Buffer)?;
    let body = body.get(..length).filter(|body| body.len() <= MAX_BODY);
    let body = body.ok_or(FrameError::Buffer)?;
    header[..2].copy_from_slice(&kind.to_le_bytes());
    header[2..6].copy_from_slice(&(length as u32).to_le_bytes());
    let checksum = crc32c(crc32c(0, &header[..6]), body);
    header[6..].copy_from_slice(&checksum.to_le_bytes());
    Ok(HEADER + length)
}

/// The first frame in `bytes`; `None` if it is not complete yet.
///
/// A body longer than [`MAX_BODY`] is rejected as soon as the header is complete.
///
/// # Errors
/// [`FrameError::TooLong`] and [`FrameError::Checksum`]. No further frame can be read after either.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let kind = u16::from_le_bytes([header[0], header[1]]);
    let length = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
    let checksum = u32::from_le_bytes([header[6], header[7], header[8], header[9]]);
    if length as usize > MAX_BODY {
        return Err(FrameError::TooLong(kind, length));
    }
    let Some(body) = rest.get(..length as usize) else {
        return Ok(None);
    };
    if crc32c(crc32c(0, &header[..6]), body) != checksum {
        return Err(FrameError::Checksum(kind));
    }
    Ok(Some(Frame { kind, body }))
}

/// Decodes the message in `frame`.
///
/// # Errors
/// [`FrameError::Type`] if the frame has another type, [`FrameError::Body`] if the body
/// is truncated, has trailing bytes or is not a valid encoding.
pub fn decode<'a, M: Message<'a>>(frame: &Frame<'a>) -> Result<M, FrameError> {
    if frame.kind != M::TYPE {
        return Err(FrameError::Type(M::TYPE, frame.kind));
    }
    match postcard::take_from_bytes(frame.body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Body(frame.kind)),
    }
}

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), continued from `crc`; 0 begins a new one.
#[inline(never)]
pub(crate) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // The checksum inverts the register; the crate takes a register in the unreflected bit order.
    let mut digest = CRC_32C.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

static CRC_32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::message::{Acknowledge, Check};

    /// The check value of RFC 3720's CRC-32C.
    #[test]
    fn checksum_is_castagnoli() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn a_frame_comes_back_byte_by_byte() {
        let mut buffer = [0; 64];
        let length = encode(&Acknowledge { epoch: 300 }, &mut buffer).unwrap();
        for cut in 0..length {
            assert_eq!(split(&buffer[..cut]), Ok(None), "{cut} bytes are not a frame yet");
        }
        let frame = split(&buffer).unwrap().unwrap();
        assert_eq!(frame.length(), length);
        assert_eq!(decode::<Acknowledge>(&frame), Ok(Acknowledge { epoch: 300 }));
    }

    #[test]
    fn every_single_bit_error_is_seen() {
        let mut buffer = [0; 64];
        let length = encode(&Acknowledge { epoch: 300 }, &mut buffer).unwrap();
        for bit in 0..length * 8 {
            let mut damaged = buffer;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let read = split(&damaged[..length]);
            assert!(!matches!(read, Ok(Some(_))), "bit {bit}: {read:?}");
        }
    }

    #[test]
    fn a_body_over_the_limit_is_refused_by_its_header() {
        let mut header = [0; HEADER];
        header[2..6].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes());
        assert_eq!(split(&header), Err(FrameError::TooLong(0, MAX_BODY as u32 + 1)));
    }

    #[test]
    fn bytes_left_over_are_an_error() {
        let body = [5, 0];
        assert_eq!(
            decode::<Acknowledge>(&Frame { kind: Acknowledge::TYPE, body: &body }),
            Err(FrameError::Body(Acknowledge::TYPE))
        );
        assert_eq!(
            decode::<Acknowledge>(&Frame { kind: Check::TYPE, body: &body }),
            Err(FrameError::Type(Acknowledge::TYPE, Check::TYPE))
        );
    }

    #[test]
    fn a_small_buffer_is_an_error() {
        for room in 0..HEADER + 1 {
            assert_eq!(
                encode(&Acknowledge { epoch: 1 }, &mut [0; 32][..room]),
                Err(FrameError::Buffer)
            );
        }
    }
}
