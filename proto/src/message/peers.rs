//! Whom the agent did not serve.

use serde::{Deserialize, Serialize};

/// Connections that were refused or cut since the agent started, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// They broke the protocol: foreign bytes, a malformed frame, no common version.
    pub malformed: u64,
    /// They were silent for too long, took no answer, or left a handshake hanging.
    pub timed_out: u64,
    /// There was no free session for them.
    pub turned_away: u64,
    /// They had not shown a key, and made room for somebody else.
    pub displaced: u64,
    /// Their handshake failed: no key, an unknown one, a wrong one, or altered bytes.
    pub bad_key: u64,
    /// A record after the handshake failed: altered, replayed, out of order, or cut.
    pub bad_record: u64,
    /// Requests that the client's role does not allow; the connections went on.
    pub not_allowed: u64,
}

impl Peers {
    /// How many connections were refused or cut.
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
