//! Grants other domains access to pages: grant table version 1.
//!
//! A [`Grant`] is move-only and owns its page: [`GrantTable::end`] returns the page, or returns the
//! grant if the other domain still has the page mapped.
//!
//! ```
//! use xen_sys_lite::fake::{FakeXen, leak_page};
//! use xen_sys_lite::grant::{Access, GrantTable};
//!
//! let xen = FakeXen::new();
//! let table = GrantTable::map(&xen, [leak_page()])?;
//! let grant = table.lend(3, leak_page(), Access::ReadWrite).expect("an entry is free");
//!
//! xen.map(3, grant.reference().0, true).expect("domain 3 may");
//! let in_use = table.end(grant).expect_err("still mapped");
//! xen.unmap(in_use.grant.reference().0);
//! let page = table.end(in_use.grant).expect("unmapped now");
//! # Ok::<(), xen_sys_lite::grant::GrantTableError>(())
//! ```

#![allow(unsafe_code, reason = "the table's pages become structures of atomics")]

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::abi::grant_table::{
    ENTRIES_PER_PAGE, GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY, GTF_WRITING, GrantEntryV1,
    GrantFrameV1, QuerySize, RESERVED_ENTRIES, SetVersion,
};
use crate::abi::xen::DOMID_SELF;
use crate::errno::Errno;
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{GrantQuerySize, GrantSetVersion, issue};
use crate::memory::map_grant_frame;
use crate::page::{Frame, SharedPage};

/// Number of an entry of the grant table, by which the other domain knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct GrantRef(pub u32);

/// The other domain's access to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    ReadOnly,
    /// Read and write it.
    ReadWrite,
}

/// A granted page. Dropping it leaves the grant in place permanently; [`GrantTable::end`] revokes
/// it.
#[must_use = "a dropped grant leaves its page lent for ever"]
#[derive(Debug)]
pub struct Grant {
    reference: GrantRef,
    page: SharedPage,
    /// The life of the table it belongs to.
    life: u32,
}

impl Grant {
    /// The number to send to the other domain.
    #[must_use]
    pub const fn reference(&self) -> GrantRef {
        self.reference
    }

    /// The page, which both sides can reach.
    #[must_use]
    pub const fn page(&self) -> &SharedPage {
        &self.page
    }
}

/// The grant cannot end: the other domain uses the page still.
#[derive(Debug)]
pub struct StillInUse {
    /// The grant, unchanged.
    pub grant: Grant,
}

impl fmt::Display for StillInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grant {} is in use by the other domain", self.grant.reference.0)
    }
}

impl core::error::Error for StillInUse {}

/// The page was not lent.
#[derive(Debug)]
pub struct NotLent {
    /// The page, unchanged.
    pub page: SharedPage,
    /// The reason.
    pub reason: NotLentReason,
}

/// Why a page was not lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLentReason {
    /// Every entry of the table is taken.
    TableFull,
    /// The page's frame does not fit the 32 bits of a version 1 entry.
    FrameTooHigh(Frame),
}

impl fmt::Display for NotLent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            NotLentReason::TableFull => f.write_str("no entry of the grant table is free"),
            NotLentReason::FrameTooHigh(frame) => {
                write!(f, "frame {:#x} does not fit a grant entry", frame.0)
            }
        }
    }
}

impl core::error::Error for NotLent {}

/// Why the table could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrantTableError {
    /// The domain may have `max` frames only.
    TooManyFrames {
        /// The requested number of frames.
        asked: u32,
        /// Frames the domain may have.
        max: u32,
    },
    /// A hypercall failed.
    Hypercall(Errno),
    /// Xen's own status of the grant table operation (`GNTST_*`).
    Status(i16),
}

impl From<Errno> for GrantTableError {
    fn from(errno: Errno) -> Self {
        Self::Hypercall(errno)
    }
}

impl fmt::Display for GrantTableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyFrames { asked, max } => {
                write!(f, "{asked} grant table frames asked for, {max} allowed")
            }
            Self::Hypercall(errno) => write!(f, "a grant table hypercall failed: {errno}"),
            Self::Status(status) => write!(f, "a grant table operation failed: status {status}"),
        }
    }
}

impl core::error::Error for GrantTableError {}

/// This domain's grant table of `FRAMES` pages, 512 entries each.
///
/// Lending and ending take `&self` and no lock: entries are handed out by compare-and-swap.
#[derive(Debug)]
pub struct GrantTable<const FRAMES: usize> {
    frames: [TableFrame; FRAMES],
    /// The number of the first frame in the domain's table.
    first: u32,
    /// Changes when the domain comes up anew; grants of an earlier life have no entry any more.
    life: AtomicU32,
}

#[derive(Debug)]
struct TableFrame {
    entries: &'static GrantFrameV1,
    frame: Frame,
    /// A bit for each entry that is taken.
    taken: [AtomicU64; ENTRIES_PER_PAGE / 64],
}

impl<const FRAMES: usize> GrantTable<FRAMES> {
    /// Maps the table at `pages`, and chooses version 1 of its format.
    ///
    /// One page is enough for a netfront with 256 buffers each way.
    ///
    /// # Errors
    /// See [`GrantTableError`].
    pub fn map(
        hypercall: &impl Hypercall,
        pages: [SharedPage; FRAMES],
    ) -> Result<Self, GrantTableError> {
        Self::map_from(hypercall, pages, |_| 0)
    }

    /// Maps the last frames that the domain may have, for a user of the table beside the guest's
    /// own, which maps the first ones.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_last(
        hypercall: &impl Hypercall,
        pages: [SharedPage; FRAMES],
    ) -> Result<Self, GrantTableError> {
        Self::map_from(hypercall, pages, |max| max - FRAMES as u32)
    }

    /// Maps the frames from `first` on, which gets the number of frames that the domain may have.
    fn map_from(
        hypercall: &impl Hypercall,
        pages: [SharedPage; FRAMES],
        first: impl FnOnce(u32) -> u32,
    ) -> Result<Self, GrantTableError> {
        let mut size = QuerySize { domain: DOMID_SELF, ..QuerySize::default() };
        issue::<GrantQuerySize>(hypercall, &mut size)?;
        if size.status != 0 {
            return Err(GrantTableError::Status(size.status));
        }
        if size.max_frames < FRAMES as u32 {
            return Err(GrantTableError::TooManyFrames {
                asked: FRAMES as u32,
                max: size.max_frames,
            });
        }
        set_version(hypercall)?;
        let first = first(size.max_frames);
        for (index, page) in (first..).zip(&pages) {
            map_grant_frame(hypercall, index, page.frame())?;
        }
        let table =
            Self { frames: pages.map(TableFrame::from_mapped), first, life: AtomicU32::new(0) };
        table.take_reserved();
        Ok(table)
    }

    /// Maps the table again, empty, after the domain was restored or migrated.
    ///
    /// Earlier grants are void; ending one returns its page at once.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn resume(&self, hypercall: &impl Hypercall) -> Result<(), GrantTableError> {
        self.life.fetch_add(1, Ordering::SeqCst);
        set_version(hypercall)?;
        for (index, table) in (self.first..).zip(&self.frames) {
            map_grant_frame(hypercall, index, table.frame)?;
            for word in &table.taken {
                word.store(0, Ordering::SeqCst);
            }
        }
        self.take_reserved();
        Ok(())
    }

    /// Lends `page` to `domain`.
    ///
    /// # Errors
    /// [`NotLent`], with the page.
    pub fn lend(&self, domain: u16, page: SharedPage, access: Access) -> Result<Grant, NotLent> {
        let Ok(frame) = u32::try_from(page.frame().0) else {
            let reason = NotLentReason::FrameTooHigh(page.frame());
            return Err(NotLent { page, reason });
        };
        let life = self.life.load(Ordering::Acquire);
        let Some((reference, entry)) = self.take_free() else {
            return Err(NotLent { page, reason: NotLentReason::TableFull });
        };
        let readonly = if access == Access::ReadOnly { GTF_READONLY } else { 0 };
        entry.domain.store(domain, Ordering::Relaxed);
        entry.frame.store(frame, Ordering::Relaxed);
        // The flags come last: with them the entry takes effect.
        entry.flags.store(GTF_PERMIT_ACCESS | readonly, Ordering::Release);
        Ok(Grant { reference, page, life })
    }

    /// Takes a page back.
    ///
    /// # Errors
    /// [`StillInUse`], with the grant, while the other domain has the page mapped.
    pub fn end(&self, grant: Grant) -> Result<SharedPage, StillInUse> {
        if grant.life != self.life.load(Ordering::Acquire) {
            return Ok(grant.page);
        }
        let Some((table, index)) = self.find(grant.reference) else {
            // Only this table makes grants, so this one belongs to another table: leave its page
            // lent.
            return Err(StillInUse { grant });
        };
        let flags = &table.entries.entries[index].flags;
        let mut seen = flags.load(Ordering::Acquire);
        loop {
            if seen & (GTF_READING | GTF_WRITING) != 0 {
                return Err(StillInUse { grant });
            }
            match flags.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        table.taken[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        Ok(grant.page)
    }

    /// Entries that could be lent now.
    #[must_use]
    pub fn free(&self) -> usize {
        let words = self.frames.iter().flat_map(|table| &table.taken);
        words.map(|word| word.load(Ordering::Relaxed).count_zeros() as usize).sum()
    }

    fn take_free(&self) -> Option<(GrantRef, &'static GrantEntryV1)> {
        for (number, table) in (self.first as usize..).zip(&self.frames) {
            for (word_number, word) in table.taken.iter().enumerate() {
                let mut taken = word.load(Ordering::Relaxed);
                while taken != u64::MAX {
                    let bit = taken.trailing_ones();
                    let wanted = taken | 1 << bit;
                    match word.compare_exchange(taken, wanted, Ordering::Acquire, Ordering::Relaxed)
                    {
                        Ok(_) => {
                            let index = word_number * 64 + bit as usize;
                            let reference = GrantRef((number * ENTRIES_PER_PAGE + index) as u32);
                            return Some((reference, table.entries.entries.get(index)?));
                        }
                        Err(now) => taken = now,
                    }
                }
            }
        }
        None
    }

    fn find(&self, reference: GrantRef) -> Option<(&TableFrame, usize)> {
        let first = self.first as usize * ENTRIES_PER_PAGE;
        let index = (reference.0 as usize).checked_sub(first)?;
        Some((self.frames.get(index / ENTRIES_PER_PAGE)?, index % ENTRIES_PER_PAGE))
    }

    /// The tools may have filled the first entries, for the console and xenstore.
    fn take_reserved(&self) {
        if let (0, Some(first)) = (self.first, self.frames.first()) {
            first.taken[0].fetch_or((1 << RESERVED_ENTRIES) - 1, Ordering::SeqCst);
        }
    }
}

impl TableFrame {
    /// Wraps a page at which Xen has put its frame of the table.
    fn from_mapped(page: SharedPage) -> Self {
        let frame = page.frame();
        // SAFETY: `SharedPage` promises a page that is mapped for ever, aligned and reached by
        // nobody else, and it has just been consumed. All fields of the structure are atomics.
        let entries = unsafe { page.base().cast::<GrantFrameV1>().as_ref() };
        Self { entries, frame, taken: [const { AtomicU64::new(0) }; ENTRIES_PER_PAGE / 64] }
    }
}

/// Chooses version 1, where it is not what the domain has anyway.
fn set_version(hypercall: &impl Hypercall) -> Result<(), GrantTableError> {
    match issue::<GrantSetVersion>(hypercall, &mut SetVersion { version: 1 }) {
        // A Xen that only knows version 1 may not know the command.
        Ok(_) | Err(Errno::ENOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::{FakeXen, GrantFault, leak_page};
    use std::vec::Vec;

    #[test]
    fn the_other_domain_reaches_the_page_it_was_lent() {
        let xen = FakeXen::new();
        let table = GrantTable::map(&xen, [leak_page()]).unwrap();
        let grant = table.lend(5, leak_page(), Access::ReadOnly).unwrap();
        grant.page().write(0, 42_u32).unwrap();
        let reference = grant.reference().0;
        assert_eq!(xen.granted(5, reference, false).unwrap().read::<u32>(0), Ok(42));
        assert_eq!(xen.granted(5, reference, true).unwrap_err(), GrantFault::ReadOnly);
        assert_eq!(xen.granted(6, reference, false).unwrap_err(), GrantFault::NotPermitted);
        table.end(grant).unwrap();
        assert_eq!(xen.granted(5, reference, false).unwrap_err(), GrantFault::NotPermitted);
    }

    /// Guards against granting through another user's frames.
    #[test]
    fn the_last_frame_is_used_beside_the_first() {
        let xen = FakeXen::new();
        let guests = GrantTable::map(&xen, [leak_page()]).unwrap();
        let last = GrantTable::map_last(&xen, [leak_page()]).unwrap();
        assert_eq!(last.free(), ENTRIES_PER_PAGE);
        let first = guests.lend(5, leak_page(), Access::ReadWrite).unwrap();
        let grant = last.lend(5, leak_page(), Access::ReadWrite).unwrap();
        assert_eq!((first.reference().0, grant.reference().0), (8, 63 * 512));
        grant.page().write(0, 42_u32).unwrap();
        let granted = xen.granted(5, grant.reference().0, true).unwrap();
        assert_eq!(granted.read::<u32>(0), Ok(42));
        last.end(grant).unwrap();
        assert_eq!(last.free(), ENTRIES_PER_PAGE);
    }

    /// Guards against reusing a page that a backend still writes to.
    #[test]
    fn a_mapped_page_does_not_come_back() {
        let xen = FakeXen::new();
        let table = GrantTable::map(&xen, [leak_page()]).unwrap();
        let mut grant = table.lend(0, leak_page(), Access::ReadWrite).unwrap();
        let (reference, free) = (grant.reference(), table.free());
        xen.map(0, reference.0, true).unwrap();
        for _ in 0..3 {
            grant = table.end(grant).unwrap_err().grant;
            assert_eq!((grant.reference(), table.free()), (reference, free));
        }
        xen.unmap(reference.0);
        table.end(grant).unwrap();
        assert_eq!(table.free(), free + 1);
    }

    #[test]
    fn the_reserved_entries_are_never_lent_and_the_table_can_fill() {
        let xen = FakeXen::new();
        let table = GrantTable::map(&xen, [leak_page(), leak_page()]).unwrap();
        let grants: Vec<Grant> =
            (0..1016).map(|_| table.lend(0, leak_page(), Access::ReadOnly).unwrap()).collect();
        assert_eq!(grants.first().unwrap().reference(), GrantRef(8));
        assert_eq!(grants.last().unwrap().reference(), GrantRef(1023));
        let refused = table.lend(0, leak_page(), Access::ReadOnly).unwrap_err();
        assert_eq!(refused.reason, NotLentReason::TableFull);
        for grant in grants {
            table.end(grant).unwrap();
        }
        assert_eq!(table.free(), 1016);
    }

    /// Guards against a frame cut to 32 bits: another page of the guest would be lent.
    #[test]
    fn a_frame_that_does_not_fit_is_refused() {
        let xen = FakeXen::new();
        let table = GrantTable::map(&xen, [leak_page()]).unwrap();
        let frame = Frame(1 << 32 | 5);
        // SAFETY: the base is a fresh page; the false frame reaches nobody, as the test is that it
        // is refused.
        let page = unsafe { SharedPage::new(leak_page().base(), frame) };
        let refused = table.lend(0, page, Access::ReadOnly).unwrap_err();
        assert_eq!(refused.reason, NotLentReason::FrameTooHigh(frame));
    }

    /// Guards against clearing an entry of the new life with a grant of the old one.
    #[test]
    fn grants_of_an_earlier_life_are_void() {
        let xen = FakeXen::new();
        let table = GrantTable::map(&xen, [leak_page()]).unwrap();
        let old = table.lend(0, leak_page(), Access::ReadOnly).unwrap();
        crate::sched::suspend(&xen).unwrap();
        table.resume(&xen).unwrap();
        let new = table.lend(0, leak_page(), Access::ReadOnly).unwrap();
        assert_eq!(new.reference(), old.reference());
        table.end(old).unwrap();
        assert!(xen.granted(0, new.reference().0, false).is_ok());
        table.end(new).unwrap();
    }

    #[test]
    fn more_frames_than_allowed_are_an_error() {
        let xen = FakeXen::new();
        let pages: [SharedPage; 65] = core::array::from_fn(|_| leak_page());
        let expected = GrantTableError::TooManyFrames { asked: 65, max: 64 };
        assert_eq!(GrantTable::map(&xen, pages).unwrap_err(), expected);
    }
}
