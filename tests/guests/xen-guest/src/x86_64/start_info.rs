//! The data that Xen passes at the entry: the command line, and the memory for the guest's use.

#![allow(unsafe_code, reason = "the structures lie at physical addresses that Xen names")]

use core::ops::Range;

use xen_sys_lite::abi::start_info::{HvmStartInfo, MemmapEntry, ModuleEntry};
use xen_sys_lite::start_info::{self, MemoryKind, StartInfoError};

/// The end of the one-to-one mapping.
const MAPPED_END: u64 = 1 << 32;

/// The command line, and the memory for the guest's use.
#[derive(Debug)]
pub(crate) struct StartInfo {
    /// The command line; empty if there is none or it is not UTF-8.
    pub(crate) command_line: &'static str,
    /// Physical addresses of free memory, after the image and the data that the tools placed after
    /// it.
    pub(crate) free_memory: Range<u64>,
}

/// Reads the structure at `address`.
///
/// # Safety
///
/// `address` must be the value of ebx at the entry, and nothing may have been written after the
/// image yet.
pub(crate) unsafe fn read(address: u64) -> Result<StartInfo, StartInfoError> {
    // SAFETY: memory is always mapped one to one, and the tables are never written.
    let info = unsafe { start_info::StartInfo::read(address, start_info::identity) }?;
    let command_line = info.command_line();

    let image = image_range();
    // Xen places everything in the RAM that contains the image.
    let ram = info
        .memory()
        .filter(|range| range.kind == MemoryKind::Ram)
        .map(|range| range.start..range.start.saturating_add(range.len).min(MAPPED_END))
        .find(|ram| ram.contains(&(image.end - 1)))
        .ok_or(StartInfoError::Unmapped(image.end))?;

    let command_line_end = command_line.as_ptr() as u64 + command_line.count_bytes() as u64 + 1;
    let modules_end = info.modules().map(|module| module.start.saturating_add(module.len));
    let taken_end = [image.end, address + size_of::<HvmStartInfo>() as u64, command_line_end]
        .into_iter()
        .chain(modules_end)
        .filter(|end| ram.contains(end))
        .max()
        .unwrap_or(image.end);
    // The tools write the tables and the structure consecutively, in an unspecified order.
    let tables = info.memory().count() * size_of::<MemmapEntry>()
        + info.modules().count() * size_of::<ModuleEntry>();
    let start = (taken_end + tables as u64).next_multiple_of(4096);
    Ok(StartInfo { command_line: command_line.to_str().unwrap_or(""), free_memory: start..ram.end })
}

/// The addresses of the image, including its zeroed part.
pub(crate) fn image_range() -> Range<u64> {
    unsafe extern "C" {
        static image_start: u8;
        static image_end: u8;
    }
    &raw const image_start as u64..&raw const image_end as u64
}
