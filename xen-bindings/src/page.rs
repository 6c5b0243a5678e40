//! Memory that the guest shares with others: pages, and values in them.
//!
//! The other side may write at any time, so nothing here makes a reference to such memory: a
//! [`SharedPage`] copies values in and out, of plain types, at offsets it checks.

#![allow(unsafe_code, reason = "shared memory is reached through raw pointers here")]

use core::cell::UnsafeCell;
use core::fmt;
use core::ptr::NonNull;

use crate::abi::{PAGE_SHIFT, PAGE_SIZE, netif, xs_wire};
use crate::index;
use crate::sync::AtomicU32;

/// Number of a guest-physical page: address divided by 4,096.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Frame(pub u64);

impl Frame {
    /// The frame of a guest-physical address.
    #[must_use]
    pub const fn containing(physical_address: u64) -> Self {
        Self(physical_address >> PAGE_SHIFT)
    }

    /// Guest-physical address of the first byte.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
}

/// One page of zeros for a static: to hold the hypercalls, the shared information, a ring, a
/// buffer.
///
/// ```
/// use xen_sys_lite::PageMemory;
/// static PAGES: [PageMemory; 2] = [PageMemory::new(), PageMemory::new()];
/// assert_eq!(PAGES[1].base().addr().get() % 4096, 0);
/// ```
#[repr(C, align(4096))]
pub struct PageMemory(UnsafeCell<[u8; PAGE_SIZE]>);

// SAFETY: the only access is through the raw pointer of `base`, whose users state their own
// contract.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    /// A page of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; PAGE_SIZE]))
    }

    /// Its first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        // SAFETY: the pointer comes from a reference.
        unsafe { NonNull::new_unchecked(self.0.get().cast()) }
    }
}

impl Default for PageMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for PageMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PageMemory").field(&self.base()).finish()
    }
}

/// A page that another domain or Xen may read and write.
///
/// Move-only, so that a page has one purpose at a time. It is not freed when dropped: the memory
/// belongs to its creator.
#[derive(Debug)]
pub struct SharedPage {
    base: NonNull<u8>,
    frame: Frame,
}

// SAFETY: the page is reached by volatile and atomic accesses only, from any vCPU.
unsafe impl Send for SharedPage {}
// SAFETY: as above; a race between two vCPUs of the guest yields mixed data, as one with the other
// side.
unsafe impl Sync for SharedPage {}

/// An access that would leave the page, or is not aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfPage {
    /// The offset at which it would begin.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl fmt::Display for OutOfPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {} leave the page", self.len, self.offset)
    }
}

impl core::error::Error for OutOfPage {}

/// A type of plain integers: any bytes are a value of it, and it has no padding.
///
/// # Safety
/// Exactly that.
pub unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: the structures hold integers only, and their asserted offsets leave no padding.
unsafe impl Plain for netif::TxRequest {}
// SAFETY: as above.
unsafe impl Plain for netif::TxResponse {}
// SAFETY: as above.
unsafe impl Plain for netif::RxRequest {}
// SAFETY: as above.
unsafe impl Plain for netif::RxResponse {}
// SAFETY: as above.
unsafe impl Plain for netif::ExtraInfo {}
// SAFETY: as above.
unsafe impl Plain for xs_wire::Header {}

impl SharedPage {
    /// Takes ownership of a page.
    ///
    /// # Safety
    /// `base` is the virtual address of a page, aligned to 4,096 bytes and mapped for reading and
    /// writing for as long as the guest runs; `frame` is where it lies in guest-physical memory;
    /// nothing else in the guest reaches the page while the `SharedPage` exists (but for the other
    /// side's own accesses).
    #[must_use]
    pub const unsafe fn new(base: NonNull<u8>, frame: Frame) -> Self {
        Self { base, frame }
    }

    /// Takes ownership of a page in an identity-mapped guest, where virtual and physical addresses
    /// are equal.
    ///
    /// # Safety
    /// As [`SharedPage::new`], and the page is identity-mapped.
    #[must_use]
    pub unsafe fn identity(base: NonNull<u8>) -> Self {
        let frame = Frame::containing(base.addr().get() as u64);
        // SAFETY: the caller's contract.
        unsafe { Self::new(base, frame) }
    }

    /// Takes charge of the page at `frame` in an identity-mapped guest; `None` for frame zero.
    ///
    /// # Safety
    /// As [`SharedPage::identity`].
    #[must_use]
    pub unsafe fn identity_frame(frame: Frame) -> Option<Self> {
        let address = usize::try_from(frame.0.checked_mul(PAGE_SIZE as u64)?).ok()?;
        let base = NonNull::new(core::ptr::with_exposed_provenance_mut(address))?;
        // SAFETY: the caller's contract.
        Some(unsafe { Self::new(base, frame) })
    }

    /// The page's guest-physical frame.
    #[must_use]
    pub const fn frame(&self) -> Frame {
        self.frame
    }

    /// Its first byte.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Fills the page with zeros.
    pub fn clear(&self) {
        for offset in (0..PAGE_SIZE).step_by(8) {
            // SAFETY: inside the page, and aligned as the page is.
            unsafe { self.base.add(offset).cast::<u64>().write_volatile(0) };
        }
    }

    /// Copies a value out of the page.
    ///
    /// # Errors
    /// [`OutOfPage`], for an unaligned offset too.
    #[inline]
    pub fn read<T: Plain>(&self, offset: usize) -> Result<T, OutOfPage> {
        let place = self.place::<T>(offset)?;
        // SAFETY: `place` is inside the page and aligned, and any bytes are a `T`.
        Ok(unsafe { place.read_volatile() })
    }

    /// Copies a value into the page.
    ///
    /// # Errors
    /// [`OutOfPage`], for an unaligned offset too.
    #[inline]
    pub fn write<T: Plain>(&self, offset: usize, value: T) -> Result<(), OutOfPage> {
        let place = self.place::<T>(offset)?;
        // SAFETY: `place` is inside the page and aligned.
        unsafe { place.write_volatile(value) };
        Ok(())
    }

    /// Copies bytes out of the page.
    ///
    /// # Errors
    /// [`OutOfPage`]; nothing is copied then.
    pub fn read_bytes(&self, offset: usize, into: &mut [u8]) -> Result<(), OutOfPage> {
        check(offset, into.len())?;
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            // Whole words where the page's address allows, single bytes before and after.
            let len = if at % 8 == 0 && rest.len() >= 8 { 8 } else { 1 };
            let (chunk, others) = rest.split_at_mut(len);
            if len == 8 {
                // SAFETY: these eight bytes are inside the page (checked above) and aligned.
                let word = unsafe { self.base.add(at).cast::<u64>().read_volatile() };
                chunk.copy_from_slice(&word.to_ne_bytes());
            } else {
                // SAFETY: this byte is inside the page (checked above).
                chunk.fill(unsafe { self.base.add(at).read_volatile() });
            }
            (at, rest) = (at + len, others);
        }
        Ok(())
    }

    /// Copies bytes into the page.
    ///
    /// # Errors
    /// [`OutOfPage`]; nothing is copied then.
    pub fn write_bytes(&self, offset: usize, from: &[u8]) -> Result<(), OutOfPage> {
        check(offset, from.len())?;
        let (mut at, mut rest) = (offset, from);
        while let Some(first) = rest.first() {
            if let (0, Some((word, others))) = (at % 8, rest.split_first_chunk::<8>()) {
                let word = u64::from_ne_bytes(*word);
                // SAFETY: these eight bytes are inside the page (checked above) and aligned.
                unsafe { self.base.add(at).cast::<u64>().write_volatile(word) };
                (at, rest) = (at + 8, others);
            } else {
                // SAFETY: this byte is inside the page (checked above).
                unsafe { self.base.add(at).write_volatile(*first) };
                (at, rest) = (at + 1, &rest[1..]);
            }
        }
        Ok(())
    }

    /// Loads an index the other side writes; what it published before is visible after.
    #[inline]
    pub(crate) fn load_index(&self, offset: PageIndex) -> u32 {
        index::load(self.index(offset))
    }

    /// Stores an index the other side reads; what was written before is visible with it.
    #[inline]
    pub(crate) fn store_index(&self, offset: PageIndex, value: u32) {
        index::store(self.index(offset), value);
    }

    fn index(&self, offset: PageIndex) -> &AtomicU32 {
        // SAFETY: a `PageIndex` is aligned and inside the page, which stays mapped; a `u32` that
        // both sides change is an atomic to us.
        unsafe { AtomicU32::from_ptr(self.base.add(offset.0).cast().as_ptr()) }
    }

    fn place<T>(&self, offset: usize) -> Result<NonNull<T>, OutOfPage> {
        check(offset, size_of::<T>())?;
        if !offset.is_multiple_of(align_of::<T>()) {
            return Err(OutOfPage { offset, len: size_of::<T>() });
        }
        // SAFETY: checked to be inside the page.
        Ok(unsafe { self.base.add(offset) }.cast())
    }
}

/// Offset of an index in a page: a multiple of four inside it, checked when the constant is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageIndex(usize);

impl PageIndex {
    /// Checks an offset; used in constants, so that a bad one does not compile.
    pub(crate) const fn at(offset: usize) -> Self {
        assert!(offset.is_multiple_of(4) && offset <= PAGE_SIZE - 4);
        Self(offset)
    }
}

const fn check(offset: usize, len: usize) -> Result<(), OutOfPage> {
    match offset.checked_add(len) {
        Some(end) if end <= PAGE_SIZE => Ok(()),
        _ => Err(OutOfPage { offset, len }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::leak_page;

    /// Guards against an access past the page, whatever the offset and length say.
    #[test]
    fn accesses_outside_are_refused() {
        let page = leak_page();
        let mut buffer = [0; 16];
        for (offset, len) in [(4096, 1), (4090, 7), (usize::MAX, 1), (usize::MAX - 3, 8)] {
            let expected = Err(OutOfPage { offset, len });
            assert_eq!(page.read_bytes(offset, &mut buffer[..len]), expected);
            assert_eq!(page.write_bytes(offset, &buffer[..len]), expected);
        }
        assert!(page.read::<u32>(4093).is_err());
        assert!(page.read::<u32>(2).is_err(), "unaligned");
        assert!(page.read::<u32>(4092).is_ok());
    }

    #[test]
    fn bytes_come_back_whatever_the_alignment() {
        let page = leak_page();
        let written: [u8; 61] = core::array::from_fn(|i| i as u8 + 1);
        for offset in [0, 1, 7, 8, 13, 4096 - 61] {
            page.clear();
            page.write_bytes(offset, &written).unwrap();
            let mut read = [0; 61];
            page.read_bytes(offset, &mut read).unwrap();
            assert_eq!(read, written, "offset {offset}");
            if offset > 0 {
                let mut before = [9];
                page.read_bytes(offset - 1, &mut before).unwrap();
                assert_eq!(before, [0], "a neighbour was written");
            }
        }
    }
}
