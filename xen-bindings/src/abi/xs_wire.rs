//! The xenstore ring and its messages (`io/xs_wire.h`).
//!
//! | offset | field of `struct xenstore_domain_interface` | written by |
//! |---|---|---|
//! | 0 | requests, 1,024 bytes | guest |
//! | 1,024 | replies, 1,024 bytes | xenstored |
//! | 2,048 | request consumer | xenstored |
//! | 2,052 | request producer | guest |
//! | 2,056 | reply consumer | guest |
//! | 2,060 | reply producer | xenstored |

use super::layout;

/// Offset of the request bytes.
pub const REQUEST: usize = 0;
/// Offset of the reply bytes.
pub const REPLY: usize = 1024;
/// Length of each ring of bytes.
pub const RING_LEN: u32 = 1024;
/// Offset of `req_cons`.
pub const REQUEST_CONSUMER: usize = 2048;
/// Offset of `req_prod`.
pub const REQUEST_PRODUCER: usize = 2052;
/// Offset of `rsp_cons`.
pub const REPLY_CONSUMER: usize = 2056;
/// Offset of `rsp_prod`.
pub const REPLY_PRODUCER: usize = 2060;

/// `XENSTORE_PAYLOAD_MAX`: longest body of a message, both ways.
pub const PAYLOAD_MAX: u32 = 4096;
/// `XENSTORE_ABS_PATH_MAX`: longest absolute path.
pub const ABSOLUTE_PATH_MAX: usize = 3072;

/// Message types (`XS_*`).
pub mod message {
    /// Children of a node.
    pub const DIRECTORY: u32 = 1;
    /// Value of a node.
    pub const READ: u32 = 2;
    /// Request notification of changes.
    pub const WATCH: u32 = 4;
    /// No longer.
    pub const UNWATCH: u32 = 5;
    /// Begin a transaction.
    pub const TRANSACTION_START: u32 = 6;
    /// End a transaction.
    pub const TRANSACTION_END: u32 = 7;
    /// Home path of a domain.
    pub const GET_DOMAIN_PATH: u32 = 10;
    /// Set the value of a node.
    pub const WRITE: u32 = 11;
    /// Make a node.
    pub const MKDIR: u32 = 12;
    /// Remove a node and all below.
    pub const RM: u32 = 13;
    /// A watch fired; never an answer to a request.
    pub const WATCH_EVENT: u32 = 15;
    /// The request failed; the body is the name of an error.
    pub const ERROR: u32 = 16;
}

/// `struct xsd_sockmsg`: header of a message, little endian.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// One of [`message`].
    pub kind: u32,
    /// Echoed in the reply.
    pub request_id: u32,
    /// Zero outside a transaction.
    pub transaction_id: u32,
    /// Length of the body, bytes.
    pub len: u32,
}
layout!(Header, size 16, kind @ 0, request_id @ 4, transaction_id @ 8, len @ 12);
