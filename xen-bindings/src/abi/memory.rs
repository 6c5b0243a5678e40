//! Memory operations (`memory.h`).

use super::layout;

/// `XENMEM_current_reservation`: the pages of a domain, whose id (a `u16`) is the argument.
pub const CURRENT_RESERVATION: u32 = 3;
/// `XENMEM_add_to_physmap`.
pub const ADD_TO_PHYSMAP: u32 = 7;

/// The kinds of pages to map (`XENMAPSPACE_*`).
pub mod space {
    /// The shared information page.
    pub const SHARED_INFO: u32 = 0;
    /// A frame of the grant table.
    pub const GRANT_TABLE: u32 = 1;
}

/// `struct xen_add_to_physmap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AddToPhysmap {
    /// `DOMID_SELF`.
    pub domain: u16,
    /// Zero but for ranges.
    pub size: u16,
    /// One of [`space`].
    pub space: u32,
    /// Index of the page in the space.
    pub index: u64,
    /// Guest frame at which it shall appear.
    pub frame: u64,
}
layout!(AddToPhysmap, size 24, domain @ 0, size @ 2, space @ 4, index @ 8, frame @ 16);
