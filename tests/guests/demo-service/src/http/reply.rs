//! The client's side of a response: read back and verified.

use alloc::borrow::Cow;
use core::fmt;

use crate::checksum::Checksum;
use crate::compression;

/// A reply inflates to at most this many bytes.
const MAX_INFLATED_BYTES: usize = 1 << 20;

/// A response of the service, parsed, with its checksum verified and its body inflated.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The status code.
    pub code: u16,
    /// The entity tag, if the reply has one.
    pub etag: Option<&'a str>,
    /// The body, inflated if it was compressed.
    pub body: Cow<'a, [u8]>,
    /// Whether the body was compressed on the wire.
    pub compressed: bool,
}

/// Why bytes are no valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// Not a whole HTTP response, or without a length or checksum.
    Malformed,
    /// The body is shorter or longer than stated.
    Length {
        /// The length in the head.
        stated: usize,
        /// The bytes behind the head.
        found: usize,
    },
    /// The body is not the one that was sent.
    Checksum {
        /// The sum in the head.
        stated: u64,
        /// The sum of the body.
        found: u64,
    },
    /// The compressed body does not inflate.
    Inflate,
}

impl<'a> Reply<'a> {
    /// Reads what [`Service::handle`](crate::Service::handle) wrote.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ReplyError> {
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut head = httparse::Response::new(&mut headers);
        let Ok(httparse::Status::Complete(body_start)) = head.parse(bytes) else {
            return Err(ReplyError::Malformed);
        };
        let code = head.code.ok_or(ReplyError::Malformed)?;
        let header = |name: &str| {
            let header = head.headers.iter().find(|header| header.name == name)?;
            core::str::from_utf8(header.value).ok()
        };
        let body = &bytes[body_start..];
        let stated_length = header("content-length").and_then(|text| text.parse().ok());
        let stated_sum = header("x-checksum").and_then(|text| u64::from_str_radix(text, 16).ok());
        let (Some(length), Some(sum)) = (stated_length, stated_sum) else {
            return Err(ReplyError::Malformed);
        };
        if length != body.len() {
            return Err(ReplyError::Length {
                stated: length,
                found: body.len(),
            });
        }
        if sum != Checksum::of(body) {
            return Err(ReplyError::Checksum {
                stated: sum,
                found: Checksum::of(body),
            });
        }
        let compressed = header("content-encoding") == Some("deflate");
        let body = if compressed {
            let inflated = compression::inflate(body, MAX_INFLATED_BYTES);
            Cow::Owned(inflated.map_err(|_| ReplyError::Inflate)?)
        } else {
            Cow::Borrowed(body)
        };
        Ok(Self {
            code,
            etag: header("etag"),
            body,
            compressed,
        })
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("not a whole response with length and checksum"),
            Self::Length { stated, found } => {
                write!(f, "the head says {stated} bytes of body, {found} came")
            }
            Self::Checksum { stated, found } => {
                write!(
                    f,
                    "the head says checksum {stated:016x}, the body has {found:016x}"
                )
            }
            Self::Inflate => f.write_str("the compressed body does not inflate"),
        }
    }
}

impl core::error::Error for ReplyError {}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::http::Response;
    use crate::http::status::Status;
    use alloc::vec::Vec;

    fn written() -> Vec<u8> {
        let mut bytes = Vec::new();
        Response::json(Status::Ok, b"{\"a\":1}".to_vec()).write_to(&mut bytes);
        bytes
    }

    #[test]
    fn reads_what_a_response_writes() {
        let bytes = written();
        let reply = Reply::parse(&bytes).unwrap();
        assert_eq!((reply.code, &*reply.body), (200, &b"{\"a\":1}"[..]));
    }

    #[test]
    fn finds_damage() {
        let mut bytes = written();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(matches!(
            Reply::parse(&bytes),
            Err(ReplyError::Checksum { .. })
        ));
        let shorter = &bytes[..last];
        assert_eq!(
            Reply::parse(shorter),
            Err(ReplyError::Length {
                stated: 7,
                found: 6
            })
        );
        assert_eq!(Reply::parse(&bytes[..20]), Err(ReplyError::Malformed));
    }
}
