//! The state of the recorder in the guest: the agent's own part, and each of its recordings.

use std::fmt;
use std::time::Duration;

use thiserror::Error;
use unikprof_proto::code::state;
use unikprof_proto::message::{self, Counters, Epoch, Overhead, Peers, Status};

use crate::printable::Printable;
use crate::profile::Mode;
use crate::timeline::WallClock;
use crate::units::{rate_text, size};

/// The most recordings that are read of one agent; those of this version hold four.
pub const MOST_RECORDINGS: u32 = 64;

/// The state of an agent's recorder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderStatus {
    /// The recordings there are, in the agent's order.
    pub recordings: Vec<RecordingStatus>,
    /// The agent's own part.
    pub agent: Status,
}

/// The state of one recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecordingStatus {
    /// The recording's id.
    pub recording: u64,
    /// Which bit it has in the ring's samples.
    pub ring_bit: u32,
    /// The recording's name.
    pub name: String,
    /// See [`unikprof_proto::code::state`].
    pub state: u32,
    /// See [`unikprof_proto::code::mode`].
    pub mode: u32,
    /// Its mean sampling period in ns of running time.
    pub period_ns: u64,
    /// Its mean sampling interval in bytes, where allocations are recorded.
    pub interval_bytes: u64,
    /// Its depth limit in frames.
    pub depth: u32,
    /// See [`unikprof_proto::code::start_flag`].
    pub flags: u32,
    /// The guest's monotonic clock at the answer.
    pub now_ns: u64,
    /// When sampling began, or will begin.
    pub started_ns: u64,
    /// Requested duration in ns; 0 = until stopped.
    pub duration_ns: u64,
    /// How far back a dump's records need to go, in ns; 0 = as far as there are any.
    pub max_age_ns: u64,
    /// How many bytes of records a dump needs to hold; 0 = all.
    pub max_bytes: u64,
    /// All vCPUs' counters since the recording began.
    pub counters: Counters,
    /// Its cost since its current epoch began.
    pub overhead: Overhead,
    /// The time for which the rings hold the recording's samples at the present rate, in ns; `None`
    /// if there is no ring or nothing is written to it.
    pub samples_window_ns: Option<u64>,
    /// For how long the memory holds its stacks at the present rate of new ones, in ns; `None` if
    /// there are no new ones.
    pub stacks_window_ns: Option<u64>,
    /// Whether the guest can free the memory of the oldest stacks only after a fetch.
    pub wants_fetch: bool,
    /// The name and version of the client that holds the lease on it.
    pub holder: Option<String>,
    /// Since when that client has held it, on the guest's monotonic clock.
    pub held_since_ns: u64,
    /// The first epoch that waits to be fetched.
    pub first_epoch: u64,
    /// How many epochs wait.
    pub epochs: u32,
}

/// Why a recording is not found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotFound {
    /// There is no such recording.
    #[error("{}", no_such(wanted.as_deref(), there))]
    NoSuch {
        /// Its name; `None`: whichever there is.
        wanted: Option<String>,
        /// Those that there are.
        there: Names,
    },
    /// There are several recordings, and none was named.
    #[error("the guest has several recordings: {there}; choose one with --name")]
    Several {
        /// Those that there are.
        there: Names,
    },
}

fn no_such(wanted: Option<&str>, there: &Names) -> String {
    match wanted {
        Some(name) => format!("the guest has no recording `{}`; it has: {there}", Printable(name)),
        None => "the guest has no recordings; `start` begins one".into(),
    }
}

/// Recordings by their names, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names(Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, name) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}`{}`", Printable(name))?;
        }
        Ok(())
    }
}

/// The connections that were refused or cut, each kind in words.
pub fn peer_words(peers: &Peers) -> [(u64, &'static str); 6] {
    [
        (peers.bad_key, "with a wrong key"),
        (peers.bad_record, "with modified records"),
        (peers.malformed, "with protocol violations"),
        (peers.timed_out, "timed out"),
        (peers.turned_away, "rejected because all sessions were in use"),
        (peers.displaced, "closed before authentication to make room"),
    ]
}

impl RecorderStatus {
    /// Adds a recording, unless it went away while the agent told of it.
    pub fn add(&mut self, status: &message::RecordingStatus<'_>) {
        if status.state == state::IDLE {
            return;
        }
        self.recordings.push(RecordingStatus {
            recording: status.recording,
            ring_bit: status.ring_bit,
            name: status.name.into(),
            state: status.state,
            mode: status.mode,
            period_ns: status.period_ns,
            interval_bytes: status.interval_bytes,
            depth: status.depth,
            flags: status.flags,
            now_ns: self.agent.now_ns,
            started_ns: status.started_ns,
            duration_ns: status.duration_ns,
            max_age_ns: status.max_age_ns,
            max_bytes: status.max_bytes,
            counters: status.counters,
            overhead: status.overhead,
            samples_window_ns: status.samples_window_ns,
            stacks_window_ns: status.stacks_window_ns,
            wants_fetch: status.wants_fetch,
            holder: status.holder.map(Into::into),
            held_since_ns: status.held_since_ns,
            first_epoch: status.first_epoch,
            epochs: status.epochs,
        });
    }

    /// The recording with this id, if it is there; 0: the only one.
    pub fn by_id(&self, recording: u64) -> Option<&RecordingStatus> {
        match (recording, self.recordings.as_slice()) {
            (0, [only]) => Some(only),
            (0, _) => None,
            (id, all) => all.iter().find(|one| one.recording == id),
        }
    }

    /// The recording with this name, or without a name the only one.
    pub fn find(&self, name: Option<&str>) -> Result<&RecordingStatus, NotFound> {
        match (name, self.recordings.as_slice()) {
            (None, [only]) => Ok(only),
            (None, [_, ..]) => Err(NotFound::Several { there: self.names() }),
            (name, all) => {
                all.iter().find(|one| name == Some(one.name.as_str())).ok_or_else(|| {
                    NotFound::NoSuch { wanted: name.map(Into::into), there: self.names() }
                })
            }
        }
    }

    /// The names of all recordings.
    pub(crate) fn names(&self) -> Names {
        Names(self.recordings.iter().map(|one| one.name.clone()).collect())
    }
}

impl RecordingStatus {
    /// Which time is recorded.
    pub fn mode(&self) -> Mode {
        Mode::from_code(self.mode)
    }

    /// How long sampling has gone on, not counting a delay.
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(self.started_ns))
    }

    /// How long until sampling begins; zero once it has.
    pub fn delay_left(&self) -> Duration {
        Duration::from_nanos(self.started_ns.saturating_sub(self.now_ns))
    }

    /// The time until the recording ends on its own, including its delay; `None` if it has no end.
    pub fn left(&self) -> Option<Duration> {
        (self.duration_ns != 0).then(|| {
            let end_ns = self.started_ns.saturating_add(self.duration_ns);
            Duration::from_nanos(end_ns.saturating_sub(self.now_ns))
        })
    }

    /// Ticks whose stack is not known: given up, no room, a slot in use, or no place to be seen.
    pub fn dropped(&self) -> u64 {
        let c = &self.counters;
        let dropped = c.overflow.saturating_add(c.lost);
        dropped.saturating_add(c.masked).saturating_add(c.aged)
    }

    /// For how long the client that holds the lease has held it.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.now_ns.saturating_sub(self.held_since_ns))
    }

    /// Its description without counts, for a file that holds what rings tell of it.
    pub fn as_epoch(&self, clock: &WallClock) -> Epoch<'_> {
        Epoch {
            interval_bytes: self.interval_bytes,
            epoch: 0,
            recording: self.recording,
            ring_bit: self.ring_bit,
            name: &self.name,
            mode: self.mode,
            flags: self.flags,
            period_ns: self.period_ns,
            depth: self.depth,
            late_threshold_ns: 0,
            recording_started_ns: self.started_ns,
            started_ns: self.started_ns,
            ended_ns: self.now_ns,
            ended_wall_clock_ns: clock.unix_ns(self.now_ns),
            gaps: 0,
            server_ns: 0,
            vcpus: 0,
            caller_table: None,
        }
    }

    /// What is sampled, and how often.
    pub fn sampling(&self) -> String {
        match self.mode() {
            Mode::OffCpu => format!("{}, measured", self.mode()),
            mode if mode.is_heap() => format!("{mode} every {}", size(self.interval_bytes)),
            mode => format!("{mode} at {} Hz", rate_text(self.period_ns)),
        }
    }

    /// Whether it has ended and no client holds it, so that whoever made it may be gone.
    pub fn is_unclaimed(&self) -> bool {
        self.state == state::FINISHED && self.holder.is_none()
    }

    /// The state in words.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            state::IDLE => "idle",
            state::DELAYED => "delayed",
            state::RECORDING => "recording",
            state::FINISHED => "finished",
            _ => "unknown",
        }
    }
}
