//! One guest's recording file of one hour: epochs are added in place, and what an interrupted
//! addition left is taken back.
//!
//! An addition overwrites the file's end with stack nodes, the epoch's frames and a new end. A file
//! without an end was interrupted there, and is good up to the end of its last whole epoch.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use unikprof_profile::frame_reader::FrameReader;
use unikprof_profile::output::{folder_of, sync_folder};
use unikprof_profile::recording::{
    Completeness, Damage, EpochError, EpochProgress, KnownNodes, NodeOrder, Part, Reading,
    Recording,
};
use unikprof_proto::file::{FileEnd, FileHeader, PREAMBLE, VERSION, versions};
use unikprof_proto::frame::{self, HEADER, Message};
use unikprof_proto::message::{Epoch, Mapping, Nodes, Welcome};
use unikprof_proto::nodes::{self, Encoder, Node};

use super::FolderError;

/// The name of a file in the making.
pub(super) const NEW: &str = ".new";

const SUFFIX: &str = ".unikprof";

/// How many bytes of nodes a frame gets that is made here. The rest of a run can be longer than it
/// was within the run, and takes several frames then.
const MAX_NODES: usize = 2048;

/// The most epochs in a file; an hour usually has 240.
pub(super) const MOST_EPOCHS: usize = 500;

/// The length of a file's end in bytes.
const END: usize = HEADER + 2;

/// A file whose end is in its place, as far as additions need to know it.
#[derive(Debug)]
pub(super) struct HourFile {
    pub(super) path: PathBuf,
    identity: Identity,
    nodes: KnownNodes,
    epochs: BTreeSet<u64>,
    /// Where the end begins.
    end_at: u64,
    /// When it was last added to.
    pub(super) used: Instant,
}

/// What is under a name.
pub(super) enum Found {
    /// A file of the same recording, with room for the parcel.
    Same(HourFile),
    /// A file that the parcel does not belong into.
    Other,
    Nothing,
}

/// A hash of what epochs must have in common to be in one file: the agent's instance, the guest's
/// mappings, the recording, and its settings.
type Identity = [u8; 32];

/// An epoch to add.
#[derive(Debug)]
pub(super) struct Parcel {
    identity: Identity,
    epoch: u64,
    /// When it ended, in ns since 1970-01-01 UTC.
    ended_unix_ns: u64,
    /// What a file begins with: the preamble, and the frames before the epoch's.
    head: Vec<u8>,
    segment_nodes: u32,
    /// Frames of stack nodes.
    nodes: Vec<u8>,
    /// The epoch's other frames.
    frames: Vec<u8>,
}

impl Parcel {
    /// Reads a recording file of one epoch, all of which is checked as `report` does.
    pub(super) fn read(path: &Path, ended_unix_ns: u64) -> Result<Parcel, FolderError> {
        let bytes = fs::read(path).map_err(|e| FolderError::io(path, e))?;
        let recording = Recording::read(&bytes[..], path, Reading::Strict)?;
        let not_one = |found: String| FolderError::NotOneEpoch { path: path.to_owned(), found };
        if let Completeness::Incomplete(reason) = recording.completeness {
            return Err(not_one(format!("an incomplete recording: {reason}")));
        }
        let (mut nodes, mut frames) = (Vec::new(), Vec::new());
        let mut scan = Scan::default();
        let scanned = scan.read(&bytes[..], None, |kind, encoded| {
            let place = match kind {
                Nodes::TYPE => &mut nodes,
                _ => &mut frames,
            };
            place.extend_from_slice(encoded);
        });
        scanned.map_err(|damage| not_one(format!("other data: {damage}")))?;
        let (Some(epoch), Some(identity), 1) =
            (scan.epochs.first(), scan.identity, scan.epochs.len())
        else {
            return Err(not_one(format!("{} epochs", scan.epochs.len())));
        };
        Ok(Parcel {
            identity,
            epoch: *epoch,
            ended_unix_ns,
            head: scan.head,
            segment_nodes: scan.segment_nodes,
            nodes,
            frames,
        })
    }

    /// The name of its hour's file with this number, from 1.
    pub(super) fn file_name(&self, number: u32) -> String {
        // A date of 64 bits is always valid.
        let ended = Timestamp::from_nanosecond(self.ended_unix_ns.into()).unwrap_or_default();
        let hour = ended.strftime("%Y-%m-%dT%HZ");
        match number {
            1 => format!("{hour}{SUFFIX}"),
            number => format!("{hour}-{number}{SUFFIX}"),
        }
    }
}

/// Whether this is a name that [`Parcel::file_name`] makes.
pub(super) fn is_hour_name(name: &str) -> bool {
    const LIKE: &[u8] = b"0000-00-00T00Z";
    let stem = name.strip_suffix(SUFFIX);
    let Some((hour, number)) = stem.and_then(|stem| stem.split_at_checked(LIKE.len())) else {
        return false;
    };
    let is_hour = hour.bytes().zip(LIKE).all(|(found, like)| match like {
        b'0' => found.is_ascii_digit(),
        like => found == *like,
    });
    let is_number = |number: &str| number.parse::<u32>().is_ok_and(|number| number > 1);
    is_hour && (number.is_empty() || number.strip_prefix('-').is_some_and(is_number))
}

/// Options for a file that only its owner can read and write.
pub(super) fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

impl HourFile {
    /// Makes a file of one epoch, which appears whole.
    pub(super) fn create(path: &Path, parcel: &Parcel) -> io::Result<HourFile> {
        let mut made = HourFile {
            path: path.to_owned(),
            identity: parcel.identity,
            nodes: KnownNodes::new(parcel.segment_nodes),
            epochs: BTreeSet::new(),
            end_at: parcel.head.len() as u64,
            used: Instant::now(),
        };
        let folder = folder_of(path);
        let new = folder.join(NEW);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let mut file = private(&mut options).open(&new)?;
        let addition = made.addition(parcel)?;
        file.write_all(&parcel.head)?;
        file.write_all(&addition)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        sync_folder(folder)?;
        made.added(parcel, &addition);
        Ok(made)
    }

    /// Reads what is under a name. If it is of the parcel's recording and was interrupted, it is
    /// repaired.
    pub(super) fn open(path: &Path, parcel: &Parcel) -> io::Result<Found> {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::NotFound => Ok(Found::Nothing),
                    io::ErrorKind::IsADirectory => Ok(Found::Other),
                    _ => Err(error),
                };
            }
        };
        let mut is_repaired = false;
        loop {
            let mut scan = Scan::default();
            file.seek(SeekFrom::Start(0))?;
            match scan.read(BufReader::new(&file), Some(&parcel.identity), |_, _| ()) {
                Err(Damage::Io(error)) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    return Err(error);
                }
                // Files have an epoch from the beginning.
                _ if scan.identity != Some(parcel.identity) || scan.whole == 0 => {
                    return Ok(Found::Other);
                }
                Ok(()) => {
                    let found = HourFile {
                        path: path.to_owned(),
                        identity: parcel.identity,
                        nodes: scan.nodes,
                        epochs: scan.epochs,
                        end_at: scan.end_at,
                        used: Instant::now(),
                    };
                    if !found.has_room_for(parcel) {
                        return Ok(Found::Other);
                    }
                    // Its last addition may not be on disk yet, nor its name, if the process was
                    // killed.
                    file.sync_data()?;
                    sync_folder(folder_of(path))?;
                    return Ok(Found::Same(found));
                }
                // Its last addition was finished, so that it was altered later: its rest may be
                // worth something.
                Err(_) if is_repaired || has_end(&mut file)? => return Ok(Found::Other),
                Err(_) => {
                    file.set_len(scan.whole)?;
                    file.seek(SeekFrom::Start(scan.whole))?;
                    file.write_all(&end())?;
                    file.sync_data()?;
                    is_repaired = true;
                }
            }
        }
    }

    /// Whether a parcel belongs into this file, and nobody else has changed or deleted it.
    pub(super) fn takes(&self, parcel: &Parcel) -> bool {
        let is_of_hour = || {
            let name = self.path.file_name().and_then(|name| name.to_str());
            let hour = parcel.file_name(1);
            let hour = hour.trim_end_matches(SUFFIX);
            name.is_some_and(|name| name.starts_with(hour))
        };
        let is_as_left = || {
            let length = fs::metadata(&self.path).map(|found| found.len());
            length.is_ok_and(|length| length == self.end_at + END as u64)
        };
        let is_same = self.identity == parcel.identity && is_of_hour();
        is_same && self.has_room_for(parcel) && is_as_left()
    }

    fn has_room_for(&self, parcel: &Parcel) -> bool {
        self.epochs.len() < MOST_EPOCHS || self.epochs.contains(&parcel.epoch)
    }

    /// Adds an epoch, unless it is there. After an error, the file is to be [opened](Self::open)
    /// again.
    pub(super) fn append(&mut self, parcel: &Parcel) -> io::Result<()> {
        self.used = Instant::now();
        if self.epochs.contains(&parcel.epoch) {
            return Ok(());
        }
        let addition = self.addition(parcel)?;
        let mut file = OpenOptions::new().write(true).open(&self.path)?;
        file.seek(SeekFrom::Start(self.end_at))?;
        if let Err(error) = file.write_all(&addition).and_then(|()| file.sync_data()) {
            // So that others can read it meanwhile. If this fails too, the next to open it does it.
            let _ = self.cut_back(&mut file);
            return Err(error);
        }
        self.added(parcel, &addition);
        Ok(())
    }

    fn cut_back(&self, file: &mut File) -> io::Result<()> {
        file.seek(SeekFrom::Start(self.end_at))?;
        file.write_all(&end())?;
        // Not shorter than that in between: a full disk would not give the room back.
        file.set_len(self.end_at + END as u64)?;
        file.sync_data()
    }

    fn added(&mut self, parcel: &Parcel, addition: &[u8]) {
        self.epochs.insert(parcel.epoch);
        self.end_at += (addition.len() - END) as u64;
    }

    /// The bytes that take the place of the end: the nodes that the file lacks, the epoch, and an
    /// end. The nodes count as known from now on.
    fn addition(&mut self, parcel: &Parcel) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(parcel.nodes.len() + parcel.frames.len());
        let mut rest = &parcel.nodes[..];
        while let Some(frame) = frame::split(rest).map_err(io::Error::other)? {
            let (encoded, others) = rest.split_at(frame.length());
            rest = others;
            let run: Nodes<'_> = frame::decode(&frame).map_err(io::Error::other)?;
            let mut numbers = run.first..run.first.saturating_add(run.count.into());
            if numbers.all(|number| !self.nodes.contains(run.vcpu, number)) {
                self.add_nodes(&run)?;
                bytes.extend_from_slice(encoded);
            } else {
                self.add_missing(&run, &mut bytes)?;
            }
        }
        bytes.extend_from_slice(&parcel.frames);
        bytes.extend_from_slice(&end());
        Ok(bytes)
    }

    /// Adds the nodes of a run that the file lacks, in runs of their own.
    fn add_missing(&mut self, run: &Nodes<'_>, bytes: &mut Vec<u8>) -> io::Result<()> {
        let vcpu = run.vcpu;
        let mut missing: Vec<(u64, u64, Vec<u32>)> = Vec::new();
        let decoded = nodes::decode(run.first, run.count, run.payload, |number, node| {
            if !self.nodes.contains(vcpu, number) {
                missing.push((number, node.parent, node.frames.to_vec()));
            }
        });
        decoded.map_err(io::Error::other)?;
        let mut rest = &missing[..];
        while let Some((first, ..)) = rest.first() {
            let mut payload = [0; MAX_NODES];
            let mut encoder = Encoder::new(*first, &mut payload);
            let mut count = 0;
            for (number, parent, frames) in rest {
                if *number != first + u64::from(count) || !encoder.has_room() {
                    break;
                }
                encoder.push(Node { parent: *parent, frames });
                count += 1;
            }
            let length = encoder.finish();
            let run = Nodes { vcpu, first: *first, count, payload: &payload[..length] };
            self.add_nodes(&run)?;
            let mut frame = [0; HEADER + 32 + MAX_NODES];
            let length = frame::encode(&run, &mut frame).map_err(io::Error::other)?;
            bytes.extend_from_slice(&frame[..length]);
            rest = &rest[count as usize..];
        }
        Ok(())
    }

    fn add_nodes(&mut self, run: &Nodes<'_>) -> io::Result<()> {
        let added = self.nodes.add(run, NodeOrder::Any, |_, _| ());
        added.map_err(io::Error::other)
    }
}

/// What a file contains, as far as it could be read.
#[derive(Default)]
struct Scan {
    /// The preamble, and the frames up to the last mapping.
    head: Vec<u8>,
    segment_nodes: u32,
    /// Of the last epoch.
    identity: Option<Identity>,
    nodes: KnownNodes,
    epochs: BTreeSet<u64>,
    /// Where the last whole epoch ends; 0 before the first.
    whole: u64,
    /// Where the file's end begins.
    end_at: u64,
}

impl Scan {
    /// Reads a file to its end. `visit` is given the type and the bytes of each frame of stack
    /// nodes or of an epoch.
    ///
    /// # Errors
    /// [`Damage`]: only the part before could be read. An epoch that is not of the `wanted` identity is damage, too.
    fn read(
        &mut self,
        mut source: impl Read,
        wanted: Option<&Identity>,
        mut visit: impl FnMut(u16, &[u8]),
    ) -> Result<(), Damage> {
        self.head.resize(PREAMBLE, 0);
        source.read_exact(&mut self.head)?;
        let Some((VERSION, protocol)) = self.head.first_chunk().and_then(versions) else {
            return Err(Damage::NoEnd);
        };
        let mut frames = FrameReader::new(source);
        let mut common = Sha256::new_with_prefix(protocol.to_le_bytes());
        self.read_head(&mut frames, &mut common)?;
        let mut progress = EpochProgress::default();
        while let Some(kind) = frames.advance()? {
            let frame = frames.frame();
            let begin = PREAMBLE as u64 + frames.offset();
            if kind == FileEnd::TYPE {
                if progress.is_open() || frames.encoded() != end() {
                    return Err(Damage::NoEnd);
                }
                self.end_at = begin;
                return match frames.advance()? {
                    None => Ok(()),
                    Some(_) => Err(Damage::AfterEnd),
                };
            }
            if kind == Nodes::TYPE {
                let run: Nodes<'_> = frame::decode(&frame)?;
                self.nodes.add(&run, NodeOrder::Any, |_, _| ())?;
            } else {
                let part = progress.accept(&frame, &mut self.nodes, |_, _, _| ())?;
                if let Part::Epoch(epoch) = part {
                    self.epoch(&epoch, common.clone(), wanted)?;
                }
            }
            if progress.is_whole() {
                progress = EpochProgress::default();
                self.whole = begin + frames.encoded().len() as u64;
            }
            visit(kind, frames.encoded());
        }
        Err(Damage::NoEnd)
    }

    fn read_head<R: Read>(
        &mut self,
        frames: &mut FrameReader<R>,
        common: &mut Sha256,
    ) -> Result<(), Damage> {
        let _: FileHeader<'_> = self.head_frame(frames)?;
        let welcome: Welcome<'_> = self.head_frame(frames)?;
        let guest = welcome.guest_id.unwrap_or_default();
        common.update(welcome.instance.to_le_bytes());
        common.update(welcome.segment_nodes.to_le_bytes());
        common.update((guest.len() as u64).to_le_bytes());
        common.update(guest);
        self.segment_nodes = welcome.segment_nodes;
        self.nodes = KnownNodes::new(welcome.segment_nodes);
        let begin = self.head.len();
        for _ in 0..welcome.mappings {
            let _: Mapping<'_> = self.head_frame(frames)?;
        }
        common.update(&self.head[begin..]);
        Ok(())
    }

    fn head_frame<'f, R: Read, M: Message<'f>>(
        &mut self,
        frames: &'f mut FrameReader<R>,
    ) -> Result<M, Damage> {
        if frames.advance()?.is_none() {
            return Err(Damage::NoEnd);
        }
        self.head.extend_from_slice(frames.encoded());
        Ok(frame::decode(&frames.frame())?)
    }

    fn epoch(
        &mut self,
        epoch: &Epoch<'_>,
        mut common: Sha256,
        wanted: Option<&Identity>,
    ) -> Result<(), Damage> {
        common.update(epoch.recording.to_le_bytes());
        common.update(epoch.period_ns.to_le_bytes());
        common.update(epoch.mode.to_le_bytes());
        let identity = common.finalize().into();
        self.identity = Some(identity);
        self.epochs.insert(epoch.epoch);
        let (expected, found) = (1, epoch.vcpus);
        if found == 0 {
            return Err(EpochError::Vcpus { expected, found }.into());
        }
        match wanted {
            Some(wanted) if *wanted != identity => {
                Err(Damage::TwoRecordings { first: epoch.recording, second: epoch.recording })
            }
            _ => Ok(()),
        }
    }
}

/// The frame at the end of every file.
fn end() -> [u8; END] {
    let mut bytes = [0; END];
    let end = FileEnd { complete: true, reason: "" };
    // It fits.
    let _ = frame::encode(&end, &mut bytes);
    bytes
}

fn has_end(file: &mut File) -> io::Result<bool> {
    let mut last = [0; END];
    if file.metadata()?.len() < END as u64 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-(END as i64)))?;
    file.read_exact(&mut last)?;
    Ok(last == end())
}
