//! The table of live allocations: sampled allocations that have not been freed, in memory that
//! never grows.
//!
//! A hash of the address selects a *bucket* of [`SLOTS`] entries. A bucket's *tags*, one byte for
//! each entry, lie in one word, apart from the entries: a free of an allocation that was not
//! sampled, which is almost every one, reads that word and compares all tags at once. An allocation
//! whose home bucket is full goes to one of [`CHOICES`] - 1 other buckets; the last byte of the
//! home's word counts those. If all are full, the sample is dropped, and the caller counts it.
//!
//! Allocations are inserted by their own vCPU; any vCPU frees them; the service reads, moves and
//! removes them. No one waits: an unused entry is claimed by a compare-and-swap of the bucket's
//! word, and an entry in use is changed and removed by one of its word [`Held`], whose generation
//! tells an entry from the next one in its place.
//!
//! Why: docs/design/decisions.md#one-table-of-live-allocations.

use core::mem::MaybeUninit;

use crate::count::recording::MAX_RECORDINGS;
use crate::count::table::Table;
use crate::ground::block::take;
use crate::ground::sync::{AtomicU64, Ordering, fence};

/// The entries of a bucket.
const SLOTS: usize = 7;

/// The buckets in which an allocation may be, its home first.
const CHOICES: u32 = 4;

/// A tag of an entry that is not in use.
const FREE: u8 = 0;
/// A tag of an entry that is being written.
const BUSY: u8 = 1;
/// The least tag of an entry in use.
const FIRST: u8 = 2;

/// The byte of a bucket's word that counts the allocations of this home in other buckets. It stays
/// at 255.
const AWAY: usize = SLOTS;

/// The bytes of memory for a table with this many entries.
pub const fn live_bytes(samples: usize) -> usize {
    let buckets = samples.div_ceil(SLOTS);
    buckets.saturating_mul(BUCKET_BYTES).saturating_add(size_of::<LiveCells>() + PADDING)
}

const BUCKET_BYTES: usize = size_of::<AtomicU64>() + SLOTS * size_of::<EntryCells>();

/// Room to align three slices.
const PADDING: usize = 3 * align_of::<LiveCells>();

#[repr(align(64))]
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct LiveCells {
    /// The entries in use.
    used: AtomicU64,
}

#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(bytemuck::Zeroable))]
pub(crate) struct EntryCells {
    address: AtomicU64,
    size: AtomicU64,
    /// Written last. It also tells a reader that the entry has been replaced.
    born_ns: AtomicU64,
    /// [`Held`]. Without recordings, the entry is about to be removed.
    held: AtomicU64,
}

/// The other properties of a live allocation, in one word.
///
/// Bits 0 to 31: the place of its stack in its vCPU's table. Bits 32 to 55: the vCPU that allocated
/// it. Bits 56 to 59: a bit for each recording that it is held for. Bits 60 to 63: the generation,
/// which each insertion into the same entry increments; it is not compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held(u64);

const _: () = assert!(MAX_RECORDINGS <= 4);

impl Held {
    const RECORDINGS_SHIFT: u32 = 56;
    const RECORDINGS: u64 = 0xf << Self::RECORDINGS_SHIFT;
    const GENERATION: u64 = 1 << 60;

    pub(crate) fn new(place: u32, vcpu: u32, recordings: u32) -> Self {
        Self(u64::from(vcpu & 0x00ff_ffff) << 32).at(place).only(recordings)
    }

    pub(crate) fn place(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn vcpu(self) -> u32 {
        (self.0 >> 32) as u32 & 0x00ff_ffff
    }

    pub(crate) fn recordings(self) -> u32 {
        (self.0 >> Self::RECORDINGS_SHIFT) as u32 & 0xf
    }

    /// The same with another place.
    pub(crate) fn at(self, place: u32) -> Self {
        Self(self.0 >> 32 << 32 | u64::from(place))
    }

    /// The same for these recordings.
    pub(crate) fn only(self, recordings: u32) -> Self {
        Self(self.0 & !Self::RECORDINGS | u64::from(recordings & 0xf) << Self::RECORDINGS_SHIFT)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        (self.0 ^ other.0) << 4 == 0
    }
}

/// A sampled allocation that is still held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LiveEntry {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) born_ns: u64,
    pub(crate) held: Held,
}

impl LiveEntry {
    /// The number of its stack in its vCPU's `stacks`; 0 if the stack is given up, or is about to
    /// be.
    pub(crate) fn stack(&self, stacks: &Table<'_>) -> u64 {
        let place = self.held.place();
        match stacks.condemned() >> stacks.segment_of(place) & 1 {
            0 => stacks.number(place),
            _ => 0,
        }
    }
}

/// A view of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveTable<'m> {
    cells: &'m LiveCells,
    /// A word for each bucket.
    tags: &'m [AtomicU64],
    /// [`SLOTS`] for each bucket.
    entries: &'m [EntryCells],
}

/// The hash of an address.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    /// One multiplication. The shifts before and after it keep addresses of any equal distance from
    /// sharing buckets.
    #[inline]
    fn of(address: u64) -> Self {
        let product = (address ^ address >> 7).wrapping_mul(Self::FACTOR);
        Self(product ^ product >> 32)
    }

    /// The bucket of the choice with this number among `buckets`; 0 is the home.
    #[inline]
    fn bucket(self, choice: u32, buckets: usize) -> usize {
        let bits = match choice {
            0 => self.0,
            _ => self.0.wrapping_mul(Self::FACTOR).rotate_right(16 * choice),
        };
        ((u64::from(bits as u32) * buckets as u64) >> 32) as usize
    }

    #[inline]
    fn tag(self) -> u8 {
        ((self.0 >> 32) as u8).max(FIRST)
    }
}

#[inline]
fn byte(word: u64, index: usize) -> u8 {
    (word >> (8 * index)) as u8
}

#[inline]
fn with_byte(word: u64, index: usize, value: u8) -> u64 {
    word & !(0xff << (8 * index)) | u64::from(value) << (8 * index)
}

/// Whether one of the word's tags may be `tag`: a byte above an equal one may be taken for equal.
#[inline]
fn may_have(word: u64, tag: u8) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const TAGS: u64 = u64::MAX >> 8;
    let difference = word ^ (u64::from(tag) * ONES);
    difference.wrapping_sub(ONES) & !difference & (ONES << 7) & TAGS != 0
}

impl<'m> LiveTable<'m> {
    /// The entries of a bucket.
    pub(crate) const SLOTS: usize = SLOTS;

    /// A table in this block; `None` if the block has no room for a bucket.
    pub(crate) fn in_block(mut block: &'m mut [MaybeUninit<u8>]) -> Option<Self> {
        let room = block.len().checked_sub(size_of::<LiveCells>() + PADDING)?;
        let buckets = (room / BUCKET_BYTES).min(u32::MAX as usize);
        if buckets == 0 {
            return None;
        }
        let cells: &[LiveCells] = take(&mut block, 1)?;
        let tags = take(&mut block, buckets)?;
        let entries = take(&mut block, buckets * SLOTS)?;
        Some(Self::new(cells.first()?, tags, entries))
    }

    /// A table in these cells.
    pub(crate) fn new(
        cells: &'m LiveCells,
        tags: &'m [AtomicU64],
        entries: &'m [EntryCells],
    ) -> Self {
        Self { cells, tags, entries }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The number of buckets.
    pub(crate) fn buckets(&self) -> u32 {
        self.tags.len() as u32
    }

    /// The number of entries in use.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.cells.used.load(Ordering::Relaxed)
    }

    /// Adds an allocation; `false` if there is no room for it. The address may already be there, of
    /// another recording.
    #[inline(never)]
    pub(crate) fn insert(&self, entry: &LiveEntry) -> bool {
        let hash = Hash::of(entry.address);
        let home = hash.bucket(0, self.tags.len());
        // Before the entry can be found, so that a free on another vCPU never sees 0 while there
        // are entries.
        self.cells.used.fetch_add(1, Ordering::Relaxed);
        for choice in 0..CHOICES {
            if choice == 1 {
                // Before the entry can be found, so that the free looks beyond the home.
                self.count_away(home, 1);
            }
            if self.insert_in(hash.bucket(choice, self.tags.len()), hash, entry) {
                return true;
            }
        }
        self.count_away(home, -1);
        self.cells.used.fetch_sub(1, Ordering::Relaxed);
        false
    }

    #[inline(never)]
    fn insert_in(&self, bucket: usize, hash: Hash, entry: &LiveEntry) -> bool {
        let Some(cell) = self.tags.get(bucket) else {
            return false;
        };
        let mut word = cell.load(Ordering::Acquire);
        let index = loop {
            let mut indices = 0..SLOTS;
            let Some(index) = indices.find(|index| byte(word, *index) == FREE) else {
                return false;
            };
            let next = with_byte(word, index, BUSY);
            match cell.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break index,
                Err(now) => word = now,
            }
        };
        // A reader that sees a field of this entry also sees that the previous entry is gone.
        fence(Ordering::Release);
        if let Some(cells) = self.entry(bucket, index) {
            cells.address.store(entry.address, Ordering::Relaxed);
            cells.size.store(entry.size, Ordering::Relaxed);
            let last = cells.held.load(Ordering::Relaxed) / Held::GENERATION + 1;
            let held = entry.held.0 % Held::GENERATION + last % 16 * Held::GENERATION;
            // A swap, so that it is ordered with an update of the entry before; the model checker
            // orders no store so.
            cells.held.swap(held, Ordering::Relaxed);
            cells.born_ns.store(entry.born_ns, Ordering::Release);
        }
        let bits = u64::from(hash.tag() ^ BUSY) << (8 * index);
        cell.fetch_xor(bits, Ordering::Release);
        true
    }

    /// Whether there may be an allocation at this address: false for nearly all addresses that have
    /// none.
    #[inline]
    pub(crate) fn may_have(&self, address: u64) -> bool {
        let hash = Hash::of(address);
        let home = hash.bucket(0, self.tags.len());
        self.tags.get(home).is_some_and(|cell| {
            let word = cell.load(Ordering::Acquire);
            may_have(word, hash.tag()) || byte(word, AWAY) != 0
        })
    }

    /// Frees `address`: [revises](Self::revise) the allocations there. There are none at 0, which
    /// guests free, too.
    #[cold]
    #[inline(never)]
    pub(crate) fn free(
        &self,
        address: u64,
        decide: &mut dyn FnMut(&LiveEntry) -> Held,
    ) -> Option<LiveEntry> {
        if address == 0 {
            return None;
        }
        let hash = Hash::of(address);
        for choice in 0..CHOICES {
            let bucket = hash.bucket(choice, self.tags.len());
            let changed = self.revise(bucket as u32, address, decide);
            let cell = self.tags.get(bucket)?;
            if changed.is_some() || choice == 0 && byte(cell.load(Ordering::Acquire), AWAY) == 0 {
                return changed;
            }
        }
        None
    }

    /// Passes the entries of a bucket to `decide`, those of this address if `address` is not 0.
    /// `decide` returns what is held from now on: what it was, or with another place, or for fewer
    /// recordings. An entry that is held for none is removed. Returns the first entry that was
    /// changed, as it was; those after it have not been passed to `decide`.
    ///
    /// An entry that changes meanwhile is passed to `decide` again.
    #[inline(never)]
    pub(crate) fn revise(
        &self,
        bucket: u32,
        address: u64,
        decide: &mut dyn FnMut(&LiveEntry) -> Held,
    ) -> Option<LiveEntry> {
        let bucket = bucket as usize;
        let hash = Hash::of(address);
        let tags = self.tags.get(bucket)?;
        for index in 0..SLOTS {
            let cells = self.entry(bucket, index)?;
            while let Some(entry) = cells.read(tags, index, (address != 0).then(|| hash.tag())) {
                if address != 0 && address != entry.address {
                    break;
                }
                let held = decide(&entry);
                if held == entry.held {
                    break;
                }
                // A vCPU that frees the allocation also sees the nodes of a stack that was moved.
                let (from, to) = (entry.held.0, held.0);
                let changed =
                    cells.held.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
                if changed.is_err() {
                    continue;
                }
                if held.recordings() == 0 {
                    tags.fetch_and(with_byte(u64::MAX, index, FREE), Ordering::Release);
                    self.cells.used.fetch_sub(1, Ordering::Relaxed);
                    let home = Hash::of(entry.address).bucket(0, self.tags.len());
                    if home != bucket {
                        self.count_away(home, -1);
                    }
                }
                return Some(entry);
            }
        }
        None
    }

    /// Adds an allocation again that was removed; `false` if there is no room for it, or if
    /// `has_stack` says that its stack has been given up since.
    pub(crate) fn put_back(&self, entry: &LiveEntry, has_stack: impl FnOnce() -> bool) -> bool {
        if !self.insert(entry) {
            return false;
        }
        // The poll condemns a segment and then searches for entries with its stacks: either it
        // finds this one, or the segment is seen to be condemned here.
        fence(Ordering::SeqCst);
        let mut if_same = |found: &LiveEntry| match found == entry {
            true => found.held.only(0),
            false => found.held,
        };
        has_stack() || self.free(entry.address, &mut if_same).is_none()
    }

    fn entry(&self, bucket: usize, index: usize) -> Option<&'m EntryCells> {
        self.entries.get(bucket * SLOTS + index)
    }

    /// Adds to the number of this home's allocations in other buckets.
    fn count_away(&self, home: usize, change: i8) {
        let Some(cell) = self.tags.get(home) else {
            return;
        };
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            let away = byte(word, AWAY);
            let next = match away {
                u8::MAX => return,
                _ => with_byte(word, AWAY, away.saturating_add_signed(change)),
            };
            match cell.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

impl EntryCells {
    /// The entry, if it has this tag, or any tag if `tag` is `None`. `None` if it is not in use or
    /// changes at this moment. `tags` is its bucket's word, and `index` its number there.
    #[inline]
    fn read(&self, tags: &AtomicU64, index: usize, tag: Option<u8>) -> Option<LiveEntry> {
        let found = byte(tags.load(Ordering::Acquire), index);
        if found < FIRST || tag.is_some_and(|tag| tag != found) {
            return None;
        }
        let born_ns = self.born_ns.load(Ordering::Acquire);
        let entry = LiveEntry {
            address: self.address.load(Ordering::Relaxed),
            size: self.size.load(Ordering::Relaxed),
            born_ns,
            held: Held(self.held.load(Ordering::Acquire)),
        };
        fence(Ordering::Acquire);
        let is_same = byte(tags.load(Ordering::Acquire), index) == found
            && self.born_ns.load(Ordering::Relaxed) == born_ns;
        (is_same && entry.held.recordings() != 0).then_some(entry)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;

    use std::collections::HashMap;
    use std::vec::Vec;

    use super::*;

    fn memory(bytes: usize) -> &'static mut [MaybeUninit<u8>] {
        Vec::leak(std::vec![MaybeUninit::new(0xff); bytes])
    }

    fn table(samples: usize) -> LiveTable<'static> {
        LiveTable::in_block(memory(live_bytes(samples))).unwrap()
    }

    fn entry(address: u64) -> LiveEntry {
        LiveEntry {
            address,
            size: address / 3,
            born_ns: address + 1,
            held: Held::new(address as u32 | 1, 0x00ff_fffe, 0b1010),
        }
    }

    fn all(table: &LiveTable<'_>) -> HashMap<u64, LiveEntry> {
        let entries = (0..table.buckets()).flat_map(|bucket| table.each(bucket));
        entries.map(|entry| (entry.address, entry)).collect()
    }

    /// Guards against the loss of another address's sample where a guest frees NULL.
    #[test]
    fn null_frees_nothing() {
        let table = table(64);
        let addresses = (1..).map(|number| 16 * number);
        let held = addresses.take_while(|address| table.insert(&entry(*address)));
        let held = held.count();
        assert!(table.may_have(0));
        assert_eq!(table.remove(0), None);
        assert_eq!(all(&table).len(), held);
    }

    #[test]
    fn a_block_has_room_for_what_its_length_was_computed_for() {
        for samples in [1, 7, 8, 1_000, 4_096] {
            let capacity = table(samples).capacity();
            assert!((samples as u64..samples as u64 + 7).contains(&capacity));
        }
        assert!(LiveTable::in_block(memory(live_bytes(1) - 1)).is_none());
        assert!(LiveTable::in_block(&mut []).is_none());
        let each = live_bytes(7_000) as f64 / 7_000.0;
        assert_eq!(each.ceil(), unikprof_proto::live::PLACE_BYTES as f64);
    }

    /// A load with exact books, at a filling at which many buckets are full.
    #[test]
    fn what_was_inserted_is_found_and_what_was_removed_is_not() {
        let table = table(700);
        let mut books: HashMap<u64, LiveEntry> = HashMap::new();
        let mut random = 1_u64;
        let mut dropped = 0;
        for _ in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let address = 0x10_0000 + (random >> 33) % 1_200 * 16;
            match books.remove(&address) {
                Some(held) => assert_eq!(table.remove(address), Some(held)),
                None => {
                    assert_eq!(table.remove(address), None, "freed, and never sampled");
                    if table.insert(&entry(address)) {
                        books.insert(address, entry(address));
                    } else {
                        dropped += 1;
                    }
                }
            }
            assert_eq!(table.used(), books.len() as u64);
        }
        assert!(dropped > 0, "the table never was full");
        assert_eq!(all(&table), books);
        for address in books.into_keys() {
            assert!(table.remove(address).is_some());
        }
        assert_eq!(table.used(), 0);
        let clear = table.tags.iter().map(|word| word.load(Ordering::Relaxed));
        let is_clear = |word: u64| word == 0 || word == 255 << 56;
        assert!(clear.into_iter().all(is_clear), "no tag and no count is left");
    }

    /// A drop is a bias. A multiplication alone drops 2 to 5 % at some of these distances.
    #[test]
    fn a_table_filled_to_three_quarters_drops_nearly_nothing() {
        for distance in [16, 48, 4_096, 28_624, 29_520, 481_952, 1 << 20] {
            let table = table(7_000);
            let addresses = (0..5_250_u64).map(|number| (1 << 36) + number * distance);
            let inserted = addresses.filter(|address| table.insert(&entry(*address)));
            let inserted = inserted.count();
            assert!(inserted >= 5_230, "{inserted} at a distance of {distance}");
        }
    }

    /// Guards the cost of nearly all frees.
    #[test]
    fn an_address_without_a_sample_is_seldom_searched_for() {
        let table = table(7_000);
        assert!((0..2_333_u64).all(|number| table.insert(&entry(number * 48))));
        assert!((0..2_333_u64).all(|number| table.may_have(number * 48)));
        let searched = (2_333..100_000_u64).filter(|number| table.may_have(number * 48));
        let searched = searched.count();
        assert!(searched < 2_500, "{searched} of 97,667");
    }

    /// An entry that has changed since `decide` read it is decided again. The entry of the same
    /// allocation in the same place is another one, too.
    #[test]
    fn an_entry_that_changed_is_decided_again() {
        let table = table(7);
        assert!(table.insert(&entry(64)));
        let mut places = Vec::new();
        table.revise(0, 0, &mut |found| {
            places.push(found.held.place());
            match places.len() {
                1 => _ = table.revise(0, 0, &mut |found| found.held.at(9)),
                2 => {
                    assert!(table.remove(64).is_some() && table.insert(&entry(64)));
                    let held = Held::new(9, 0x00ff_fffe, 0b1010);
                    table.revise(0, 0, &mut |found| found.held.at(held.place()));
                }
                _ => {}
            }
            found.held.only(0b0010)
        });
        assert_eq!(places, [65, 9, 9]);
        let held = table.remove(64).unwrap().held;
        assert_eq!((held.place(), held.recordings()), (9, 0b0010));
        assert_eq!(table.used(), 0);
    }
}

#[cfg(test)]
extern crate std;

#[cfg(test)]
impl LiveTable<'_> {
    /// Frees an address for all recordings.
    pub(crate) fn remove(&self, address: u64) -> Option<LiveEntry> {
        self.free(address, &mut |entry| entry.held.only(0))
    }

    /// The entries of a bucket.
    pub(crate) fn each(&self, bucket: u32) -> std::vec::Vec<LiveEntry> {
        let mut entries = std::vec::Vec::new();
        self.revise(bucket, 0, &mut |entry| {
            entries.push(*entry);
            entry.held
        });
        entries
    }
}

/// The model checker runs an insert, frees and the service's reads and moves in every order.
#[cfg(all(test, loom))]
mod live_model {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use loom::thread;

    use super::*;

    impl LiveTable<'_> {
        /// A table of one bucket.
        pub(crate) fn for_model() -> LiveTable<'static> {
            let entries: Vec<EntryCells> = (0..SLOTS).map(|_| EntryCells::default()).collect();
            LiveTable::new(
                Box::leak(Box::new(LiveCells::default())),
                Vec::leak(std::vec![AtomicU64::new(0)]),
                Vec::leak(entries),
            )
        }
    }

    fn entry(address: u64, born_ns: u64) -> LiveEntry {
        LiveEntry { address, size: born_ns * 100, born_ns, held: Held::new(1, 0, 1) }
    }

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// A vCPU frees an address and gets it again at once, while another one inserts into the same
    /// bucket, and the service reads: every entry that it reads is one that was inserted, whole.
    #[test]
    fn a_reader_sees_whole_entries_while_an_address_is_used_again() {
        check(|| {
            let table = LiveTable::for_model();
            assert!(table.insert(&entry(16, 1)));
            let other = thread::spawn(move || table.insert(&entry(48, 3)));
            let same = thread::spawn(move || {
                assert_eq!(table.remove(16).map(|it| it.born_ns), Some(1));
                table.insert(&entry(16, 2))
            });
            for read in table.each(0) {
                let address = if read.born_ns == 3 { 48 } else { 16 };
                assert_eq!(read, entry(address, read.born_ns));
            }
            assert!(other.join().unwrap() && same.join().unwrap());
            assert_eq!(table.used(), 2);
            assert_eq!(table.remove(16).map(|it| it.born_ns), Some(2));
            assert_eq!(table.remove(48).map(|it| it.born_ns), Some(3));
        });
    }

    /// The service moves an entry to another stack while its allocation is freed and its place is
    /// used again: the new entry keeps its own stack.
    #[test]
    fn a_move_meets_the_entry_that_was_read() {
        check(|| {
            let table = LiveTable::for_model();
            assert!(table.insert(&entry(16, 1)));
            let guest = thread::spawn(move || {
                assert!(table.remove(16).is_some());
                table.insert(&LiveEntry { held: Held::new(7, 0, 1), ..entry(48, 2) })
            });
            table.revise(0, 0, &mut |read| read.held.at(read.held.place() + 1));
            assert!(guest.join().unwrap());
            let held = table.remove(48).map(|it| it.held.place());
            assert!(matches!(held, Some(7 | 8)), "the stack of the old entry: {held:?}");
        });
    }

    /// Two vCPUs free two allocations of one bucket at once: each is removed once.
    #[test]
    fn frees_of_one_bucket_do_not_disturb_each_other() {
        check(|| {
            let table = LiveTable::for_model();
            assert!(table.insert(&entry(16, 1)) && table.insert(&entry(32, 2)));
            let other = thread::spawn(move || table.remove(32).map(|it| it.born_ns));
            assert_eq!(table.remove(16).map(|it| it.born_ns), Some(1));
            assert_eq!(other.join().unwrap(), Some(2));
            assert_eq!((table.used(), table.remove(16)), (0, None));
        });
    }
}
