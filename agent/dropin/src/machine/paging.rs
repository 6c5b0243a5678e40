//! The guest's page tables: what is mapped, and whether one to one.
#![allow(unsafe_code, reason = "a page into which Xen writes is read")]

use core::cell::Cell;
use core::ptr::NonNull;

use xen_sys_lite::{Hypercall, PageMemory, memory};

const PAGE_SIZE: u64 = 4096;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
/// In an entry above the last level: the entry maps a large page.
const LARGE: u64 = 1 << 7;
/// The size of a page in the last level but one.
const LARGE_SIZE: u64 = 1 << 21;
/// The entries of a table.
const ENTRIES: usize = 512;
/// The address in an entry.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// CR4: five levels of tables.
pub(crate) const FIVE_LEVELS: u64 = 1 << 12;

/// A mapping: the physical address of its first byte, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapped {
    physical: u64,
    size: u64,
}

/// Four levels of page tables.
pub(crate) struct PageTables<R> {
    root: u64,
    read: R,
}

impl<R: Fn(u64) -> Option<u64>> PageTables<R> {
    /// The tables at the physical address `root`; `read` returns the word at a physical address, or
    /// `None` if there is no memory.
    fn new(root: u64, read: R) -> Self {
        Self { root: root & ADDRESS, read }
    }

    /// The mapping of the page that contains a virtual address.
    fn find(&self, address: u64) -> Option<Mapped> {
        let mut table = self.root;
        for level in (0..4).rev() {
            let shift = 12 + 9 * level;
            let entry = (self.read)(table + (address >> shift & 0x1ff) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || level < 3 && entry & LARGE != 0 {
                let size = 1 << shift;
                // The lowest address bit of a large page's entry is another flag.
                let physical = entry & ADDRESS & !(size - 1);
                return Some(Mapped { physical, size });
            }
            table = entry & ADDRESS;
        }
        None
    }

    /// The physical address of a virtual address, if it is mapped.
    pub(crate) fn translate(&self, address: u64) -> Option<u64> {
        let mapped = self.find(address)?;
        Some(mapped.physical | address & (mapped.size - 1))
    }

    /// Whether a page at any virtual address is the one at `physical`.
    pub(crate) fn is_mapped(&self, physical: u64) -> bool {
        self.leads_to(physical, self.root, 3)
    }

    /// Whether an entry of a table, or of one that it leads to, maps `physical`. Level 0 has the
    /// smallest pages.
    fn leads_to(&self, physical: u64, table: u64, level: u32) -> bool {
        (0..512).any(|number| {
            let entry = (self.read)(table + number * 8).unwrap_or(0);
            if entry & PRESENT == 0 {
                return false;
            }
            if level == 0 || level < 3 && entry & LARGE != 0 {
                let size = 1 << (12 + 9 * level);
                let start = entry & ADDRESS & !(size - 1);
                return (start..start + size).contains(&physical);
            }
            self.leads_to(physical, entry & ADDRESS, level - 1)
        })
    }

    /// The end of the range from `address` on, up to `limit`, that is mapped one to one; `address`
    /// if it is not.
    pub(crate) fn identity_end(&self, address: u64, limit: u64) -> u64 {
        let mut end = address;
        while end < limit {
            match self.find(end) {
                Some(mapped) if mapped.physical == end & !(mapped.size - 1) => {
                    end = (mapped.physical + mapped.size).min(limit);
                }
                _ => break,
            }
        }
        end
    }
}

/// Copies of the table pages, made by Xen to be read here; one for each level.
static COPIED: [PageMemory; 4] = [const { PageMemory::new() }; 4];
/// The value that the copy is tried with.
const PATTERN: u64 = 0x756e_696b_7072_6f66;

/// The tables in use, which the guest need not map: Xen copies them, page by page. `None` if the
/// image is not mapped one to one, or Xen does not copy.
///
/// # Safety
/// No other result of this function is in use. The image's addresses are below the domain's memory
/// size: Xen is asked to write eight bytes at an address of the image, which is found to be the
/// physical one by that only.
pub(crate) unsafe fn current(
    hypercall: &impl Hypercall,
) -> Option<PageTables<impl Fn(u64) -> Option<u64>>> {
    let words = COPIED[0].base().cast::<u64>();
    let physical = words.addr().get() as u64;
    let last = PAGE_SIZE as usize / size_of::<u64>() - 1;
    // SAFETY: the page is used here only, by one caller.
    unsafe {
        words.write_volatile(PATTERN);
        words.add(last).write_volatile(0);
        let to = physical + PAGE_SIZE - size_of::<u64>() as u64;
        let is_copied = memory::copy(hypercall, physical, to, size_of::<u64>() as u16);
        if !is_copied || words.add(last).read_volatile() != PATTERN {
            return None;
        }
    }
    let pages = Cell::new([None; COPIED.len()]);
    let oldest = Cell::new(0);
    Some(PageTables::new(super::read_cr3(), move |address| {
        let page = address & !(PAGE_SIZE - 1);
        let mut known = pages.get();
        let found = known.iter().position(|known| *known == Some(page));
        let place = found.unwrap_or_else(|| oldest.replace((oldest.get() + 1) % COPIED.len()));
        let words = COPIED[place].base().cast::<u64>();
        if found.is_none() {
            known[place] = None;
            pages.set(known);
            let to = words.addr().get() as u64;
            // SAFETY: the copies have their own addresses, which was tried with the first; the
            // image is one mapping.
            let is_copied = unsafe { memory::copy(hypercall, page, to, PAGE_SIZE as u16) };
            is_copied.then_some(())?;
            known[place] = Some(page);
            pages.set(known);
        }
        // SAFETY: inside the page.
        Some(unsafe {
            words.add((address % PAGE_SIZE) as usize / size_of::<u64>()).read_volatile()
        })
    }))
}

/// Tables of the profiler's own, from the first level down.
static OWN: [PageMemory; 3] = [const { PageMemory::new() }; 3];

/// While it lives, a large page is mapped one to one: by tables of the profiler's own, which are
/// the guest's otherwise.
pub(crate) struct Window {
    guests: u64,
}

impl Window {
    /// Maps the large page that contains `address`, below 512 GiB. `None` if Xen does not copy the
    /// guest's tables.
    ///
    /// # Safety
    /// Until the result is dropped, interrupts are off, and what the guest has at the addresses of
    /// the large page is not used. There is no other result. The image is mapped one to one.
    pub(crate) unsafe fn open(hypercall: &impl Hypercall, address: u64) -> Option<Self> {
        let guests = super::read_cr3();
        let own = OWN.each_ref().map(|page| page.base().cast());
        // SAFETY: the tables are used here only, and are not in use now. Xen copies into them.
        unsafe {
            fill(own, guests & ADDRESS, address, |table, to| {
                let to = to.addr().get() as u64;
                memory::copy(hypercall, table, to, PAGE_SIZE as u16)
            })?;
            let own = own[0].addr().get() as u64;
            super::write_cr3(own | guests & !ADDRESS);
            super::forget_translation(address);
        }
        Some(Self { guests })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the guest's tables; the entry that differed is not global.
        unsafe { super::write_cr3(self.guests) };
    }
}

/// Makes `own` a copy of the tables at `root` that maps the large page of `address` one to one.
/// `copy` copies a table.
///
/// # Safety
/// The tables are the caller's to write.
unsafe fn fill(
    own: [NonNull<u64>; 3],
    root: u64,
    address: u64,
    copy: impl Fn(u64, NonNull<u64>) -> bool,
) -> Option<()> {
    let mut entry = root | PRESENT;
    for (number, table) in own.into_iter().enumerate() {
        if entry & PRESENT != 0 && entry & LARGE == 0 {
            copy(entry & ADDRESS, table).then_some(())?;
        } else {
            for index in 0..ENTRIES {
                // A page of 1 GiB is divided.
                let part = entry.wrapping_add(LARGE_SIZE * index as u64);
                let part = if entry & PRESENT != 0 { part } else { 0 };
                // SAFETY: inside the table.
                unsafe { table.add(index).write_volatile(part) };
            }
        }
        let index = (address >> (39 - 9 * number)) as usize % ENTRIES;
        // SAFETY: as above.
        unsafe {
            let place = table.add(index);
            entry = place.read_volatile();
            let changed = match own.get(number + 1) {
                None => address & !(LARGE_SIZE - 1) | LARGE,
                // With the flags of the guest's, if there is one.
                Some(next) if entry & PRESENT != 0 => {
                    next.addr().get() as u64 | entry & !(ADDRESS | LARGE)
                }
                Some(next) => next.addr().get() as u64,
            };
            place.write_volatile(changed | PRESENT | WRITABLE);
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Its lowest address bit is PAT.
    const PAT: u64 = 1 << 12;

    fn tables(words: &[(u64, u64)]) -> PageTables<impl Fn(u64) -> Option<u64>> {
        let words: HashMap<u64, u64> = words.iter().copied().collect();
        PageTables::new(0x1018, move |at| {
            // 0x9000 is a table that is not mapped.
            (at & !0xfff != 0x9000).then(|| words.get(&at).copied().unwrap_or(0))
        })
    }

    /// Small pages at 0x1000 and 0x2000 (one to one) and at 0x3000 (elsewhere), then large ones.
    fn small_and_large() -> PageTables<impl Fn(u64) -> Option<u64>> {
        tables(&[
            (0x1000, 0x2000 | PRESENT),
            (0x1008, 0x9000 | PRESENT),
            (0x2000, 0x3000 | PRESENT | WRITABLE),
            (0x2008, 1 << 30 | LARGE | PRESENT),
            (0x2010, 5 << 30 | LARGE | PRESENT),
            (0x3000, 0x4000 | PRESENT),
            (0x3008, 2 << 20 | PAT | LARGE | PRESENT | 1 << 63),
            (0x4008, 0x1000 | PRESENT),
            (0x4010, 0x2000 | PRESENT | 1 << 63),
            (0x4018, 0x7000 | PRESENT),
        ])
    }

    #[test]
    fn each_size_of_page_is_translated() {
        let tables = small_and_large();
        for (address, physical) in [
            (0x1234, Some(0x1234)),
            (0x3456, Some(0x7456)),
            (0x20_1234, Some(0x20_1234)),
            (0x7fff_ffff, Some(0x7fff_ffff)),
            (0x8000_0000, Some(0x1_4000_0000)),
            // Not present, at each level; a table that cannot be read.
            (0, None),
            (0x40_0000, None),
            (3 << 30, None),
            (2 << 39, None),
            (1 << 39, None),
        ] {
            assert_eq!(tables.translate(address), physical, "{address:#x}");
        }
    }

    /// Guards against a switch of the local APIC's mode under a guest that uses it at an address of
    /// its own.
    #[test]
    fn a_page_is_found_at_any_address() {
        let tables = small_and_large();
        for (physical, expected) in [
            (0x1000, true),
            (0x7fff, true),
            (0x3000, false),
            (0x4000, false),
            (0x20_0000, true),
            (0x3f_f000, true),
            (0x40_0000, false),
            (1 << 30, true),
            (5 << 30 | 0xfee0_0000 & 0x3fff_ffff, true),
            (0xfee0_0000, false),
        ] {
            assert_eq!(tables.is_mapped(physical), expected, "{physical:#x}");
        }
    }

    #[test]
    fn a_range_ends_where_it_is_mapped_otherwise() {
        let tables = small_and_large();
        assert_eq!(tables.identity_end(0x1000, u64::MAX), 0x3000);
        assert_eq!(tables.identity_end(0x1800, 0x2100), 0x2100);
        assert_eq!(tables.identity_end(0x3000, u64::MAX), 0x3000);
        assert_eq!(tables.identity_end(0x20_0000, u64::MAX), 0x40_0000);
        assert_eq!(tables.identity_end(1 << 30, u64::MAX), 2 << 30);
    }

    /// Guards against a start that fails where the guest maps its memory only, not the pages of
    /// Xen's tools above it; and against one that hides from the profiler what the guest has
    /// mapped.
    #[test]
    fn a_window_maps_one_large_page_and_leaves_the_others() {
        const RING: u64 = 0xfeff_c000;
        let small_pages = [
            (0x1000, 0x2000 | PRESENT | WRITABLE),
            (0x2000, 0x3000 | PRESENT | WRITABLE),
            (0x3008, 2 << 20 | LARGE | PRESENT),
        ];
        let others = |third| {
            let words = small_pages.into_iter().chain(third);
            words.collect::<HashMap<u64, u64>>()
        };
        let elsewhere = 0xfee0_0000 - (3 << 30);
        for guests in [
            others(std::vec![]),
            // The ring's large page is another one there; its neighbour is one to one.
            others(std::vec![
                (0x2018, 0x4000 | PRESENT),
                (0x4000 + 8 * (elsewhere >> 21), 6 << 21 | LARGE | PRESENT),
                (0x4000 + 8 * (elsewhere >> 21) + 8, 0xff00_0000 | LARGE | PRESENT),
            ]),
            // A page of 1 GiB.
            others(std::vec![(0x2018, 5 << 30 | LARGE | PRESENT)]),
        ] {
            let read = |at| guests.get(&at).copied().unwrap_or(0);
            let memory = [const { PageMemory::new() }; 3];
            let own = memory.each_ref().map(|page| page.base().cast::<u64>());
            let copy = |from, to: NonNull<u64>| {
                for index in 0..ENTRIES {
                    // SAFETY: inside the page.
                    unsafe { to.add(index).write(read(from + 8 * index as u64)) };
                }
                true
            };
            // SAFETY: the tables are this test's.
            let filled = unsafe { fill(own, 0x1000, RING, copy) };
            assert_eq!(filled, Some(()));
            let root = own[0].addr().get() as u64;
            let changed = PageTables::new(root, |at| {
                let place = own.iter().find(|it| it.addr().get() as u64 == at & !0xfff);
                // SAFETY: inside the page.
                place.map_or(Some(read(at)), |it| unsafe {
                    Some(it.add((at % PAGE_SIZE / 8) as usize).read())
                })
            });
            let guests = PageTables::new(0x1000, |at| Some(read(at)));
            for address in [RING, 0xfee0_0000, 0xfeff_ffff] {
                assert_ne!(guests.translate(address), Some(address));
                assert_eq!(changed.translate(address), Some(address), "{address:#x}");
            }
            for address in [0, 0x20_1234, 0x8000_0000, 0xc000_0000, 0xfedf_ffff, 0xff00_0000] {
                let expected = guests.translate(address);
                assert_eq!(changed.translate(address), expected, "{address:#x}");
            }
        }
    }

    /// A window is closed while its tables are filled anew. Therefore a crash waits until another
    /// vCPU has closed its window.
    #[test]
    fn a_window_that_is_opened_anew_is_closed_meanwhile() {
        const RING: u64 = 0xfeff_c000;
        let memory = [const { PageMemory::new() }; 3];
        let own = memory.each_ref().map(|page| page.base().cast::<u64>());
        let translate = || {
            let tables = PageTables::new(own[0].addr().get() as u64, |at| {
                let place = own.iter().find(|it| it.addr().get() as u64 == at & !0xfff)?;
                // SAFETY: inside the page.
                Some(unsafe { place.add((at % PAGE_SIZE / 8) as usize).read() })
            });
            tables.translate(RING)
        };
        let is_open = Cell::new(None);
        // The guest's tables are empty.
        let copy = |_, to: NonNull<u64>| {
            // SAFETY: a page.
            unsafe { to.as_ptr().write_bytes(0, ENTRIES) };
            is_open.set(translate());
            true
        };
        for _ in 0..2 {
            // SAFETY: the tables are this test's.
            assert_eq!(unsafe { fill(own, 0x1000, RING, copy) }, Some(()));
            assert_eq!((is_open.take(), translate()), (None, Some(RING)));
        }
    }

    #[test]
    fn a_window_needs_each_table() {
        let memory = [const { PageMemory::new() }; 3];
        let own = memory.each_ref().map(|page| page.base().cast::<u64>());
        // SAFETY: the tables are this test's.
        assert_eq!(unsafe { fill(own, 0x1000, 1 << 32, |_, _| false) }, None);
    }
}
