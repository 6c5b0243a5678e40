//! Bringing epochs home: fetch, make safe, acknowledge.

use std::time::Duration;

use unikprof_proto::code::state;
use unikprof_proto::message::{Dump, Fetch, Pending, Stop};

use super::rings::{BEFORE_NS, Wanted};
use super::session::{Attempt, Session};
use super::{Asked, Event, Observer, Outcome, RecordError};
use crate::connection::{Connection, ConnectionError};
use crate::output::OutputError;
use crate::recording::{EpochError, EpochProgress, Part, RecordingWriter};
use crate::timeline::Window;

/// How often an agent may say that older epochs were in the way.
const MOST_ROUNDS: u32 = 64;

/// How often a recording that has just ended is looked at until its last epoch is there, and how long
/// to wait between: a tick that is under way is in its way, and its vCPU may have to wait for a processor.
const MOST_LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What brings counts out of the recorder; a recording 0 is the only one there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// End the recording and take what it has counted.
    Stop {
        /// The recording's id.
        recording: u64,
    },
    /// Take what it has counted so far and leave it running.
    Dump {
        /// The recording's id.
        recording: u64,
    },
    /// Take a copy of what waits to be fetched, and change nothing in the guest.
    Copy {
        /// The recording's id.
        recording: u64,
    },
}

impl Request {
    /// The word that makes it.
    fn word(self) -> &'static str {
        match self {
            Request::Stop { .. } => "stop",
            Request::Dump { .. } => "dump",
            Request::Copy { .. } => "fetch",
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
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    // A window that cannot be shows before anything is asked of the guest.
    let asked = match asked.is_part() {
        true => Some(session.window(request.recording(), asked, observer)?),
        false => None,
    };
    let mut collector = Collector {
        session,
        writer,
        observer,
        asked,
        head: None,
        arrived: false,
        bytes: 0,
        samples: 0,
        unacknowledged: None,
    };
    let collected = match request {
        Request::Stop { recording } => collector.rounds(|connection| {
            connection.ask(&Stop { recording }, PENDING, "stopping the recording")
        }),
        Request::Dump { recording } => collector.rounds(|connection| {
            connection.ask(&Dump { recording }, PENDING, "dumping the recording")
        }),
        Request::Copy { recording } => collector.copy(recording),
    };
    match collected {
        Ok(()) => Ok(collector.outcome(None)),
        Err(RecordError::Output(error)) => collector.keep_what_is_safe(error, request.word()),
        Err(error) => collector.keep(error),
    }
}

const NO_COUNTS: RecordError = RecordError::NothingToFetch;

const PENDING: &str = "a list of pending epochs";

struct Collector<'a> {
    session: &'a mut Session,
    writer: RecordingWriter,
    observer: &'a mut dyn Observer,
    /// The part of time that is wanted.
    asked: Option<Window>,
    /// The recording's id, and when it began.
    head: Option<(u64, u64)>,
    /// Whether any part of an epoch is in the file.
    arrived: bool,
    bytes: u64,
    samples: u64,
    unacknowledged: Option<u64>,
}

impl Collector<'_> {
    fn rounds(
        &mut self,
        ask: impl Fn(&mut Connection) -> Result<Pending, ConnectionError>,
    ) -> Result<(), RecordError> {
        for _ in 0..MOST_ROUNDS {
            let pending = self
                .session
                .persist(self.observer, |connection, _| Ok(ask(connection)?))?;
            let epochs = pending.first_epoch
                ..pending
                    .first_epoch
                    .saturating_add(u64::from(pending.epochs));
            for epoch in epochs.clone() {
                self.fetch(epoch)?;
            }
            if pending.complete {
                self.rings()?;
                self.writer.end(None)?;
            }
            self.writer.publish()?;
            for epoch in epochs {
                self.acknowledge(epoch, pending.complete)?;
            }
            if pending.complete {
                return Ok(());
            }
            if pending.epochs == 0 {
                break;
            }
        }
        Err(RecordError::NothingToFetch)
    }

    /// Fetches the epochs that wait, as far as they go, and leaves them there.
    fn copy(&mut self, recording: u64) -> Result<(), RecordError> {
        let mut next = 0;
        for look in 0..MOST_LOOKS {
            let recorder = self.session.check(self.observer)?;
            let Some(status) = recorder.by_id(recording) else {
                match (self.arrived, recording) {
                    (true, _) => break,
                    (false, 0) => return Err(recorder.find(None).err().unwrap_or(NO_COUNTS)),
                    (false, _) => return Err(RecordError::Gone { recording }),
                }
            };
            let end = status.first_epoch.saturating_add(status.epochs.into());
            let first = status.first_epoch.max(next);
            let is_new = first < end;
            for epoch in first..end {
                self.fetch(epoch)?;
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
                _ => {
                    return Err(RecordError::NothingWaits {
                        state: status.state_name(),
                    });
                }
            }
        }
        self.rings()?;
        self.writer.end(None)?;
        self.writer.publish()?;
        Ok(())
    }

    /// Fetches what happened when in the recording's time, as far back as it was asked for: now, or when
    /// the recording was started.
    fn rings(&mut self) -> Result<(), RecordError> {
        if !self.session.agent().keeps_time() {
            return Ok(());
        }
        let Some((recording, began_ns)) = self.head else {
            return Ok(());
        };
        let recorder = self.session.check(self.observer)?;
        let now_ns = recorder.now_ns;
        let (max_age_ns, most_bytes) = match recorder.by_id(recording) {
            Some(status) => (status.max_age_ns, status.max_bytes),
            None => (0, 0),
        };
        let mut wanted = Wanted {
            since_ns: match max_age_ns {
                0 => began_ns.saturating_sub(BEFORE_NS),
                age_ns => began_ns.max(now_ns.saturating_sub(age_ns)),
            },
            most_bytes,
        };
        if let Some(window) = self.asked {
            wanted = Wanted {
                since_ns: window.from_ns.saturating_sub(BEFORE_NS),
                most_bytes: 0,
            };
        }
        let Collector {
            session,
            writer,
            observer,
            bytes,
            samples,
            ..
        } = self;
        let mut arrived = 0;
        session.fetch_rings(wanted, *observer, &mut |frames| {
            arrived += frames.len() as u64;
            Ok(writer.append(frames)?)
        })?;
        *bytes += arrived;
        observer.event(Event::Fetching {
            samples: *samples,
            bytes: *bytes,
        });
        match self.asked {
            Some(window) => Ok(self.writer.window(window)?),
            None => Ok(()),
        }
    }

    /// Fetches one epoch; over a new connection, from where the old one broke.
    fn fetch(&mut self, epoch: u64) -> Result<(), RecordError> {
        let Collector {
            session,
            writer,
            observer,
            arrived,
            bytes,
            samples,
            head,
            ..
        } = self;
        let mut progress = EpochProgress::default();
        let before = *samples;
        session.persist(*observer, |connection, observer| {
            let mut progressed = false;
            let result = fetch_over(connection, epoch, &mut progress, head, |frame, so_far| {
                writer.append(frame)?;
                progressed = true;
                *arrived = true;
                *bytes += frame.len() as u64;
                *samples = before.saturating_add(so_far);
                observer.event(Event::Fetching {
                    samples: *samples,
                    bytes: *bytes,
                });
                Ok(())
            });
            match result {
                Err(Attempt::Broken { error, .. }) => Err(Attempt::Broken { error, progressed }),
                other => other,
            }
        })
    }

    /// Once everything is in the file, an agent that cannot be told so is no reason to fail.
    fn acknowledge(&mut self, epoch: u64, complete: bool) -> Result<(), RecordError> {
        match self.session.acknowledge(epoch, self.observer) {
            Err(_) if complete => {
                self.unacknowledged.get_or_insert(epoch);
                Ok(())
            }
            other => other,
        }
    }

    /// Ends the file where something went wrong, if anything arrived.
    fn keep(mut self, error: RecordError) -> Result<Outcome, RecordError> {
        // Who gives up wants no half file, unless the guest has cleared what is in it.
        let wanted = self.writer.is_published() || !error.is_interrupt();
        if !self.arrived || !wanted {
            return Err(error);
        }
        self.writer.end(Some(&error.to_string()))?;
        self.writer.publish()?;
        Ok(self.outcome(Some(error)))
    }

    /// Ends the file where it could not be written on. What was safe in it before is cleared in the guest,
    /// all else is still there.
    fn keep_what_is_safe(
        mut self,
        source: OutputError,
        word: &'static str,
    ) -> Result<Outcome, RecordError> {
        let error = RecordError::Unwritten { word, source };
        if !self.writer.is_published() {
            return Err(error);
        }
        self.writer = self.writer.cut_back()?;
        // Without room for this the file is whole as far as it goes, and its reader says that it was cut.
        let ended = self.writer.end(Some(&error.to_string()));
        let _ = ended.and_then(|()| self.writer.publish());
        Ok(self.outcome(Some(error)))
    }

    fn outcome(self, incomplete: Option<RecordError>) -> Outcome {
        Outcome {
            path: self.writer.path().into(),
            incomplete,
            unacknowledged: self.unacknowledged,
        }
    }
}

/// Asks for the rest of an epoch and hands each new frame, as it came, to `keep`.
fn fetch_over(
    connection: &mut Connection,
    epoch: u64,
    progress: &mut EpochProgress,
    known: &mut Option<(u64, u64)>,
    mut keep: impl FnMut(&[u8], u64) -> Result<(), RecordError>,
) -> Result<(), Attempt> {
    const DOING: &str = "fetching an epoch";
    let (vcpu, node) = progress.next();
    progress.expect_repetition();
    connection.send(&Fetch { epoch, vcpu, node }, DOING)?;
    loop {
        let frame = connection.receive(DOING)?;
        let part = progress
            .accept(&frame, |_, _| ())
            .map_err(|error| Attempt::Failed(error.into()))?;
        if let Part::Epoch(head) = &part {
            *known = Some((head.recording, head.recording_started_ns));
        }
        if let Part::Epoch(head) = &part
            && head.epoch != epoch
        {
            let other = EpochError::OtherEpoch {
                expected: epoch,
                found: head.epoch,
            };
            return Err(Attempt::Failed(other.into()));
        }
        let (repeated, ended) = (matches!(part, Part::Repeated), matches!(part, Part::End(_)));
        if !repeated {
            keep(connection.received(), progress.samples()).map_err(Attempt::Failed)?;
        }
        if ended {
            return Ok(());
        }
    }
}
