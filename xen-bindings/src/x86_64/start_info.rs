//! The information that a PVH guest gets at its entry: memory map, modules, command line.

#![allow(unsafe_code, reason = "the structures are found by physical address")]

use core::ffi::CStr;
use core::fmt;
use core::ptr::NonNull;

use crate::abi::start_info::{self as abi, HvmStartInfo, MemmapEntry, ModuleEntry, memory};

/// Entries of a table beyond which it is not believed.
const MAX_ENTRIES: u32 = 4096;

/// The start information of a PVH guest.
#[derive(Clone, Copy, Debug)]
pub struct StartInfo {
    info: HvmStartInfo,
    memory_map: &'static [MemmapEntry],
    modules: &'static [ModuleEntry],
    command_line: &'static CStr,
}

/// A range of guest-physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// The range's use.
    pub kind: MemoryKind,
}

/// The use of a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Usable.
    Ram,
    /// Not to be used.
    Reserved,
    /// ACPI tables.
    Acpi,
    /// ACPI non-volatile storage.
    AcpiNvs,
    /// Faulty.
    Unusable,
    /// Disabled.
    Disabled,
    /// Persistent.
    Persistent,
    /// A type this crate does not know.
    Unsupported(u32),
}

/// A module given to the guest beside its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Module {
    /// First guest-physical address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Guest-physical address of its command line; zero: none.
    pub command_line: u64,
}

/// Why the start information was not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartInfoError {
    /// The structure does not begin with Xen's magic.
    Magic(u32),
    /// A table is longer than can be.
    TooManyEntries(u32),
    /// `translate` knows no address for a physical one, or it is not aligned.
    Unmapped(u64),
}

impl fmt::Display for StartInfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(found) => {
                write!(f, "start info magic is {found:#x}, not {:#x}", abi::MAGIC)
            }
            Self::TooManyEntries(count) => write!(f, "a start info table of {count} entries"),
            Self::Unmapped(address) => write!(f, "physical address {address:#x} is not mapped"),
        }
    }
}

impl core::error::Error for StartInfoError {}

impl StartInfo {
    /// Reads the structure whose physical address the entry got in ebx.
    ///
    /// `translate` turns physical addresses into pointers, or says that there is none; in an
    /// identity-mapped guest that is [`identity`].
    ///
    /// ```no_run
    /// use xen_sys_lite::start_info::{StartInfo, identity};
    /// # let ebx = 0;
    /// // SAFETY: the guest is identity-mapped, and ebx is what Xen gave at the entry.
    /// let info = unsafe { StartInfo::read(ebx, identity) }?;
    /// for range in info.memory() {
    ///     println!("{:#x} + {:#x}: {:?}", range.start, range.len, range.kind);
    /// }
    /// # Ok::<(), xen_sys_lite::start_info::StartInfoError>(())
    /// ```
    ///
    /// # Safety
    /// `address` is the one Xen gave; `translate` returns addresses at which that physical memory,
    /// to its end, is mapped for ever; and the guest does not write to the structures.
    ///
    /// # Errors
    /// See [`StartInfoError`].
    pub unsafe fn read(
        address: u64,
        translate: impl Fn(u64) -> Option<NonNull<u8>>,
    ) -> Result<Self, StartInfoError> {
        // SAFETY: the caller's contract. Version 0 ends at the memory map, whose fields are masked
        // below; they are memory all the same.
        let mut info = *unsafe { table::<HvmStartInfo>(&translate, address, 1) }?
            .first()
            .ok_or(StartInfoError::Unmapped(address))?;
        if info.magic != abi::MAGIC {
            return Err(StartInfoError::Magic(info.magic));
        }
        if info.version == 0 {
            (info.memmap_paddr, info.memmap_entries) = (0, 0);
        }
        // SAFETY: Xen's own tables, by the caller's contract.
        let (memory_map, modules, command_line) = unsafe {
            (
                table(&translate, info.memmap_paddr, info.memmap_entries)?,
                table(&translate, info.modules_paddr, info.module_count)?,
                string(&translate, info.cmdline_paddr)?,
            )
        };
        Ok(Self { info, memory_map, modules, command_line })
    }

    /// The memory map; empty where Xen gave none.
    pub fn memory(&self) -> impl Iterator<Item = MemoryRange> + use<> {
        self.memory_map.iter().map(|entry| MemoryRange {
            start: entry.addr,
            len: entry.size,
            kind: MemoryKind::from(entry.kind),
        })
    }

    /// The modules.
    pub fn modules(&self) -> impl Iterator<Item = Module> + use<> {
        self.modules.iter().map(|entry| Module {
            start: entry.paddr,
            len: entry.size,
            command_line: entry.cmdline_paddr,
        })
    }

    /// The command line; empty where there is none.
    #[must_use]
    pub const fn command_line(&self) -> &'static CStr {
        self.command_line
    }

    /// Physical address of the ACPI root pointer.
    #[must_use]
    pub fn rsdp(&self) -> Option<u64> {
        (self.info.rsdp_paddr != 0).then_some(self.info.rsdp_paddr)
    }
}

impl From<u32> for MemoryKind {
    fn from(code: u32) -> Self {
        match code {
            memory::RAM => Self::Ram,
            memory::RESERVED => Self::Reserved,
            memory::ACPI => Self::Acpi,
            memory::NVS => Self::AcpiNvs,
            memory::UNUSABLE => Self::Unusable,
            memory::DISABLED => Self::Disabled,
            memory::PMEM => Self::Persistent,
            other => Self::Unsupported(other),
        }
    }
}

/// The translation of an identity-mapped guest.
#[must_use]
pub fn identity(physical_address: u64) -> Option<NonNull<u8>> {
    let address = usize::try_from(physical_address).ok()?;
    NonNull::new(core::ptr::with_exposed_provenance_mut(address))
}

/// # Safety
/// `count` entries lie at `address`, mapped for ever where `translate` says, and are not written.
unsafe fn table<T>(
    translate: &impl Fn(u64) -> Option<NonNull<u8>>,
    address: u64,
    count: u32,
) -> Result<&'static [T], StartInfoError> {
    if count == 0 || address == 0 {
        return Ok(&[]);
    }
    if count > MAX_ENTRIES {
        return Err(StartInfoError::TooManyEntries(count));
    }
    let first = translate(address).ok_or(StartInfoError::Unmapped(address))?.cast::<T>();
    if !first.is_aligned() {
        return Err(StartInfoError::Unmapped(address));
    }
    // SAFETY: the caller's contract; aligned as checked; the entries are integers.
    Ok(unsafe { core::slice::from_raw_parts(first.as_ptr(), count as usize) })
}

/// # Safety
/// A string that ends with a zero lies at `address`, mapped for ever where `translate` says.
unsafe fn string(
    translate: &impl Fn(u64) -> Option<NonNull<u8>>,
    address: u64,
) -> Result<&'static CStr, StartInfoError> {
    if address == 0 {
        return Ok(c"");
    }
    let first = translate(address).ok_or(StartInfoError::Unmapped(address))?;
    // SAFETY: the caller's contract.
    Ok(unsafe { CStr::from_ptr(first.as_ptr().cast()) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn address_of<T>(value: &'static T) -> u64 {
        core::ptr::from_ref(value).expose_provenance() as u64
    }

    fn leak(info: HvmStartInfo) -> u64 {
        address_of(std::boxed::Box::leak(std::boxed::Box::new(info)))
    }

    fn read(info: HvmStartInfo) -> Result<StartInfo, StartInfoError> {
        // SAFETY: every address below points to a static or leaked structure.
        unsafe { StartInfo::read(leak(info), identity) }
    }

    #[test]
    fn the_memory_map_is_read_and_unknown_types_survive() {
        static MAP: [MemmapEntry; 2] = [
            MemmapEntry { addr: 0, size: 0x1000, kind: memory::RAM, reserved: 0 },
            MemmapEntry { addr: 0x1000, size: 0x2000, kind: 99, reserved: 0 },
        ];
        let info = read(HvmStartInfo {
            magic: abi::MAGIC,
            version: 1,
            memmap_paddr: address_of(&MAP),
            memmap_entries: 2,
            cmdline_paddr: address_of(b"rate=997\0"),
            ..HvmStartInfo::default()
        })
        .unwrap();
        let kinds: std::vec::Vec<_> = info.memory().map(|range| range.kind).collect();
        assert_eq!(kinds, [MemoryKind::Ram, MemoryKind::Unsupported(99)]);
        assert_eq!(info.command_line(), c"rate=997");
    }

    /// Guards against reading fields that version 0 does not have.
    #[test]
    fn version_zero_has_no_memory_map() {
        let info = read(HvmStartInfo {
            magic: abi::MAGIC,
            memmap_paddr: 8,
            memmap_entries: 1,
            ..HvmStartInfo::default()
        });
        assert_eq!(info.unwrap().memory().count(), 0);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(read(HvmStartInfo::default()).unwrap_err(), StartInfoError::Magic(0));
        let endless = HvmStartInfo {
            magic: abi::MAGIC,
            module_count: u32::MAX,
            modules_paddr: 8,
            ..HvmStartInfo::default()
        };
        assert_eq!(read(endless).unwrap_err(), StartInfoError::TooManyEntries(u32::MAX));
    }
}
