//! Who gets one of the sessions, and when: so that strangers cannot keep out those who hold a key.

use crate::serve::service::SESSIONS;
use crate::serve::session::Session;

/// A stranger has this long before it makes room for a newcomer: time for its handshake to come.
const GRACE_NS: u64 = 200_000_000;
/// A client whose handshake was good has this long, one round trip, to send its first record. It holds a key, or
/// replays the handshake of a client that does.
const GRACE_OF_HANDSHAKE_NS: u64 = 1_000_000_000;
/// How many sessions may be of clients that only look: one is kept for handshakes and for control.
#[cfg(feature = "noise")]
const VIEWS: usize = SESSIONS - 1;
/// Where a newcomer can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Free(usize),
    /// In the place of a stranger, who has had its time.
    Taken(usize),
}

/// The place for a newcomer, if there is one: a free session, or the stranger's who has been there for
/// longest.
pub(crate) fn place(sessions: &[Session; SESSIONS], now_ns: u64) -> Option<Place> {
    if let Some(free) = sessions.iter().position(Session::is_free) {
        return Some(Place::Free(free));
    }
    let strangers = sessions.iter().enumerate().filter_map(|(index, session)| {
        let until_ns = grace_ends_ns(session)?;
        (until_ns <= now_ns).then_some((until_ns, index))
    });
    strangers.min().map(|(_, index)| Place::Taken(index))
}

/// When there will be a [place](place) though there is none now; `None` where nobody is here who would
/// make room.
pub(crate) fn place_from_ns(sessions: &[Session; SESSIONS]) -> Option<u64> {
    sessions.iter().filter_map(grace_ends_ns).min()
}

/// When a stranger has had its time.
fn grace_ends_ns(session: &Session) -> Option<u64> {
    let came_ns = session.stranger_since_ns()?;
    let grace_ns = if session.has_shaken_hands() {
        GRACE_OF_HANDSHAKE_NS
    } else {
        GRACE_NS
    };
    Some(came_ns.saturating_add(grace_ns))
}

/// Whether as many sessions look as may.
#[cfg(feature = "noise")]
pub(crate) fn views_taken(sessions: &[Session; SESSIONS]) -> bool {
    sessions.iter().filter(|session| session.is_view()).count() >= VIEWS
}
