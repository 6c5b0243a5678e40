//! The errors of a network device.

use core::fmt;

use super::buffer::LendError;
use crate::errno::Errno;
use crate::grant::NotLentReason;
use crate::ring::RingError;
use crate::xenbus::XenbusState;
use crate::xenstore::StoreError;

/// Why a network device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetError {
    /// The device is not connected.
    NotConnected,
    /// All transmit buffers are in flight.
    Full,
    /// A frame longer than [`MAX_FRAME`](super::MAX_FRAME), or empty.
    FrameSize {
        /// Its length, bytes.
        len: usize,
    },
    /// The backend did not reach the state expected in time.
    Backend {
        /// State it should have reached.
        expected: XenbusState,
        /// State it was in at the end.
        found: XenbusState,
    },
    /// The backend cannot copy received frames, which this crate asks for.
    NoReceiveCopy,
    /// The tools' settings of the device make no sense.
    Configuration(&'static str),
    /// Xenstore failed.
    Store(StoreError),
    /// A hypercall failed.
    Hypercall(Errno),
    /// A page could not be lent.
    Grant(NotLentReason),
    /// A domain that was the backend once keeps a page mapped.
    PageKeptBy(u16),
    /// The backend broke the protocol of the ring.
    Ring(RingError),
    /// The backend answered a request that is not in flight.
    UnknownId {
        /// The id it gave.
        id: u16,
    },
    /// The backend claims a received frame that leaves its page.
    PastPage {
        /// Offset of its start.
        offset: u16,
        /// Its length, bytes.
        len: u16,
    },
}

impl From<StoreError> for NetError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<RingError> for NetError {
    fn from(error: RingError) -> Self {
        Self::Ring(error)
    }
}

impl From<LendError> for NetError {
    fn from(error: LendError) -> Self {
        match error {
            LendError::NotLent(reason) => Self::Grant(reason),
            LendError::KeptBy(domain) => Self::PageKeptBy(domain),
        }
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected => f.write_str("the network device is not connected"),
            Self::Full => f.write_str("all transmit buffers are in flight"),
            Self::FrameSize { len } => write!(f, "a frame of {len} bytes"),
            Self::Backend { expected, found } => {
                write!(f, "the network backend is {found}, not {expected}")
            }
            Self::NoReceiveCopy => f.write_str("the network backend has no feature-rx-copy"),
            Self::Configuration(node) => write!(f, "xenstore node {node} makes no sense"),
            Self::Store(error) => fmt::Display::fmt(error, f),
            Self::Hypercall(errno) => write!(f, "a hypercall failed: {errno}"),
            Self::Grant(NotLentReason::TableFull) => f.write_str("the grant table is full"),
            Self::Grant(NotLentReason::FrameTooHigh(frame)) => {
                write!(f, "frame {:#x} does not fit a grant entry", frame.0)
            }
            Self::PageKeptBy(domain) => write!(f, "domain {domain} keeps a page mapped"),
            Self::Ring(error) => fmt::Display::fmt(error, f),
            Self::UnknownId { id } => write!(f, "the backend answered request {id}, not in flight"),
            Self::PastPage { offset, len } => {
                write!(f, "the backend claims {len} bytes at offset {offset} of a page")
            }
        }
    }
}

impl core::error::Error for NetError {}
