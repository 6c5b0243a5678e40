//! The service: all conversations with clients, and the recorder they share. No I/O of its own; a
//! server moves the bytes.

use core::fmt;

use unikprof_proto::message::{Peers, Start};
#[cfg(feature = "noise")]
use unikprof_proto::ring::kind;

use crate::agent::{Agent, OwnWork};
use crate::ground::platform::Platform;
use crate::record::recorder::{Client, Outcome, RETRY_NS, Recorder};
use crate::serve::access::Access;
use crate::serve::admission::{self, Place};
use crate::serve::budget::{Budget, Class};
#[cfg(feature = "noise")]
use crate::serve::secure::Pace;
use crate::serve::session::{self, BudgetUse, Busy, Context, Fault, Session};

/// How many conversations there can be at a time.
pub const SESSIONS: usize = 4;

/// A poll begins nothing more when it has taken so long; what is left is the next one's.
pub(crate) const BUDGET_NS: u64 = 1_000_000;

/// One conversation of a [`Service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    index: usize,
    /// How many had the place before.
    number: u64,
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
    agent: &'a Agent<'m, P>,
    access: Access<'a>,
    recorder: Recorder<'a>,
    sessions: [Session; SESSIONS],
    /// How many conversations each place has had.
    numbers: [u64; SESSIONS],
    #[cfg(feature = "noise")]
    pace: Pace,
    /// How often the agent had been resumed when the sealed sessions began.
    #[cfg(feature = "noise")]
    gaps: u32,
    peers: Peers,
    server: Busy,
    budget: Budget,
    /// When the work under way is to end.
    until_ns: Option<u64>,
    /// Something was left for the next poll.
    is_unfinished: bool,
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
        #[cfg(feature = "noise")]
        if let Err(error) = check(agent.platform(), access) {
            let text = crate::ground::text::Text::format(format_args!("unikprof: {error}"));
            agent.platform().log(text.as_str());
            return Err(error);
        }
        let recordings = agent.claim_recordings().ok_or(ServeError::Served)?;
        let now_ns = agent.platform().now_ns();
        Ok(Self {
            agent,
            access,
            recorder: Recorder::new(recordings),
            sessions: core::array::from_fn(|_| Session::default()),
            numbers: [0; SESSIONS],
            #[cfg(feature = "noise")]
            pace: Pace::default(),
            #[cfg(feature = "noise")]
            gaps: agent.gaps(),
            peers: Peers::default(),
            server: Busy {
                since_ns: now_ns,
                ..Busy::default()
            },
            budget: Budget::new(now_ns),
            until_ns: None,
            is_unfinished: false,
        })
    }

    /// Sets how much of a CPU the agent's network work may take over time, in thousandths, 1 to 1000;
    /// [`DEFAULT_CPU_SHARE_PERMILLE`](crate::DEFAULT_CPU_SHARE_PERMILLE) if it is never called. Half of it is kept for
    /// clients with the role `control` (in an open agent all clients have it), three tenths for the role `view`, two
    /// tenths for clients that have not shown a key yet; a part that is not used is the others'. A client whose part is
    /// used up waits; its connection stays. With 1000, a whole CPU, nothing is deferred.
    pub fn set_cpu_share(&mut self, permille: u32) {
        self.budget.set_share(permille);
    }

    /// The agent that is served.
    pub fn agent(&self) -> &'a Agent<'m, P> {
        self.agent
    }

    /// Begins a conversation with a client that has connected. `None`: all are taken, and the
    /// connection should be told so with [`busy_answer`](Self::busy_answer), and closed.
    pub fn open(&mut self) -> Option<SessionId> {
        self.end_suspended();
        let now_ns = self.agent.platform().now_ns();
        let index = match admission::place(&self.sessions, now_ns) {
            Some(Place::Free(index)) => index,
            Some(Place::Taken(index)) => {
                // Its connection finds itself given up.
                self.count_end(index, Some(Fault::Displaced));
                index
            }
            None => {
                self.peers.turned_away += 1;
                return None;
            }
        };
        self.numbers[index] += 1;
        self.sessions[index].open(self.access, now_ns);
        Some(SessionId {
            index,
            number: self.numbers[index],
        })
    }

    /// From when on there is a session for a client that waits, where there is none now: a stranger is here
    /// that makes room then. `None`: [`open`](Self::open) it at once, which may turn it away.
    ///
    /// A server that leaves newcomers in the queue they came in until then lets everybody have a turn;
    /// one that turns them away gives the place to whoever knocks most often.
    pub fn place_from_ns(&self) -> Option<u64> {
        let now_ns = self.agent.platform().now_ns();
        let place_ns = match admission::place(&self.sessions, now_ns) {
            Some(_) => None,
            None => admission::place_from_ns(&self.sessions),
        };
        // A flood of connections waits for its part of the share.
        let allowed_ns = self.budget.allows_from_ns(Class::Unauthenticated, now_ns);
        let allowed_ns = (allowed_ns > now_ns).then_some(allowed_ns);
        place_ns.max(allowed_ns)
    }

    /// What to send on a connection for which there is no session, before it is closed. Answers its
    /// length in bytes; a buffer of 128 bytes is large enough.
    pub fn busy_answer(&self, buffer: &mut [u8]) -> usize {
        session::busy_answer(self.access, buffer)
    }

    /// Takes bytes that a client has sent; answers how many. Offer the rest again after
    /// [`transmit`](Self::transmit).
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        self.end_suspended();
        let now_ns = self.agent.platform().now_ns();
        self.session(id)
            .map_or(bytes.len(), |session| session.receive(bytes, now_ns))
    }

    /// Fills `buffer` with bytes for a client; answers how many. A full buffer means that there may
    /// be more; so does [`advance`](Self::advance) that wants to be called at once.
    pub fn transmit(&mut self, id: SessionId, buffer: &mut [u8]) -> usize {
        let SessionId { index, .. } = id;
        self.end_suspended();
        if self.session(id).is_none() {
            return 0;
        }
        let platform = self.agent.platform();
        let (now_ns, work_ns) = (platform.now_ns(), platform.work_ns());
        let class = self.sessions[index].class();
        let is_allowed = self.budget.allows(class, now_ns);
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
            clients: self.sessions.each_ref().map(Session::client_id),
            peers: &mut self.peers,
            server: self.server,
            // The handshakes of unauthenticated clients have a pace of their own, and admission waits instead.
            is_deferred: !is_allowed && class != Class::Unauthenticated,
            was_deferred: false,
            budget: BudgetUse {
                share_permille: self.budget.share_permille(),
                waited_ns: self.budget.waited_ns(),
            },
            access: self.access,
            #[cfg(feature = "noise")]
            views_taken: admission::views_taken(&self.sessions),
            #[cfg(feature = "noise")]
            handshake: self.pace.turn(&self.sessions, index, now_ns),
            until_ns: self.until_ns.unwrap_or(now_ns.saturating_add(BUDGET_NS)),
            is_unfinished: false,
        };
        let length = self.sessions[index].transmit(&mut context, buffer);
        self.is_unfinished |= context.is_unfinished;
        let was_deferred = context.was_deferred;
        #[cfg(not(feature = "noise"))]
        let has_shaken_hands = false;
        #[cfg(feature = "noise")]
        let has_shaken_hands = context.handshake.was_made;
        #[cfg(feature = "noise")]
        if has_shaken_hands {
            self.pace.done(index, now_ns);
        }
        let took_ns = platform.work_ns().saturating_sub(work_ns);
        // A look at a client that waits is not its work: the look must not use up what the client waits for.
        if is_allowed || has_shaken_hands {
            self.budget.charge(class, took_ns);
        }
        if was_deferred {
            self.budget.wait(class, now_ns);
        }
        if self.end_suspended() && self.sessions[index].is_given_up() {
            // An interrupt suspended the guest while the bytes were being made.
            buffer[..length].fill(0);
            return 0;
        }
        length
    }

    /// Whether the connection should be closed: everything was sent, or the client was given up.
    pub fn is_over(&self, id: SessionId) -> bool {
        self.is_given_up(id) || self.sessions[id.index].is_over()
    }

    /// Whether the connection should be closed at once: the client was given up, and would not take
    /// what is still on its way to it.
    pub fn is_given_up(&self, id: SessionId) -> bool {
        let is_current = self.is_current(id);
        !is_current || self.sessions[id.index].is_given_up() || self.is_suspended(id.index)
    }

    /// Says whether the connection still holds some of what [`transmit`](Self::transmit) gave it: a client
    /// that does not take it is given up as soon as one that is in the way of more.
    pub fn set_undelivered(&mut self, id: SessionId, has_undelivered: bool) {
        if self.is_current(id) {
            self.sessions[id.index].set_undelivered(has_undelivered);
        }
    }

    /// Whether the client waits for its part of the [share](Self::set_cpu_share): until [`advance`](Self::advance)
    /// says, nothing is taken from it or sent to it, so its connection should not wake the guest.
    pub fn is_deferred(&self, id: SessionId) -> bool {
        let now_ns = self.agent.platform().now_ns();
        let class = self.sessions.get(id.index).map(Session::class);
        self.is_current(id)
            && class.is_some_and(|class| {
                class != Class::Unauthenticated
                    && self.budget.allows_from_ns(class, now_ns) > now_ns
            })
    }

    /// Ends a conversation whose connection is gone. What it had started goes on.
    pub fn close(&mut self, id: SessionId) {
        if self.is_current(id) {
            self.sessions[id.index].cut();
            self.count_end(id.index, None);
            self.sessions[id.index].close();
        }
    }

    /// Does what time has come for: recordings begin and end, silent clients are given up. Answers
    /// when to come back, on the monotonic clock in ns.
    pub fn advance(&mut self) -> Option<u64> {
        self.end_suspended();
        let now_ns = self.agent.platform().now_ns();
        let clients = self.sessions.each_ref().map(Session::client_id);
        self.recorder.update_leases(&clients, now_ns);
        let recorder = self.recorder.advance(self.agent, self.server.total_ns);
        self.agent.note_times(now_ns);
        let unfinished = core::mem::take(&mut self.is_unfinished).then_some(now_ns);
        let mut next = None;
        let mut at = |deadline: u64| {
            next = Some(next.map_or(deadline, |next: u64| next.min(deadline)));
        };
        for session in &mut self.sessions {
            if session
                .deadline_ns()
                .is_some_and(|deadline| now_ns >= deadline)
            {
                session.give_up(Fault::TimedOut);
            }
            let retry = session.wants_retry().then(|| {
                let allowed_ns = self.budget.allows_from_ns(session.class(), now_ns);
                allowed_ns.max(now_ns + RETRY_NS)
            });
            let close = session.is_given_up().then_some(now_ns);
            let deadlines = [session.deadline_ns(), retry, close];
            deadlines.into_iter().flatten().for_each(&mut at);
        }
        #[cfg(feature = "noise")]
        if let Some(at_ns) = self.pace.deadline_ns(&self.sessions) {
            at(at_ns.max(now_ns));
        }
        let deferred = self.budget.deadline_ns(now_ns);
        [recorder, unfinished, deferred]
            .into_iter()
            .flatten()
            .for_each(at);
        next
    }

    /// Does `work` within the time of the work under way, or within that of one poll.
    #[cfg(feature = "embedded-io")]
    pub(crate) fn limited<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        if self.until_ns.is_some() {
            return work(self);
        }
        self.until_ns = Some(self.agent.platform().now_ns().saturating_add(BUDGET_NS));
        let done = work(self);
        self.until_ns = None;
        done
    }

    /// Whether the work under way has had its time. Then something is left for the next poll.
    #[cfg(any(feature = "embedded-io", feature = "smoltcp"))]
    pub(crate) fn is_out_of_time(&mut self) -> bool {
        let is_late = self
            .until_ns
            .is_some_and(|until_ns| self.agent.platform().now_ns() >= until_ns);
        self.is_unfinished |= is_late;
        is_late
    }

    /// Ends all sealed sessions if the guest was suspended since they began; returns whether it was.
    ///
    /// A saved guest can be restored more than once, and the original may run on. All copies then hold the same
    /// keys and nonces: two different records sealed with one nonce would reveal both plaintexts.
    fn end_suspended(&mut self) -> bool {
        #[cfg(feature = "noise")]
        {
            let gaps = self.agent.gaps();
            if gaps != self.gaps {
                self.sessions.iter_mut().for_each(Session::end_sealed);
                self.gaps = gaps;
                return true;
            }
        }
        false
    }

    /// Whether a session is sealed, and the guest was suspended since it began.
    fn is_suspended(&self, index: usize) -> bool {
        #[cfg(feature = "noise")]
        let is_suspended = self.agent.gaps() != self.gaps && self.sessions[index].is_sealed();
        #[cfg(not(feature = "noise"))]
        let (_, is_suspended) = (index, false);
        is_suspended
    }

    fn is_current(&self, id: SessionId) -> bool {
        self.numbers.get(id.index) == Some(&id.number)
    }

    fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        self.is_current(id).then(|| &mut self.sessions[id.index])
    }

    /// Counts a conversation that has ended, once: for its own fault, or for the one given.
    fn count_end(&mut self, index: usize, otherwise: Option<Fault>) {
        if let Some(fault) = self.sessions[index].fault().or(otherwise) {
            #[cfg(feature = "noise")]
            if fault == Fault::BadKey {
                self.agent.note_here(kind::BAD_KEY);
            }
            fault.count(&mut self.peers);
        }
    }

    /// Starts a recording; answers its id and when it begins.
    pub(crate) fn start(&mut self, request: &Start<'_>) -> Outcome<(u64, u64)> {
        self.recorder.start(
            self.agent,
            &Client::default(),
            request,
            self.server.total_ns,
        )
    }

    /// Marks what follows as the agent's own network work, in time and in samples, until the guard
    /// is given to [`end_work`](Self::end_work).
    pub fn begin_work(&mut self) -> Work<'m> {
        let platform = self.agent.platform();
        let (started_ns, work_ns) = (platform.now_ns(), platform.work_ns());
        self.until_ns = Some(started_ns.saturating_add(BUDGET_NS));
        Work {
            started_ns,
            work_ns,
            _mark: self.agent.own_work(),
        }
    }

    /// Ends what [`begin_work`](Self::begin_work) began.
    pub fn end_work(&mut self, work: Work<'m>) {
        let now_ns = self.agent.platform().now_ns();
        let took_ns = now_ns.saturating_sub(work.started_ns);
        self.until_ns = None;
        self.server.total_ns += took_ns;
        self.server.longest_ns = self.server.longest_ns.max(took_ns);
        let worked_ns = self.agent.platform().work_ns().saturating_sub(work.work_ns);
        self.budget.end_work(worked_ns);
    }
}

/// Whether an agent on `platform` can be served so.
#[cfg(feature = "noise")]
fn check<P: Platform>(platform: &P, access: Access<'_>) -> Result<(), ServeError> {
    let Some(keys) = access.keys() else {
        return Ok(());
    };
    if keys.is_empty() {
        return Err(ServeError::NoKeys);
    }
    // A source that is broken says the same again and again.
    let words: [Option<u64>; 4] = core::array::from_fn(|_| platform.random());
    if words.contains(&None) || words.iter().all(|word| *word == words[0]) {
        return Err(ServeError::NoRandomness);
    }
    Ok(())
}

/// Work of the agent's own, under way.
pub struct Work<'m> {
    started_ns: u64,
    work_ns: u64,
    _mark: OwnWork<'m>,
}
