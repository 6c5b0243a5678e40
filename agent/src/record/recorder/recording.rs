//! One recording: its life cycle and its settings.

use unikprof_proto::code::{mode, refusal, start_flag, state};
use unikprof_proto::message::{CONFIRM_WITHIN_NS, Counters, Overhead, Start};
use unikprof_proto::ring::kind;

use super::{Outcome, RETRY_NS, Refused, Waiting};
use crate::agent::AnyAgent;
use crate::agent::head::{Head, Settings};
use crate::agent::recordings::{Client, Lease, Mark, Phase, Recording};
use crate::count::recording::{Begin, Lookup};
use crate::ground::sync::Ordering;
use crate::ground::text::{Name, Text};

/// A client whose connection is lost while an epoch waits keeps its lease for this time: clients
/// wait no longer than half of it before they connect again.
const LEASE_NS: u64 = 10_000_000_000;

impl Recording {
    /// Its index in every slot.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Unique in this guest's life.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn state(&self) -> u32 {
        match self.phase {
            Phase::Idle => state::IDLE,
            Phase::Delayed => state::DELAYED,
            // Its last epoch is yet to come.
            Phase::Recording | Phase::Ending => state::RECORDING,
            Phase::Finished => state::FINISHED,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.phase == Phase::Idle
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ending | Phase::Finished)
    }

    pub(crate) fn waiting(&self, complete: bool) -> Waiting {
        let (first_epoch, epochs) = self.epochs.waiting();
        Waiting { recording: self.id, first_epoch, epochs, complete }
    }

    /// Whether `epoch` is one of this recording's and waits to be fetched.
    pub(crate) fn has(&self, epoch: u64) -> bool {
        !self.is_free() && self.epochs.has(epoch)
    }

    /// The state at the start of `epoch`, which is the end of the previous one.
    pub(crate) fn mark(&self, epoch: u64) -> Mark {
        self.epochs.mark(epoch)
    }

    /// Discards the recording if it has ended, fetched or not.
    pub(super) fn discard(&mut self, agent: &AnyAgent<'_, '_>) {
        if self.has_ended() {
            self.epochs.discard();
            self.free(agent);
        }
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// Ends the lease of a client that has disconnected: at once if no epoch waits, or else after a
    /// while. `clients` are the connected ones.
    pub(super) fn update_lease(&mut self, clients: &[u64], now_ns: u64) {
        let is_free = self.is_free();
        let is_waiting = self.epochs.waiting().1 > 0;
        let Some(lease) = &mut self.lease else {
            return;
        };
        if !is_free && clients.contains(&lease.client.id) {
            lease.until_ns = None;
            return;
        }
        let end_ns = now_ns.saturating_add(LEASE_NS);
        let until_ns = *lease.until_ns.get_or_insert(end_ns);
        if is_free || !is_waiting || now_ns >= until_ns {
            self.lease = None;
        }
    }

    /// Gives the lease to a client if it is free; returns an error if another client has it.
    pub(super) fn take_lease(&mut self, client: &Client, now_ns: u64) -> Result<(), Refused> {
        match &self.lease {
            Some(lease) if lease.client.id == client.id => Ok(()),
            Some(lease) if lease.until_ns.is_some() => Err(Refused {
                code: refusal::HOLDER_GONE,
                text: Text::format(format_args!(
                    "another client, {}, has lost its connection while it fetched `{}`; if it does \
                     not come back, its lease ends within {} s",
                    lease.client.name,
                    self.settings.name,
                    LEASE_NS / 1_000_000_000
                )),
            }),
            Some(lease) => Err(Refused {
                code: refusal::LEASED,
                text: Text::format(format_args!(
                    "`{}` is being fetched by another client, {}, for {} s",
                    self.settings.name,
                    lease.client.name,
                    now_ns.saturating_sub(lease.since_ns) / 1_000_000_000
                )),
            }),
            None => {
                // Whoever takes it knows of the recording.
                self.unconfirmed = self.unconfirmed.filter(|(starter, _)| *starter == client.id);
                self.lease = (client.id != 0).then_some(Lease {
                    client: *client,
                    since_ns: now_ns,
                    until_ns: None,
                });
                Ok(())
            }
        }
    }

    /// Whether another connected client has the lease.
    pub(super) fn is_fetched_by_other(&self, client: &Client) -> bool {
        let mut lease = self.lease.iter();
        lease.any(|lease| lease.until_ns.is_none() && lease.client.id != client.id)
    }

    /// Ends the lease of a client that is not connected, because another one ends the recording and
    /// fetches it.
    pub(super) fn drop_lease_of_absent(&mut self) {
        self.lease = self.lease.filter(|lease| lease.until_ns.is_none());
    }

    /// Whether the oldest stacks are discarded when memory runs short, instead of the newest.
    pub(super) fn keeps_newest(&self) -> bool {
        self.settings.flags & start_flag::KEEP_NEWEST != 0
    }

    /// The number of folds of counts and moves of stacks.
    pub(crate) fn folds(&self) -> u64 {
        self.folds
    }

    /// Removes the recording and frees its index.
    pub(super) fn free(&mut self, agent: &AnyAgent<'_, '_>) {
        self.phase = Phase::Idle;
        self.lease = None;
        self.unconfirmed = None;
        self.wants_reap = true;
        agent.forget_head(self.index);
    }

    /// Whether this client started the recording under this name and may not know: it repeats a
    /// start whose answer was lost.
    pub(super) fn is_start_of(&self, client: &Client, name: &str) -> bool {
        let starter = self.unconfirmed.map(|(starter, _)| starter);
        !self.is_free() && starter == Some(client.id) && self.settings.name.as_str() == name
    }

    /// A client that makes another request has received the answer to its start.
    pub(super) fn confirm(&mut self, client: &Client, now_ns: u64) {
        if self.unconfirmed.is_some_and(|(starter, _)| starter == client.id) {
            let is_watched = self.settings.flags & start_flag::WATCHED != 0;
            self.unconfirmed =
                is_watched.then(|| (client.id, now_ns.saturating_add(CONFIRM_WITHIN_NS)));
        }
    }

    /// Starts a recording in this place, which is free.
    pub(super) fn start(&mut self, id: u64, client: &Client, request: &Start<'_>, now_ns: u64) {
        self.id = id;
        self.unconfirmed =
            (client.id != 0).then_some((client.id, now_ns.saturating_add(CONFIRM_WITHIN_NS)));
        self.settings = Settings {
            name: Name::from(request.name),
            mode: request.mode,
            flags: request.flags,
            period_ns: request.period_ns,
            interval_bytes: request.interval_bytes,
            depth: request.depth,
            duration_ns: request.duration_ns,
            started_ns: now_ns.saturating_add(request.delay_ns),
            max_age_ns: request.max_age_ns,
            max_bytes: request.max_bytes,
            caller_table: request.caller_table,
        };
        self.phase = Phase::Delayed;
    }

    /// Ends the recording; if it has ended already, returns the same result again.
    pub(super) fn stop(&mut self, agent: &AnyAgent<'_, '_>, server_ns: u64) -> Outcome<Waiting> {
        match self.phase {
            Phase::Delayed => {
                self.phase = Phase::Idle;
                self.unconfirmed = None;
                return Outcome::Done(self.waiting(true));
            }
            Phase::Recording => self.phase = Phase::Ending,
            Phase::Idle | Phase::Ending | Phase::Finished => {}
        }
        if self.settle(agent, server_ns) {
            Outcome::Done(self.waiting(true))
        } else {
            Outcome::NotYet
        }
    }

    /// Makes an epoch of the counts so far, if none waits. `again` is set if this request had the
    /// result [`Outcome::NotYet`] before.
    pub(super) fn dump(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        server_ns: u64,
        again: bool,
    ) -> Outcome<Waiting> {
        if !self.settle(agent, server_ns) {
            return Outcome::NotYet;
        }
        match self.phase {
            Phase::Recording if self.epochs.may_flip() => {
                if self.flip(agent, false, server_ns) {
                    Outcome::Done(self.waiting(true))
                } else {
                    Outcome::NotYet
                }
            }
            Phase::Recording => Outcome::Done(self.waiting(again)),
            _ => Outcome::Done(self.waiting(true)),
        }
    }

    /// Does the work that is due at `now_ns`; returns when to call again, on the monotonic clock.
    pub(super) fn advance(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        now_ns: u64,
        server_ns: u64,
    ) -> Option<u64> {
        let retry = Some(now_ns.saturating_add(RETRY_NS));
        let confirmed_by_ns = self.unconfirmed.map(|(_, until_ns)| until_ns);
        if confirmed_by_ns.is_some_and(|until_ns| now_ns >= until_ns) {
            match self.stop(agent, server_ns) {
                Outcome::NotYet => return retry,
                _ => self.discard(agent),
            }
        }
        if self.phase == Phase::Delayed && now_ns >= self.settings.started_ns {
            if !self.epochs.clear_some(agent) {
                return retry;
            }
            self.begin(agent, now_ns, server_ns);
        }
        let until_ns = self.until_ns();
        if self.phase == Phase::Recording && now_ns >= until_ns {
            self.phase = Phase::Ending;
        }
        self.settle(agent, server_ns);
        if !self.epochs.clear_some(agent) || self.phase == Phase::Ending {
            return retry;
        }
        let due_ns = match self.phase {
            Phase::Delayed => Some(self.settings.started_ns),
            Phase::Recording => (until_ns != u64::MAX).then_some(until_ns),
            Phase::Idle | Phase::Ending | Phase::Finished => None,
        };
        let confirmed_by_ns = self.unconfirmed.map(|(_, until_ns)| until_ns);
        due_ns.into_iter().chain(confirmed_by_ns).min()
    }

    /// The counters of all vCPUs since the recording began.
    pub(crate) fn counters(&self, agent: &AnyAgent<'_, '_>) -> Counters {
        if matches!(self.phase, Phase::Idle | Phase::Delayed) {
            return Counters::default();
        }
        let recordings = agent.slots().filter_map(|(_, slot)| slot.recording(self.index));
        recordings.fold(Counters::default(), |sum, cells| {
            sum.zip(&cells.counters.read(), u64::wrapping_add)
        })
    }

    /// The cost on all vCPUs since the current epoch began.
    pub(crate) fn overhead(&self, agent: &AnyAgent<'_, '_>) -> Overhead {
        let mut sum = Overhead::default();
        if self.phase != Phase::Recording {
            return sum;
        }
        for (vcpu, slot) in agent.slots() {
            let Some(cells) = slot.recording(self.index) else {
                continue;
            };
            let (start, now) = (cells.boundary(cells.epoch()), agent.snapshot(vcpu));
            let (counters, passed_ns) =
                (cells.counters.read(), now.at_ns.saturating_sub(start.at_ns));
            let ns = |cycles: u64| {
                let scaled = u128::from(cycles) * u128::from(passed_ns);
                let passed = u128::from(now.cycles.saturating_sub(start.cycles));
                scaled.checked_div(passed).map_or(0, |ns| ns as u64)
            };
            let deliveries = |of: &Counters| of.ticks.saturating_add(of.early);
            let delivered = match mode::is_heap(self.settings.mode) {
                true => 0,
                false => deliveries(&counters).saturating_sub(deliveries(&start.counters)),
            };
            let ticks = cells.tick_cycles.load(Ordering::Relaxed);
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut sum.running_ns, now.running_ns.saturating_sub(start.running_ns));
            add(&mut sum.sampling_ns, ns(ticks.saturating_sub(start.tick_cycles)));
            add(&mut sum.delivery_ns, ns(delivered.saturating_mul(now.delivery_cycles)));
            add(&mut sum.deliveries_measured, now.deliveries_measured);
        }
        sum
    }

    pub(super) fn already_recording(&self) -> Refused {
        Refused {
            code: refusal::ALREADY_RECORDING,
            text: Text::format(format_args!(
                "`{}` is being recorded (recording {}); stop it, or use another name",
                self.settings.name, self.id
            )),
        }
    }

    pub(super) fn unfetched(&self) -> Refused {
        Refused {
            code: refusal::UNFETCHED,
            text: Text::format(format_args!(
                "`{}` (recording {}) has ended and no client has fetched it: fetch it with stop, \
                 or start \
                 with --replace to drop it",
                self.settings.name, self.id
            )),
        }
    }

    fn begin(&mut self, agent: &AnyAgent<'_, '_>, now_ns: u64, server_ns: u64) {
        self.phase = Phase::Recording;
        // Perhaps later than planned: its duration counts from here.
        self.settings.started_ns = now_ns;
        let until_ns = self.until_ns();
        self.gaps_before = agent.gaps();
        let epoch = self.epochs.begin(self.id);
        self.set_mark(agent, epoch, server_ns);
        agent.keep_head(
            self.index,
            &Head { recording: self.id, settings: self.settings, gaps_before: self.gaps_before },
        );
        for (vcpu, slot) in agent.slots() {
            let seed = agent.platform().random();
            let begin = Begin {
                recording: self.id,
                epoch,
                mode: self.settings.mode,
                lookup: match self.settings.caller_table {
                    None => Lookup::None,
                    Some(_) if self.settings.flags & start_flag::UNWIND_TABLE != 0 => {
                        Lookup::EveryFrame
                    }
                    Some(_) => Lookup::Leaf,
                },
                depth: self.settings.depth,
                period_ns: self.settings.period_ns.max(self.settings.interval_bytes),
                fixed: self.settings.flags & start_flag::FIXED_INTERVAL != 0,
                until_ns,
                seed: seed
                    .unwrap_or(now_ns ^ u64::from(vcpu + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            };
            slot.begin(self.index, &begin, &agent.snapshot(vcpu));
            // Another vCPU notices the recording at the end of its chunk of bytes.
            if cfg!(feature = "heap") && agent.platform().vcpu() == Some(vcpu) {
                slot.cells.points.cut();
            }
            agent.platform().kick(vcpu);
        }
        agent.note_everywhere(kind::BEGAN, self.id, self.index as u64);
    }

    /// When it ends by itself; `u64::MAX` if it does not.
    pub(super) fn until_ns(&self) -> u64 {
        match self.settings.duration_ns {
            0 => u64::MAX,
            duration_ns => self.settings.started_ns.saturating_add(duration_ns),
        }
    }

    /// Finishes the end of a recording that ticks had prevented; returns whether it is complete on
    /// all vCPUs.
    pub(super) fn settle(&mut self, agent: &AnyAgent<'_, '_>, server_ns: u64) -> bool {
        self.phase != Phase::Ending || self.flip(agent, true, server_ns)
    }
}
