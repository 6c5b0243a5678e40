//! Why conversations are ended from this side.

use unikprof_proto::message::Peers;

/// Why a conversation was ended from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The client broke the protocol.
    Malformed,
    /// The client was silent, or did not take its answer.
    TimedOut,
    /// It made room for somebody else.
    Displaced,
    /// Its handshake failed.
    BadKey,
    /// A record failed.
    #[cfg(feature = "noise")]
    BadRecord,
    /// There was no room for what its key allows.
    #[cfg(feature = "noise")]
    TurnedAway,
}

impl Fault {
    /// Counts a connection that was ended for this.
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
