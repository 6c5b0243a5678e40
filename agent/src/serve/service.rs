//! The service: all conversations with clients, and the recorder that they share. It does no I/O; a
//! server moves the bytes.

use core::fmt;

use crate::agent::{Agent, OwnWork};
use crate::ground::platform::Platform;
use crate::serve::access::Access;
use crate::serve::conversations::{self, Conversations};

/// The maximum number of simultaneous conversations.
pub const SESSIONS: usize = 4;

/// A poll begins no further work after this time; the next poll continues.
pub(crate) const BUDGET_NS: u64 = 1_000_000;

/// One conversation of a [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    pub(super) index: usize,
    /// The number of earlier conversations in the same place.
    pub(super) number: u64,
}

/// Serves an agent to its clients. Call it from the guest's loop; ticks may interrupt it anywhere.
///
/// Clients may be hostile. A client that has not authenticated itself, with a key if the agent has
/// [keys](Access), is disconnected after 2 s. If all sessions are in use, it is replaced by a
/// new connection after 0.2 s, or after 1 s if its handshake was valid. The work of a single call
/// is bounded: between [`begin_work`](Self::begin_work) and [`end_work`](Self::end_work), or in one
/// call outside of them, nothing is begun after 1 ms. The share of a CPU that all calls take over
/// time is bounded [too](Self::set_cpu_share), and a part of it is reserved for each role; work
/// that exceeds it is deferred, and [`advance`](Self::advance) returns until when.
#[derive(Debug)]
pub struct Service<'a, 'm, P: Platform> {
    pub(super) agent: &'a Agent<'m, P>,
    pub(super) conversations: Conversations<'a>,
}

/// Why an agent cannot be served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ServeError {
    /// The agent has a service already.
    Served,
    /// [`Access`] requires a key, but there is none: nobody could be served.
    NoKeys,
    /// There are keys, but the platform has no [randomness](Platform::random): others could decrypt
    /// the conversations.
    NoRandomness,
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Served => "the agent has a service already",
            Self::NoKeys => {
                "there are no keys, so nobody could be served; add one, or use \
                             `Access::Open`"
            }
            Self::NoRandomness => {
                "the platform has no source of random numbers, so keys give no protection; nobody \
                 is served"
            }
        })
    }
}

impl core::error::Error for ServeError {}

impl<'a, 'm, P: Platform> Service<'a, 'm, P> {
    /// Creates the service of `agent` for the clients that `access` allows. Errors are also
    /// [logged](Platform::log).
    ///
    /// # Errors
    ///
    /// [`ServeError`].
    pub fn new(agent: &'a Agent<'m, P>, access: Access<'a>) -> Result<Self, ServeError> {
        let recordings = conversations::claim(agent, access)?;
        Ok(Self { agent, conversations: Conversations::new(agent, access, recordings) })
    }

    /// Serves the clients that `access` allows from now on, for example because keys have changed.
    /// All conversations end, and recordings go on. After an error everything is as before.
    ///
    /// # Errors
    ///
    /// [`ServeError::NoKeys`] and [`ServeError::NoRandomness`].
    pub fn set_access(&mut self, access: Access<'a>) -> Result<(), ServeError> {
        self.conversations.set_access(self.agent, access)
    }

    /// Sets the share of a CPU that the agent's network work may take over time, in thousandths, 1
    /// to 1000; the default is [`DEFAULT_CPU_SHARE_PERMILLE`](crate::DEFAULT_CPU_SHARE_PERMILLE).
    /// Half of it is reserved for clients with the role `control` (all clients of an open agent),
    /// three tenths for the role `view`, two tenths for clients that have not authenticated
    /// themselves; unused parts go to the others. A client whose part is used up waits; its
    /// connection stays open. With 1000, a whole CPU, nothing is deferred.
    pub fn set_cpu_share(&mut self, permille: u32) {
        self.conversations.set_cpu_share(permille);
    }

    /// The agent that is served.
    pub fn agent(&self) -> &'a Agent<'m, P> {
        self.agent
    }

    /// Begins a conversation with a client that has connected. `None` if all sessions are in use:
    /// send [`busy_answer`](Self::busy_answer) and close the connection.
    pub fn open(&mut self) -> Option<SessionId> {
        self.conversations.open(self.agent)
    }

    /// When there will be a session for a waiting connection, if there is none now: at that time an
    /// unauthenticated client can be replaced. `None`: call [`open`](Self::open) at once, which may
    /// fail.
    ///
    /// A server that leaves connections in their queue until then serves all of them in order; one
    /// that rejects them gives sessions to those that connect most often.
    pub fn place_from_ns(&self) -> Option<u64> {
        self.conversations.place_from_ns(self.agent)
    }

    /// Writes the message to send on a connection without a session, before it is closed. Returns
    /// its length in bytes; a buffer of 128 bytes is always large enough.
    pub fn busy_answer(&self, buffer: &mut [u8]) -> usize {
        self.conversations.busy_answer(buffer)
    }

    /// Passes in bytes that a client has sent; returns how many were accepted. Offer the others
    /// again after [`transmit`](Self::transmit).
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        self.conversations.receive(self.agent, id, bytes)
    }

    /// Copies bytes for a client into `buffer`; returns how many. There may be more if the buffer
    /// is full, or if [`advance`](Self::advance) wants to be called at once.
    pub fn transmit(&mut self, id: SessionId, buffer: &mut [u8]) -> usize {
        self.conversations.transmit(self.agent, id, buffer)
    }

    /// Whether the connection should be closed: everything was sent, or the session was ended.
    pub fn is_over(&self, id: SessionId) -> bool {
        self.conversations.is_over(self.agent, id)
    }

    /// Whether the connection should be closed at once: the session was ended, and the client would
    /// not read the bytes still on their way to it.
    pub fn is_given_up(&self, id: SessionId) -> bool {
        self.conversations.is_given_up(self.agent, id)
    }

    /// Reports whether the connection still holds bytes from [`transmit`](Self::transmit). A client
    /// that does not read them is disconnected after the same time as one that has more bytes
    /// waiting here.
    pub fn set_undelivered(&mut self, id: SessionId, has_undelivered: bool) {
        self.conversations.set_undelivered(id, has_undelivered);
    }

    /// Whether a client with a request waits for its part of the [share](Self::set_cpu_share):
    /// until the time that [`advance`](Self::advance) returned, nothing is accepted from it or sent
    /// to it, so its connection should not wake the guest.
    pub fn is_deferred(&self, id: SessionId) -> bool {
        self.conversations.is_deferred(self.agent, id)
    }

    /// Ends a conversation whose connection was closed. Recordings that the client has started
    /// continue.
    pub fn close(&mut self, id: SessionId) {
        self.conversations.close(self.agent, id);
    }

    /// Does the work that is due: begins and ends recordings, and ends the sessions of silent
    /// clients. Returns when to call it again, on the monotonic clock in ns.
    pub fn advance(&mut self) -> Option<u64> {
        self.conversations.advance(self.agent)
    }

    /// Calls `work` within the time of the current work, or within that of one poll.
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

    /// Whether the time of the current work is used up. Then some of it is left for the next poll.
    #[cfg(any(feature = "embedded-io", feature = "smoltcp"))]
    pub(crate) fn is_out_of_time(&mut self) -> bool {
        self.conversations.is_out_of_time(self.agent)
    }

    /// Marks what follows as the agent's own network work, in its time and in samples, until the
    /// guard is passed to [`end_work`](Self::end_work).
    pub fn begin_work(&mut self) -> Work<'m> {
        self.conversations.begin_work(self.agent)
    }

    /// Ends the work begun by [`begin_work`](Self::begin_work).
    pub fn end_work(&mut self, work: Work<'m>) {
        self.conversations.end_work(self.agent, work);
    }
}

/// The agent's own work in progress.
pub struct Work<'m> {
    pub(super) started_ns: u64,
    pub(super) work_ns: u64,
    pub(super) _mark: OwnWork<'m>,
}
