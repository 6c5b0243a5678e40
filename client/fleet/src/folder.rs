//! A folder as the place where the fleet's epochs go: one recording file for each guest and hour.
//!
//! ```text
//! FOLDER/.lock                                 held by the process that writes
//! FOLDER/web-1/2026-11-23T22Z.unikprof         the epochs that ended in this hour, UTC
//! FOLDER/web-1/2026-11-23T22Z-2.unikprof       those of another recording, or of the guest after a restart, or the
//!                                              501st epoch and what follows
//! FOLDER/web-1/.new                            a file in the making
//! ```
//!
//! Each file is whole on its own, and `report FOLDER/web-1/*.unikprof` reads them as one recording.
//! Folders are named by [`file_name::of_guest`]. Other files are neither read nor changed.

mod hour_file;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use thiserror::Error;
use unikprof_profile::output::sync_folder;
use unikprof_profile::recording::RecordingError;

use self::hour_file::{Found, HourFile, NEW, Parcel, is_hour_name};
use super::file_name;

/// For how long a guest's current file is remembered after its last parcel; later it is read again.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The folder, which one process writes at a time.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    keep_for: Option<Duration>,
    keep_bytes: Option<u64>,
    /// Locked for as long as the folder is written.
    _lock: File,
    /// By the names of their folders.
    guests: Mutex<HashMap<String, Arc<Mutex<Current>>>>,
}

/// The file that a guest's last parcel went to; `None` if it is to be looked up.
type Current = Option<HourFile>;

/// Why a folder does not do what it should.
#[derive(Debug, Error)]
pub(crate) enum FolderError {
    #[error("cannot use {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is written by another process: give each its own folder", path.display())]
    InUse { path: PathBuf },
    #[error(transparent)]
    Damaged(#[from] RecordingError),
    #[error("expected one complete epoch in {}, found {found}", path.display())]
    NotOneEpoch { path: PathBuf, found: String },
}

impl FolderError {
    fn io(path: &Path, source: io::Error) -> FolderError {
        FolderError::Io { path: path.to_owned(), source }
    }

    /// Whether the parcel is the reason, so that it will not be taken later either.
    pub(super) fn is_the_parcels(&self) -> bool {
        match self {
            FolderError::Io { .. } | FolderError::InUse { .. } => false,
            FolderError::Damaged(RecordingError::Open { .. }) => false,
            FolderError::Damaged(_) | FolderError::NotOneEpoch { .. } => true,
        }
    }
}

impl Folder {
    /// Creates the folder if it is missing, and locks it until this is dropped.
    ///
    /// # Errors
    /// [`FolderError`]: it cannot be written, or another process writes it.
    pub(super) fn open(
        path: &Path,
        keep_for: Option<Duration>,
        keep_bytes: Option<u64>,
    ) -> Result<Folder, FolderError> {
        fs::create_dir_all(path).map_err(|e| FolderError::io(path, e))?;
        let lock_path = path.join(".lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let lock = hour_file::private(&mut options).open(&lock_path);
        let lock = lock.map_err(|e| FolderError::io(&lock_path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse { path: path.into() }),
            Err(TryLockError::Error(error)) => return Err(FolderError::io(&lock_path, error)),
        }
        Ok(Folder {
            path: path.to_owned(),
            keep_for,
            keep_bytes,
            _lock: lock,
            guests: Mutex::default(),
        })
    }

    /// Adds a parcel, a recording file of one epoch, to its guest's file of the hour in which the
    /// epoch ended.
    ///
    /// If this succeeds, the epoch is on disk. A second delivery of the same parcel is harmless: an
    /// epoch that the file has already is left out. If this fails or is killed, the file's earlier
    /// epochs are still there, and the next parcel of that hour takes back what was added of the
    /// epoch; until then the file may lack its end.
    ///
    /// # Errors
    /// [`FolderError`]. Unless [the parcel is the reason](FolderError::is_the_parcels), trying
    /// again may help.
    pub(super) fn add(
        &self,
        guest: &str,
        parcel: &Path,
        ended_unix_ns: u64,
    ) -> Result<(), FolderError> {
        let parcel = Parcel::read(parcel, ended_unix_ns)?;
        let folder = file_name::of_guest(guest);
        let current = self.guest(&folder);
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = self.path.join(folder);
        // After a failure it is looked up again, which repairs it.
        let known = current.take().filter(|file| file.takes(&parcel));
        let file = match known {
            Some(file) => self.append(file, &parcel)?,
            None => self.find_and_append(&folder, &parcel)?,
        };
        *current = Some(file);
        Ok(())
    }

    /// Deletes the files that nothing was added to for the time to keep them, and then the oldest
    /// while all together are larger than they may be. Ages are those of the last addition: an
    /// epoch may have waited for long.
    ///
    /// # Errors
    /// The first [`FolderError`]; the other files are treated all the same.
    pub(super) fn clean(&self, now: SystemTime) -> Result<(), FolderError> {
        let mut files = self.files().map_err(|e| FolderError::io(&self.path, e))?;
        files.sort_unstable();
        let mut total = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
        let mut failed = None;
        for file in &files {
            let age = now.duration_since(file.modified).unwrap_or_default();
            let is_old = self.keep_for.is_some_and(|longest| age > longest);
            let is_too_much = self.keep_bytes.is_some_and(|most| total > most);
            if !is_old && !is_too_much {
                break;
            }
            match self.delete(file) {
                Ok(false) => {}
                Ok(true) => total = total.saturating_sub(file.bytes),
                Err(error) => {
                    failed.get_or_insert(error);
                }
            }
        }
        self.forget_idle();
        failed.map_or(Ok(()), Err)
    }

    fn guest(&self, folder: &str) -> Arc<Mutex<Current>> {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(guests.entry(folder.to_owned()).or_default())
    }

    fn append(&self, mut file: HourFile, parcel: &Parcel) -> Result<HourFile, FolderError> {
        let appended = file.append(parcel);
        appended.map_err(|e| FolderError::io(&file.path, e))?;
        Ok(file)
    }

    /// Finds the hour's file of the parcel's recording, or makes it.
    fn find_and_append(&self, folder: &Path, parcel: &Parcel) -> Result<HourFile, FolderError> {
        let created = match fs::create_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            created => created,
        };
        // What a killed process has made may not be on disk yet.
        let created = created.and_then(|()| sync_folder(&self.path));
        created.map_err(|e| FolderError::io(folder, e))?;
        let mut number = 1;
        loop {
            let path = folder.join(parcel.file_name(number));
            let failed = |source| FolderError::io(&path, source);
            match HourFile::open(&path, parcel).map_err(failed)? {
                Found::Same(file) => return self.append(file, parcel),
                Found::Other => number += 1,
                Found::Nothing => return HourFile::create(&path, parcel).map_err(failed),
            }
        }
    }

    /// The folder's own files, without those that were deleted meanwhile.
    fn files(&self) -> io::Result<Vec<OldFile>> {
        let mut files = Vec::new();
        for guest in fs::read_dir(&self.path)?.flatten() {
            let Ok(folder) = guest.file_name().into_string() else {
                continue;
            };
            if !guest.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            for file in fs::read_dir(guest.path()).into_iter().flatten().flatten() {
                let name = file.file_name();
                let is_ours = name.to_str().is_some_and(|name| name == NEW || is_hour_name(name));
                // A link's own metadata: it is none of these files.
                if is_ours
                    && let Ok(found) = file.metadata()
                    && found.is_file()
                    && let Ok(modified) = found.modified()
                {
                    let (path, folder, bytes) = (file.path(), folder.clone(), found.len());
                    files.push(OldFile { modified, path, folder, bytes });
                }
            }
        }
        Ok(files)
    }

    /// Deletes a file, unless something was added to it since it was looked at.
    fn delete(&self, file: &OldFile) -> Result<bool, FolderError> {
        let current = self.guest(&file.folder);
        // Nothing is added to the guest's files meanwhile.
        let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let modified = fs::metadata(&file.path).and_then(|now| now.modified());
        if !modified.is_ok_and(|modified| modified == file.modified) {
            return Ok(false);
        }
        current.take_if(|current| current.path == file.path);
        fs::remove_file(&file.path).map_err(|e| FolderError::io(&file.path, e))?;
        // Succeeds if it was the last.
        let _ = fs::remove_dir(self.path.join(&file.folder));
        Ok(true)
    }

    /// Forgets the guests that have sent nothing for long.
    fn forget_idle(&self) {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.retain(|_, current| {
            // One in use is not waited for.
            Arc::strong_count(current) > 1 || {
                let current = current.lock().unwrap_or_else(PoisonError::into_inner);
                let is_fresh = |file: &HourFile| file.used.elapsed() < REMEMBERED;
                current.as_ref().is_some_and(is_fresh)
            }
        });
    }
}

/// A file that may be deleted; they are in the order of their ages.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OldFile {
    modified: SystemTime,
    path: PathBuf,
    /// The name of its guest's folder.
    folder: String,
    bytes: u64,
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::process::Command;
    use std::thread;
    use std::time::Instant;

    use jiff::Timestamp;
    use tempfile::TempDir;
    use unikprof_profile::frame_reader::encoded;
    use unikprof_profile::recording::{Completeness, Reading, Recording, RecordingWriter};
    use unikprof_proto::frame::Message;
    use unikprof_proto::message::{
        Counts, Epoch, Mapping, Nodes, Snapshot, VcpuEnd, VcpuEpoch, Welcome,
    };
    use unikprof_proto::nodes::{Encoder, Node};

    use super::*;

    const SEGMENT: u64 = 1000;
    /// 2026-11-23T22:00:00Z.
    const HOUR_NS: u64 = 1_795_471_200 * S_NS;
    const S_NS: u64 = 1_000_000_000;
    const HOUR: &str = "2026-11-23T22Z.unikprof";

    /// An epoch of one vCPU, and who sent it.
    #[derive(Clone)]
    pub(crate) struct Sent {
        instance: u64,
        recording: u64,
        epoch: u64,
        /// When it ended, in seconds after the hour.
        ended_s: u64,
        /// Runs of nodes: the first index in the first segment, and how many. Each is the caller of
        /// the next.
        runs: Vec<(u64, u64)>,
        /// By index of the stack.
        counts: Vec<(u64, u64)>,
        /// Of frames besides the vCPU's own, before the end.
        extra: Vec<u8>,
        incomplete: Option<&'static str>,
    }

    impl Default for Sent {
        fn default() -> Self {
            Sent {
                instance: 7,
                recording: 3,
                epoch: 1,
                ended_s: 15,
                runs: vec![(0, 4)],
                counts: vec![(1, 5), (3, 2)],
                extra: Vec::new(),
                incomplete: None,
            }
        }
    }

    fn encode<'m>(message: &impl Message<'m>) -> Vec<u8> {
        encoded(message).unwrap()
    }

    impl Sent {
        /// What lacks something, for this reason.
        pub(crate) fn incomplete(reason: &'static str) -> Sent {
            Sent { incomplete: Some(reason), ..Sent::default() }
        }

        fn samples(&self) -> u64 {
            self.counts.iter().map(|(_, count)| count).sum()
        }

        fn head(&self) -> Vec<u8> {
            let welcome = encode(&Welcome {
                agent_version: "0.1.0",
                architecture: "x86_64",
                platform: "xen",
                guest_name: Some("web"),
                guest_id: Some("6ecdf4f5-6a1b-4d2c-9d0c-0123456789ab"),
                vcpus: 1,
                mappings: 1,
                monotonic_ns: 1000,
                wall_clock_ns: None,
                capabilities: 1,
                min_period_ns: 10_000,
                max_period_ns: 10_000_000_000,
                max_depth: 128,
                max_request: 1024,
                memory_bytes: 1 << 20,
                instance: self.instance,
                segments: 4,
                segment_nodes: SEGMENT as u32,
                caller_rows: 0,
                caller_table: None,
                role: 0,
            });
            let mapping = encode(&Mapping {
                start: 0x10_0000,
                end: 0x20_0000,
                file_offset: 0,
                code_base: 0x100,
                build_id: b"\x01\x02\x03\x04",
                path: "/boot/guest.elf",
            });
            [welcome, mapping].concat()
        }

        fn nodes(&self) -> Vec<u8> {
            let run = |&(begin, count): &(u64, u64)| {
                let first = SEGMENT + begin;
                let mut payload = [0; 1 << 13];
                let mut encoder = Encoder::new(first, &mut payload);
                for index in begin..begin + count {
                    encoder.push(Node {
                        parent: if index % 100 == 0 { 0 } else { SEGMENT + index - 1 },
                        frames: &[0x1000 + 2 * index as u32],
                    });
                }
                let length = encoder.finish();
                encode(&Nodes { vcpu: 0, first, count: count as u32, payload: &payload[..length] })
            };
            self.runs.iter().flat_map(run).collect()
        }

        /// The epoch without its stack nodes.
        fn frames(&self) -> Vec<u8> {
            let epoch = self.epoch;
            let from_ns = epoch * 15_000_000_000;
            let mut share =
                VcpuEpoch { epoch, vcpu: 0, start: Snapshot::default(), end: Snapshot::default() };
            share.start.at_ns = from_ns;
            share.end.at_ns = from_ns + 15_000_000_000;
            share.end.counters.ticks = self.samples() + 1;
            share.end.counters.recorded = self.samples();
            share.end.counters.by_bytes = self.samples();
            share.end.counters.lost = 1;
            let mut payload = Vec::new();
            let mut after = 0;
            for (index, count) in &self.counts {
                let mut buffer = [0; 20];
                let length =
                    unikprof_proto::varint::put_varint(SEGMENT + index - after, &mut buffer);
                payload.extend_from_slice(&buffer[..length]);
                let length = unikprof_proto::varint::put_varint(*count, &mut buffer);
                payload.extend_from_slice(&buffer[..length]);
                after = SEGMENT + index;
            }
            let counts = match self.counts[..] {
                [] => Vec::new(),
                _ => encode(&Counts {
                    epoch,
                    vcpu: 0,
                    after: 0,
                    count: self.counts.len() as u32,
                    payload: &payload,
                }),
            };
            [
                encode(&Epoch {
                    interval_bytes: 0,
                    epoch,
                    recording: self.recording,
                    ring_bit: 0,
                    name: "collect",
                    mode: 0,
                    flags: 0,
                    period_ns: 10_000_000,
                    depth: 64,
                    late_threshold_ns: 1,
                    recording_started_ns: 0,
                    started_ns: from_ns,
                    ended_ns: from_ns + 15_000_000_000,
                    // Its clock is wrong.
                    ended_wall_clock_ns: Some(1_000_000_000_000_000_000),
                    gaps: 0,
                    server_ns: 0,
                    vcpus: 1,
                    caller_table: None,
                }),
                encode(&share),
                counts,
                encode(&VcpuEnd { epoch, vcpu: 0, known: 0, samples: self.samples() }),
            ]
            .concat()
        }

        pub(crate) fn without_counts() -> Sent {
            Sent { counts: Vec::new(), ..Sent::default() }
        }

        pub(crate) fn write(&self, path: &Path) {
            let created = Timestamp::UNIX_EPOCH;
            let mut writer = RecordingWriter::create(path, 1, created, &self.head()).unwrap();
            writer.append(&self.nodes()).unwrap();
            writer.append(&self.frames()).unwrap();
            writer.append(&self.extra).unwrap();
            writer.end(self.incomplete).unwrap();
            writer.publish().unwrap();
        }
    }

    /// A folder, and where its parcels are.
    struct Place {
        _dir: TempDir,
        folder: PathBuf,
        parcel: PathBuf,
    }

    impl Place {
        fn new() -> Place {
            let dir = tempfile::tempdir().unwrap();
            Place { folder: dir.path().join("fleet"), parcel: dir.path().join("parcel"), _dir: dir }
        }

        /// Opens the folder. A process that another test starts has a copy of each lock until its
        /// program begins.
        fn open(&self) -> Folder {
            let until = Instant::now() + Duration::from_secs(10);
            loop {
                match Folder::open(&self.folder, None, None) {
                    Err(FolderError::InUse { .. }) if Instant::now() < until => {
                        thread::sleep(Duration::from_millis(1));
                    }
                    opened => return opened.unwrap(),
                }
            }
        }

        fn add(&self, folder: &Folder, sent: &Sent) -> Result<(), FolderError> {
            sent.write(&self.parcel);
            folder.add("web", &self.parcel, HOUR_NS + sent.ended_s * S_NS)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.folder.join("web").join(name)
        }

        /// All file names of the guest `web`, in order.
        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.folder.join("web")).unwrap();
            let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
            let mut names: Vec<_> = entries.map(|e| name(e).into_string().unwrap()).collect();
            names.sort();
            names
        }

        /// Checks that these files have exactly these epochs, with each tick once.
        fn check(&self, names: &[&str], sent: &[&Sent]) {
            let paths: Vec<PathBuf> = names.iter().map(|name| self.file(name)).collect();
            let read = Recording::open_all(&paths, Reading::Strict).unwrap();
            assert_eq!(read.completeness, Completeness::Complete);
            assert!(read.contradictions.is_empty(), "{:?}", read.contradictions);
            assert_eq!(read.epochs as usize, sent.len());
            let counters = &read.profile.vcpus()[0].counters;
            let samples: u64 = sent.iter().map(|sent| sent.samples()).sum();
            let ticks = samples + sent.len() as u64;
            assert_eq!((counters.ticks, counters.recorded), (ticks, samples));
            assert_eq!(read.profile.recording().elapsed_ns, 15_000_000_000 * sent.len() as u64);
            // By the depth of the stack: index 0 has one frame.
            let mut expected: BTreeMap<usize, u64> = BTreeMap::new();
            for (index, count) in sent.iter().flat_map(|sent| &sent.counts) {
                *expected.entry(*index as usize % 100 + 1).or_default() += count;
            }
            let mut found: BTreeMap<usize, u64> = BTreeMap::new();
            for sample in read.profile.samples() {
                let depth = read.profile.tree().path(sample.node).count();
                *found.entry(depth).or_default() += sample.count;
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn the_epochs_of_an_hour_become_one_file_and_each_tick_counts_once() {
        let place = Place::new();
        let mut folder = place.open();
        let sent = |epoch, runs: &[(u64, u64)], counts: &[(u64, u64)]| Sent {
            epoch,
            ended_s: 15 * epoch,
            runs: runs.to_vec(),
            counts: counts.to_vec(),
            ..Sent::default()
        };
        let all = [
            sent(1, &[(0, 4)], &[(1, 5), (3, 2)]),
            // All are there.
            sent(2, &[(0, 4)], &[(3, 1)]),
            // Some are there, and a gap remains.
            sent(3, &[(2, 6), (0, 2), (20, 2)], &[(0, 1), (7, 10)]),
            // Cut otherwise, more before, between and behind, and more than one frame has room for.
            sent(4, &[(0, 950)], &[(19, 4), (21, 1), (99, 8), (949, 3)]),
            sent(9, &[(900, 50)], &[(949, 1)]),
        ];
        for (at, one) in all.iter().enumerate() {
            place.add(&folder, one).unwrap();
            let length = fs::metadata(place.file(HOUR)).unwrap().len();
            // Delivered again, at once and after a restart.
            place.add(&folder, one).unwrap();
            drop(folder);
            folder = place.open();
            place.add(&folder, one).unwrap();
            place.add(&folder, &all[0]).unwrap();
            assert_eq!(fs::metadata(place.file(HOUR)).unwrap().len(), length);
            let so_far: Vec<&Sent> = all[..=at].iter().collect();
            place.check(&[HOUR], &so_far);
        }
        assert_eq!(place.names(), [HOUR]);
    }

    /// Else the file of a guest whose clock stands still would grow for ever, and be too young to
    /// be deleted.
    #[test]
    fn a_clock_that_stands_still_fills_several_files() {
        let place = Place::new();
        let folder = place.open();
        let sent: Vec<Sent> = (0..=hour_file::MOST_EPOCHS as u64)
            .map(|epoch| Sent { epoch, ..Sent::default() })
            .collect();
        for one in &sent {
            place.add(&folder, one).unwrap();
        }
        drop(folder);
        // Found in the full one.
        place.add(&place.open(), &sent[7]).unwrap();
        assert_eq!(place.names(), ["2026-11-23T22Z-2.unikprof", HOUR]);
        let (last, others) = sent.split_last().unwrap();
        place.check(&[HOUR], &others.iter().collect::<Vec<_>>());
        place.check(&["2026-11-23T22Z-2.unikprof"], &[last]);
    }

    #[test]
    fn each_hour_recording_and_instance_has_its_file() {
        let place = Place::new();
        let folder = place.open();
        let sent = |epoch, instance, recording, ended_s| Sent {
            epoch,
            instance,
            recording,
            ended_s,
            ..Sent::default()
        };
        let last = sent(1, 7, 3, 3599);
        let next = sent(2, 7, 3, 3600);
        // Late, after the next hour has begun.
        let late = sent(3, 7, 3, 3598);
        let other = sent(50, 7, 4, 3600);
        let restarted = sent(2, 8, 3, 3601);
        for one in [&last, &next, &late, &other, &restarted, &other] {
            place.add(&folder, one).unwrap();
        }
        let next_hour = ["2026-11-23T23Z.unikprof", "2026-11-23T23Z-2.unikprof"];
        let third = "2026-11-23T23Z-3.unikprof";
        assert_eq!(place.names(), [HOUR, next_hour[1], third, next_hour[0]]);
        place.check(&[HOUR], &[&last, &late]);
        place.check(&next_hour[..1], &[&next]);
        place.check(&next_hour[1..], &[&other]);
        place.check(&[third], &[&restarted]);
        let of_instance = [HOUR, next_hour[0], next_hour[1]];
        place.check(&of_instance, &[&last, &late, &next, &other]);
    }

    #[test]
    fn an_interrupted_addition_is_taken_back_and_done_again() {
        let place = Place::new();
        let first = Sent::default();
        let second = Sent { epoch: 2, runs: vec![(0, 6)], counts: vec![(5, 9)], ..Sent::default() };
        let third = Sent { epoch: 3, ..second.clone() };
        let folder = place.open();
        place.add(&folder, &first).unwrap();
        let path = place.file(HOUR);
        let before = fs::read(&path).unwrap();
        place.add(&folder, &second).unwrap();
        let after = fs::read(&path).unwrap();
        drop(folder);
        let end = encode(&unikprof_proto::file::FileEnd { complete: true, reason: "" });
        let begin = before.len() - end.len();
        assert_eq!(before[begin..], end);
        second.write(&place.parcel);
        for at in begin..=after.len() {
            let mut killed = after[..at].to_vec();
            killed.extend(before.get(at..).unwrap_or_default());
            // Without power the length may be there before the bytes are.
            let mut unpowered = after[..at].to_vec();
            unpowered.resize(after.len(), 0);
            for found in [killed, unpowered] {
                fs::write(&path, found).unwrap();
                place.open().add("web", &place.parcel, HOUR_NS).unwrap();
                assert!(fs::read(&path).unwrap() == after, "cut at {at}");
            }
        }
        place.check(&[HOUR], &[&first, &second]);
        // Another epoch comes first.
        fs::write(&path, &after[..after.len() - end.len() - 1]).unwrap();
        place.add(&place.open(), &third).unwrap();
        place.check(&[HOUR], &[&first, &third]);
        assert_eq!(place.names(), [HOUR]);
    }

    #[test]
    fn a_file_that_was_changed_by_others_is_looked_at_again() {
        let place = Place::new();
        let folder = place.open();
        let [first, second, third] = [1, 2, 3].map(|epoch| Sent { epoch, ..Sent::default() });
        place.add(&folder, &first).unwrap();
        // Cut while this process writes the folder.
        let mut bytes = fs::read(place.file(HOUR)).unwrap();
        bytes.truncate(bytes.len() - 3);
        fs::write(place.file(HOUR), &bytes).unwrap();
        place.add(&folder, &second).unwrap();
        place.check(&[HOUR], &[&first, &second]);
        // A damaged file with its end: what is behind the damage is kept for those who can use it.
        drop(folder);
        let mut bytes = fs::read(place.file(HOUR)).unwrap();
        let middle = bytes.len() - 40;
        bytes[middle] ^= 1;
        fs::write(place.file(HOUR), &bytes).unwrap();
        let folder = place.open();
        place.add(&folder, &third).unwrap();
        assert_eq!(fs::read(place.file(HOUR)).unwrap(), bytes);
        place.check(&["2026-11-23T22Z-2.unikprof"], &[&third]);
        // Deleted.
        fs::remove_dir_all(place.folder.join("web")).unwrap();
        place.add(&folder, &third).unwrap();
        place.check(&[HOUR], &[&third]);
        // No recording at all.
        fs::write(place.file(HOUR), "notes").unwrap();
        place.add(&folder, &third).unwrap();
        assert_eq!(fs::read(place.file(HOUR)).unwrap(), b"notes");
        place.check(&["2026-11-23T22Z-2.unikprof"], &[&third]);
    }

    /// The disk is full for a child process, which may not write files beyond a length.
    #[cfg(unix)]
    #[test]
    fn a_full_disk_leaves_what_was_there() {
        const OF_CHILD: &str = "UNIKPROF_TEST_FULL_FOLDER";
        let big = Sent {
            epoch: 2,
            runs: (0..9).map(|run| (100 * run, 100)).collect(),
            counts: vec![(899, 1)],
            ..Sent::default()
        };
        if let Some(path) = std::env::var_os(OF_CHILD) {
            let path = PathBuf::from(path);
            let folder = Folder::open(&path.join("fleet"), None, None).unwrap();
            let error = folder.add("web", &path.join("parcel"), HOUR_NS).unwrap_err();
            assert!(!error.is_the_parcels(), "{error}");
            assert!(error.to_string().contains(HOUR), "{error}");
            return;
        }
        let place = Place::new();
        let first = Sent::default();
        place.add(&place.open(), &first).unwrap();
        let before = fs::read(place.file(HOUR)).unwrap();
        big.write(&place.parcel);
        assert!(before.len() < 1024 && fs::metadata(&place.parcel).unwrap().len() > 2048);
        // Blocks of 512 bytes.
        let child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg("folder::tests::a_full_disk_leaves_what_was_there")
            .env(OF_CHILD, place.parcel.parent().unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && said.contains("1 passed"), "{said}");
        assert!(fs::read(place.file(HOUR)).unwrap() == before);
        let folder = place.open();
        folder.add("web", &place.parcel, HOUR_NS).unwrap();
        place.check(&[HOUR], &[&first, &big]);
    }

    #[test]
    fn what_is_not_one_whole_epoch_is_refused_for_good() {
        let place = Place::new();
        let folder = place.open();
        let second = Sent { epoch: 2, ..Sent::default() };
        let ring = encode(&unikprof_proto::message::StacksEnd { vcpu: 0, oldest: 0, known: 0 });
        for (wrong, expected) in [
            (
                Sent { incomplete: Some("the guest is gone"), ..Sent::default() },
                "found an incomplete recording: the guest is gone",
            ),
            (Sent { extra: second.frames(), ..Sent::default() }, "found 2 epochs"),
            (Sent { extra: ring, ..Sent::default() }, "damaged"),
            (Sent { runs: vec![(0, 2)], ..Sent::default() }, "damaged"),
        ] {
            let error = place.add(&folder, &wrong).unwrap_err();
            assert!(error.is_the_parcels(), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let missing = folder.add("web", &place.folder.join("none"), HOUR_NS).unwrap_err();
        assert!(!missing.is_the_parcels(), "{missing}");
        assert!(!place.folder.join("web").exists());
    }

    #[cfg(unix)]
    #[test]
    fn files_are_their_owners_and_the_folder_has_one_writer() {
        use std::os::unix::fs::PermissionsExt as _;

        let place = Place::new();
        let folder = place.open();
        Sent::default().write(&place.parcel);
        folder.add("../../etc/passwd", &place.parcel, HOUR_NS).unwrap();
        let file = place.folder.join("%2E.%2F..%2Fetc%2Fpasswd").join(HOUR);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let error = Folder::open(&place.folder, None, None).unwrap_err();
        assert!(matches!(error, FolderError::InUse { .. }), "{error}");
        drop(folder);
        place.open();
    }

    #[test]
    fn the_oldest_files_are_deleted_and_no_others() {
        let place = Place::new();
        let hour = Duration::from_secs(3600);
        let folder = place.open();
        let now = SystemTime::now();
        let mut lengths = Vec::new();
        for (at, name) in ["a", "b", "c", "c"].into_iter().enumerate() {
            Sent::default().write(&place.parcel);
            // The order of the hours does not matter.
            folder.add(name, &place.parcel, HOUR_NS + 3600 * S_NS * (3 - at as u64)).unwrap();
            let file = place
                .folder
                .join(name)
                .join(format!("2026-11-2{}Z.unikprof", ["4T01", "4T00", "3T23", "3T22"][at]));
            let file = File::options().write(true).open(file).unwrap();
            let hours = [5, 4, 2, 1][at];
            file.set_modified(now - hour * hours).unwrap();
            lengths.push(file.metadata().unwrap().len());
        }
        // What others have put there.
        let foreign = [
            "b/2026-11-23T22Z.txt",
            "b/x2026-11-23T22Z.unikprof",
            "2026-11-23T22Z.unikprof",
            "c/2026-11-23T22Z-1.unikprof",
        ];
        for name in foreign {
            let file = File::create(place.folder.join(name)).unwrap();
            file.set_modified(now - hour * 1000).unwrap();
        }
        fs::create_dir_all(place.folder.join("c/2026-11-23T20Z.unikprof")).unwrap();
        let left = || {
            let mut all = Vec::new();
            for guest in ["a", "b", "c"] {
                for entry in fs::read_dir(place.folder.join(guest)).into_iter().flatten() {
                    let path = entry.unwrap().path();
                    let is_ours = path.is_file()
                        && !foreign.iter().any(|name| path == place.folder.join(name));
                    all.extend(is_ours.then_some(guest));
                }
            }
            all
        };
        folder.clean(now).unwrap();
        assert_eq!(left(), ["a", "b", "c", "c"]);
        drop(folder);
        let folder = Folder::open(&place.folder, Some(4 * hour), None).unwrap();
        folder.clean(now).unwrap();
        assert_eq!(left(), ["b", "c", "c"]);
        assert!(!place.folder.join("a").exists(), "it is empty");
        drop(folder);
        let most = lengths[2] + lengths[3];
        let folder = Folder::open(&place.folder, None, Some(most)).unwrap();
        for _ in 0..2 {
            folder.clean(now).unwrap();
        }
        assert_eq!(left(), ["c", "c"]);
        drop(folder);
        // The file that is being written, too; the next parcel begins it anew.
        let folder = Folder::open(&place.folder, None, Some(0)).unwrap();
        place.add(&folder, &Sent::default()).unwrap();
        folder.clean(now + hour).unwrap();
        assert!(left().is_empty() && !place.folder.join("web").exists());
        place.add(&folder, &Sent::default()).unwrap();
        place.check(&[HOUR], &[&Sent::default()]);
        for name in foreign {
            assert!(place.folder.join(name).exists(), "{name}");
        }
    }
}
