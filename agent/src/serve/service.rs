//! The service: all conversations with clients, and the recorder they share. No I/O of its own; a
//! server moves the bytes.

use core::fmt;

use crate::agent::{Agent, OwnWork};
use crate::ground::platform::Platform;
use crate::serve::access::Access;
use crate::serve::conversations::{self, Conversations};

/// How many conversations there can be at a time.
pub const SESSIONS: usize = 4;

/// A poll begins nothing more when it has taken so long; what is left is the next one's.
pub(crate) const BUDGET_NS: u64 = 1_000_000;

/// One conversation of a [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    pub(super) index: usize,
    /// How many had the place before.
    pub(super) number: u64,
}

/// Serves one agent to its clients. Call it from the guest's loop; ticks may interrupt it anywhere.
///
/// Clients may be hostile. One that has not shown who it is, by a key where the agent has
/// [keys](Access::Keys), has 2 s; where all sessions are taken it makes room for a newcomer after a
/// fifth of a second, after half a second where its handshake was good. What a single call does is
/// bounded: between [`begin_work`](Self::begin_work) and [`end_work`](Self::end_work), or in one call
/// outside of them, nothing is begun after 1 ms. How much of a CPU all calls may take over time is bounded as well, by
/// [a share](Self::set_cpu_share) of which a part is kept for each role; work that exceeds it is deferred, and
/// [`advance`](Self::advance) says until when.
#[derive(Debug)]
pub struct Service<'a, 'm, P: Platform> {
    pub(super) agent: &'a Agent<'m, P>,
    pub(super) conversations: Conversations<'a>,
}

/// Why an agent cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// It has a service already.
    Served,
    /// [`Access::Keys`] without a key: nobody could be served.
    NoKeys,
    /// There are keys, and the platform has no [randomness](Platform::random): what is encrypted could
    /// be read by others.
    NoRandomness,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Served => "the agent has a service already",
            Self::NoKeys => "there are no keys, so nobody could be served; add one, or say `Access::Open`",
            Self::NoRandomness => {
                "the platform has no source of random numbers, so keys protect nothing; nobody is served"
            }
        })
    }
}

impl core::error::Error for ServeError {}

impl<'a, 'm, P: Platform> Service<'a, 'm, P> {
    /// The service of `agent` for those whom `access` names. What it refuses for is also
    /// [logged](Platform::log).
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn new(agent: &'a Agent<'m, P>, access: Access<'a>) -> Result<Self, ServeError> {
        let recordings = conversations::claim(agent, access)?;
        Ok(Self {
            agent,
            conversations: Conversations::new(agent, access, recordings),
        })
    }

    /// Sets how much of a CPU the agent's network work may take over time, in thousandths, 1 to 1000;
    /// [`DEFAULT_CPU_SHARE_PERMILLE`](crate::DEFAULT_CPU_SHARE_PERMILLE) if it is never called. Half of it is kept for
    /// clients with the role `control` (in an open agent all clients have it), three tenths for the role `view`, two
    /// tenths for clients that have not shown a key yet; a part that is not used is the others'. A client whose part is
    /// used up waits; its connection stays. With 1000, a whole CPU, nothing is deferred.
    pub fn set_cpu_share(&mut self, permille: u32) {
        self.conversations.set_cpu_share(permille);
    }

    /// The agent that is served.
    pub fn agent(&self) -> &'a Agent<'m, P> {
        self.agent
    }

    /// Begins a conversation with a client that has connected. `None`: all are taken, and the
    /// connection should be told so with [`busy_answer`](Self::busy_answer), and closed.
    pub fn open(&mut self) -> Option<SessionId> {
        self.conversations.open(self.agent)
    }

    /// From when on there is a session for a client that waits, where there is none now: a stranger is here
    /// that makes room then. `None`: [`open`](Self::open) it at once, which may turn it away.
    ///
    /// A server that leaves newcomers in the queue they came in until then lets everybody have a turn;
    /// one that turns them away gives the place to whoever knocks most often.
    pub fn place_from_ns(&self) -> Option<u64> {
        self.conversations.place_from_ns(self.agent)
    }

    /// What to send on a connection for which there is no session, before it is closed. Answers its
    /// length in bytes; a buffer of 128 bytes is large enough.
    pub fn busy_answer(&self, buffer: &mut [u8]) -> usize {
        self.conversations.busy_answer(buffer)
    }

    /// Takes bytes that a client has sent; answers how many. Offer the rest again after
    /// [`transmit`](Self::transmit).
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        self.conversations.receive(self.agent, id, bytes)
    }

    /// Fills `buffer` with bytes for a client; answers how many. A full buffer means that there may
    /// be more; so does [`advance`](Self::advance) that wants to be called at once.
    pub fn transmit(&mut self, id: SessionId, buffer: &mut [u8]) -> usize {
        self.conversations.transmit(self.agent, id, buffer)
    }

    /// Whether the connection should be closed: everything was sent, or the client was given up.
    pub fn is_over(&self, id: SessionId) -> bool {
        self.conversations.is_over(self.agent, id)
    }

    /// Whether the connection should be closed at once: the client was given up, and would not take
    /// what is still on its way to it.
    pub fn is_given_up(&self, id: SessionId) -> bool {
        self.conversations.is_given_up(self.agent, id)
    }

    /// Says whether the connection still holds some of what [`transmit`](Self::transmit) gave it: a client
    /// that does not take it is given up as soon as one that is in the way of more.
    pub fn set_undelivered(&mut self, id: SessionId, has_undelivered: bool) {
        self.conversations.set_undelivered(id, has_undelivered);
    }

    /// Whether a client that has asked for something waits for its part of the [share](Self::set_cpu_share): until
    /// [`advance`](Self::advance) says, nothing is taken from it or sent to it, so its connection should not wake the
    /// guest.
    pub fn is_deferred(&self, id: SessionId) -> bool {
        self.conversations.is_deferred(self.agent, id)
    }

    /// Ends a conversation whose connection is gone. What it had started goes on.
    pub fn close(&mut self, id: SessionId) {
        self.conversations.close(self.agent, id);
    }

    /// Does what time has come for: recordings begin and end, silent clients are given up. Answers
    /// when to come back, on the monotonic clock in ns.
    pub fn advance(&mut self) -> Option<u64> {
        self.conversations.advance(self.agent)
    }

    /// Does `work` within the time of the work under way, or within that of one poll.
    #[cfg(feature = "embedded-io")]
    pub(crate) fn limited<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        if self.conversations.until_ns.is_some() {
            return work(self);
        }
        self.conversations.until_ns =
            Some(self.agent.platform().now_ns().saturating_add(BUDGET_NS));
        let done = work(self);
        self.conversations.until_ns = None;
        done
    }

    /// Whether the work under way has had its time. Then something is left for the next poll.
    #[cfg(any(feature = "embedded-io", feature = "smoltcp"))]
    pub(crate) fn is_out_of_time(&mut self) -> bool {
        self.conversations.is_out_of_time(self.agent)
    }

    /// Marks what follows as the agent's own network work, in time and in samples, until the guard
    /// is given to [`end_work`](Self::end_work).
    pub fn begin_work(&mut self) -> Work<'m> {
        self.conversations.begin_work(self.agent)
    }

    /// Ends what [`begin_work`](Self::begin_work) began.
    pub fn end_work(&mut self, work: Work<'m>) {
        self.conversations.end_work(self.agent, work);
    }
}

/// Work of the agent's own, under way.
pub struct Work<'m> {
    pub(super) started_ns: u64,
    pub(super) work_ns: u64,
    pub(super) _mark: OwnWork<'m>,
}
