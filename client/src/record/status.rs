//! What the recorder in the guest is at.

use std::time::Duration;

use unikprof_proto::code::state;
use unikprof_proto::message::{Counters, Peers, Status};

use crate::profile::Mode;

/// A [`Status`], owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecorderStatus {
    /// See [`unikprof_proto::code::state`].
    pub state: u32,
    /// The recording's id; 0 where there is none.
    pub recording: u64,
    /// Its name.
    pub name: String,
    /// See [`unikprof_proto::code::mode`].
    pub mode: u32,
    /// Its mean sampling period in ns of running time.
    pub period_ns: u64,
    /// Its depth limit in frames.
    pub depth: u32,
    /// See [`unikprof_proto::code::start_flag`].
    pub flags: u32,
    /// The guest's monotonic clock at the answer.
    pub now_ns: u64,
    /// When sampling began, or will begin.
    pub started_ns: u64,
    /// Asked duration in ns; 0 = until stopped.
    pub duration_ns: u64,
    /// All vCPUs' counters since the recording began.
    pub counters: Counters,
    /// Stack nodes in use.
    pub nodes_used: u64,
    /// Stack nodes there is room for.
    pub nodes_capacity: u64,
    /// The first epoch that waits to be fetched.
    pub first_epoch: u64,
    /// How many epochs wait.
    pub epochs: u32,
    /// Open sessions, the asking one included.
    pub sessions: u32,
    /// What came of connections that were refused or cut since the agent started.
    pub peers: Peers,
    /// Time of the agent's own network work since it started, in ns.
    pub server_ns: u64,
    /// The longest single piece of that work, in ns.
    pub server_longest_ns: u64,
}

/// The connections that were refused or cut, each kind in words.
pub(crate) fn peer_words(peers: &Peers) -> [(u64, &'static str); 6] {
    [
        (peers.bad_key, "without the right key"),
        (peers.bad_record, "with altered records"),
        (peers.malformed, "that broke the protocol"),
        (peers.timed_out, "silent for too long"),
        (peers.turned_away, "turned away for want of room"),
        (peers.displaced, "strangers that made room"),
    ]
}

impl RecorderStatus {
    pub(super) fn new(status: &Status<'_>) -> RecorderStatus {
        RecorderStatus {
            state: status.state,
            recording: status.recording,
            name: status.name.into(),
            mode: status.mode,
            period_ns: status.period_ns,
            depth: status.depth,
            flags: status.flags,
            now_ns: status.now_ns,
            started_ns: status.started_ns,
            duration_ns: status.duration_ns,
            counters: status.counters,
            nodes_used: status.nodes_used,
            nodes_capacity: status.nodes_capacity,
            first_epoch: status.first_epoch,
            epochs: status.epochs,
            sessions: status.sessions,
            peers: status.peers,
            server_ns: status.server_ns,
            server_longest_ns: status.server_longest_ns,
        }
    }

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

    /// How long until the recording ends by itself, its delay included; `None` where it does not.
    pub fn left(&self) -> Option<Duration> {
        (self.duration_ns != 0).then(|| {
            let end_ns = self.started_ns.saturating_add(self.duration_ns);
            Duration::from_nanos(end_ns.saturating_sub(self.now_ns))
        })
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
