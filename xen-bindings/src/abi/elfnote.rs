//! ELF notes that describe to Xen how to start a kernel (`elfnote.h`).

/// Name of the notes, with its ending zero.
pub const NAME: [u8; 4] = *b"Xen\0";

/// `XEN_ELFNOTE_PHYS32_ENTRY`: physical address of the 32-bit, unpaged PVH entry.
///
/// At the entry ebx holds the physical address of
/// [`HvmStartInfo`](super::start_info::HvmStartInfo).
pub const PHYS32_ENTRY: u32 = 18;
