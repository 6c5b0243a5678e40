//! Who gets one of the sessions, and when: so that strangers cannot keep out those who hold a key.

use crate::service::SESSIONS;
use crate::session::Session;

/// A stranger has this long before it makes room for a newcomer.
const GRACE_NS: u64 = 500_000_000;
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
        let for_ns = session.stranger_for_ns(now_ns)?;
        (for_ns >= GRACE_NS).then_some((for_ns, index))
    });
    strangers.max().map(|(_, index)| Place::Taken(index))
}

/// Whether as many sessions look as may.
#[cfg(feature = "noise")]
pub(crate) fn views_taken(sessions: &[Session; SESSIONS]) -> bool {
    sessions.iter().filter(|session| session.is_view()).count() >= VIEWS
}
