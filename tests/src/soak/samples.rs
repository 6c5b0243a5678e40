//! The sample that is taken once a minute.

use anyhow::Result;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use unikprof_proto::message::{Counters, Peers, Ring, RingEnd, RingHead};

use super::guest::{Footprint, Guest};
use super::keeper::ALWAYS_ON;
use super::line::{End, answer};
use super::rightful::{check, served};
use super::speaker::{Role, Speaker};

const VCPUS: u32 = 2;

/// The guest at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The time since the soak began.
    pub(crate) at: Duration,
    /// The guest process's use of the machine.
    pub(crate) footprint: Footprint,
    pub peers: Peers,
    /// The agent's own network work, in ns.
    pub(crate) server_ns: u64,
    /// The longest piece of it, in ns.
    pub(crate) server_longest_ns: u64,
    /// The counters of the recording that is always on.
    pub(crate) counters: Counters,
    /// Its id; 0 where there is none at the moment.
    pub(crate) recording: u64,
    pub(crate) recordings: u32,
    /// All vCPUs' rings.
    pub(crate) ring: RingState,
    /// Stack nodes in use and in all.
    pub(crate) nodes: (u64, u64),
    /// Open sessions, this one included.
    pub(crate) sessions: u32,
}

/// The records in rings.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RingState {
    pub(crate) held: u64,
    pub(crate) evicted: u64,
    pub(crate) given_up: u64,
}

impl RingState {
    fn ask(speaker: &mut Speaker, vcpus: u32) -> Result<RingState, End> {
        let mut state = RingState::default();
        for vcpu in 0..vcpus {
            let request = Ring { vcpu, position: u64::MAX, since_ns: u64::MAX };
            let head: RingHead = answer(&speaker.ask(&request)?)?;
            let end: RingEnd = answer(&speaker.read_frame()?)?;
            state.held += head.next - head.oldest;
            state.evicted += head.oldest;
            state.given_up += end.lost;
        }
        Ok(state)
    }
}

impl Sample {
    /// Looks, as a client with the view key would.
    pub(crate) fn take(guest: &Guest, at: Duration) -> Result<Sample> {
        let (checked, ring) = served(&guest.target, Role::View, "a check", |speaker| {
            let checked = check(speaker)?;
            Ok((checked, RingState::ask(speaker, VCPUS)?))
        })?;
        let always_on = checked.named(ALWAYS_ON);
        let agent = checked.agent;
        Ok(Sample {
            at,
            footprint: guest.footprint(),
            peers: agent.peers,
            server_ns: agent.server_ns,
            server_longest_ns: agent.server_longest_ns,
            counters: always_on.map_or(Counters::default(), |one| one.counters),
            recording: always_on.map_or(0, |one| one.id),
            recordings: agent.recordings,
            ring,
            nodes: (agent.nodes_used, agent.nodes_capacity),
            sessions: agent.sessions,
        })
    }
}

/// One line, for who waits.
impl Display for Sample {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Footprint { resident_kib, descriptors, .. } = self.footprint;
        write!(
            f,
            "{:>5} s: {resident_kib} KiB, {descriptors} descriptors, {} sessions, longest poll {} \
             µs, \
             {} ms of network work, {} peers refused or cut",
            self.at.as_secs(),
            self.sessions,
            self.server_longest_ns / 1_000,
            self.server_ns / 1_000_000,
            self.peers.connections()
        )
    }
}
