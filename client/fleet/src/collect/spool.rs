//! What was fetched and not yet accepted everywhere, on disk.
//!
//! ```text
//! SPOOL/lock                     held while a collector runs; contains the id by which guests know its collectors
//! SPOOL/reserve                  room for books on a disk that is full
//! SPOOL/GUEST/books.json         the guest, and its books
//! SPOOL/GUEST/NUMBER-….unikprof  one epoch each
//! ```
//!
//! The parcels are the truth: a parcel that the books do not know yet is booked when the spool is
//! opened, and one that all targets have is deleted only after the books say so on disk. So a
//! collector may be killed at any moment. A parcel's name tells all that must be known of it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use unikprof_link::connection::{new_client_id, set_client_id};
use unikprof_profile::output::{AtomicFile, OutputError, folder_of, remove_partial, sync_folder};
use unikprof_profile::profile::Counters;

use super::super::config::{Guest, How};
use super::super::file_name;
use super::super::member::log;
use super::books::{Books, EpochId, Fate, Parcel, Span};

const BOOKS: &str = "books.json";

/// Given up where books cannot be written: without them no parcel could be deleted, and a full disk
/// would stay full.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: usize = 1 << 20;

/// The spool cannot be used.
#[derive(Debug, Error)]
pub(crate) enum SpoolError {
    #[error("cannot use {} as the spool: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error(
        "{} cannot be read, though epochs lie beside it: what was delivered of that guest is not \
         known. Put it back, or \
         start `collect` with the guest in the fleet to deliver them all again", .0.display()
    )]
    Books(PathBuf),
    #[error("another collector uses the spool {}: each needs one of its own", .0.display())]
    InUse(PathBuf),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl SpoolError {
    /// Makes the system's error one of the folder at `path`.
    fn at(path: &Path) -> impl Fn(io::Error) -> SpoolError + use<'_> {
        move |source| SpoolError::Folder { path: path.into(), source }
    }
}

/// The parcels and books of all guests.
#[derive(Debug)]
pub(super) struct Spool {
    folder: PathBuf,
    most_bytes: u64,
    /// The names of those that all parcels are for.
    targets: Vec<String>,
    guests: RwLock<BTreeMap<String, Arc<GuestSpool>>>,
    bytes: AtomicU64,
    /// How many guests there were.
    count: AtomicUsize,
    /// Held by who makes room.
    room: Mutex<()>,
    /// Ticks that were dropped, counted once for each target, since they were last asked for.
    dropped: AtomicU64,
    _lock: File,
}

/// Those of one guest.
#[derive(Debug)]
pub(super) struct GuestSpool {
    folder: PathBuf,
    /// Its place among the guests of this run.
    pub(super) index: usize,
    /// Held by the thread that fetches.
    fetching: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    saved: Saved,
    /// In the order of their numbers, with their sizes in bytes.
    waiting: VecDeque<(Parcel, u64)>,
    is_dirty: bool,
}

/// What `books.json` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) name: String,
    address: String,
    labels: BTreeMap<String, String>,
    image: Option<PathBuf>,
    symbols: Option<PathBuf>,
    pub(super) books: Books,
}

impl Saved {
    fn new(guest: &Guest, books: Books) -> Saved {
        Saved {
            name: guest.name.clone(),
            address: guest.address.to_string(),
            labels: guest.labels.clone(),
            image: guest.how.image.clone(),
            symbols: guest.how.symbols.clone(),
            books,
        }
    }

    fn read(folder: &Path) -> Option<Saved> {
        serde_json::from_slice(&fs::read(folder.join(BOOKS)).ok()?).ok()
    }

    /// The guest, as far as its deliveries need it.
    fn guest(&self) -> Option<Guest> {
        Some(Guest {
            name: self.name.clone(),
            address: self.address.parse().ok()?,
            labels: self.labels.clone(),
            how: How { image: self.image.clone(), symbols: self.symbols.clone(), ..How::default() },
        })
    }
}

/// How often books are read again that a collector writes meanwhile.
const MOST_READS: u32 = 20;

/// A guest's books, and what waits in its folder.
#[derive(Debug)]
pub(super) struct Audited {
    pub(super) saved: Saved,
    pub(super) waiting: Vec<Parcel>,
}

/// Reads a spool without changing it; a collector may be at work in it.
pub(super) fn audit(folder: &Path) -> Result<Vec<Audited>, SpoolError> {
    let mut all = Vec::new();
    for folder in folders(folder)? {
        let look = || {
            let saved = Saved::read(&folder)?;
            let waiting = parcels(&folder).ok()?;
            let waiting = waiting.into_iter().map(|(parcel, _)| parcel).collect();
            Some(Audited { saved, waiting })
        };
        match consistent(look) {
            Some(audited) => all.push(audited),
            None if parcels(&folder).is_ok_and(|it| it.is_empty()) => {}
            None => return Err(SpoolError::Books(folder.join(BOOKS))),
        }
    }
    all.sort_by(|a, b| a.saved.name.cmp(&b.saved.name));
    Ok(all)
}

/// What a look at a guest finds whose books are still the same at the next look: books that are
/// written in between may have deleted parcels that the look before has missed.
fn consistent(look: impl Fn() -> Option<Audited>) -> Option<Audited> {
    let mut audited = look()?;
    for _ in 0..MOST_READS {
        let Some(again) = look() else { break };
        if again.saved.books == audited.saved.books {
            break;
        }
        audited = again;
    }
    Some(audited)
}

impl Spool {
    /// Opens or makes a spool, and books what lies in it.
    pub(super) fn open(
        folder: &Path,
        most_bytes: u64,
        targets: Vec<String>,
    ) -> Result<Spool, SpoolError> {
        let failed = SpoolError::at(folder);
        make_folder(folder)?;
        let mut lock = open_lock(folder).map_err(&failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SpoolError::InUse(folder.into())),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        set_client_id(client_id(&mut lock));
        let spool = Spool {
            folder: folder.into(),
            most_bytes,
            targets,
            guests: RwLock::default(),
            bytes: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            room: Mutex::default(),
            dropped: AtomicU64::new(0),
            _lock: lock,
        };
        for folder in folders(folder)? {
            let Some(saved) = Saved::read(&folder) else {
                if !parcels(&folder).map_err(&failed)?.is_empty() {
                    log(&format!(
                        "warning: {} has no {BOOKS} that can be read: it waits until its guest is \
                         in the fleet",
                        folder.display()
                    ));
                }
                continue;
            };
            let name = saved.name.clone();
            let guest = spool.adopt(folder, saved)?;
            spool.write().insert(name, Arc::new(guest));
        }
        Ok(spool)
    }

    /// The guest's part; made if it is new.
    pub(super) fn guest(&self, guest: &Guest) -> Result<Arc<GuestSpool>, SpoolError> {
        let mut guests = self.write();
        let folder = self.folder.join(file_name::of_guest(&guest.name));
        make_folder(&folder)?;
        if let Some(known) = guests.get(&guest.name) {
            let mut state = known.lock();
            let books = std::mem::take(&mut state.saved.books);
            state.saved = Saved::new(guest, books);
            state.is_dirty = true;
            drop(state);
            return Ok(known.clone());
        }
        let mut saved = Saved::new(guest, Books::default());
        saved.books.become_for(&self.targets, &[]);
        // Before the first parcel, so that one that is found tells whose it is.
        write_books(&folder, &saved)?;
        let new = Arc::new(self.adopt(folder, saved)?);
        guests.insert(guest.name.clone(), new.clone());
        Ok(new)
    }

    pub(super) fn guests(&self) -> Vec<Arc<GuestSpool>> {
        let guests = self.guests.read().unwrap_or_else(PoisonError::into_inner);
        guests.values().cloned().collect()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The ticks that were dropped since this was last asked, once for each target that had not
    /// accepted them.
    pub(super) fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }

    /// Takes an epoch that was fetched [into a file](GuestSpool::incoming), whose contents are on
    /// disk. It may be acknowledged afterwards: its name is on disk too. If the spool is too full
    /// then, the oldest parcels of all guests are dropped.
    pub(super) fn add(
        &self,
        guest: &GuestSpool,
        id: EpochId,
        span: Span,
        counters: &Counters,
    ) -> Result<(), SpoolError> {
        let mut state = guest.lock();
        let parcel = Parcel {
            number: state.saved.books.last_number.saturating_add(1),
            id,
            outcomes: counters.into(),
            span,
        };
        let (from, path) = (guest.incoming(), guest.path(&parcel));
        let failed = SpoolError::at(&path);
        let bytes = fs::metadata(&from).map_err(&failed)?.len();
        fs::rename(&from, &path).map_err(&failed)?;
        if let Err(source) = sync_folder(&guest.folder) {
            // The guest keeps the epoch, which is fetched again.
            let _ = fs::remove_file(&path);
            return Err(failed(source));
        }
        state.saved.books.fetched(&parcel);
        state.waiting.push_back((parcel, bytes));
        state.is_dirty = true;
        drop(state);
        let all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if all > self.most_bytes {
            self.make_room()?;
        }
        Ok(())
    }

    /// Writes books that have changed, and deletes the parcels that they are done with.
    pub(super) fn flush(&self) -> Result<(), SpoolError> {
        // A guest whose folder is gone, for example, is no matter of the others.
        let guests = self.guests();
        let failed = guests.iter().filter_map(|it| self.flush_one(it).err());
        if let Some(error) = failed.reduce(|first, _| first) {
            return Err(error);
        }
        let reserve = self.folder.join(RESERVE);
        if !reserve.exists() && fs::write(&reserve, vec![0; RESERVE_BYTES]).is_err() {
            // Half of it is no use, and the disk is full.
            let _ = fs::remove_file(&reserve);
        }
        Ok(())
    }

    fn flush_one(&self, guest: &GuestSpool) -> Result<(), SpoolError> {
        let mut state = guest.lock();
        if !std::mem::take(&mut state.is_dirty) {
            return Ok(());
        }
        let mut written = write_books(&guest.folder, &state.saved);
        if written.is_err() && fs::remove_file(self.folder.join(RESERVE)).is_ok() {
            written = write_books(&guest.folder, &state.saved);
        }
        if let Err(error) = written {
            state.is_dirty = true;
            return Err(error);
        }
        let done = state.saved.books.done_below();
        while let Some((parcel, bytes)) = state.waiting.front().copied()
            && parcel.number < done
        {
            state.waiting.pop_front();
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            // One that stays is deleted at the next start.
            let _ = fs::remove_file(guest.path(&parcel));
        }
        Ok(())
    }

    /// Drops the oldest parcels until the rest fits: of the guests whose books can be written,
    /// since no other's can be deleted. Writes the books of the guests that lose parcels only: each
    /// write is synced, and a spool that stays full gets here with every epoch of the fleet.
    fn make_room(&self) -> Result<(), SpoolError> {
        let _room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        // What is delivered already goes first.
        let mut guests = self.guests();
        guests.retain(|guest| !guest.has_delivered() || self.flush_one(guest).is_ok());
        while self.bytes() > self.most_bytes {
            let age = |guest: &Arc<GuestSpool>| {
                let state = guest.lock();
                state.waiting.front().map(|(it, _)| it.span.from_unix_ns)
            };
            let oldest =
                guests.iter().enumerate().filter_map(|(at, guest)| Some((age(guest)?, at))).min();
            let Some((_, at)) = oldest else {
                return Ok(());
            };
            let guest = &guests[at];
            if self.flush_one(guest).is_err() {
                guests.swap_remove(at);
                continue;
            }
            self.dropped.fetch_add(guest.drop_oldest(), Ordering::Relaxed);
            self.flush_one(guest)?;
        }
        Ok(())
    }

    /// Books what lies in a guest's folder.
    fn adopt(&self, folder: PathBuf, mut saved: Saved) -> Result<GuestSpool, SpoolError> {
        let found = parcels(&folder).map_err(SpoolError::at(&folder))?;
        let waiting: Vec<Parcel> = found.iter().map(|(parcel, _)| *parcel).collect();
        saved.books.catch_up(&waiting);
        saved.books.become_for(&self.targets, &waiting);
        let bytes: u64 = found.iter().map(|(_, bytes)| bytes).sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // What a collector that was killed has not finished would fill the disk beside the spool's
        // limit. What cannot be deleted is tried again at the next start.
        let _ = fs::remove_file(folder.join(INCOMING));
        let _ = remove_partial(&folder);
        Ok(GuestSpool {
            folder,
            index: self.count.fetch_add(1, Ordering::Relaxed),
            fetching: Mutex::default(),
            state: Mutex::new(State { saved, waiting: found.into(), is_dirty: true }),
        })
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<String, Arc<GuestSpool>>> {
        self.guests.write().unwrap_or_else(PoisonError::into_inner)
    }
}

const INCOMING: &str = "incoming.unikprof";

impl GuestSpool {
    /// Waits until no other thread fetches from the guest.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that an epoch is fetched into, by one thread at a time.
    pub(super) fn incoming(&self) -> PathBuf {
        self.folder.join(INCOMING)
    }

    /// The guest as the fleet last described it.
    pub(super) fn guest(&self) -> Option<Guest> {
        self.lock().saved.guest()
    }

    pub(super) fn has(&self, instance: u64, epoch: u64) -> bool {
        self.lock().saved.books.has(instance, epoch)
    }

    /// See [`Books::repeats_last`].
    pub(super) fn repeats_last(&self, id: EpochId) -> bool {
        let mut state = self.lock();
        let is_repeated = state.saved.books.repeats_last(id);
        state.is_dirty |= is_repeated;
        is_repeated
    }

    /// The next parcel for a target, and its file.
    pub(super) fn next(&self, target: &str) -> Option<(Parcel, PathBuf)> {
        let state = self.lock();
        let from = state.saved.books.targets.get(target)?.next;
        let mut waiting = state.waiting.iter();
        let (parcel, _) = waiting.find(|(parcel, _)| parcel.number >= from)?;
        Some((*parcel, self.path(parcel)))
    }

    /// Books what became of a parcel at a target.
    pub(super) fn settle(&self, target: &str, parcel: &Parcel, fate: Fate) {
        let mut state = self.lock();
        state.is_dirty |= state.saved.books.settle(target, parcel, fate);
    }

    /// Whether it has a parcel that no target needs any more.
    fn has_delivered(&self) -> bool {
        let state = self.lock();
        let done = state.saved.books.done_below();
        let oldest = state.waiting.front();
        oldest.is_some_and(|(parcel, _)| parcel.number < done)
    }

    /// Drops the oldest parcel; answers its ticks, once for each target that had not accepted it.
    fn drop_oldest(&self) -> u64 {
        let mut state = self.lock();
        let Some((parcel, _)) = state.waiting.front().copied() else {
            return 0;
        };
        let State { saved, is_dirty, .. } = &mut *state;
        *is_dirty = true;
        let targets: Vec<String> = saved.books.targets.keys().cloned().collect();
        let mut drop_at = |target: &String| {
            let fate = Fate::Dropped("the spool was full".into());
            saved.books.settle(target, &parcel, fate)
        };
        let dropped = targets.iter().filter(|target| drop_at(target)).count();
        parcel.ticks().saturating_mul(dropped as u64)
    }

    fn path(&self, parcel: &Parcel) -> PathBuf {
        self.folder.join(name(parcel))
    }

    /// A thread that panicked has left nothing half done that the parcels would not tell.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a folder whose name is on disk, unless it is there: what is synced in a folder is lost
/// with the folder's name.
fn make_folder(path: &Path) -> Result<(), SpoolError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = folder_of(path);
    if parent != path {
        make_folder(parent)?;
    }
    fs::create_dir(path).and_then(|()| sync_folder(parent)).map_err(SpoolError::at(path))
}

fn write_books(folder: &Path, saved: &Saved) -> Result<(), SpoolError> {
    let path = folder.join(BOOKS);
    let file = AtomicFile::create_private(&path)?;
    Ok(file.write_whole(|file| file.write_all(&serde_json::to_vec(saved)?))?)
}

fn open_lock(spool: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    options.open(spool.join("lock"))
}

/// The client id of all collectors of a spool, of which one runs at a time. Guests lease an epoch
/// that waits to the collector for 30 s after its connection: if it was killed, the next one has
/// the lease. A new id if none can be read; it is for this collector alone if it cannot be written.
fn client_id(lock: &mut File) -> u64 {
    const DIGITS: u64 = 16;
    let mut text = String::new();
    let read = lock.take(DIGITS).read_to_string(&mut text);
    if let (Ok(_), Ok(id @ 1..)) = (read, u64::from_str_radix(&text, 16)) {
        return id;
    }
    let id = new_client_id();
    let _ = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| write!(lock, "{id:016x}"));
    id
}

fn folders(spool: &Path) -> Result<Vec<PathBuf>, SpoolError> {
    let failed = SpoolError::at(spool);
    let mut folders = Vec::new();
    for entry in fs::read_dir(spool).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    Ok(folders)
}

/// The parcels in a guest's folder, in order, with their sizes.
fn parcels(folder: &Path) -> io::Result<Vec<(Parcel, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(parcel) = entry.file_name().to_str().and_then(parse) {
            // It may be gone meanwhile.
            found.extend(entry.metadata().ok().map(|it| (parcel, it.len())));
        }
    }
    found.sort_by_key(|(parcel, _)| parcel.number);
    Ok(found)
}

const EXTENSION: &str = ".unikprof";

fn name(parcel: &Parcel) -> String {
    let Parcel { number, id, outcomes, span } = parcel;
    let outcomes = outcomes.all().map(|count| count.to_string()).join("-");
    format!(
        "{number:010}-{:016x}-{:016x}-{}-{}-{}-{outcomes}{EXTENSION}",
        id.instance, id.epoch, id.ended_ns, span.from_unix_ns, span.to_unix_ns
    )
}

fn parse(name: &str) -> Option<Parcel> {
    let parts: Vec<&str> = name.strip_suffix(EXTENSION)?.split('-').collect();
    let [number, instance, epoch, numbers @ ..] = &parts[..] else { return None };
    let hex = |part: &str| u64::from_str_radix(part, 16).ok();
    let numbers: Option<Vec<u64>> = numbers.iter().map(|part| part.parse().ok()).collect();
    let [ended_ns, from_unix_ns, to_unix_ns, ref outcomes @ ..] = numbers?[..] else {
        return None;
    };
    Some(Parcel {
        number: number.parse().ok()?,
        id: EpochId { instance: hex(instance)?, epoch: hex(epoch)?, ended_ns },
        outcomes: <[u64; 6]>::try_from(outcomes).ok()?.into(),
        span: Span { from_unix_ns, to_unix_ns },
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::mem::forget;

    use super::super::audit::Audit;
    use super::*;

    const SIZE: u64 = 1000;

    fn guest(name: &str) -> Guest {
        Guest { labels: BTreeMap::from([("app".into(), "web".into())]), ..Guest::named(name) }
    }

    fn open(folder: &Path, most: u64) -> Spool {
        let targets = ["a", "b"].map(Into::into).to_vec();
        Spool::open(folder, most * SIZE, targets).unwrap()
    }

    /// Adds epochs with 100, 101, … ticks, a second each.
    fn add(spool: &Spool, guest: &GuestSpool, epochs: std::ops::RangeInclusive<u64>) {
        for epoch in epochs {
            fs::write(guest.incoming(), [0; SIZE as usize]).unwrap();
            let id = EpochId { instance: 5, epoch, ended_ns: epoch };
            let span = Span {
                from_unix_ns: epoch * 1_000_000_000,
                to_unix_ns: (epoch + 1) * 1_000_000_000,
            };
            let counters =
                Counters { ticks: 99 + epoch, recorded: 99 + epoch, ..Counters::default() };
            spool.add(guest, id, span, &counters).unwrap();
        }
    }

    fn deliver(guest: &GuestSpool, target: &str) -> Option<u64> {
        let (parcel, path) = guest.next(target)?;
        assert_eq!(fs::metadata(path).unwrap().len(), SIZE);
        guest.settle(target, &parcel, Fate::Accepted);
        Some(parcel.ticks())
    }

    /// As `kill -9` does: nothing is written any more, and the lock ends with the process.
    fn kill(spool: Spool) {
        spool._lock.unlock().unwrap();
        forget(spool);
    }

    fn files(folder: &Path) -> usize {
        parcels(&folder.join("web")).unwrap().len()
    }

    fn audited(folder: &Path) -> String {
        let audit = Audit::read(folder).unwrap();
        assert!(audit.adds_up(), "{audit}");
        audit.to_string()
    }

    /// Guards against a collector that waits for the lease of the one before it, and against two
    /// that share one.
    #[test]
    fn the_collectors_of_a_spool_have_one_id() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let id = |spool: usize| client_id(&mut open_lock(folders[spool].path()).unwrap());
        let first = id(0);
        assert_eq!(id(0), first);
        assert_ne!(id(1), first);
        for damaged in ["", "0000000000000000", "no id", "\u{1F980}"] {
            fs::write(folders[0].path().join("lock"), damaged).unwrap();
            let new = id(0);
            assert_eq!(id(0), new, "{damaged:?} was replaced");
        }
    }

    /// What was spooled and not booked is booked; what was delivered and not booked is delivered
    /// again.
    #[test]
    fn a_killed_collector_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        assert!(audited(folder.path()).contains("nothing was fetched yet"));
        add(&spool, &web, 1..=2);
        deliver(&web, "a");
        spool.flush().unwrap();
        add(&spool, &web, 3..=3);
        deliver(&web, "a");
        fs::write(web.incoming(), "a parcel without a name").unwrap();
        for path in [web.incoming(), web.folder.join(BOOKS)] {
            forget(AtomicFile::create_private(&path).unwrap());
        }
        assert!(audited(folder.path()).contains("303 ticks: 303 recorded"));
        kill(spool);

        let spool = open(folder.path(), 10);
        let [web] = spool.guests().try_into().unwrap();
        let left = fs::read_dir(&web.folder).unwrap();
        assert_eq!(left.count(), 3 + 1, "the parcels and the books");
        assert!(web.has(5, 3) && !web.has(5, 4));
        assert_eq!(web.guest().unwrap().labels, guest("web").labels);
        assert_eq!(deliver(&web, "a"), Some(101), "the second time");
        assert_eq!(deliver(&web, "a"), Some(102));
        for ticks in [100, 101, 102] {
            assert_eq!(deliver(&web, "b"), Some(ticks));
        }
        spool.flush().unwrap();
        assert_eq!((files(folder.path()), spool.bytes()), (0, 0));
        assert!(audited(folder.path()).contains("a: 303 accepted"));
    }

    /// The books are on disk and the parcels still there: they are not delivered again.
    #[test]
    fn a_collector_killed_before_it_deleted_deletes_at_its_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 1..=1);
        let (_, path) = web.next("a").unwrap();
        deliver(&web, "a");
        deliver(&web, "b");
        spool.flush().unwrap();
        kill(spool);
        fs::write(&path, [0; SIZE as usize]).unwrap();
        audited(folder.path());
        let spool = open(folder.path(), 10);
        let [web] = spool.guests().try_into().unwrap();
        assert!(web.next("a").is_none());
        spool.flush().unwrap();
        assert!(!path.exists());
        assert!(audited(folder.path()).contains("web: 100 ticks"));
    }

    #[test]
    fn a_full_spool_drops_the_oldest_of_all_guests_and_counts_it() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 3);
        let web = spool.guest(&guest("web")).unwrap();
        let other = spool.guest(&guest("db")).unwrap();
        add(&spool, &web, 2..=3);
        deliver(&web, "a");
        add(&spool, &other, 1..=2);
        assert_eq!(spool.bytes(), 3 * SIZE);
        // The oldest was the other's first.
        assert_eq!(spool.take_dropped(), 200);
        add(&spool, &other, 3..=4);
        // Those that began in the second second: one of them was at one target already.
        assert_eq!(spool.take_dropped(), 101 + 2 * 101);
        assert_eq!(spool.take_dropped(), 0);
        assert_eq!(deliver(&web, "a"), Some(102));
        assert_eq!(deliver(&web, "b"), Some(102));
        spool.flush().unwrap();
        let told = audited(folder.path());
        assert!(told.contains("a: 203 accepted, 0 in the spool, 0 rejected, 0 dropped"), "{told}");
        assert!(
            told.contains(
                "b: 102 accepted, 0 in the spool, 0 rejected, 101 dropped (last: the spool was \
                 full)\n    \
                 dropped: from 1970-01-01 00:00:02 UTC to 1970-01-01 00:00:03 UTC\n"
            ),
            "{told}"
        );
    }

    /// Each write is synced: with a thousand guests, a full spool would write books all the time.
    #[test]
    fn a_full_spool_writes_the_books_of_those_that_lose_a_parcel_only() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 3);
        let web = spool.guest(&guest("web")).unwrap();
        let other = spool.guest(&guest("db")).unwrap();
        add(&spool, &web, 1..=2);
        add(&spool, &other, 3..=3);
        spool.flush().unwrap();
        deliver(&other, "a");
        let books = || Saved::read(&other.folder).unwrap().books;
        let before = books();
        add(&spool, &web, 4..=4);
        assert_eq!(spool.take_dropped(), 200);
        assert_eq!(books(), before);
        spool.flush().unwrap();
        assert_ne!(books(), before);
        // What is delivered everywhere is deleted first.
        deliver(&other, "b");
        add(&spool, &web, 5..=5);
        assert_eq!(spool.take_dropped(), 0);
        assert_eq!(spool.bytes(), 3 * SIZE);
    }

    /// What is delivered is deleted on a disk that has no room for books: they take the reserve's.
    #[test]
    fn a_full_disk_does_not_stay_full() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 1..=1);
        spool.flush().unwrap();
        let reserve = folder.path().join(RESERVE);
        assert_eq!(fs::metadata(&reserve).unwrap().len(), RESERVE_BYTES as u64);
        deliver(&web, "a");
        deliver(&web, "b");
        // A folder in the way of the books stands for the disk.
        let books = web.folder.join(BOOKS);
        fs::remove_file(&books).unwrap();
        fs::create_dir(&books).unwrap();
        assert!(spool.flush().is_err());
        assert!(!reserve.exists());
        assert_eq!(files(folder.path()), 1, "the books do not say so yet");
        fs::remove_dir(&books).unwrap();
        spool.flush().unwrap();
        assert!(reserve.exists());
        assert_eq!(files(folder.path()), 0);
    }

    /// A person may delete the folder of a guest that is no more.
    #[test]
    fn a_folder_that_is_gone_is_no_matter_of_other_guests() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 3);
        let gone = spool.guest(&guest("db")).unwrap();
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &gone, 1..=2);
        add(&spool, &web, 1..=1);
        spool.flush().unwrap();
        deliver(&gone, "a");
        deliver(&web, "a");
        deliver(&web, "b");
        fs::remove_dir_all(&gone.folder).unwrap();
        assert!(spool.flush().is_err());
        assert_eq!(files(folder.path()), 0, "what is delivered is deleted");
        // With the two that are gone the spool counts as full.
        add(&spool, &web, 2..=4);
        assert_eq!(files(folder.path()), 1);
        assert_eq!(spool.take_dropped(), 2 * (101 + 102));
        // One that is still in the fleet goes on.
        let gone = spool.guest(&guest("db")).unwrap();
        add(&spool, &gone, 5..=5);
        spool.flush().unwrap();
    }

    /// What waits for a target that is no more does not wait for ever, and the audit still tells of
    /// it.
    #[test]
    fn a_target_that_is_taken_out_is_told_until_it_is_named_again() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 1..=2);
        deliver(&web, "a");
        deliver(&web, "a");
        deliver(&web, "b");
        spool.flush().unwrap();
        kill(spool);
        let only = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            Spool::open(folder.path(), 10 * SIZE, names.collect()).unwrap()
        };
        let spool = only(&["a"]);
        spool.flush().unwrap();
        assert_eq!(files(folder.path()), 0);
        let told = "b: 100 accepted, 0 in the spool, 0 rejected, 101 dropped (last: it was taken";
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 3..=3);
        deliver(&web, "a");
        spool.flush().unwrap();
        let audit = audited(folder.path());
        assert!(audit.contains(told), "{audit}");
        kill(spool);
        let spool = only(&["a", "b"]);
        spool.flush().unwrap();
        let audit = audited(folder.path());
        assert!(audit.contains("0 dropped, 303 before it was named"), "{audit}");
    }

    /// An engine that has some pieces has not lost the ticks.
    #[test]
    fn what_a_target_has_in_part_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 1..=1);
        let (parcel, _) = web.next("a").unwrap();
        web.settle("a", &parcel, Fate::InPart("too many".into()));
        spool.flush().unwrap();
        let audit = audited(folder.path());
        let told = "0 rejected, 0 dropped, 100 of which it has some pieces (last: too many)";
        assert!(audit.contains(told), "{audit}");
    }

    /// Books that are written between two looks come with parcels that are deleted.
    #[test]
    fn an_audit_beside_a_collector_misses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 1..=1);
        spool.flush().unwrap();
        let looks = std::cell::Cell::new(0);
        let audited = consistent(|| {
            looks.set(looks.get() + 1);
            let saved = Saved::read(&web.folder)?;
            if looks.get() == 2 {
                deliver(&web, "a");
                deliver(&web, "b");
                spool.flush().unwrap();
            }
            let waiting = parcels(&web.folder).unwrap().into_iter();
            let waiting = waiting.map(|(parcel, _)| parcel).collect();
            Some(Audited { saved, waiting })
        });
        let Audited { saved, waiting } = audited.unwrap();
        let next = saved.books.targets["a"].next;
        assert_eq!(waiting.len() as u64, 2 - next, "{saved:?}");
    }

    #[test]
    fn an_audit_leaves_out_no_guest_whose_books_are_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let web = spool.guest(&guest("web")).unwrap();
        add(&spool, &web, 1..=1);
        fs::write(web.folder.join(BOOKS), "{").unwrap();
        let error = Audit::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("books.json cannot be read"), "{error}");
    }

    /// Guests' threads make room, and have small stacks.
    #[test]
    fn room_is_made_on_a_small_stack() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let small = std::thread::Builder::new().stack_size(super::super::STACK_BYTES);
        let work = move || {
            let spool = open(&path, 1);
            let web = spool.guest(&guest("web")).unwrap();
            add(&spool, &web, 1..=2);
            spool.take_dropped()
        };
        assert_eq!(small.spawn(work).unwrap().join().unwrap(), 200);
    }

    #[test]
    fn two_collectors_do_not_share_a_spool() {
        let folder = tempfile::tempdir().unwrap();
        let _one = open(folder.path(), 1);
        let error = Spool::open(folder.path(), 1, vec![]).unwrap_err();
        assert!(error.to_string().starts_with("another collector uses"));
    }

    /// Files of others, and names of guests that are none of a file.
    #[test]
    fn what_is_not_of_the_spool_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let spool = open(folder.path(), 10);
        let odd = spool.guest(&guest("../odd")).unwrap();
        add(&spool, &odd, 1..=1);
        assert!(odd.incoming().starts_with(folder.path()));
        for name in ["mine.unikprof", "1-2-3.unikprof", "0-0-0-0-0-0-0-0-0-0-0-0.unikprof"] {
            fs::write(odd.folder.join(name), "mine").unwrap();
        }
        fs::create_dir(folder.path().join("mine")).unwrap();
        kill(spool);
        let spool = open(folder.path(), 10);
        let [odd] = spool.guests().try_into().unwrap();
        assert_eq!(deliver(&odd, "a"), Some(100));
        assert_eq!(deliver(&odd, "a"), None);
        deliver(&odd, "b");
        spool.flush().unwrap();
        assert_eq!(fs::read_dir(&odd.folder).unwrap().count(), 3 + 1);
    }
}
