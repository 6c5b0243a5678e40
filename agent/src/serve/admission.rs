//! Assigns sessions to connections, so that unauthenticated clients cannot keep out those that hold
//! a key.

use crate::serve::service::SESSIONS;
use crate::serve::session::Session;

/// After this time an unauthenticated client's session may be given to a new connection. Its
/// handshake should arrive before.
const GRACE_NS: u64 = 200_000_000;
/// A client with a valid handshake has this time, one round trip, to send its first record. It
/// either holds a key or replays the handshake of a client that does.
const GRACE_OF_HANDSHAKE_NS: u64 = 1_000_000_000;
/// The maximum number of sessions of clients with the role `view`: one session is reserved for
/// handshakes and for `control`.
#[cfg(feature = "noise")]
const VIEWS: usize = SESSIONS - 1;
/// The session for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Free(usize),
    /// The session of an unauthenticated client whose time is over.
    Taken(usize),
}

/// The session for a new connection, if there is one: a free one, or that of the unauthenticated
/// client that has been there longest.
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

/// When there will be a [place](place), if there is none now; `None` if no session belongs to an
/// unauthenticated client.
pub(crate) fn place_from_ns(sessions: &[Session; SESSIONS]) -> Option<u64> {
    sessions.iter().filter_map(grace_ends_ns).min()
}

/// When an unauthenticated client's session may be given away.
fn grace_ends_ns(session: &Session) -> Option<u64> {
    let came_ns = session.stranger_since_ns()?;
    let grace_ns = if session.has_shaken_hands() { GRACE_OF_HANDSHAKE_NS } else { GRACE_NS };
    Some(came_ns.saturating_add(grace_ns))
}

/// Whether the maximum number of `view` sessions is reached.
#[cfg(feature = "noise")]
pub(crate) fn views_taken(sessions: &[Session; SESSIONS]) -> bool {
    sessions.iter().filter(|session| session.is_view()).count() >= VIEWS
}
