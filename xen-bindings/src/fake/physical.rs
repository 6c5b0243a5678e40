//! The guest-physical memory of the tests.

#![allow(unsafe_code, reason = "pages are found by frame")]

use core::ptr::NonNull;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::page::{Frame, PageMemory, SharedPage};

/// Guest-physical memory made by [`leak_page`]: frame to address. The process's own addresses are
/// too high for the 32 bits of a grant entry.
static PHYSICAL: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// First frame that [`leak_page`] hands out.
const FIRST_FRAME: u64 = 0x1000;

/// A page of zeros that lives for ever, at a guest-physical frame of its own.
#[must_use]
pub fn leak_page() -> SharedPage {
    let memory: &'static PageMemory = Box::leak(Box::new(PageMemory::new()));
    let base = memory.base();
    let mut physical = PHYSICAL.lock().unwrap_or_else(PoisonError::into_inner);
    let frame = FIRST_FRAME + physical.len() as u64;
    physical.insert(frame, base.as_ptr().expose_provenance());
    // SAFETY: leaked, aligned by its type, and nobody else has its address.
    unsafe { SharedPage::new(base, Frame(frame)) }
}

/// The page at a frame: one of `leak_page`, or one that is identity-mapped.
///
/// # Safety
/// A page of the process is mapped there for ever.
pub(super) unsafe fn full_page(frame: Frame) -> Option<SharedPage> {
    let physical = PHYSICAL.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(address) = physical.get(&frame.0) else {
        // SAFETY: the caller's contract.
        return unsafe { SharedPage::identity_frame(frame) };
    };
    let base = NonNull::new(core::ptr::with_exposed_provenance_mut(*address))?;
    // SAFETY: a leaked page.
    Some(unsafe { SharedPage::new(base, frame) })
}
