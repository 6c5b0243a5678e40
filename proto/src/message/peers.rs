//! Clients that the agent did not serve.

use serde::{Deserialize, Serialize};

/// Connections that were refused or closed by the agent since it started, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// Protocol errors: foreign bytes, a malformed frame, no common version.
    pub malformed: u64,
    /// The client was silent too long, did not read an answer, or did not finish a handshake.
    pub timed_out: u64,
    /// There was no free session.
    pub turned_away: u64,
    /// The client had not proved a key, and its session was given to another client.
    pub displaced: u64,
    /// The handshake failed: no key, an unknown or wrong key, or altered bytes.
    pub bad_key: u64,
    /// A record after the handshake failed: altered, replayed, out of order, or truncated.
    pub bad_record: u64,
    /// Requests that the client's role does not allow; the connections continued.
    pub not_allowed: u64,
}

impl Peers {
    /// The number of connections refused or closed.
    pub fn connections(&self) -> u64 {
        [
            self.malformed,
            self.timed_out,
            self.turned_away,
            self.displaced,
            self.bad_key,
            self.bad_record,
        ]
        .iter()
        .fold(0, |sum: u64, part| sum.saturating_add(*part))
    }
}
