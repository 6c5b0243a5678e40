//! What is looked at once a minute.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use unikprof_proto::message::{Counters, Peers};

use super::error::SoakError;
use super::guest::{Footprint, Guest};
use super::rightful::{check, served};
use super::speaker::Role;

/// The guest at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Since the soak began.
    pub at: Duration,
    /// What the system says.
    pub footprint: Footprint,
    /// What became of the agent's peers.
    pub peers: Peers,
    /// The agent's own network work, in ns.
    pub server_ns: u64,
    /// The longest piece of it, in ns.
    pub server_longest_ns: u64,
    /// The counters of the recording that runs.
    pub counters: Counters,
    /// Its id.
    pub recording: u64,
    /// Stack nodes in use and in all.
    pub nodes: (u64, u64),
    /// Open sessions, this one included.
    pub sessions: u32,
}

impl Sample {
    /// Looks, as a client with the view key would.
    ///
    /// # Errors
    /// [`SoakError::NotServed`].
    pub fn take(guest: &Guest, at: Duration) -> Result<Sample, SoakError> {
        let checked = served(&guest.target, Role::View, "a check", check)?;
        let agent = checked.agent;
        Ok(Sample {
            at,
            footprint: guest.footprint(),
            peers: agent.peers,
            server_ns: agent.server_ns,
            server_longest_ns: agent.server_longest_ns,
            counters: checked.counters,
            recording: checked.recording,
            nodes: (agent.nodes_used, agent.nodes_capacity),
            sessions: agent.sessions,
        })
    }
}

/// One line, for who waits.
impl Display for Sample {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Footprint {
            resident_kib,
            descriptors,
            ..
        } = self.footprint;
        write!(
            f,
            "{:>5} s: {resident_kib} KiB, {descriptors} descriptors, {} sessions, longest poll {} µs, \
             {} ms of network work, {} peers refused or cut",
            self.at.as_secs(),
            self.sessions,
            self.server_longest_ns / 1_000,
            self.server_ns / 1_000_000,
            self.peers.connections()
        )
    }
}
