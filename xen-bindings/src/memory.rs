//! Placing Xen's own pages into the guest's physical memory.

#![allow(unsafe_code, reason = "Xen replaces a page of the guest's memory")]

use crate::abi::PAGE_SIZE;
use crate::abi::grant_table::op::COPY;
use crate::abi::grant_table::{Copy, CopyPlace};
use crate::abi::memory::{ADD_TO_PHYSMAP, AddToPhysmap, CURRENT_RESERVATION, space};
use crate::abi::xen::{DOMID_SELF, SharedInfo, hypercall as number};
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::page::{Frame, SharedPage};

/// The shared information page in its place.
#[derive(Clone, Copy, Debug)]
pub struct SharedInfoPage {
    shared: &'static SharedInfo,
    frame: Frame,
}

impl SharedInfoPage {
    /// Maps Xen's page in place of `page`, which must not be used for anything else from then on.
    ///
    /// ```no_run
    /// use xen_sys_lite::{PageMemory, SharedPage, memory::SharedInfoPage};
    /// # let xen = xen_sys_lite::fake::FakeXen::new();
    /// static SHARED: PageMemory = PageMemory::new();
    /// // SAFETY: the guest is identity-mapped, nothing else uses the page.
    /// let page = unsafe { SharedPage::identity(SHARED.base()) };
    /// let shared = SharedInfoPage::map(&xen, page)?.get();
    /// # Ok::<(), xen_sys_lite::Errno>(())
    /// ```
    ///
    /// # Errors
    /// `EINVAL` or `ENOMEM` if Xen cannot map it there.
    pub fn map(hypercall: &impl Hypercall, page: SharedPage) -> Result<Self, Errno> {
        let frame = page.frame();
        add_to_physmap(hypercall, space::SHARED_INFO, 0, frame)?;
        // SAFETY: `SharedPage` promises a page that is mapped for ever, aligned and reached by
        // nobody else, and it has just been consumed. All fields of the structure are atomics.
        let shared = unsafe { page.base().cast::<SharedInfo>().as_ref() };
        Ok(Self { shared, frame })
    }

    /// Puts the page in its place once more: after a restore or migration it is plain memory.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_again(&self, hypercall: &impl Hypercall) -> Result<(), Errno> {
        add_to_physmap(hypercall, space::SHARED_INFO, 0, self.frame)
    }

    /// The page.
    #[must_use]
    pub const fn get(&self) -> &'static SharedInfo {
        self.shared
    }
}

/// The number of pages that this domain has.
///
/// # Errors
/// The hypercall's.
pub fn current_pages(hypercall: &impl Hypercall) -> Result<u64, Errno> {
    let domain = DOMID_SELF;
    let address = (&raw const domain).expose_provenance() as u64;
    let arguments = [u64::from(CURRENT_RESERVATION), address, 0, 0, 0];
    // SAFETY: Xen reads the argument, and changes no memory of the guest.
    Errno::from_result(unsafe { hypercall.call(number::MEMORY_OP, arguments) })
}

/// Copies `length` bytes of this domain's memory inside Xen, between physical addresses: for memory
/// that the page tables do not map. False if Xen rejects it, as for places that are no memory of
/// the domain or cross a page.
///
/// # Safety
/// The bytes at the physical address `to` are the caller's to write.
pub unsafe fn copy(hypercall: &impl Hypercall, from: u64, to: u64, length: u16) -> bool {
    let place = |address: u64| CopyPlace {
        frame: address / PAGE_SIZE as u64,
        domain: DOMID_SELF,
        offset: (address % PAGE_SIZE as u64) as u16,
    };
    let mut argument =
        Copy { source: place(from), destination: place(to), length, flags: 0, status: 0 };
    let address = core::ptr::from_mut(&mut argument).expose_provenance() as u64;
    let arguments = [u64::from(COPY), address, 1, 0, 0];
    // SAFETY: Xen reads and writes the argument, and the caller's bytes.
    let result = unsafe { hypercall.call(number::GRANT_TABLE_OP, arguments) };
    Errno::from_result(result).is_ok() && argument.status == 0
}

/// Puts frame `index` of the grant table in place of the page at `frame`, which the caller owns.
///
/// # Errors
/// `EINVAL` beyond the table's largest size.
pub(crate) fn map_grant_frame(
    hypercall: &impl Hypercall,
    index: u32,
    frame: Frame,
) -> Result<(), Errno> {
    add_to_physmap(hypercall, space::GRANT_TABLE, index, frame)
}

fn add_to_physmap(
    hypercall: &impl Hypercall,
    space: u32,
    index: u32,
    frame: Frame,
) -> Result<(), Errno> {
    let mut argument = AddToPhysmap {
        domain: DOMID_SELF,
        size: 0,
        space,
        index: u64::from(index),
        frame: frame.0,
    };
    let address = core::ptr::from_mut(&mut argument).expose_provenance() as u64;
    let arguments = [u64::from(ADD_TO_PHYSMAP), address, 0, 0, 0];
    // SAFETY: Xen reads the argument. It replaces the page at `frame`, which the callers take from
    // a `SharedPage`: memory that nobody holds a reference into, but for the atomics of
    // `SharedInfo`.
    Errno::from_result(unsafe { hypercall.call(number::MEMORY_OP, arguments) }).map(drop)
}
