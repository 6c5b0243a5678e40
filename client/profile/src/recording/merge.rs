//! Several files as one recording.
//!
//! The files are read one at a time, in chronological order, into one profile. Repeated data is
//! skipped: epochs by their numbers and records by their positions, which are unique within a run
//! of the guest.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::path::{Path, PathBuf};

use super::completeness::Completeness;
use super::contents::{Contents, EpochCounts, EpochSpan, Seen};
use super::error::RecordingError;
use super::finish::EndOfFile;
use super::reader::{self, Frames, Keep, Reading, Recording};
use super::totals::Totals;
use crate::agent_info::AgentInfo;
use crate::printable::Printable;
use crate::profile::{Merged, Mode, ProfileBuilder, RecordingInfo, TimeSpan};
use crate::timeline::{Join, JoinedRecording, RecordingSpan, Window, union};
use crate::units::{duration, size};

/// How many counts are kept before those of the same stack are brought together.
const FIRST_COMPACTION: usize = 1 << 20;

/// Between two epochs this little time is no gap: a recording that was dumped goes on at once.
const LEAST_GAP_NS: u64 = 1_000_000;

/// A thousand damaged files must not fill the screen.
const MOST_WARNINGS: usize = 32;

/// A file's beginning.
struct Head {
    path: PathBuf,
    run: RunId,
    /// How far its guest's monotonic clock is behind 1970, in ns, where a date is known.
    clock_ns: Option<i128>,
    recording: u64,
    first: EpochSpan,
}

/// A run of a guest: the agent's instance, and which guest it is.
type RunId = (u64, Option<String>);

/// A run of a guest.
struct Run {
    clock_ns: Option<i128>,
    first_ns: u64,
    /// By vCPU, the position after the last record that was read.
    records: BTreeMap<u32, u64>,
}

/// One recording of a run.
struct Part {
    run: usize,
    path: PathBuf,
    info: RecordingInfo,
    epochs: BTreeSet<u64>,
    /// When it was counted, in order and apart.
    counted: Vec<Window>,
    /// When each vCPU was: one after the other starts its next epoch.
    by_vcpu: BTreeMap<u32, Vec<Window>>,
    /// Its place in the timeline.
    span: Option<RecordingSpan>,
    /// An epoch that a file holds only a part of, and that file.
    cut: Option<(u64, PathBuf)>,
}

/// What was read so far.
#[derive(Default)]
struct Merge {
    /// The first file, with the sums of all.
    base: Option<(PathBuf, Contents)>,
    runs: Vec<Run>,
    parts: BTreeMap<(usize, u64), Part>,
    builder: ProfileBuilder,
    totals: Totals,
    keep: Keep,
    /// With the run that they are of.
    epoch_counts: Vec<(usize, EpochCounts)>,
    /// At how many counts they are brought together next.
    compact_at: usize,
    join: Join,
    /// A file without a timeline.
    without_times: Option<PathBuf>,
    warnings: Vec<String>,
    incomplete: Option<String>,
    repeated_epochs: u32,
    other_callers: bool,
}

/// Reads these files as one recording.
pub(super) fn merge(
    paths: &[PathBuf],
    reading: Reading,
    keep: Keep,
) -> Result<Recording, RecordingError> {
    let mut heads = Vec::new();
    for path in paths {
        heads.push(Head::read(path, reading)?);
    }
    let mut runs: BTreeMap<RunId, Run> = BTreeMap::new();
    for head in &heads {
        let run = runs.entry(head.run.clone()).or_insert_with(|| Run {
            clock_ns: head.clock_ns,
            first_ns: head.first.window.from_ns,
            records: BTreeMap::new(),
        });
        if head.first.window.from_ns <= run.first_ns {
            run.first_ns = head.first.window.from_ns;
            run.clock_ns = head.clock_ns;
        }
    }
    let mut ids: Vec<RunId> = runs.keys().cloned().collect();
    ids.sort_by_key(|id| runs[id].clock_ns.unwrap_or(0) + i128::from(runs[id].first_ns));
    let run_of = |id: &RunId| ids.iter().position(|known| known == id).unwrap_or(0);
    heads.sort_by_key(|head| (run_of(&head.run), head.first.window.from_ns, head.first.epoch));
    let mut all = Merge {
        runs: ids.iter().filter_map(|id| runs.remove(id)).collect(),
        compact_at: FIRST_COMPACTION,
        keep,
        ..Merge::default()
    };
    let files = u32::try_from(heads.len()).unwrap_or(u32::MAX);
    for head in &heads {
        all.add(head, run_of(&head.run), reading)?;
    }
    all.finish(files)
}

/// Whether a file may hold counts of this recording of this guest. A suspension, or a migration,
/// gives the agent another instance.
pub fn holds(path: &Path, agent: &AgentInfo, recording: u64) -> bool {
    let is_of = |(instance, guest_id): RunId| {
        instance == agent.instance || guest_id.is_some() && guest_id == agent.guest_id
    };
    // Opening a pipe would wait for its writer.
    path.is_file()
        && Head::read(path, Reading::Salvage)
            .is_ok_and(|head| head.recording == recording && is_of(head.run))
}

impl Head {
    fn read(path: &Path, reading: Reading) -> Result<Head, RecordingError> {
        let mut file = reader::open(path)?;
        let read_rest = |contents: Contents, frames: &mut Frames<'_>| {
            let first = match Contents::first_epoch(frames) {
                Err(_) if reading == Reading::Salvage => None,
                first => first?,
            };
            Ok((contents.agent, contents.created_unix_ns, first))
        };
        let (agent, created_unix_ns, first) = reader::read(&mut file, path, reading, read_rest)?;
        let Some((recording, first)) = first else {
            Recording::open(path, Reading::Salvage)?.with_samples(path)?;
            return Err(RecordingError::NoCounts { path: path.into() });
        };
        let unix_ns = agent.wall_clock_ns.or(Some(created_unix_ns).filter(|ns| *ns != 0));
        Ok(Head {
            path: path.to_owned(),
            clock_ns: unix_ns.map(|ns| i128::from(ns) - i128::from(agent.monotonic_ns)),
            run: (agent.instance, agent.guest_id),
            recording,
            first,
        })
    }
}

impl Merge {
    /// Reads a file and adds what it holds.
    fn add(&mut self, head: &Head, run: usize, reading: Reading) -> Result<(), RecordingError> {
        let path = &head.path;
        let key = (run, head.recording);
        let epochs = self.parts.get_mut(&key).map(|part| take(&mut part.epochs));
        let seen =
            Seen { epochs: epochs.unwrap_or_default(), records: take(&mut self.runs[run].records) };
        let mut file = reader::open(path)?;
        let read_rest = |mut contents: Contents, frames: &mut Frames<'_>| {
            contents.totals = take(&mut self.totals);
            contents.skip(seen);
            if self.keep == Keep::Epochs {
                contents.stacks.keep_epochs();
            }
            let damage = reader::read_on(&mut contents, frames, reading)?;
            if let Err(error) = self.accept(&mut contents, path) {
                return Ok(Err(error));
            }
            contents.builder = take(&mut self.builder);
            let end = contents.end_reading(reading, damage)?;
            self.builder = take(&mut contents.builder);
            Ok(Ok((contents, end)))
        };
        let (contents, end) = reader::read(&mut file, path, reading, read_rest)??;
        self.take_over(contents, end, head, run)
    }

    /// Checks that a file belongs to what was read before, and gives its code the addresses that
    /// the first file has.
    fn accept(&mut self, contents: &mut Contents, path: &Path) -> Result<(), RecordingError> {
        let Some((first, base)) = &self.base else {
            return Ok(());
        };
        let apart = |why: String| RecordingError::Apart {
            first: first.clone(),
            other: path.to_owned(),
            why,
        };
        same_settings(&base.info, &contents.info).map_err(apart)?;
        same_build(&base.agent, &contents.agent).map_err(apart)?;
        self.other_callers |= base.info.unwind != contents.info.unwind;
        contents.agent.mappings =
            contents.agent.mappings.placed_as(&base.agent.mappings).map_err(apart)?;
        Ok(())
    }

    fn take_over(
        &mut self,
        mut contents: Contents,
        end: EndOfFile,
        head: &Head,
        run: usize,
    ) -> Result<(), RecordingError> {
        let path = &head.path;
        let part = self
            .parts
            .entry((run, head.recording))
            .or_insert_with(|| Part::new(run, path, contents.info.clone()));
        part.epochs = take(&mut contents.seen.epochs);
        if let Some((epoch, cut)) = &part.cut
            && contents.repeated_epochs.contains(epoch)
        {
            return Err(RecordingError::Apart {
                first: cut.clone(),
                other: path.clone(),
                why: format!(
                    "the first is truncated in epoch {epoch}, which the other contains too; omit \
                     the first"
                ),
            });
        }
        let repeated = u32::try_from(contents.repeated_epochs.len()).unwrap_or(u32::MAX);
        self.repeated_epochs = self.repeated_epochs.saturating_add(repeated);
        for counted in &contents.counted_epochs {
            part.epochs.insert(counted.epoch);
            part.add(counted.window);
        }
        for (vcpu, [start, end]) in &contents.told {
            let windows = part.by_vcpu.entry(*vcpu).or_default();
            windows.push(Window::new(start.at_ns, end.at_ns));
        }
        if end.cut_epoch {
            let last = contents.counted_epochs.last();
            part.cut = last.map(|last| (last.epoch, path.clone()));
        }
        part.span = part.span.or(contents.span);
        let records = &mut self.runs[run].records;
        *records = take(&mut contents.seen.records);
        match end.timeline {
            Some(timeline) => {
                for ring in timeline.rings() {
                    let known = records.entry(ring.vcpu).or_default();
                    *known = ring.positions.end.max(*known);
                }
                if self.without_times.is_none() {
                    self.join.add(run, timeline);
                }
            }
            None => self.without_times = Some(path.clone()),
        }
        for warning in end.warnings {
            self.warn(format!("{}: {warning}", path.display()));
        }
        if end.completeness != Completeness::Complete && self.incomplete.is_none() {
            self.incomplete = Some(format!("{} is incomplete", path.display()));
        }
        self.totals = take(&mut contents.totals);
        let epochs = take(&mut contents.epoch_counts);
        self.epoch_counts.extend(epochs.into_iter().map(|epoch| (run, epoch)));
        match &mut self.base {
            None => self.base = Some((path.clone(), contents)),
            Some((_, base)) => add_up(base, contents),
        }
        if self.builder.count_len() >= self.compact_at {
            self.builder.compact();
            self.compact_at = FIRST_COMPACTION.max(self.builder.count_len() * 2);
        }
        Ok(())
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(warning);
        }
    }

    fn finish(mut self, files: u32) -> Result<Recording, RecordingError> {
        let (path, mut base) = self.base.take().ok_or(RecordingError::NoFiles)?;
        let mut parts: Vec<Part> = take(&mut self.parts).into_values().collect();
        parts.sort_by_key(|part| (part.run, part.counted.first().map(|window| window.from_ns)));
        for pair in parts.windows(2) {
            no_overlap(&pair[0], &pair[1])?;
        }
        let dates = self.clocks(&parts)?;
        let shifts_ns = dates.iter().map(|date| date - dates[0]).map(clamped);
        let shifts_ns: Vec<i64> = shifts_ns.collect();
        let merged =
            Merged { files, repeated_epochs: self.repeated_epochs, ..merged_from(&parts, &dates) };
        let mut warnings = take(&mut self.warnings);
        if self.other_callers {
            warnings.push(
                "the files differ in how callers were found (frame pointers or table); shown is \
                 the first's"
                    .into(),
            );
        }
        let (timeline, span) = match &self.without_times {
            Some(_) if self.join.is_empty() => (None, base.span),
            Some(file) => {
                warnings.push(format!(
                    "there is no timeline: {} has counts without times",
                    file.display()
                ));
                (None, base.span)
            }
            None if !merged.overlaps.is_empty() => {
                warnings.push(
                    "there is no timeline: the guests were recorded at the same time; report the \
                     files of one guest"
                        .into(),
                );
                (None, base.span)
            }
            None => {
                let spans = parts.into_iter().filter_map(Part::joined).collect::<Vec<_>>();
                let join = take(&mut self.join);
                let (timeline, span) = join.finish(&shifts_ns, spans);
                (Some(timeline), Some(span))
            }
        };
        base.builder = take(&mut self.builder);
        base.totals = take(&mut self.totals);
        let epochs = take(&mut self.epoch_counts).into_iter();
        base.epoch_counts = epochs
            .map(|(run, mut epoch)| {
                for end in [&mut epoch.window.from_ns, &mut epoch.window.to_ns] {
                    *end = end.saturating_add_signed(shifts_ns[run]);
                }
                epoch
            })
            .collect();
        base.info.merged = Some(merged);
        base.asked = None;
        let completeness = match self.incomplete {
            Some(reason) => Completeness::Incomplete(reason),
            None => Completeness::Complete,
        };
        let assembled = base.assemble(timeline, span, warnings, completeness);
        assembled.map_err(|source| RecordingError::Damaged {
            path,
            offset: 0,
            source,
            salvageable: false,
        })
    }

    /// How far each run's monotonic clock is behind 1970, in ns.
    fn clocks(&self, parts: &[Part]) -> Result<Vec<i128>, RecordingError> {
        let of_run = |run: usize| parts.iter().find(|part| part.run == run);
        let clock = |(at, run): (usize, &Run)| match (run.clock_ns, of_run(at), of_run(0)) {
            (Some(clock_ns), ..) => Ok(clock_ns),
            (None, Some(other), Some(first)) if self.runs.len() > 1 => Err(RecordingError::Apart {
                first: first.path.clone(),
                other: other.path.clone(),
                why: "they are of different runs of the guest, and one does not tell its date"
                    .into(),
            }),
            (None, ..) => Ok(0),
        };
        self.runs.iter().enumerate().map(clock).collect()
    }
}

impl Part {
    fn new(run: usize, path: &Path, info: RecordingInfo) -> Part {
        Part {
            run,
            path: path.to_owned(),
            info,
            epochs: BTreeSet::new(),
            counted: Vec::new(),
            by_vcpu: BTreeMap::new(),
            span: None,
            cut: None,
        }
    }

    /// Adds the time of an epoch; epochs come in the order of time.
    fn add(&mut self, window: Window) {
        match self.counted.last_mut() {
            Some(last) if window.from_ns <= last.to_ns.saturating_add(LEAST_GAP_NS) => {
                last.to_ns = last.to_ns.max(window.to_ns);
            }
            _ => self.counted.push(window),
        }
    }

    fn joined(self) -> Option<JoinedRecording> {
        let counted = self.by_vcpu.into_iter().map(|(vcpu, windows)| (vcpu, union(windows)));
        Some(JoinedRecording {
            run: self.run,
            span: self.span?,
            info: self.info,
            counted: counted.collect(),
        })
    }
}

/// Two recordings of one run must not have counted the same time: neighbours in the order of their
/// beginnings.
fn no_overlap(first: &Part, next: &Part) -> Result<(), RecordingError> {
    let ends = first.counted.last().zip(next.counted.first());
    let overlap_ns = ends.map_or(0, |(end, begin)| end.to_ns.saturating_sub(begin.from_ns));
    if first.run != next.run || overlap_ns <= LEAST_GAP_NS {
        return Ok(());
    }
    Err(RecordingError::Apart {
        first: first.path.clone(),
        other: next.path.clone(),
        why: format!(
            "they are of two recordings that ran at the same time in the same guest, and {} would \
             count twice; give \
             the files of one of them",
            duration(overlap_ns)
        ),
    })
}

fn clamped(ns: i128) -> i64 {
    ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The times that were counted, and those that were not or more than once.
fn merged_from(parts: &[Part], clocks_ns: &[i128]) -> Merged {
    let unix = |run: usize, at_ns: u64| {
        let unix_ns = clocks_ns[run] + i128::from(at_ns);
        u64::try_from(unix_ns).unwrap_or(if unix_ns < 0 { 0 } else { u64::MAX })
    };
    let mut counted: Vec<TimeSpan> = parts
        .iter()
        .flat_map(|part| {
            let counted = part.counted.iter();
            counted.map(|window| TimeSpan {
                from_unix_ns: unix(part.run, window.from_ns),
                to_unix_ns: unix(part.run, window.to_ns),
            })
        })
        .collect();
    counted.sort_unstable_by_key(|span| span.from_unix_ns);
    let mut merged = Merged {
        runs: u32::try_from(clocks_ns.len()).unwrap_or(u32::MAX),
        recordings: u32::try_from(parts.len()).unwrap_or(u32::MAX),
        time: counted.first().copied().unwrap_or_default(),
        ..Merged::default()
    };
    for next in counted.iter().skip(1) {
        let reached = merged.time.to_unix_ns;
        if next.from_unix_ns > reached.saturating_add(LEAST_GAP_NS) {
            merged.gaps.push(TimeSpan { from_unix_ns: reached, to_unix_ns: next.from_unix_ns });
        } else if reached > next.from_unix_ns.saturating_add(LEAST_GAP_NS) {
            merged.overlaps.push(TimeSpan {
                from_unix_ns: next.from_unix_ns,
                to_unix_ns: reached.min(next.to_unix_ns),
            });
        }
        merged.time.to_unix_ns = reached.max(next.to_unix_ns);
    }
    merged
}

/// Adds what a file tells of the whole recording to the first file.
fn add_up(base: &mut Contents, file: Contents) {
    base.epochs = base.epochs.saturating_add(file.epochs);
    base.gaps = base.gaps.saturating_add(file.gaps);
    base.info.elapsed_ns = base.info.elapsed_ns.saturating_add(file.info.elapsed_ns);
    base.info.server_ns = base.info.server_ns.saturating_add(file.info.server_ns);
    base.contradictions.extend(file.contradictions);
    base.contradictions.truncate(MOST_WARNINGS);
}

/// Whether counts of two recordings can be added up.
fn same_settings(first: &RecordingInfo, other: &RecordingInfo) -> Result<(), String> {
    if first.mode != other.mode {
        return Err(format!(
            "the first is of mode {}, the other of mode {}",
            first.mode, other.mode
        ));
    }
    if first.mode == Mode::Live {
        return Err(
            "each shows what was held at one time; report one of them, or compare them with `leaks`"
                .into(),
        );
    }
    if first.interval_bytes != other.interval_bytes {
        return Err(format!(
            "the first was sampled every {}, the other every {}",
            size(first.interval_bytes),
            size(other.interval_bytes)
        ));
    }
    if first.period_ns != other.period_ns {
        let rate = |info: &RecordingInfo| match info.rate_hz() {
            Some(hz) => format!("{hz:.1} Hz"),
            None => "an unknown rate".to_owned(),
        };
        return Err(format!(
            "the first was sampled at {}, the other at {}",
            rate(first),
            rate(other)
        ));
    }
    Ok(())
}

/// Whether two agents run on the same processor in the same program.
fn same_build(first: &AgentInfo, other: &AgentInfo) -> Result<(), String> {
    if first.architecture != other.architecture {
        return Err(format!(
            "the first is of {}, the other of {}",
            Printable(&first.architecture),
            Printable(&other.architecture)
        ));
    }
    let build_id = |agent: &AgentInfo| agent.mappings.iter().next()?.build_id.clone();
    match (build_id(first), build_id(other)) {
        (Some(first), Some(other)) if first == other => Ok(()),
        (Some(first), Some(other)) => Err(format!(
            "the guest is another build: its build-id is {first} in the first, {other} in the other"
        )),
        (None, None) if first.instance == other.instance => Ok(()),
        _ => Err(
            "they are of different runs, and the guest has no build-id to tell whether it is the \
             same build; link \
             it with --build-id"
                .into(),
        ),
    }
}
