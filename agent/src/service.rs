//! The service: all conversations with clients, and the recorder they share. No I/O of its own; a
//! server moves the bytes.

use unikprof_proto::message::Peers;

use crate::agent::{Agent, OwnWork};
use crate::platform::Platform;
use crate::recorder::{RETRY_NS, Recorder};
use crate::session::{Busy, Context, Fault, Session};

/// How many conversations there can be at a time.
pub const SESSIONS: usize = 4;

/// One conversation of a [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(usize);

/// Serves one agent to its clients. Call it from the guest's loop; ticks may interrupt it anywhere.
#[derive(Debug)]
pub struct Service<'a, 'm, P: Platform> {
    agent: &'a Agent<'m, P>,
    recorder: Recorder,
    sessions: [Session; SESSIONS],
    peers: Peers,
    server: Busy,
}

impl<'a, 'm, P: Platform> Service<'a, 'm, P> {
    /// The service of `agent`; `None` where it has one already.
    pub fn new(agent: &'a Agent<'m, P>) -> Option<Self> {
        agent.claim_service().then(|| Self {
            agent,
            recorder: Recorder::default(),
            sessions: core::array::from_fn(|_| Session::default()),
            peers: Peers::default(),
            server: Busy::default(),
        })
    }

    /// The agent that is served.
    pub fn agent(&self) -> &'a Agent<'m, P> {
        self.agent
    }

    /// Begins a conversation with a client that has connected. `None`: all are taken, and the
    /// connection should be closed.
    pub fn open(&mut self) -> Option<SessionId> {
        let now_ns = self.agent.platform().now_ns();
        let Some(index) = self.sessions.iter().position(Session::is_free) else {
            self.peers.turned_away += 1;
            return None;
        };
        self.sessions[index].open(now_ns);
        Some(SessionId(index))
    }

    /// Takes bytes that a client has sent; answers how many. Offer the rest again after
    /// [`transmit`](Self::transmit).
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        let now_ns = self.agent.platform().now_ns();
        self.sessions[id.0].receive(bytes, now_ns)
    }

    /// Fills `buffer` with bytes for a client; answers how many. A full buffer means that there may
    /// be more.
    pub fn transmit(&mut self, id: SessionId, buffer: &mut [u8]) -> usize {
        let now_ns = self.agent.platform().now_ns();
        let sessions = self
            .sessions
            .iter()
            .filter(|session| !session.is_free())
            .count() as u32;
        let mut context = Context {
            agent: self.agent,
            recorder: &mut self.recorder,
            now_ns,
            sessions,
            peers: self.peers,
            server: self.server,
        };
        self.sessions[id.0].transmit(&mut context, buffer)
    }

    /// Whether the connection should be closed: everything was sent, or the client was given up.
    pub fn is_over(&self, id: SessionId) -> bool {
        self.sessions[id.0].is_over()
    }

    /// Whether the connection should be closed at once: the client was given up, and would not take
    /// what is still on its way to it.
    pub fn is_given_up(&self, id: SessionId) -> bool {
        self.sessions[id.0].is_given_up()
    }

    /// Ends a conversation whose connection is gone. What it had started goes on.
    pub fn close(&mut self, id: SessionId) {
        let session = &mut self.sessions[id.0];
        match session.fault() {
            Some(Fault::Malformed) => self.peers.malformed += 1,
            Some(Fault::TimedOut) => self.peers.timed_out += 1,
            None => {}
        }
        session.close();
    }

    /// Does what time has come for: recordings begin and end, silent clients are given up. Answers
    /// when to come back, on the monotonic clock in ns.
    pub fn advance(&mut self) -> Option<u64> {
        let now_ns = self.agent.platform().now_ns();
        let mut next = self.recorder.advance(self.agent, self.server.total_ns);
        for session in &mut self.sessions {
            if session
                .deadline_ns()
                .is_some_and(|deadline| now_ns >= deadline)
            {
                session.give_up(Fault::TimedOut);
            }
            let retry = session.wants_retry().then_some(now_ns + RETRY_NS);
            let close = session.is_given_up().then_some(now_ns);
            for deadline in [session.deadline_ns(), retry, close].into_iter().flatten() {
                next = Some(next.map_or(deadline, |next| next.min(deadline)));
            }
        }
        next
    }

    /// Marks what follows as the agent's own network work, in time and in samples, until the guard
    /// is given to [`end_work`](Self::end_work).
    pub fn begin_work(&self) -> Work<'m> {
        Work {
            started_ns: self.agent.platform().now_ns(),
            _mark: self.agent.own_work(),
        }
    }

    /// Ends what [`begin_work`](Self::begin_work) began.
    pub fn end_work(&mut self, work: Work<'m>) {
        let now_ns = self.agent.platform().now_ns();
        let took_ns = now_ns.saturating_sub(work.started_ns);
        self.server.total_ns += took_ns;
        self.server.longest_ns = self.server.longest_ns.max(took_ns);
    }
}

impl<P: Platform> Drop for Service<'_, '_, P> {
    fn drop(&mut self) {
        self.agent.release_service();
    }
}

/// Work of the agent's own, under way.
pub struct Work<'m> {
    started_ns: u64,
    _mark: OwnWork<'m>,
}
