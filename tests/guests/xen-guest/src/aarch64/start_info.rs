//! The device tree that Xen passes at the entry: the command line, the memory and the interrupt
//! controller.

#![allow(unsafe_code, reason = "the tree lies at the physical address that Xen names")]

use core::ops::Range;

use xen_sys_lite::device_tree::{DeviceTree, DeviceTreeError};

use super::processor;

/// The command line, and the memory for the guest's use.
#[derive(Debug)]
pub(crate) struct StartInfo {
    /// The command line; empty if there is none.
    pub(crate) command_line: &'static str,
    /// Physical addresses of free memory, after the image; the device tree is in it.
    pub(crate) free_memory: Range<u64>,
}

/// Reads the device tree at `address`.
///
/// # Safety
///
/// `address` must be the value of x0 at the entry, and nothing may have been written after the
/// image yet.
pub(crate) unsafe fn read(address: u64) -> Result<StartInfo, DeviceTreeError> {
    // SAFETY: memory is always mapped one to one, and the tree is not written before this function
    // returns.
    let tree = unsafe { DeviceTree::read(address) }?;
    processor::set_gic(tree.interrupt_controller()?);
    let image = image_range();
    let ram = tree
        .memory()
        .find(|ram| ram.contains(&image.start))
        .ok_or(DeviceTreeError::Missing("memory for the image"))?;
    Ok(StartInfo {
        command_line: keep(tree.command_line()?),
        free_memory: image.end.next_multiple_of(4096)..ram.end,
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
