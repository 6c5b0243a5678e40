//! Taking messages off the ring, in whatever pieces they come.

use super::error::{ErrorName, ProtocolError};
use super::watch::{Token, WatchId};
use crate::abi::xs_wire::{Header, PAYLOAD_MAX, message};
use crate::byte_ring::IndexJumped;

const HEADER_LEN: usize = size_of::<Header>();

/// Bytes kept of the end of a watch event: more than a token needs.
const TAIL_LEN: usize = 16;

/// Requests that may be abandoned at a time.
const MAX_ABANDONED: usize = 4;

/// The request whose answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) kind: u32,
    pub(super) request_id: u32,
    pub(super) transaction_id: u32,
}

/// A whole message, as the requester sees it.
#[derive(Debug)]
pub(super) enum Message {
    /// The answer; as much of it as fits is in the caller's buffer.
    Reply { len: usize },
    /// The request was refused.
    Refused(ErrorName),
    /// A message that is no answer to it.
    Other,
}

/// A whole message.
#[derive(Debug)]
pub(super) enum Taken {
    Message(Message),
    /// A watch fired; `None` for a token that is none of ours.
    Watch(Option<WatchId>),
}

/// The message that is coming in.
#[derive(Debug)]
pub(super) struct Incoming {
    header: [u8; HEADER_LEN],
    header_len: usize,
    body: Body,
    body_len: usize,
    body_taken: usize,
    /// Abandoned requests whose answers are discarded; zero is none.
    abandoned: [u32; MAX_ABANDONED],
}

/// The destination of a body.
#[derive(Debug)]
enum Body {
    /// To the caller's buffer.
    Reply,
    Error(ErrorName),
    /// Only its end matters: the last `len` bytes of `tail`.
    Watch {
        tail: [u8; TAIL_LEN],
        len: usize,
    },
    Discard,
}

/// Too many answers are outstanding.
#[derive(Debug)]
pub(super) struct TooManyAbandoned;

impl Incoming {
    pub(super) const fn new() -> Self {
        Self {
            header: [0; HEADER_LEN],
            header_len: 0,
            body: Body::Discard,
            body_len: 0,
            body_taken: 0,
            abandoned: [0; MAX_ABANDONED],
        }
    }

    /// Takes bytes from `read` until a message is whole (`Some`) or no more come (`None`).
    pub(super) fn advance(
        &mut self,
        expected: Option<Expected>,
        reply: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Result<usize, IndexJumped>,
    ) -> Result<Option<Taken>, ProtocolError> {
        while self.header_len < HEADER_LEN {
            let count = read(&mut self.header[self.header_len..])?;
            if count == 0 {
                return Ok(None);
            }
            self.header_len += count;
            if self.header_len == HEADER_LEN {
                self.begin_body(decode(&self.header), expected)?;
            }
        }
        let mut chunk = [0; 64];
        while self.body_taken < self.body_len {
            let wanted = (self.body_len - self.body_taken).min(chunk.len());
            let count = read(&mut chunk[..wanted])?;
            if count == 0 {
                return Ok(None);
            }
            self.take(&chunk[..count], reply);
        }
        self.header_len = 0;
        Ok(Some(match core::mem::replace(&mut self.body, Body::Discard) {
            Body::Reply => Taken::Message(Message::Reply { len: self.body_len }),
            Body::Error(name) => Taken::Message(Message::Refused(name)),
            Body::Watch { tail, len } => {
                Taken::Watch(Token::at_end_of(tail.get(TAIL_LEN - len..).unwrap_or_default()))
            }
            Body::Discard => Taken::Message(Message::Other),
        }))
    }

    /// Stops waiting for an answer, which is discarded when it arrives.
    pub(super) fn abandon(&mut self, request: Expected) -> Result<(), TooManyAbandoned> {
        let begun = self.header_len == HEADER_LEN;
        if begun && matches!(self.body, Body::Reply | Body::Error(_)) {
            self.body = Body::Discard;
            return Ok(());
        }
        let free = self.abandoned.iter_mut().find(|id| **id == 0).ok_or(TooManyAbandoned)?;
        *free = request.request_id;
        Ok(())
    }

    fn begin_body(
        &mut self,
        header: Header,
        expected: Option<Expected>,
    ) -> Result<(), ProtocolError> {
        if header.len > PAYLOAD_MAX {
            return Err(ProtocolError::TooLong { len: header.len });
        }
        (self.body_len, self.body_taken) = (header.len as usize, 0);
        self.body = match expected {
            _ if header.kind == message::WATCH_EVENT => Body::Watch { tail: [0; TAIL_LEN], len: 0 },
            Some(request) if header.request_id == request.request_id => answer(header, request)?,
            _ => {
                let request_id = header.request_id;
                let mut given_up = self.abandoned.iter_mut();
                match given_up.find(|id| **id == request_id && request_id != 0) {
                    Some(slot) => *slot = 0,
                    None => return Err(ProtocolError::UnexpectedReply { request_id }),
                }
                Body::Discard
            }
        };
        Ok(())
    }

    fn take(&mut self, bytes: &[u8], reply: &mut [u8]) {
        match &mut self.body {
            Body::Reply => {
                let room = reply.get_mut(self.body_taken..).unwrap_or_default();
                let count = bytes.len().min(room.len());
                room[..count].copy_from_slice(&bytes[..count]);
            }
            Body::Error(name) => name.push(bytes),
            Body::Watch { tail, len } => {
                for byte in bytes {
                    tail.rotate_left(1);
                    tail[TAIL_LEN - 1] = *byte;
                }
                *len = (*len + bytes.len()).min(TAIL_LEN);
            }
            Body::Discard => {}
        }
        self.body_taken += bytes.len();
    }
}

/// The destination of an answer's body, if the answer fits its request.
fn answer(header: Header, request: Expected) -> Result<Body, ProtocolError> {
    if header.transaction_id != request.transaction_id {
        return Err(ProtocolError::WrongTransaction { got: header.transaction_id });
    }
    match header.kind {
        message::ERROR => Ok(Body::Error(ErrorName::EMPTY)),
        kind if kind == request.kind => Ok(Body::Reply),
        got => Err(ProtocolError::WrongType { expected: request.kind, got }),
    }
}

/// The bytes of a header.
pub(crate) fn encode(header: Header) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    let fields = [header.kind, header.request_id, header.transaction_id, header.len];
    for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

/// The header in some bytes.
pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Header {
    let field = |at: usize| {
        let [a, b, c, d] = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        u32::from_le_bytes([a, b, c, d])
    };
    Header { kind: field(0), request_id: field(4), transaction_id: field(8), len: field(12) }
}
