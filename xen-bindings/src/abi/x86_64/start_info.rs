//! The start information of a PVH guest (`arch-x86/hvm/start_info.h`).

use super::super::layout;

/// `XEN_HVM_START_MAGIC_VALUE`.
pub const MAGIC: u32 = 0x336e_c578;

/// Types of memory (`XEN_HVM_MEMMAP_TYPE_*`).
pub mod memory {
    /// Usable memory.
    pub const RAM: u32 = 1;
    /// Not to be used.
    pub const RESERVED: u32 = 2;
    /// ACPI tables.
    pub const ACPI: u32 = 3;
    /// ACPI non-volatile storage.
    pub const NVS: u32 = 4;
    /// Faulty.
    pub const UNUSABLE: u32 = 5;
    /// Disabled.
    pub const DISABLED: u32 = 6;
    /// Persistent memory.
    pub const PMEM: u32 = 7;
}

/// `struct hvm_start_info`. The last three fields exist from version 1 on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HvmStartInfo {
    /// [`MAGIC`].
    pub magic: u32,
    /// Version of this structure.
    pub version: u32,
    /// `SIF_*`.
    pub flags: u32,
    /// Number of modules.
    pub module_count: u32,
    /// Physical address of the modules.
    pub modules_paddr: u64,
    /// Physical address of the command line, ended by a zero byte; zero: none.
    pub cmdline_paddr: u64,
    /// Physical address of the ACPI root pointer; zero: none.
    pub rsdp_paddr: u64,
    /// Physical address of the memory map.
    pub memmap_paddr: u64,
    /// Entries of the memory map; zero: none given.
    pub memmap_entries: u32,
    /// Zero.
    pub reserved: u32,
}
layout!(HvmStartInfo, size 56, magic @ 0, version @ 4, flags @ 8, module_count @ 12,
    modules_paddr @ 16, cmdline_paddr @ 24, rsdp_paddr @ 32, memmap_paddr @ 40,
    memmap_entries @ 48);

/// `struct hvm_modlist_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ModuleEntry {
    /// Physical address.
    pub paddr: u64,
    /// Bytes.
    pub size: u64,
    /// Physical address of its command line; zero: none.
    pub cmdline_paddr: u64,
    /// Zero.
    pub reserved: u64,
}
layout!(ModuleEntry, size 32, paddr @ 0, size @ 8, cmdline_paddr @ 16);

/// `struct hvm_memmap_table_entry`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MemmapEntry {
    /// Physical address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// One of [`memory`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
}
layout!(MemmapEntry, size 24, addr @ 0, size @ 8, kind @ 16);
