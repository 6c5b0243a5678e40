//! How often there is a handshake: each costs a tenth of a millisecond, also one that is replayed by
//! somebody without a key.

use crate::serve::service::SESSIONS;
use crate::serve::session::Session;

/// One handshake in this time at the most.
const PACE_NS: u64 = 5_000_000;

/// The handshakes so far.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    count: u64,
    /// When the next may be.
    next_ns: u64,
    /// Which session's it was last.
    last: usize,
}

/// Whether a session may do the costly half of a handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) is_allowed: bool,
    /// It did.
    pub(crate) was_made: bool,
    /// How many were made before.
    pub(crate) count: u64,
}

impl Pace {
    /// Whether it is the turn of session `index`: they take turns, and none is refused for want of
    /// one.
    pub(crate) fn turn(&self, sessions: &[Session; SESSIONS], index: usize, now_ns: u64) -> Turn {
        let mut in_order = (1..=SESSIONS).map(|step| (self.last + step) % SESSIONS);
        // Whoever has just come waits behind those who do already.
        let first = in_order.find(|at| sessions[*at].awaits_handshake());
        Turn {
            is_allowed: now_ns >= self.next_ns && first.is_none_or(|first| first == index),
            was_made: false,
            count: self.count,
        }
    }

    /// Session `index` has had its turn.
    pub(crate) fn done(&mut self, index: usize, now_ns: u64) {
        self.count += 1;
        self.next_ns = now_ns.saturating_add(PACE_NS);
        self.last = index;
    }

    /// When a handshake that waits can go on.
    pub(crate) fn deadline_ns(&self, sessions: &[Session; SESSIONS]) -> Option<u64> {
        let waits = sessions.iter().any(Session::awaits_handshake);
        waits.then_some(self.next_ns)
    }
}
