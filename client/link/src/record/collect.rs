//! Downloads a recording: fetches epochs and rings, stores them on disk, acknowledges them.

use std::path::Path;
use std::time::{Duration, Instant};

use unikprof_proto::code::{refusal, state};
use unikprof_proto::frame::{self, Message as _};
use unikprof_proto::message::{Dump, Fetch, Nodes, Pending, Stop};

use super::epochs::KeptNodes;
use super::growth::Growth;
use super::rings::{BEFORE_NS, PartAsked, RingsReceived, Wanted};
use super::session::{Attempt, Session};
use super::{Asked, Event, Observer, Outcome, RecordError, RecordingStatus};
use crate::connection::{Connection, ConnectionError};
use unikprof_profile::output::OutputError;
use unikprof_profile::printable::word;
use unikprof_profile::recording::{EpochError, EpochProgress, KnownNodes, Part, RecordingWriter};

/// Retries while the agent reports older unacknowledged epochs.
const MOST_ROUNDS: u32 = 64;

/// How many vCPUs' shares of an epoch are requested before the first one was received: enough that
/// a long round trip is waited for once, few enough for a small guest's buffers.
const PIPELINED: usize = 8;

/// How often an epoch is fetched anew because the agent has given up some of its counts meanwhile.
const MOST_REPEATS: u32 = 16;

/// How often a recording that has just ended is looked at until its last epoch is there, and how
/// long to wait between: a tick that is under way is in its way, and its vCPU may have to wait for
/// a processor.
const MOST_LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// A request that fetches counts. A recording 0 selects the only recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Stop the recording and fetch its counts.
    Stop {
        /// The recording's id.
        recording: u64,
    },
    /// Fetch its counts so far and leave it running.
    Dump {
        /// The recording's id.
        recording: u64,
    },
    /// Copy the data that waits to be fetched without changing anything in the guest.
    Copy {
        /// The recording's id.
        recording: u64,
    },
}

impl Request {
    /// The name of the subcommand for it.
    pub(super) fn subcommand(self) -> &'static str {
        match self {
            Request::Stop { .. } => "stop",
            Request::Dump { .. } => "dump",
            Request::Copy { .. } => "copy",
        }
    }

    /// The recording's id.
    fn recording(self) -> u64 {
        match self {
            Request::Stop { recording }
            | Request::Dump { recording }
            | Request::Copy { recording } => recording,
        }
    }
}

/// Fetches everything that waits, writes it and, but for a copy, acknowledges it.
///
/// An error after something arrived becomes an incomplete recording.
pub(super) fn collect(
    session: &mut Session,
    request: Request,
    asked: Asked,
    writer: RecordingWriter,
    name: Option<&str>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    // Reject an impossible time window before contacting the guest.
    let asked = if asked.is_part() {
        Some(session.part_asked(request.recording(), asked, observer)?)
    } else {
        None
    };
    let mut collector = Collector::new(session, writer).named(name);
    collector.asked = asked;
    let collected = collector.collect(request, observer);
    collector.finish(collected, request)
}

const NO_COUNTS: RecordError = RecordError::NothingToFetch;

const PENDING: &str = "a list of pending epochs";

/// The longest epoch that a collector fetches: far more than the memory that agents have for
/// stacks.
const MOST_EPOCH_BYTES: u64 = 64 << 20;

/// The most bytes of stack nodes that are kept in memory for the next epoch's file.
const MOST_KEPT_BYTES: usize = 8 << 20;

/// Fetches epochs and rings of one recording into one file.
pub(super) struct Collector<'a> {
    pub(super) session: &'a mut Session,
    writer: RecordingWriter,
    /// The recording's name, if it is known.
    name: Option<String>,
    /// The part of time that is wanted.
    asked: Option<PartAsked>,
    /// The last epoch's.
    head: Option<Head>,
    /// The epoch behind those that were fetched.
    next: Option<u64>,
    /// How many epochs between them another client has fetched.
    elsewhere: u64,
    /// Whether any part of an epoch is in the file.
    arrived: bool,
    /// Whether everything is fetched while the recording goes on, so that its records have no
    /// bounds.
    is_draining: bool,
    /// Whether the observer is told how much has arrived.
    tells_progress: bool,
    bytes: u64,
    samples: u64,
    unacknowledged: Option<(u64, RecordError)>,
    /// Why the file does not have the name that was asked for; `None` if it has.
    displaced: Option<OutputError>,
    /// The stack nodes and the parts of rings that are in the file.
    nodes: KnownNodes,
    rings: RingsReceived,
    /// Follows which code is interrupted, where somebody wants to know.
    growth: Option<Growth>,
    /// The frames with stack nodes, where somebody wants to keep them.
    node_frames: Option<Vec<u8>>,
}

/// Which recording an epoch is of.
#[derive(Debug, Clone, Copy)]
struct Head {
    recording: u64,
    /// When the recording began.
    began_ns: u64,
    /// When the epoch ended.
    ended_ns: u64,
}

impl<'a> Collector<'a> {
    /// Fetches over this session and writes what arrives.
    pub(super) fn new(session: &'a mut Session, writer: RecordingWriter) -> Collector<'a> {
        let nodes = KnownNodes::new(session.agent().segment_nodes);
        Collector {
            session,
            writer,
            name: None,
            asked: None,
            head: None,
            arrived: false,
            is_draining: false,
            tells_progress: true,
            bytes: 0,
            samples: 0,
            next: None,
            elsewhere: 0,
            unacknowledged: None,
            displaced: None,
            nodes,
            rings: RingsReceived::default(),
            growth: None,
            node_frames: None,
        }
    }

    /// Fetches one epoch into a file of its own, in which the nodes stand that were received
    /// before. Answers these and the new ones; `None` if they are too many to be kept.
    pub(super) fn one_epoch(
        session: &'a mut Session,
        epoch: u64,
        kept: KeptNodes,
        path: &Path,
    ) -> Result<Option<KeptNodes>, RecordError> {
        let mut writer = session.create_recording(path)?;
        writer.limit(MOST_EPOCH_BYTES);
        writer.append(&kept.frames)?;
        let first = kept.first;
        let mut collector = Collector::new(session, writer);
        collector.nodes = kept.nodes;
        collector.node_frames = Some(kept.frames);
        collector.fetch(epoch, &mut ())?;
        collector.writer.end(None)?;
        collector.writer.publish()?;
        let nodes = collector.nodes;
        Ok(collector.node_frames.map(|frames| KeptNodes { nodes, frames, first }))
    }

    /// The same, for the recording of this name, if it is known.
    pub(super) fn named(self, name: Option<&str>) -> Collector<'a> {
        Collector { name: name.map(Into::into), ..self }
    }

    /// The same, following which code is interrupted.
    pub(super) fn following(self, growth: Option<Growth>) -> Collector<'a> {
        Collector { growth, ..self }
    }

    /// What was interrupted.
    pub(super) fn growth(&mut self) -> Option<Growth> {
        self.growth.take()
    }

    /// How long to wait between two drains of a recording that would be drained after so long.
    pub(super) fn between_drains(&self, wait: Duration) -> Duration {
        let growth = self.growth.as_ref();
        growth.map_or(wait, |growth| growth.between_drains(wait))
    }

    /// Adds rows to the caller table, if functions without any are interrupted often. Answers
    /// whether it did.
    pub(super) fn grow(&mut self, observer: &mut dyn Observer) -> Result<bool, RecordError> {
        match &mut self.growth {
            Some(growth) => growth.grow(self.session, observer),
            None => Ok(false),
        }
    }

    /// Fetches what has come together in a recording that goes on: its counts, and the new records
    /// of the rings. They are on disk before the agent may clear them. Returns whether the
    /// recording has ended meanwhile, and the file with it: the agent forgets a recording whose
    /// last epoch is acknowledged.
    pub(super) fn drain(
        &mut self,
        recording: u64,
        observer: &mut dyn Observer,
    ) -> Result<bool, RecordError> {
        (self.is_draining, self.tells_progress) = (true, false);
        self.rounds(true, observer, |connection| dump(connection, recording))
    }

    /// Sees to it that what was written is on disk, under another name if the file has lost its own.
    fn publish(&mut self) -> Result<(), OutputError> {
        if let Some(lost) = self.writer.publish_here_or_beside()? {
            self.displaced.get_or_insert(lost);
        }
        Ok(())
    }

    /// Does what a request says, up to the file's end.
    pub(super) fn collect(
        &mut self,
        request: Request,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        self.tells_progress = true;
        match request {
            Request::Stop { recording } => {
                let stopped =
                    self.rounds(false, observer, |connection| stop(connection, recording));
                match stopped {
                    Err(RecordError::NotBegun { recording }) => {
                        Err(RecordError::NeverBegun { recording })
                    }
                    other => other.map(drop),
                }
            }
            Request::Dump { recording } => {
                self.rounds(false, observer, |connection| dump(connection, recording)).map(drop)
            }
            Request::Copy { recording } => self.copy(recording, observer),
        }
    }

    /// Turns the outcome of all fetching into that of the recording: what arrived is kept.
    pub(super) fn finish(
        mut self,
        collected: Result<(), RecordError>,
        request: Request,
    ) -> Result<Outcome, RecordError> {
        match collected {
            Ok(()) => {
                // The guest has cleared what is in the file, and the file is still open.
                match self.publish() {
                    Err(source) if !matches!(request, Request::Copy { .. }) => {
                        Err(self.lost_with(source.into()))
                    }
                    published => {
                        published?;
                        let elsewhere = self.elsewhere();
                        Ok(self.outcome(elsewhere))
                    }
                }
            }
            Err(RecordError::Output(error)) => self.keep_what_is_safe(error, request),
            Err(error) => self.keep(error),
        }
    }

    /// Fetches epochs until the agent has no more for now; returns whether the file has ended with
    /// them. With `goes_on` it ends only if the recording has.
    fn rounds(
        &mut self,
        goes_on: bool,
        observer: &mut dyn Observer,
        ask: impl Fn(&mut Connection) -> Result<Pending, ConnectionError>,
    ) -> Result<bool, RecordError> {
        for _ in 0..MOST_ROUNDS {
            let gone = refusal::HOLDER_GONE;
            let pending = self.session.wait_while(gone, observer, |session, observer| {
                session.persist(observer, |connection, _| Ok(ask(connection)?))
            })?;
            let epochs =
                pending.first_epoch..pending.first_epoch.saturating_add(u64::from(pending.epochs));
            for epoch in epochs.clone() {
                let next = self.next.replace(epoch.saturating_add(1)).unwrap_or(epoch);
                self.elsewhere = self.elsewhere.saturating_add(epoch.saturating_sub(next));
                self.fetch(epoch, observer).map_err(|error| {
                    match error.is_refused(refusal::NO_EPOCH) {
                        true => RecordError::Gone { recording: pending.recording },
                        false => error,
                    }
                })?;
            }
            let is_last = pending.complete
                && (!goes_on || self.has_ended(pending.recording, epochs.end, observer)?);
            if pending.complete && !self.arrived {
                return Err(RecordError::NotBegun { recording: pending.recording });
            }
            if pending.complete {
                self.rings(observer)?;
            }
            if is_last {
                let elsewhere = self.elsewhere().map(|error| error.to_string());
                self.writer.end(elsewhere.as_deref())?;
            }
            self.publish()?;
            for epoch in epochs {
                self.acknowledge(epoch, is_last, observer)?;
            }
            if pending.complete {
                return Ok(is_last);
            }
            if pending.epochs == 0 {
                break;
            }
        }
        Err(RecordError::NothingToFetch)
    }

    /// What is not in the file as another client has it.
    fn elsewhere(&self) -> Option<RecordError> {
        (self.elsewhere > 0).then_some(RecordError::PartElsewhere { epochs: self.elsewhere })
    }

    /// Says if another client has ended a recording that was to last for so long; 0 is without an
    /// end.
    pub(super) fn tell_end(&self, duration_ns: u64, observer: &mut dyn Observer) {
        let Some(head) = self.head.filter(|_| !self.session.is_stopped()) else { return };
        let after_ns = head.ended_ns.saturating_sub(head.began_ns);
        if duration_ns == 0 || after_ns < duration_ns {
            observer.event(Event::EndedByAnother { after: Duration::from_nanos(after_ns) });
        }
    }

    /// Whether a recording has ended, and all its epochs are below `end`.
    fn has_ended(
        &mut self,
        recording: u64,
        end: u64,
        observer: &mut dyn Observer,
    ) -> Result<bool, RecordError> {
        let recorder = self.session.check(observer)?;
        Ok(recorder.by_id(recording).is_some_and(|status| {
            let waiting_to = status.first_epoch.saturating_add(status.epochs.into());
            status.state == state::FINISHED && waiting_to <= end
        }))
    }

    /// Fetches the epochs that wait, as far as they go, and the rings, and leaves them there.
    fn copy(&mut self, recording: u64, observer: &mut dyn Observer) -> Result<(), RecordError> {
        let mut next = 0;
        for look in 0..MOST_LOOKS {
            let recorder = self.session.check(observer)?;
            let Some(status) = recorder.by_id(recording) else {
                match (self.arrived, recording) {
                    (true, _) => break,
                    (false, 0) => {
                        return Err(recorder.find(None).err().map_or(NO_COUNTS, Into::into));
                    }
                    (false, _) => return Err(RecordError::Gone { recording }),
                }
            };
            let end = status.first_epoch.saturating_add(status.epochs.into());
            let first = status.first_epoch.max(next);
            let is_new = first < end;
            for epoch in first..end {
                match self.fetch(epoch, observer) {
                    // The client that holds the lease has stored it meanwhile.
                    Err(error) if error.is_refused(refusal::NO_EPOCH) => {}
                    other => other?,
                }
                next = epoch.saturating_add(1);
            }
            match (status.state, is_new) {
                // Its last epoch may be yet to come.
                (state::FINISHED, true) => {}
                (state::FINISHED, false) if self.arrived => break,
                (state::FINISHED, false) if look + 1 < MOST_LOOKS => {
                    if self.session.sleep(BETWEEN_LOOKS) {
                        return Err(ConnectionError::Interrupted.into());
                    }
                }
                _ if self.arrived => break,
                (state::RECORDING, _) if self.session.agent().keeps_time() => {
                    self.describe(status)?;
                    break;
                }
                _ => {
                    return Err(RecordError::NothingWaits { state: status.state_name() });
                }
            }
        }
        self.rings(observer)?;
        self.writer.end(None)?;
        self.publish()?;
        Ok(())
    }

    /// Writes which recording it is whose records follow without any counts.
    fn describe(&mut self, status: &RecordingStatus) -> Result<(), RecordError> {
        self.head = Some(Head {
            recording: status.recording,
            began_ns: status.started_ns,
            ended_ns: status.now_ns,
        });
        self.arrived = true;
        let head = status.as_epoch(&self.session.wall_clock());
        Ok(self.writer.describe(&head)?)
    }

    /// Fetches the new records of the rings with the stacks that they name: all of a recording that
    /// is drained, else as far back as was asked for now, or when the recording was started.
    fn rings(&mut self, observer: &mut dyn Observer) -> Result<(), RecordError> {
        if !self.session.agent().keeps_time() {
            return Ok(());
        }
        let Some(head) = self.head else {
            return Ok(());
        };
        let Head { recording, began_ns, ended_ns } = head;
        let window = self.asked.as_ref().map(|part| part.window(Some(ended_ns)));
        let window = window.transpose()?;
        let all = Wanted { since_ns: began_ns.saturating_sub(BEFORE_NS), most_bytes: 0 };
        let wanted = match window {
            _ if self.is_draining => all,
            Some(window) => {
                Wanted { since_ns: window.from_ns.saturating_sub(BEFORE_NS), most_bytes: 0 }
            }
            None => {
                let recorder = self.session.check(observer)?;
                match recorder.by_id(recording) {
                    Some(status) => Wanted {
                        since_ns: match status.max_age_ns {
                            0 => all.since_ns,
                            age_ns => began_ns.max(recorder.agent.now_ns.saturating_sub(age_ns)),
                        },
                        most_bytes: status.max_bytes,
                    },
                    None => all,
                }
            }
        };
        let Collector { session, writer, nodes, rings, bytes, .. } = self;
        session.fetch_rings(wanted, rings, nodes, observer, &mut |frames| {
            *bytes += frames.len() as u64;
            Ok(writer.append(frames)?)
        })?;
        self.tell_progress(observer);
        match window {
            Some(window) => Ok(self.writer.window(window)?),
            None => Ok(()),
        }
    }

    /// Fetches one epoch. If memory runs short in the guest while it is sent, the agent gives up
    /// the oldest of its counts; what has arrived is then taken back, and the epoch is fetched
    /// anew; also if the connection breaks within what is held, for as long as one may be lost. It
    /// is taken back too if another client has acknowledged the epoch: that client has all of it.
    fn fetch(&mut self, epoch: u64, observer: &mut dyn Observer) -> Result<(), RecordError> {
        let length = self.writer.length()?;
        let (nodes, bytes, samples) = (self.nodes.clone(), self.bytes, self.samples);
        let (head, arrived) = (self.head, self.arrived);
        let kept = self.node_frames.as_ref().map_or(0, Vec::len);
        let (mut repeats, mut broke) = (MOST_REPEATS, None);
        loop {
            let Err(error) = self.fetch_once(epoch, observer) else {
                return Ok(());
            };
            let is_gone = error.is_refused(refusal::NO_EPOCH);
            let broke_for = matches!(error, RecordError::Epoch(EpochError::HeldAnew(_)))
                .then(|| broke.get_or_insert_with(Instant::now).elapsed());
            // Breaks may lie far apart: some are repeated in any case.
            let is_repeated = match broke_for {
                Some(after) => repeats > 0 || after < self.session.reconnect,
                None => error.is_changed_epoch() && repeats > 0,
            };
            let Some(length) = length.filter(|_| is_gone || is_repeated) else {
                return Err(match broke_for {
                    None => error,
                    Some(_) if length.is_none() => RecordError::HeldCutOnDevice,
                    Some(after) => RecordError::HeldCut { after },
                });
            };
            self.writer.cut_to(length)?;
            self.nodes = nodes.clone();
            (self.bytes, self.samples) = (bytes, samples);
            (self.head, self.arrived) = (head, arrived);
            if let Some(frames) = &mut self.node_frames {
                frames.truncate(kept);
            }
            if is_gone {
                return Err(error);
            }
            repeats = repeats.saturating_sub(1);
        }
    }

    /// Fetches one epoch; over a new connection, from where the old one broke.
    fn fetch_once(&mut self, epoch: u64, observer: &mut dyn Observer) -> Result<(), RecordError> {
        let Collector {
            session,
            writer,
            arrived,
            tells_progress,
            bytes,
            samples,
            head,
            nodes,
            growth,
            node_frames,
            ..
        } = self;
        let mut progress = EpochProgress::on_the_wire();
        let before = *samples;
        let vcpus = session.agent().vcpus;
        session.persist(observer, |connection, observer| {
            let mut progressed = false;
            let result = Answers {
                connection,
                epoch,
                vcpus,
                progress: &mut progress,
                nodes,
                growth: growth.as_mut(),
            }
            .receive(head, |frame, so_far| {
                writer.append(frame)?;
                if is_nodes(frame) {
                    keep(node_frames, frame);
                }
                progressed = true;
                *arrived = true;
                *bytes += frame.len() as u64;
                *samples = before.saturating_add(so_far);
                if *tells_progress {
                    observer.event(Event::Fetching { samples: *samples, bytes: *bytes });
                }
                Ok(())
            });
            result.map_err(|attempt| attempt.after(progressed))
        })
    }

    fn tell_progress(&self, observer: &mut dyn Observer) {
        if self.tells_progress {
            observer.event(Event::Fetching { samples: self.samples, bytes: self.bytes });
        }
    }

    /// Acknowledges an epoch. Once the file is complete, an agent that does not answer is no reason
    /// to fail.
    fn acknowledge(
        &mut self,
        epoch: u64,
        is_last: bool,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        match self.session.acknowledge(epoch, observer) {
            Err(error) if is_last => {
                self.unacknowledged.get_or_insert((epoch, error));
                Ok(())
            }
            other => other,
        }
    }

    /// Ends the file where something went wrong, if anything arrived.
    fn keep(mut self, error: RecordError) -> Result<Outcome, RecordError> {
        // A user who gives up wants no half file, unless the guest has cleared what is in it.
        let wanted = self.writer.is_published() || !error.is_interrupt();
        if !self.arrived || !wanted {
            return Err(error);
        }
        let ended = self.writer.end(Some(&error.to_string()));
        match ended.and_then(|()| self.publish()) {
            Ok(()) => Ok(self.outcome(Some(error))),
            Err(_) if self.writer.is_published() => self.keep_published(error),
            Err(source) => Err(source.into()),
        }
    }

    /// Ends the file where it could not be written on. What was safe in it before is cleared in the
    /// guest, all else is still there.
    fn keep_what_is_safe(
        self,
        source: OutputError,
        request: Request,
    ) -> Result<Outcome, RecordError> {
        let name = self.name.as_ref().map(|name| format!(" --name {}", word(name)));
        let command = format!(
            "unikprof-client connect {} {}{}",
            self.session.guest_words(),
            request.subcommand(),
            name.unwrap_or_default()
        );
        let error = RecordError::Unwritten { command, source };
        if self.writer.is_published() { self.keep_published(error) } else { Err(error) }
    }

    /// Ends the file behind what is safe in it.
    fn keep_published(mut self, error: RecordError) -> Result<Outcome, RecordError> {
        self.writer = self.writer.cut_back()?;
        // First of all it needs a name, and the disk may have no room for its end.
        if self.publish().is_err() && self.writer.lost_bytes().is_some() {
            return Err(self.lost_with(error));
        }
        // Without its end, readers report that the file was cut.
        let ended = self.writer.end(Some(&error.to_string()));
        let _ = ended.and_then(|()| self.publish());
        Ok(self.outcome(Some(error)))
    }

    /// Adds what the guest has cleared, if the file has lost its name and got no other one.
    fn lost_with(&self, error: RecordError) -> RecordError {
        match self.writer.lost_bytes() {
            Some(bytes) => RecordError::FileLost { bytes, source: Box::new(error) },
            None => error,
        }
    }

    fn outcome(self, incomplete: Option<RecordError>) -> Outcome {
        Outcome {
            path: self.writer.path().into(),
            incomplete,
            unacknowledged: self.unacknowledged,
            displaced: self.displaced,
        }
    }
}

pub(super) fn stop(
    connection: &mut Connection,
    recording: u64,
) -> Result<Pending, ConnectionError> {
    connection.ask(&Stop { recording }, PENDING, "stopping the recording")
}

/// Keeps a frame with stack nodes. If they become too many, none are kept: an agent may send any
/// number.
fn keep(kept: &mut Option<Vec<u8>>, frame: &[u8]) {
    let length = kept.as_ref().map_or(0, Vec::len);
    if length.saturating_add(frame.len()) > MOST_KEPT_BYTES {
        *kept = None;
    } else if let Some(kept) = kept {
        kept.extend_from_slice(frame);
    }
}

/// Whether a frame, which was accepted, has stack nodes.
fn is_nodes(bytes: &[u8]) -> bool {
    matches!(frame::split(bytes), Ok(Some(frame)) if frame.kind == Nodes::TYPE)
}

pub(super) fn dump(
    connection: &mut Connection,
    recording: u64,
) -> Result<Pending, ConnectionError> {
    connection.ask(&Dump { recording }, PENDING, "dumping the recording")
}

/// The answers that an epoch consists of, one for each vCPU, over one connection.
struct Answers<'a> {
    connection: &'a mut Connection,
    epoch: u64,
    vcpus: u32,
    progress: &'a mut EpochProgress,
    nodes: &'a mut KnownNodes,
    growth: Option<&'a mut Growth>,
}

const FETCHING: &str = "fetching an epoch";

impl Answers<'_> {
    /// Requests what is missing of the epoch and passes each new frame, as it came, to `keep`.
    /// `known` becomes the epoch's head.
    fn receive(
        mut self,
        known: &mut Option<Head>,
        mut keep: impl FnMut(&[u8], u64) -> Result<(), RecordError>,
    ) -> Result<(), Attempt> {
        self.progress.expect_repetition();
        let missing = (0..self.vcpus).filter(|vcpu| !self.progress.has(*vcpu));
        let missing: Vec<u32> = missing.collect();
        let (first, later) = missing.split_at(missing.len().min(PIPELINED));
        for vcpu in first {
            self.request(*vcpu)?;
        }
        let mut later = later.iter();
        for vcpu in &missing {
            self.answer(*vcpu, known, &mut keep)?;
            if let Some(next) = later.next() {
                self.request(*next)?;
            }
        }
        Ok(())
    }

    fn request(&mut self, vcpu: u32) -> Result<(), ConnectionError> {
        let request = Fetch {
            epoch: self.epoch,
            vcpu,
            known: self.nodes.known(vcpu),
            counted: self.progress.counted(vcpu),
        };
        self.connection.send(&request, FETCHING)
    }

    fn answer(
        &mut self,
        vcpu: u32,
        known: &mut Option<Head>,
        keep: &mut impl FnMut(&[u8], u64) -> Result<(), RecordError>,
    ) -> Result<(), Attempt> {
        let failed = |error: EpochError| Attempt::Failed(error.into());
        loop {
            let frame = self.connection.receive(FETCHING);
            let frame = frame.map_err(Attempt::while_pipelined)?;
            let growth = &mut self.growth;
            let count = |vcpu, number, count| {
                if let Some(growth) = growth {
                    growth.count(vcpu, number, count);
                }
            };
            let accepted = self.progress.accept(&frame, self.nodes, count);
            let part = accepted.map_err(failed)?;
            if let (Part::Nodes, Some(growth)) = (&part, &mut self.growth) {
                growth.nodes(&frame);
            }
            match &part {
                Part::Epoch(head) if head.epoch != self.epoch => {
                    return Err(failed(EpochError::OtherEpoch {
                        expected: self.epoch,
                        found: head.epoch,
                    }));
                }
                Part::Epoch(head) if head.vcpus != self.vcpus => {
                    return Err(failed(EpochError::Vcpus {
                        expected: self.vcpus,
                        found: head.vcpus,
                    }));
                }
                Part::Epoch(head) => {
                    *known = Some(Head {
                        recording: head.recording,
                        began_ns: head.recording_started_ns,
                        ended_ns: head.ended_ns,
                    });
                }
                Part::Vcpu(share) if share.vcpu != vcpu => {
                    return Err(failed(EpochError::VcpuOrder { found: share.vcpu }));
                }
                _ => {}
            }
            let (is_repeated, has_ended) =
                (matches!(part, Part::Repeated), matches!(part, Part::End(..)));
            if !is_repeated {
                keep(self.connection.received(), self.progress.samples())
                    .map_err(Attempt::Failed)?;
            }
            if has_ended {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent that sends nodes without end would fill a collector's memory.
    #[test]
    fn too_many_stack_nodes_are_not_kept() {
        let mut kept = Some(vec![0; MOST_KEPT_BYTES - 10]);
        keep(&mut kept, &[0; 10]);
        assert_eq!(kept.as_ref().map(Vec::len), Some(MOST_KEPT_BYTES));
        keep(&mut kept, &[0]);
        assert_eq!(kept, None);
        keep(&mut kept, &[0]);
        assert_eq!(kept, None);
    }
}
