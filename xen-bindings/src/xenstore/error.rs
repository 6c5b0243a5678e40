//! The errors of xenstore.

use core::fmt;

use crate::byte_ring::IndexJumped;
use crate::errno::Errno;

/// Why a xenstore operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// Xenstore said no: `ENOENT` no such node, `EACCES` not permitted, `EAGAIN` transaction
    /// interfered with.
    Refused(Errno),
    /// Xenstore said no, by a name this crate does not know.
    RefusedWith(ErrorName),
    /// The answer is longer than the buffer.
    BufferTooSmall {
        /// Length of the answer, bytes.
        needed: usize,
    },
    /// Path and value together are longer than the protocol carries (4,096 bytes).
    RequestTooLong,
    /// The path is empty, too long or holds a zero byte.
    BadPath,
    /// The value is not what was asked for: not text, or not a number.
    BadValue,
    /// No answer came in time.
    TimedOut,
    /// Xenstore broke the protocol; the ring is not used again.
    Protocol(ProtocolError),
    /// An earlier error has ended the use of this ring.
    Broken,
    /// Xenstore could not be notified; the ring is not used again.
    Notify(Errno),
}

/// Invalid data from xenstore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtocolError {
    /// Its index is further from ours than the ring is long.
    IndexJumped {
        /// The distance it claims, bytes.
        distance: u32,
    },
    /// A message longer than the protocol allows.
    TooLong {
        /// The length it claims, bytes.
        len: u32,
    },
    /// An answer to a request that was not made.
    UnexpectedReply {
        /// The request it claims to answer.
        request_id: u32,
    },
    /// An answer of another type than its request.
    WrongType {
        /// Type of the request.
        expected: u32,
        /// Type of the answer.
        got: u32,
    },
    /// An answer in another transaction than its request.
    WrongTransaction {
        /// Transaction of the answer.
        got: u32,
    },
    /// An answer whose content makes no sense.
    BadPayload,
}

/// Name of an error that has no number here, as xenstore sent it (cut to 16 bytes).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ErrorName {
    bytes: [u8; 16],
    len: u8,
}

impl ErrorName {
    pub(super) const EMPTY: Self = Self { bytes: [0; 16], len: 0 };

    /// Takes in more of the name; what does not fit is left out.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.bytes.get_mut(usize::from(self.len)) {
                *place = *byte;
                self.len += 1;
            }
        }
    }

    /// The name, without its ending zero.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let name = &self.bytes[..usize::from(self.len).min(16)];
        name.strip_suffix(b"\0").unwrap_or(name)
    }

    pub(super) fn into_error(self) -> StoreError {
        match KNOWN.iter().find(|(name, _)| name.as_bytes() == self.as_bytes()) {
            Some((_, errno)) => StoreError::Refused(*errno),
            None => StoreError::RefusedWith(self),
        }
    }
}

/// The errors that `io/xs_wire.h` lists.
const KNOWN: [(&str, Errno); 16] = [
    ("EINVAL", Errno::EINVAL),
    ("EACCES", Errno::EACCES),
    ("EEXIST", Errno::EEXIST),
    ("EISDIR", Errno::EISDIR),
    ("ENOENT", Errno::ENOENT),
    ("ENOMEM", Errno::ENOMEM),
    ("ENOSPC", Errno::ENOSPC),
    ("EIO", Errno::EIO),
    ("ENOTEMPTY", Errno::ENOTEMPTY),
    ("ENOSYS", Errno::ENOSYS),
    ("EROFS", Errno::EROFS),
    ("EBUSY", Errno::EBUSY),
    ("EAGAIN", Errno::EAGAIN),
    ("EISCONN", Errno::EISCONN),
    ("E2BIG", Errno::E2BIG),
    ("EPERM", Errno::EPERM),
];

impl From<IndexJumped> for ProtocolError {
    fn from(jump: IndexJumped) -> Self {
        Self::IndexJumped { distance: jump.distance }
    }
}

impl fmt::Debug for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_bytes().escape_ascii())
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(errno) => write!(f, "xenstore refused: {errno}"),
            Self::RefusedWith(name) => write!(f, "xenstore refused: {name}"),
            Self::BufferTooSmall { needed } => write!(f, "the answer needs {needed} bytes"),
            Self::RequestTooLong => f.write_str("a xenstore request longer than 4,096 bytes"),
            Self::BadPath => f.write_str("not a xenstore path"),
            Self::BadValue => f.write_str("the xenstore value is not of the kind expected"),
            Self::TimedOut => f.write_str("xenstore did not answer in time"),
            Self::Protocol(error) => write!(f, "xenstore broke the protocol: {error}"),
            Self::Broken => f.write_str("the xenstore ring is not used after an earlier error"),
            Self::Notify(errno) => write!(f, "xenstore was not notified: {errno}"),
        }
    }
}

impl core::error::Error for StoreError {}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IndexJumped { distance } => {
                write!(f, "its index is {distance} bytes from ours")
            }
            Self::TooLong { len } => write!(f, "a message of {len} bytes"),
            Self::UnexpectedReply { request_id } => {
                write!(f, "an answer to request {request_id}, which was not made")
            }
            Self::WrongType { expected, got } => {
                write!(f, "an answer of type {got} to a request of type {expected}")
            }
            Self::WrongTransaction { got } => write!(f, "an answer in transaction {got}"),
            Self::BadPayload => f.write_str("an answer that makes no sense"),
        }
    }
}

impl core::error::Error for ProtocolError {}
