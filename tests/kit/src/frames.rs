//! Messages as frames, and frames of any content.

use std::io::{self, Read};

use crc::{CRC_32_ISCSI, Crc};
use unikprof_proto::frame::{self, FrameError, HEADER, MAX_BODY, Message};
use unikprof_proto::message::Refusal;

/// A frame, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The message's type.
    pub kind: u16,
    /// The encoded message.
    pub body: Vec<u8>,
}

impl Frame {
    /// The message.
    pub fn decode<'f, M: Message<'f>>(&'f self) -> Result<M, FrameError> {
        frame::decode(&frame::Frame { kind: self.kind, body: &self.body })
    }

    /// The code, if the message is a refusal.
    pub fn refusal(&self) -> Option<u32> {
        Some(self.decode::<Refusal<'_>>().ok()?.code)
    }
}

/// Encodes a message as a frame.
pub fn encoded<'m>(message: &impl Message<'m>) -> Vec<u8> {
    let mut buffer = vec![0; HEADER + MAX_BODY];
    let length = frame::encode(message, &mut buffer).expect("messages fit their frames");
    buffer.truncate(length);
    buffer
}

/// A frame with any type and body, and a correct checksum.
pub fn framed(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.extend(kind.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    let crc = Crc::<u32>::new(&CRC_32_ISCSI);
    let mut digest = crc.digest();
    digest.update(&bytes);
    digest.update(body);
    bytes.extend(digest.finalize().to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Reads once into `buffer`. A signal does not end it: a process that is stopped and continued
/// finds even its reads of sockets with a deadline interrupted (signal(7)).
pub fn read_once(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Removes the first frame from `bytes`, if it is complete.
pub fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<Frame>, FrameError> {
    let Some(found) = frame::split(bytes)? else {
        return Ok(None);
    };
    let length = found.length();
    let taken = Frame { kind: found.kind, body: found.body.to_vec() };
    bytes.drain(..length);
    Ok(Some(taken))
}

/// Splits bytes into frames.
pub fn frames(bytes: &[u8]) -> Vec<Frame> {
    let mut rest = bytes.to_vec();
    let mut frames = Vec::new();
    while let Some(frame) = take_frame(&mut rest).expect("frames are well formed") {
        frames.push(frame);
    }
    assert!(rest.is_empty(), "the last frame is incomplete");
    frames
}

#[cfg(test)]
mod tests {
    use super::*;
    use unikprof_proto::message::Acknowledge;

    /// Guards made-up frames that are all rejected for their checksum and test nothing else.
    #[test]
    fn a_frame_made_here_is_one_to_the_codec() {
        let message = encoded(&Acknowledge { epoch: 300 });
        assert_eq!(framed(Acknowledge::TYPE, &message[HEADER..]), message);
    }
}
