//! Collects a client's bytes until a request is complete.

use unikprof_proto::code::refusal;
use unikprof_proto::frame::{self, FrameError, HEADER, MAX_BODY};

use super::{Context, MAX_REQUEST, Session};
use crate::ground::text::Text;

impl Session {
    pub(super) fn take_in(&mut self, bytes: &[u8]) -> usize {
        #[cfg(feature = "noise")]
        if self.line.is_sealed() {
            return self.receive_record(bytes);
        }
        take(&mut self.input, &mut self.input_length, &mut self.skip, bytes)
    }

    /// Answers the request at the front of the input; returns whether there was a complete one.
    pub(super) fn read_request(&mut self, context: &mut Context<'_, '_, '_>) -> bool {
        if self.input_length < HEADER {
            return false;
        }
        let input = self.input;
        let split = match frame::split(&input[..self.input_length]) {
            Ok(None) => return self.pass_over_long(&input),
            split => split,
        };
        let (kind, answered) = match split {
            Ok(Some(request)) => {
                let answered = self.answer(&request, context);
                if matches!(answered, Ok(false)) {
                    self.again = true;
                    return false;
                }
                self.consume(request.length());
                (request.kind, answered)
            }
            Ok(None) => return false,
            Err(FrameError::TooLong(kind, length)) => {
                (kind, Err(FrameError::TooLong(kind, length)))
            }
            Err(error) => (0, Err(error)),
        };
        self.again = false;
        if let Err(error) = answered {
            self.malformed(kind, error);
        }
        true
    }

    /// Skips the bytes of a request that is longer than any known one.
    fn pass_over_long(&mut self, input: &[u8; HEADER + MAX_REQUEST]) -> bool {
        let length = u32::from_le_bytes([input[2], input[3], input[4], input[5]]) as usize;
        if length <= MAX_REQUEST || length > MAX_BODY {
            return false;
        }
        let kind = u16::from_le_bytes([input[0], input[1]]);
        self.skip = HEADER + length - self.input_length;
        self.input_length = 0;
        let text = Text::format(format_args!(
            "the request has {length} bytes; this agent accepts at most {MAX_REQUEST}"
        ));
        self.refuse(refusal::UNKNOWN_REQUEST, kind, text.as_str());
        true
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.input.copy_within(bytes..self.input_length, 0);
        self.input_length -= bytes;
    }
}

/// Appends bytes to `input`, except those to be skipped; returns how many were accepted.
pub(super) fn take(input: &mut [u8], length: &mut usize, skip: &mut usize, bytes: &[u8]) -> usize {
    let skipped = (*skip).min(bytes.len());
    *skip -= skipped;
    let bytes = &bytes[skipped..];
    let room = &mut input[*length..];
    let taken = room.len().min(bytes.len());
    room[..taken].copy_from_slice(&bytes[..taken]);
    *length += taken;
    skipped + taken
}
