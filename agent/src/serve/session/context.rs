//! The state outside of a session that it works on.

use unikprof_proto::message::Peers;

use crate::agent::AnyAgent;
use crate::record::recorder::Recorder;
use crate::serve::access::Access;
use crate::serve::service::SESSIONS;

/// The state outside of a session that it works on.
pub(crate) struct Context<'c, 'r, 'm> {
    pub(crate) agent: &'c AnyAgent<'c, 'm>,
    pub(crate) recorder: &'c mut Recorder<'r>,
    pub(crate) now_ns: u64,
    pub(crate) sessions: u32,
    /// The ids of the connected clients.
    pub(crate) clients: [u64; SESSIONS],
    pub(crate) peers: &'c mut Peers,
    pub(crate) server: Busy,
    pub(crate) access: Access<'c>,
    /// The maximum number of `view` sessions is reached.
    #[cfg(feature = "noise")]
    pub(crate) views_taken: bool,
    #[cfg(feature = "noise")]
    pub(crate) handshake: crate::serve::secure::Turn,
    /// The budget of its class is used up: nothing is begun.
    pub(crate) is_deferred: bool,
    /// Set if the session has work that was deferred.
    pub(crate) was_deferred: bool,
    pub(crate) budget: BudgetUse,
    /// No further frame is begun after this time.
    pub(crate) until_ns: u64,
    /// Set if work was left at that time.
    pub(crate) is_unfinished: bool,
}

impl Context<'_, '_, '_> {
    /// Whether the time of this poll is used up.
    pub(super) fn is_out_of_time(&mut self) -> bool {
        let is_late = self.agent.platform().now_ns() >= self.until_ns;
        self.is_unfinished |= is_late;
        is_late
    }
}

/// The use of the budget for the agent's network work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BudgetUse {
    pub(crate) share_permille: u32,
    pub(crate) waited_ns: u64,
}

/// The agent's own network work, in ns: what it ran for, and the longest piece by the clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    /// When counting began.
    pub(crate) since_ns: u64,
    pub(crate) total_ns: u64,
    pub(crate) longest_ns: u64,
}
