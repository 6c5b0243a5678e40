//! The conversations of a [`Service`](super::service::Service): everything except its agent.
//!
//! Each method takes the agent as a trait object, so that the code exists only once for all
//! platforms. The methods of the same names in `Service` describe them.

use unikprof_proto::message::Peers;
#[cfg(feature = "noise")]
use unikprof_proto::ring::kind;

use crate::agent::AnyAgent;
use crate::agent::recordings::Recordings;
use crate::ground::claim::Claim;
use crate::ground::platform::Platform;
use crate::record::recorder::{RETRY_NS, Recorder};
use crate::serve::access::Access;
use crate::serve::admission::{self, Place};
use crate::serve::budget::{Budget, Class};
#[cfg(feature = "noise")]
use crate::serve::secure::Pace;
use crate::serve::service::{BUDGET_NS, SESSIONS, ServeError, SessionId, Work};
use crate::serve::session::{self, BudgetUse, Busy, Context, Fault, Session};

/// The state of a service, except its agent.
#[derive(Debug)]
pub(super) struct Conversations<'a> {
    access: Access<'a>,
    pub(super) recorder: Recorder<'a>,
    sessions: [Session; SESSIONS],
    /// The number of conversations that each place has had.
    numbers: [u64; SESSIONS],
    #[cfg(feature = "noise")]
    pace: Pace,
    /// The number of suspensions of the guest when the encrypted sessions began.
    #[cfg(feature = "noise")]
    gaps: u32,
    peers: Peers,
    pub(super) server: Busy,
    budget: Budget,
    /// When the current work must end.
    pub(super) until_ns: Option<u64>,
    /// Work was left for the next poll.
    is_unfinished: bool,
}

impl<'a> Conversations<'a> {
    /// Creates the conversations of an agent whose recordings were [claimed](claim) for them.
    #[inline]
    pub(super) fn new(
        agent: &AnyAgent<'_, '_>,
        access: Access<'a>,
        recordings: Claim<'a, Recordings>,
    ) -> Self {
        let now_ns = agent.platform().now_ns();
        Self {
            access,
            recorder: Recorder::new(recordings),
            sessions: Session::all(),
            numbers: [0; SESSIONS],
            #[cfg(feature = "noise")]
            pace: Pace::default(),
            #[cfg(feature = "noise")]
            gaps: agent.gaps(),
            peers: Peers::default(),
            server: Busy { since_ns: now_ns, ..Busy::default() },
            budget: Budget::new(now_ns),
            until_ns: None,
            is_unfinished: false,
        }
    }

    pub(super) fn set_access(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        access: Access<'a>,
    ) -> Result<(), ServeError> {
        check(agent.platform(), access)?;
        self.access = access;
        let sessions = self.sessions.iter_mut();
        sessions.filter(|session| !session.is_free()).for_each(Session::abandon);
        Ok(())
    }

    pub(super) fn set_cpu_share(&mut self, permille: u32) {
        self.budget.set_share(permille);
    }

    #[inline(never)]
    pub(super) fn open(&mut self, agent: &AnyAgent<'_, '_>) -> Option<SessionId> {
        self.end_suspended(agent);
        let now_ns = agent.platform().now_ns();
        let index = match admission::place(&self.sessions, now_ns) {
            Some(Place::Free(index)) => index,
            Some(Place::Taken(index)) => {
                // The guest sees that the conversation of this connection is over.
                self.count_end(agent, index, Some(Fault::Displaced));
                index
            }
            None => {
                self.peers.turned_away += 1;
                return None;
            }
        };
        self.numbers[index] += 1;
        self.sessions[index].open(self.access, now_ns);
        Some(SessionId { index, number: self.numbers[index] })
    }

    #[inline(never)]
    pub(super) fn place_from_ns(&self, agent: &AnyAgent<'_, '_>) -> Option<u64> {
        let now_ns = agent.platform().now_ns();
        let place_ns = match admission::place(&self.sessions, now_ns) {
            Some(_) => None,
            None => admission::place_from_ns(&self.sessions),
        };
        // Many new connections wait until their class has budget.
        let allowed_ns = self.budget.allows_from_ns(Class::Unauthenticated, now_ns);
        let allowed_ns = (allowed_ns > now_ns).then_some(allowed_ns);
        place_ns.max(allowed_ns)
    }

    pub(super) fn busy_answer(&self, buffer: &mut [u8]) -> usize {
        session::busy_answer(self.access, buffer)
    }

    #[inline(never)]
    pub(super) fn receive(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        id: SessionId,
        bytes: &[u8],
    ) -> usize {
        self.end_suspended(agent);
        let now_ns = agent.platform().now_ns();
        self.session(id).map_or(bytes.len(), |session| session.receive(bytes, now_ns))
    }

    #[inline(never)]
    pub(super) fn transmit(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        id: SessionId,
        buffer: &mut [u8],
    ) -> usize {
        let SessionId { index, .. } = id;
        self.end_suspended(agent);
        if self.session(id).is_none() {
            return 0;
        }
        let platform = agent.platform();
        let (now_ns, work_ns) = (platform.now_ns(), platform.work_ns());
        let class = self.sessions[index].class();
        let is_allowed = self.budget.allows(class, now_ns);
        let sessions = self.sessions.iter().filter(|session| !session.is_free()).count() as u32;
        let mut context = Context {
            agent,
            recorder: &mut self.recorder,
            now_ns,
            sessions,
            clients: self.sessions.each_ref().map(Session::client_id),
            peers: &mut self.peers,
            server: self.server,
            // The handshakes of unauthenticated clients have a pace of their own, and admission
            // waits instead.
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
        // Checking a waiting client is not charged: the check must not use up the budget that the
        // client waits for.
        if is_allowed || has_shaken_hands {
            self.budget.charge(class, took_ns);
        }
        if was_deferred {
            self.budget.wait(class, now_ns);
        }
        if self.end_suspended(agent) && self.sessions[index].is_given_up() {
            // An interrupt suspended the guest while these bytes were encrypted.
            buffer[..length].fill(0);
            return 0;
        }
        length
    }

    pub(super) fn is_over(&self, agent: &AnyAgent<'_, '_>, id: SessionId) -> bool {
        self.is_given_up(agent, id) || self.sessions[id.index].is_over()
    }

    pub(super) fn is_given_up(&self, agent: &AnyAgent<'_, '_>, id: SessionId) -> bool {
        let is_current = self.is_current(id);
        !is_current || self.sessions[id.index].is_given_up() || self.is_suspended(agent, id.index)
    }

    pub(super) fn set_undelivered(&mut self, id: SessionId, has_undelivered: bool) {
        if self.is_current(id) {
            self.sessions[id.index].set_undelivered(has_undelivered);
        }
    }

    pub(super) fn is_deferred(&self, agent: &AnyAgent<'_, '_>, id: SessionId) -> bool {
        let now_ns = agent.platform().now_ns();
        let session = self.sessions.get(id.index).filter(|_| self.is_current(id));
        session.is_some_and(|session| {
            let class = session.class();
            // Without work there is no deadline either, and what the client sends next has to wake
            // the guest.
            class != Class::Unauthenticated
                && session.has_work()
                && self.budget.allows_from_ns(class, now_ns) > now_ns
        })
    }

    #[inline(never)]
    pub(super) fn close(&mut self, agent: &AnyAgent<'_, '_>, id: SessionId) {
        if self.is_current(id) {
            self.sessions[id.index].cut();
            self.count_end(agent, id.index, None);
            self.sessions[id.index].close();
        }
    }

    #[inline(never)]
    pub(super) fn advance(&mut self, agent: &AnyAgent<'_, '_>) -> Option<u64> {
        self.end_suspended(agent);
        let now_ns = agent.platform().now_ns();
        let clients = self.sessions.each_ref().map(Session::client_id);
        self.recorder.update_leases(&clients, now_ns);
        let recorder = self.recorder.advance(agent, self.server.total_ns);
        #[cfg(feature = "trace")]
        let recorder = {
            let tracer = self.recorder.tracer();
            let work_ns = tracer.is_busy().then(|| agent.platform().work_ns());
            let tracer = tracer.advance(agent, now_ns);
            if let Some(work_ns) = work_ns {
                let took_ns = agent.platform().work_ns().saturating_sub(work_ns);
                self.budget.charge(Class::Control, took_ns);
            }
            [recorder, tracer].into_iter().flatten().min()
        };
        agent.note_times(now_ns);
        let unfinished = core::mem::take(&mut self.is_unfinished).then_some(now_ns);
        let mut next = None;
        let mut at = |deadline: u64| {
            next = Some(next.map_or(deadline, |next: u64| next.min(deadline)));
        };
        for session in &mut self.sessions {
            if session.deadline_ns().is_some_and(|deadline| now_ns >= deadline) {
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
        [recorder, unfinished, deferred].into_iter().flatten().for_each(at);
        next
    }

    /// Whether the time of the current work is used up. Then some of it is left for the next poll.
    #[cfg(any(feature = "embedded-io", feature = "smoltcp"))]
    pub(super) fn is_out_of_time(&mut self, agent: &AnyAgent<'_, '_>) -> bool {
        let is_late = self.until_ns.is_some_and(|until_ns| agent.platform().now_ns() >= until_ns);
        self.is_unfinished |= is_late;
        is_late
    }

    /// Ends all encrypted sessions if the guest was suspended since they began; returns whether it
    /// was.
    ///
    /// A saved guest can be restored more than once, and the original may continue to run. All
    /// copies then have the same keys and nonces: encrypting two different records with one nonce
    /// would reveal both plaintexts.
    fn end_suspended(&mut self, agent: &AnyAgent<'_, '_>) -> bool {
        #[cfg(feature = "noise")]
        {
            let gaps = agent.gaps();
            if gaps != self.gaps {
                self.sessions.iter_mut().for_each(Session::end_sealed);
                self.gaps = gaps;
                return true;
            }
        }
        #[cfg(not(feature = "noise"))]
        let _ = agent;
        false
    }

    /// Whether a session is encrypted, and the guest was suspended since it began.
    fn is_suspended(&self, agent: &AnyAgent<'_, '_>, index: usize) -> bool {
        #[cfg(feature = "noise")]
        let is_suspended = agent.gaps() != self.gaps && self.sessions[index].is_sealed();
        #[cfg(not(feature = "noise"))]
        let (_, _, is_suspended) = (agent, index, false);
        is_suspended
    }

    fn is_current(&self, id: SessionId) -> bool {
        self.numbers.get(id.index) == Some(&id.number)
    }

    fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        self.is_current(id).then(|| &mut self.sessions[id.index])
    }

    /// Counts a conversation that has ended, once: for its own fault, or else for the given one.
    fn count_end(&mut self, agent: &AnyAgent<'_, '_>, index: usize, otherwise: Option<Fault>) {
        if let Some(fault) = self.sessions[index].fault().or(otherwise) {
            #[cfg(feature = "noise")]
            if fault == Fault::BadKey {
                agent.note_here(kind::BAD_KEY);
            }
            #[cfg(not(feature = "noise"))]
            let _ = agent;
            fault.count(&mut self.peers);
        }
    }

    #[inline(never)]
    pub(super) fn begin_work<'m>(&mut self, agent: &AnyAgent<'_, 'm>) -> Work<'m> {
        let platform = agent.platform();
        let (started_ns, work_ns) = (platform.now_ns(), platform.work_ns());
        self.until_ns = Some(started_ns.saturating_add(BUDGET_NS));
        Work { started_ns, work_ns, _mark: agent.own_work() }
    }

    #[inline(never)]
    pub(super) fn end_work(&mut self, agent: &AnyAgent<'_, '_>, work: Work<'_>) {
        let now_ns = agent.platform().now_ns();
        let took_ns = now_ns.saturating_sub(work.started_ns);
        let worked_ns = agent.platform().work_ns().saturating_sub(work.work_ns);
        self.until_ns = None;
        self.server.total_ns += worked_ns;
        self.server.longest_ns = self.server.longest_ns.max(took_ns);
        self.budget.end_work(worked_ns);
    }
}

/// Claims the recordings of an agent for its service; fails if the agent cannot be served with this
/// `access`.
#[inline(never)]
pub(super) fn claim<'a>(
    agent: &'a AnyAgent<'a, '_>,
    access: Access<'_>,
) -> Result<Claim<'a, Recordings>, ServeError> {
    if let Err(error) = check(agent.platform(), access) {
        let text = crate::ground::text::Text::format(format_args!("unikprof: {error}"));
        agent.platform().log(text.as_str());
        return Err(error);
    }
    agent.claim_recordings().ok_or(ServeError::Served)
}

#[cfg(not(feature = "noise"))]
fn check(_: &dyn Platform, _: Access<'_>) -> Result<(), ServeError> {
    Ok(())
}

/// Checks that an agent on `platform` can be served with this `access`.
#[cfg(feature = "noise")]
fn check(platform: &dyn Platform, access: Access<'_>) -> Result<(), ServeError> {
    let Some(keys) = access.keys() else {
        return Ok(());
    };
    if keys.is_empty() {
        return Err(ServeError::NoKeys);
    }
    // A broken source returns the same value again and again.
    let words: [Option<u64>; 4] = core::array::from_fn(|_| platform.random());
    if words.contains(&None) || words.iter().all(|word| *word == words[0]) {
        return Err(ServeError::NoRandomness);
    }
    Ok(())
}
