//! The shared ring of split drivers (`io/ring.h`).
//!
//! | offset | field | written by |
//! |---|---|---|
//! | 0 | request producer | frontend |
//! | 4 | request event | backend |
//! | 8 | response producer | backend |
//! | 12 | response event | frontend |
//! | 64 | entries, a power of two | both |

/// Offset of `req_prod`.
pub const REQUEST_PRODUCER: usize = 0;
/// Offset of `req_event`: the backend wants a notification when `req_prod` passes it.
pub const REQUEST_EVENT: usize = 4;
/// Offset of `rsp_prod`.
pub const RESPONSE_PRODUCER: usize = 8;
/// Offset of `rsp_event`: the frontend wants a notification when `rsp_prod` passes it.
pub const RESPONSE_EVENT: usize = 12;
/// Offset of the first entry.
pub const ENTRIES: usize = 64;

/// Entries of `entry_size` bytes in one page: the largest power of two that fits.
///
/// ```
/// assert_eq!(xen_sys_lite::abi::ring::entries(12), 256);
/// assert_eq!(xen_sys_lite::abi::ring::entries(112), 32);
/// ```
#[must_use]
pub const fn entries(entry_size: usize) -> u32 {
    let fit = (super::PAGE_SIZE - ENTRIES) / entry_size;
    if fit == 0 { 0 } else { 1 << fit.ilog2() }
}
