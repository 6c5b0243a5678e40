//! Whether everything that the agent counted has arrived: all downloads, frame by frame.
//!
//! It reads the files itself, not through the client's reader: a mistake there must not hide one
//! here.

use anyhow::{Context as _, Result};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::Path;

use unikprof_proto::counts;
use unikprof_proto::frame::{self, Message};
use unikprof_proto::message::{self, Counters, Epoch, VcpuEnd, VcpuEpoch, Welcome};

/// The length of what stands before a file's frames.
const FILE_PREAMBLE: usize = 16;

/// All epochs of all files.
#[derive(Debug, Default)]
pub struct Audit {
    /// The epochs by recording and epoch number.
    epochs: BTreeMap<(u64, u64), Whole>,
    pub(crate) files: u64,
    /// Epochs that came more than once, and were the same each time.
    pub(crate) repeated: u64,
    /// Epochs of which a file has no more than a part.
    pub(crate) partial: u64,
    pub(crate) bytes: u64,
    /// The problems found.
    pub wrong: Vec<String>,
}

/// An epoch that is there to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Whole {
    vcpus: BTreeMap<u32, VcpuEpoch>,
    samples: u64,
}

/// An epoch that is being read.
#[derive(Debug)]
struct Open {
    key: (u64, u64),
    /// The number of its vCPUs, and of those that were read to their end.
    vcpus: u32,
    ended: u32,
    /// The samples of the vCPU that is being read.
    samples: u64,
    whole: Whole,
}

/// The sums of one recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    pub(crate) epochs: u64,
    /// Its counters, added up over epochs and vCPUs.
    pub counters: Counters,
    /// Its samples, as the stacks hold them.
    pub samples: u64,
}

impl Audit {
    pub(crate) fn folder(folder: &Path) -> Result<Audit> {
        let failed = "reading the downloads";
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).context(failed)? {
            let path = entry.context(failed)?.path();
            if path.extension().is_some_and(|ending| ending == "unikprof") {
                files.push(path);
            }
        }
        Audit::of(&files)
    }

    /// Reads files of one agent's instance.
    pub fn of(files: &[impl AsRef<Path>]) -> Result<Audit> {
        let mut audit = Audit::default();
        for path in files {
            let path = path.as_ref();
            let bytes = fs::read(path).context("reading the downloads")?;
            audit.file(&bytes, &path.display().to_string());
        }
        Ok(audit)
    }

    fn file(&mut self, bytes: &[u8], name: &str) {
        self.files += 1;
        self.bytes += bytes.len() as u64;
        let mut rest = bytes.get(FILE_PREAMBLE..).unwrap_or_default();
        let mut open: Option<Open> = None;
        loop {
            let found = match frame::split(rest) {
                Ok(Some(found)) => found,
                Ok(None) if rest.is_empty() => break,
                Ok(None) => {
                    self.wrong.push(format!("{name}: ends within a frame"));
                    break;
                }
                Err(error) => {
                    self.wrong.push(format!("{name}: {error}"));
                    break;
                }
            };
            rest = &rest[found.length()..];
            if let Err(problem) = self.frame(&found, &mut open) {
                self.wrong.push(format!("{name}: {problem}"));
                break;
            }
        }
        self.partial += u64::from(open.is_some());
    }

    fn frame(&mut self, found: &frame::Frame<'_>, open: &mut Option<Open>) -> Result<(), String> {
        let text = |error: frame::FrameError| error.to_string();
        match found.kind {
            Epoch::TYPE => {
                let head: Epoch<'_> = frame::decode(found).map_err(text)?;
                let key = (head.recording, head.epoch);
                let is_other = open.as_ref().is_none_or(|before| before.key != key);
                self.partial += u64::from(open.is_some() && is_other);
                // Each vCPU's share repeats the head, also a download that goes on.
                if is_other {
                    let whole = Whole { vcpus: BTreeMap::new(), samples: 0 };
                    *open = Some(Open { key, vcpus: head.vcpus, ended: 0, samples: 0, whole });
                }
            }
            VcpuEpoch::TYPE => {
                let share: VcpuEpoch = frame::decode(found).map_err(text)?;
                let open = open.as_mut().ok_or("a vCPU without an epoch")?;
                open.whole.vcpus.insert(share.vcpu, share);
            }
            message::Counts::TYPE => {
                let run: message::Counts<'_> = frame::decode(found).map_err(text)?;
                let open = open.as_mut().ok_or("counts without an epoch")?;
                counts::decode(run.after, run.count, run.payload, |_, count| {
                    open.samples += count;
                })
                .map_err(|error| error.to_string())?;
            }
            VcpuEnd::TYPE => {
                let end: VcpuEnd = frame::decode(found).map_err(text)?;
                let reading = open.as_mut().ok_or("an end without an epoch")?;
                self.end(reading, &end);
                if reading.ended == reading.vcpus
                    && let Some(Open { key, whole, .. }) = open.take()
                {
                    self.close(key, whole);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A vCPU's share is there to its end.
    fn end(&mut self, open: &mut Open, end: &VcpuEnd) {
        let (recording, epoch) = open.key;
        let samples = std::mem::take(&mut open.samples);
        let counted = open.whole.vcpus.get(&end.vcpu).map(counted);
        let counted = counted.unwrap_or_default();
        let expected = counted.recorded + counted.blocked;
        if !counted.add_up() {
            self.wrong.push(format!(
                "recording {recording}, epoch {epoch}, vCPU {}: {counted:?} do not add up",
                end.vcpu
            ));
        }
        if samples != end.samples || samples != expected {
            self.wrong.push(format!(
                "recording {recording}, epoch {epoch}, vCPU {}: its stacks hold {samples} samples, \
                 its end \
                 says {}, its counters {expected}",
                end.vcpu, end.samples
            ));
        }
        open.whole.samples += samples;
        open.ended += 1;
    }

    fn close(&mut self, key: (u64, u64), whole: Whole) {
        let (recording, epoch) = key;
        match self.epochs.entry(key) {
            Entry::Vacant(place) => drop(place.insert(whole)),
            Entry::Occupied(known) if *known.get() == whole => self.repeated += 1,
            Entry::Occupied(_) => self
                .wrong
                .push(format!("recording {recording}, epoch {epoch}: two downloads differ")),
        }
    }

    /// Adds up the downloads of a recording, and compares them with what its agent counted in all;
    /// notes what is missing.
    pub fn compare(&mut self, recording: u64, agent: &Counters) -> Sum {
        let own: Vec<(u64, Whole)> = self
            .epochs
            .range((recording, 0)..=(recording, u64::MAX))
            .map(|((_, epoch), whole)| (*epoch, whole.clone()))
            .collect();
        let mut sum = Sum::default();
        let mut before: Option<&(u64, Whole)> = None;
        for entry in &own {
            let (epoch, whole) = entry;
            match before {
                None => self.first(recording, *epoch, whole),
                Some((last, earlier)) => {
                    if last + 1 != *epoch {
                        self.wrong.push(format!(
                            "recording {recording}: no epochs between {last} and {epoch}"
                        ));
                    }
                    for (vcpu, share) in &whole.vcpus {
                        let end = earlier.vcpus.get(vcpu).map(|earlier| earlier.end);
                        if end != Some(share.start) {
                            self.wrong.push(format!(
                                "recording {recording}, vCPU {vcpu}: epoch {epoch} does not begin \
                                 where the one before ended"
                            ));
                        }
                    }
                }
            }
            sum.epochs += 1;
            sum.samples += whole.samples;
            for share in whole.vcpus.values() {
                sum.counters = sum.counters.zip(&counted(share), u64::wrapping_add);
            }
            before = Some(entry);
        }
        if sum.counters != *agent {
            self.wrong.push(format!(
                "recording {recording}: the agent counted {agent:?}, the downloads hold {:?}",
                sum.counters
            ));
        }
        sum
    }

    /// A recording's first epoch begins with nothing counted.
    fn first(&mut self, recording: u64, epoch: u64, whole: &Whole) {
        for share in whole.vcpus.values() {
            if share.start.counters != Counters::default() {
                self.wrong.push(format!(
                    "recording {recording}: nothing before epoch {epoch}, which begins with {:?}",
                    share.start.counters
                ));
            }
        }
    }
}

/// The instance of the agent that a file's counts are of; `None` if the file does not tell.
pub fn instance(file: &Path) -> Result<Option<u64>> {
    let bytes = fs::read(file).context("reading a download")?;
    let mut rest = bytes.get(FILE_PREAMBLE..).unwrap_or_default();
    while let Ok(Some(found)) = frame::split(rest) {
        if found.kind == Welcome::TYPE {
            let welcome: Result<Welcome<'_>, _> = frame::decode(&found);
            return Ok(welcome.ok().map(|welcome| welcome.instance));
        }
        rest = &rest[found.length()..];
    }
    Ok(None)
}

/// The counts within an epoch.
fn counted(share: &VcpuEpoch) -> Counters {
    share.end.counters.zip(&share.start.counters, u64::wrapping_sub)
}

#[cfg(test)]
mod tests {
    use unikprof_proto::message::Snapshot;

    use super::*;
    use unikprof_test_kit::frames::encoded;

    fn counters(recorded: u64) -> Counters {
        Counters { ticks: recorded, recorded, by_bytes: recorded, ..Counters::default() }
    }

    fn download(epoch: u64, from: u64, to: u64, held: u64) -> Vec<u8> {
        let head = Epoch {
            interval_bytes: 0,
            ring_bit: 0,
            epoch,
            recording: 7,
            name: "n",
            mode: 0,
            flags: 0,
            period_ns: 1,
            depth: 1,
            late_threshold_ns: 1,
            recording_started_ns: 0,
            started_ns: 0,
            ended_ns: 1,
            ended_wall_clock_ns: None,
            gaps: 0,
            server_ns: 0,
            vcpus: 1,
            caller_table: None,
        };
        let at = |recorded| Snapshot { counters: counters(recorded), ..Snapshot::default() };
        let share = VcpuEpoch { epoch, vcpu: 0, start: at(from), end: at(to) };
        let mut payload = [0; 64];
        let mut run = counts::Encoder::new(0, &mut payload);
        run.push(20, held);
        let length = run.finish();
        let counts =
            message::Counts { epoch, vcpu: 0, after: 0, count: 1, payload: &payload[..length] };
        let end = VcpuEnd { epoch, vcpu: 0, known: 20, samples: to - from };
        let frames = [encoded(&head), encoded(&share), encoded(&counts), encoded(&end)];
        [vec![0; FILE_PREAMBLE], frames.concat()].concat()
    }

    fn audited(files: &[Vec<u8>], agent: u64) -> Audit {
        let mut audit = Audit::default();
        for file in files {
            audit.file(file, "file");
        }
        audit.compare(7, &counters(agent));
        audit
    }

    #[test]
    fn downloads_that_hold_everything_are_right() {
        let files = [download(1, 0, 5, 5), download(2, 5, 9, 4), download(1, 0, 5, 5)];
        let audit = audited(&files, 9);
        assert_eq!((audit.repeated, audit.partial), (1, 0));
        assert_eq!(audit.wrong, Vec::<String>::new());
    }

    /// Guards an audit that would not see what it is for.
    #[test]
    fn whatever_is_missing_is_seen() {
        let whole = download(1, 0, 5, 5);
        for (files, agent) in [
            (vec![whole.clone()], 6),
            (vec![whole.clone(), download(3, 5, 9, 4)], 9),
            (vec![whole.clone(), download(2, 6, 9, 3)], 9),
            (vec![whole.clone(), download(2, 5, 9, 3)], 9),
            (vec![download(2, 5, 9, 4)], 4),
            (vec![whole.clone(), download(1, 0, 5, 4)], 5),
            (vec![whole[..whole.len() - 3].to_vec()], 5),
            (vec![], 1),
        ] {
            assert!(!audited(&files, agent).wrong.is_empty(), "{agent}");
        }
    }
}
