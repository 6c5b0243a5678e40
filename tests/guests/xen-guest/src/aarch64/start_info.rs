//! The device tree that Xen passes at the entry: the command line, the memory and the interrupt controller.

#![allow(
    unsafe_code,
    reason = "the tree lies at the physical address that Xen names"
)]

use core::fmt;
use core::ops::Range;

use fdt::Fdt;
use fdt::node::FdtNode;
use xen_sys_lite::gic::Registers;

use super::processor;

/// The command line, and the memory for the guest's use.
#[derive(Debug)]
pub(crate) struct StartInfo {
    /// The command line; empty if there is none.
    pub(crate) command_line: &'static str,
    /// Physical addresses of free memory, after the image; the device tree is in it.
    pub(crate) free_memory: Range<u64>,
}

/// Why the guest cannot start.
#[derive(Debug)]
pub(crate) enum StartInfoError {
    Tree(fdt::FdtError),
    Missing(&'static str),
}

impl fmt::Display for StartInfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree(error) => write!(f, "the device tree: {error:?}"),
            Self::Missing(what) => write!(f, "the device tree has no {what}"),
        }
    }
}

/// Reads the device tree at `address`.
///
/// # Safety
///
/// `address` must be the value of x0 at the entry, and nothing may have been written after the image yet.
pub(crate) unsafe fn read(address: u64) -> Result<StartInfo, StartInfoError> {
    // SAFETY: memory is always mapped one to one, and the tree is not written before this function returns.
    let tree = unsafe { Fdt::from_ptr(core::ptr::with_exposed_provenance(address as usize)) }
        .map_err(StartInfoError::Tree)?;
    if tree.find_compatible(&["xen,xen"]).is_none() {
        return Err(StartInfoError::Missing("Xen"));
    }
    processor::set_gic(interrupt_controller(&tree)?);
    let image = image_range();
    let memory = tree.memory();
    let ram = memory
        .regions()
        .find_map(|region| {
            let start = region.starting_address.addr() as u64;
            let ram = start..start.saturating_add(region.size? as u64);
            ram.contains(&image.start).then_some(ram)
        })
        .ok_or(StartInfoError::Missing("memory for the image"))?;
    Ok(StartInfo {
        command_line: tree.chosen().bootargs().map_or("", keep),
        free_memory: image.end.next_multiple_of(4096)..ram.end,
    })
}

fn interrupt_controller(tree: &Fdt<'_>) -> Result<Registers, StartInfoError> {
    let registers = |node: FdtNode<'_, '_>| {
        let mut regions = node.reg()?;
        let mut next = || Some(regions.next()?.starting_address.addr() as u64);
        Some((next()?, next()?))
    };
    let version_3 = tree.find_compatible(&["arm,gic-v3"]).and_then(registers);
    if let Some((distributor, redistributors)) = version_3 {
        return Ok(Registers::V3 {
            distributor,
            redistributors,
        });
    }
    let version_2 = tree.find_compatible(&["arm,cortex-a15-gic", "arm,gic-400"]);
    let (distributor, interface) = version_2
        .and_then(registers)
        .ok_or(StartInfoError::Missing("interrupt controller"))?;
    Ok(Registers::V2 {
        distributor,
        interface,
    })
}

/// Copies the command line, as far as there is room: the tree's memory becomes the heap's.
fn keep(text: &str) -> &'static str {
    const ROOM: usize = 2048;
    static mut KEPT: [u8; ROOM] = [0; ROOM];
    let length = text.floor_char_boundary(ROOM);
    // SAFETY: called once, at boot, and nothing else refers to the buffer.
    let kept = unsafe { &mut *(&raw mut KEPT) };
    kept[..length].copy_from_slice(&text.as_bytes()[..length]);
    core::str::from_utf8(&kept[..length]).unwrap_or("")
}

/// The addresses of the image, including its zeroed part.
pub(crate) fn image_range() -> Range<u64> {
    unsafe extern "C" {
        static image_start: u8;
        static image_end: u8;
    }
    &raw const image_start as u64..&raw const image_end as u64
}
