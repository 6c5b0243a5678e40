//! Reasons for which the agent ends conversations.

use unikprof_proto::message::Peers;

/// Why the agent ended a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client violated the protocol.
    Malformed,
    /// The client was silent, or did not read its answer.
    TimedOut,
    /// Its session was given to another client.
    Displaced,
    /// The handshake failed.
    BadKey,
    /// A record was not authentic.
    #[cfg(feature = "noise")]
    BadRecord,
    /// There was no session for the role of its key.
    #[cfg(feature = "noise")]
    TurnedAway,
}

impl Fault {
    /// Counts a connection that was ended for this reason.
    pub(crate) fn count(self, peers: &mut Peers) {
        let counter = match self {
            Self::Malformed => &mut peers.malformed,
            Self::TimedOut => &mut peers.timed_out,
            Self::Displaced => &mut peers.displaced,
            Self::BadKey => &mut peers.bad_key,
            #[cfg(feature = "noise")]
            Self::BadRecord => &mut peers.bad_record,
            #[cfg(feature = "noise")]
            Self::TurnedAway => &mut peers.turned_away,
        };
        *counter += 1;
    }
}
