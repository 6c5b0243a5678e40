//! Grant tables, version 1 (`grant_table.h`).

use core::sync::atomic::{AtomicU16, AtomicU32};

use super::layout;

/// Commands of the grant table hypercall (`GNTTABOP_*`).
pub mod op {
    /// Copies between frames, granted ones or the caller's own.
    pub const COPY: u32 = 5;
    /// Size of the table.
    pub const QUERY_SIZE: u32 = 6;
    /// Choose the entry format.
    pub const SET_VERSION: u32 = 8;
}

/// `GNTTAB_NR_RESERVED_ENTRIES`: entries the tools may have filled (console, xenstore).
pub const RESERVED_ENTRIES: u32 = 8;

/// Entries of version 1 in one page.
pub const ENTRIES_PER_PAGE: usize = 512;

/// `GTF_permit_access`: the domain may map and use the frame.
pub const GTF_PERMIT_ACCESS: u16 = 1;
/// `GTF_readonly`: for reading only.
pub const GTF_READONLY: u16 = 1 << 2;
/// `GTF_reading`: mapped for reading now. Set by Xen.
pub const GTF_READING: u16 = 1 << 3;
/// `GTF_writing`: mapped for writing now. Set by Xen.
pub const GTF_WRITING: u16 = 1 << 4;

/// `struct grant_entry_v1`. `flags` is written by Xen and by the guest.
#[repr(C)]
#[derive(Debug)]
pub struct GrantEntryV1 {
    /// `GTF_*`.
    pub flags: AtomicU16,
    /// Domain that may use the frame.
    pub domain: AtomicU16,
    /// The frame, a gfn.
    pub frame: AtomicU32,
}
layout!(GrantEntryV1, size 8, flags @ 0, domain @ 2, frame @ 4);

/// One page of the grant table.
#[repr(C, align(4096))]
#[derive(Debug)]
pub struct GrantFrameV1 {
    /// The entries.
    pub entries: [GrantEntryV1; ENTRIES_PER_PAGE],
}
layout!(GrantFrameV1, size 4096, entries @ 0);

/// `struct gnttab_query_size`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct QuerySize {
    /// `DOMID_SELF`.
    pub domain: u16,
    /// Zero.
    pub pad: u16,
    /// Out: frames now.
    pub frames: u32,
    /// Out: frames at most.
    pub max_frames: u32,
    /// Out: `GNTST_*`, zero is success.
    pub status: i16,
    /// Zero.
    pub pad2: u16,
}
layout!(QuerySize, size 16, domain @ 0, frames @ 4, max_frames @ 8, status @ 12);

/// `struct gnttab_set_version`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SetVersion {
    /// In and out: version of the entry format.
    pub version: u32,
}
layout!(SetVersion, size 4, version @ 0);

/// `struct gnttab_copy_ptr`, without a grant: a place in the memory of `domain`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyPlace {
    /// A gfn.
    pub frame: u64,
    /// `DOMID_SELF`.
    pub domain: u16,
    /// Offset from the frame's start, bytes.
    pub offset: u16,
}
layout!(CopyPlace, size 16, frame @ 0, domain @ 8, offset @ 10);

/// `struct gnttab_copy`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Copy {
    /// The place to copy from.
    pub source: CopyPlace,
    /// The place to copy to.
    pub destination: CopyPlace,
    /// Bytes, inside one frame on both sides.
    pub length: u16,
    /// Zero: neither place is a grant.
    pub flags: u16,
    /// Out: `GNTST_*`, zero is success.
    pub status: i16,
}
layout!(Copy, size 40, source @ 0, destination @ 16, length @ 32, flags @ 34, status @ 36);
