//! Layouts and numbers of the Xen ABI, one module for each public header or topic.
//!
//! This module has no behaviour: structures are `repr(C)` with const size and offset assertions,
//! and each module names the header that it is taken from (paths are relative to
//! `xen/include/public`). Structures that Xen or a backend may write while the guest reads them
//! contain atomics. Codes are raw integers; the modules above convert them and preserve unknown
//! codes.

pub mod console;
pub mod elfnote;
pub mod event_channel;
pub mod grant_table;
pub mod hvm;
pub mod memory;
pub mod netif;
pub mod ring;
pub mod sched;
pub mod vcpu;
pub mod version;
pub mod xen;
pub mod xenbus;
pub mod xs_wire;

// What differs between processor architectures: `LEGACY_MAX_VCPUS`, the architecture's parts of the
// shared structures, and headers that only one architecture has.
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

/// Bytes in a page of the Xen ABI, whatever the guest's own page size.
pub const PAGE_SIZE: usize = 4096;

/// Binary logarithm of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// Asserts the size of a structure and the offsets of its fields at compile time.
macro_rules! layout {
    ($name:ty, size $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };
    };
}
pub(crate) use layout;
