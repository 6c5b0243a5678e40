//! Limits the rate of handshakes: each takes a tenth of a millisecond, even if it is replayed by
//! somebody without a key.

use crate::serve::service::SESSIONS;
use crate::serve::session::Session;

/// The minimum time between two handshakes.
const PACE_NS: u64 = 5_000_000;

/// The handshakes so far.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    count: u64,
    /// The earliest time of the next handshake.
    next_ns: u64,
    /// The session of the last handshake.
    last: usize,
}

/// Whether a session may do the costly half of a handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) is_allowed: bool,
    /// Set when it was done.
    pub(crate) was_made: bool,
    /// The number of handshakes before.
    pub(crate) count: u64,
}

impl Pace {
    /// Whether session `index` is the next one: sessions take turns, so that each gets one.
    pub(crate) fn turn(&self, sessions: &[Session; SESSIONS], index: usize, now_ns: u64) -> Turn {
        let mut in_order = (1..=SESSIONS).map(|step| (self.last + step) % SESSIONS);
        // A session that was just served comes after those that wait already.
        let first = in_order.find(|at| sessions[*at].awaits_handshake());
        Turn {
            is_allowed: now_ns >= self.next_ns && first.is_none_or(|first| first == index),
            was_made: false,
            count: self.count,
        }
    }

    /// Session `index` has done its handshake.
    pub(crate) fn done(&mut self, index: usize, now_ns: u64) {
        self.count += 1;
        self.next_ns = now_ns.saturating_add(PACE_NS);
        self.last = index;
    }

    /// When the next waiting handshake can continue.
    pub(crate) fn deadline_ns(&self, sessions: &[Session; SESSIONS]) -> Option<u64> {
        let waits = sessions.iter().any(Session::awaits_handshake);
        waits.then_some(self.next_ns)
    }
}
