//! The recorder: the existing recordings, and their epochs that wait to be fetched.
//!
//! Each recording has a name and [cells](crate::count::recording::RecordingCells) in every slot,
//! and is counted in epochs. While it runs, one epoch is being counted and at most one waits; after
//! its end, two may wait. An epoch is cleared only when a client acknowledges it, so an interrupted
//! download can be repeated. Nothing here waits: if a tick on another vCPU prevents a step, a later
//! call finishes it.

mod aging;
mod checks;
mod epochs;
mod live;
mod recording;

use unikprof_proto::code::{refusal, start_flag};
use unikprof_proto::message::{Start, TableBegin, TableEnd, TableInstalled, TableReady, TableRows};

use crate::agent::AnyAgent;
use crate::agent::recordings::Recordings;
pub(crate) use crate::agent::recordings::{Client, Recording};
use crate::ground::claim::Claim;
use crate::ground::text::Text;
use crate::record::upload::Upload;

/// A step that a tick prevented is tried again after this time.
pub(crate) const RETRY_NS: u64 = 100_000;

/// A refused request: the code and the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) code: u32,
    pub(crate) text: Text,
}

/// The result of a request.
pub(crate) enum Outcome<T> {
    Done(T),
    Refused(Refused),
    /// A tick prevents it: try again.
    NotYet,
}

/// Epochs waiting to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) recording: u64,
    pub(crate) first_epoch: u64,
    pub(crate) epochs: u32,
    pub(crate) complete: bool,
}

/// All recordings, by index.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    /// Kept by the agent, so that recordings continue while there is no service.
    state: Claim<'a, Recordings>,
    upload: Upload,
}

impl<'a> Recorder<'a> {
    /// Creates the recorder of the agent that keeps these recordings.
    pub(crate) fn new(state: Claim<'a, Recordings>) -> Self {
        Self { state, upload: Upload::default() }
    }
}

impl Recorder<'_> {
    /// The existing recordings, in the order of their indices.
    pub(crate) fn recordings(&self) -> impl Iterator<Item = &Recording> {
        self.state.recordings.iter().filter(|one| !one.is_free())
    }

    /// The trace, if there is one.
    #[cfg(feature = "trace")]
    pub(crate) fn tracer(&mut self) -> &mut crate::trace::Tracer {
        &mut self.state.tracer
    }

    /// The recording with this index, in any state.
    pub(crate) fn recording(&self, index: usize) -> Option<&Recording> {
        self.state.recordings.get(index)
    }

    /// The recording that `epoch` belongs to, if it waits to be fetched.
    pub(crate) fn holding(&self, epoch: u64) -> Option<&Recording> {
        self.recordings().find(|one| one.has(epoch))
    }

    /// Ends the leases of clients that have disconnected. `clients` are the connected ones.
    pub(crate) fn update_leases(&mut self, clients: &[u64], now_ns: u64) {
        for one in &mut self.state.recordings {
            one.update_lease(clients, now_ns);
        }
    }

    /// A client makes a request other than a start: it has received the answer to its start, and
    /// watches what it started to watch.
    pub(crate) fn confirm(&mut self, client: &Client, now_ns: u64) {
        self.state.recordings.iter_mut().for_each(|one| one.confirm(client, now_ns));
    }

    /// Starts a recording, and gives the lease on it to `client`; returns its id and when it
    /// begins. It is discarded after a while unless the client [confirms](Self::confirm) that it
    /// has received the answer; a request that is repeated instead is answered the same again.
    pub(crate) fn start(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        request: &Start<'_>,
        server_ns: u64,
    ) -> Outcome<(u64, u64)> {
        let repeated = self.recordings().find(|one| one.is_start_of(client, request.name));
        if let Some(same) = repeated {
            return Outcome::Done((same.id(), same.settings().started_ns));
        }
        let checked = checks::check(request)
            .and_then(|()| checks::check_heap(agent, request))
            .and_then(|()| checks::check_wall(agent, request))
            .and_then(|()| checks::check_table(agent, request));
        let place = checked.and_then(|()| self.place_for(agent, client, request));
        let index = match place {
            Ok(index) => index,
            Err(refused) => return Outcome::Refused(refused),
        };
        let Recordings { recordings, last, .. } = &mut *self.state;
        let Some(recording) = recordings.get_mut(index) else {
            return Outcome::NotYet;
        };
        if !recording.settle(agent, server_ns) {
            return Outcome::NotYet;
        }
        let id = *last + 1;
        let now_ns = agent.platform().now_ns();
        // A recording that has ended is not discarded while a connected client fetches it.
        recording.drop_lease_of_absent();
        if let Err(refused) = recording.take_lease(client, now_ns) {
            return Outcome::Refused(refused);
        }
        recording.discard(agent);
        recording.start(id, client, request, now_ns);
        if let Err(refused) = recording.take_lease(client, now_ns) {
            return Outcome::Refused(refused);
        }
        *last = id;
        self.advance(agent, server_ns);
        let started_ns = self.state.recordings.get(index);
        let started_ns = started_ns.map_or(0, |one| one.settings().started_ns);
        Outcome::Done((id, started_ns))
    }

    /// The index for a new recording: a free one, or, if the request allows discarding, that of one
    /// that has ended, preferably of one that no other client fetches.
    fn place_for(
        &self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        request: &Start<'_>,
    ) -> Result<usize, Refused> {
        let recordings = agent.config().recordings as usize;
        let discard = request.flags & start_flag::REPLACE != 0;
        let named = |one: &&Recording| one.settings().name.as_str() == request.name;
        if let Some(same) = self.recordings().find(named) {
            return if !same.has_ended() {
                Err(same.already_recording())
            } else if discard {
                Ok(same.index())
            } else {
                Err(same.unfetched())
            };
        }
        let mut places = self.state.recordings.iter().take(recordings);
        if let Some(free) = places.find(|one| one.is_free()) {
            return Ok(free.index());
        }
        let ended = self.recordings().filter(|one| one.has_ended());
        match ended.min_by_key(|one| one.is_fetched_by_other(client)) {
            Some(ended) if discard => Ok(ended.index()),
            Some(ended) => Err(ended.unfetched()),
            None => Err(Refused {
                code: refusal::TOO_MANY_RECORDINGS,
                text: Text::format(format_args!(
                    "all {recordings} recordings are in use: {}; stop one",
                    Names(self)
                )),
            }),
        }
    }

    /// Ends a recording, even if another client has the lease on it. Takes the lease if it is free
    /// or its holder is not connected.
    pub(crate) fn stop(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        recording: u64,
        server_ns: u64,
    ) -> Outcome<Waiting> {
        match self.find(recording) {
            Ok(one) => {
                // Another client's lease does not prevent the end of a recording, only fetching it.
                one.drop_lease_of_absent();
                let _ = one.take_lease(client, agent.platform().now_ns());
                one.stop(agent, server_ns)
            }
            Err(refused) => Outcome::Refused(refused),
        }
    }

    /// Takes the lease and makes an epoch of the counts so far, if none waits. `again` is set if
    /// this request had the result [`Outcome::NotYet`] before.
    pub(crate) fn dump(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        recording: u64,
        server_ns: u64,
        again: bool,
    ) -> Outcome<Waiting> {
        let now_ns = agent.platform().now_ns();
        let leased = self.find(recording).and_then(|one| {
            one.take_lease(client, now_ns)?;
            Ok(one)
        });
        match leased {
            Ok(one) => one.dump(agent, server_ns, again),
            Err(refused) => Outcome::Refused(refused),
        }
    }

    /// Acknowledges an epoch for a client, which must have the lease.
    pub(crate) fn acknowledge(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        client: &Client,
        epoch: u64,
    ) -> Outcome<()> {
        let now_ns = agent.platform().now_ns();
        match self.state.recordings.iter_mut().find(|one| one.has(epoch)) {
            Some(one) => match one.take_lease(client, now_ns) {
                Ok(()) => one.acknowledge(agent, epoch),
                Err(refused) => Outcome::Refused(refused),
            },
            None => Outcome::Refused(self.no_epoch(epoch)),
        }
    }

    /// Does the work that is due, and ages stacks; returns when to call again, on the monotonic
    /// clock in ns.
    pub(crate) fn advance(&mut self, agent: &AnyAgent<'_, '_>, server_ns: u64) -> Option<u64> {
        let now_ns = agent.platform().now_ns();
        let aging_ns = self.age(agent, now_ns);
        let recordings = self.state.recordings.iter_mut();
        let due_ns = recordings.filter_map(|one| one.advance(agent, now_ns, server_ns));
        let due_ns = due_ns.chain(aging_ns).min();
        let reaping_ns = self.reap(agent, now_ns);
        due_ns.into_iter().chain(reaping_ns).min()
    }

    /// Begins the upload of a part of a caller table.
    pub(crate) fn begin_table(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        begin: &TableBegin,
        server_ns: u64,
    ) -> Outcome<TableReady> {
        let mut recording = None;
        for one in &mut self.state.recordings {
            // Once a recording is settled, no tick reads the table.
            if !one.is_free() && !one.has_ended() || !one.settle(agent, server_ns) {
                recording = Some(one.already_recording());
            }
        }
        // A snapshot owns the slot while it walks.
        let is_read = || !agent.slots().all(|(_, slot)| slot.take_patiently().is_some());
        match self.upload.begin(agent.callers(), begin, recording, is_read) {
            Ok(Some(ready)) => Outcome::Done(ready),
            Ok(None) => Outcome::NotYet,
            Err(refused) => Outcome::Refused(refused),
        }
    }

    /// Accepts rows of a caller table.
    pub(crate) fn table_rows(&mut self, agent: &AnyAgent<'_, '_>, run: &TableRows<'_>) {
        self.upload.rows(agent.callers(), run);
    }

    /// Installs the uploaded part of the caller table.
    pub(crate) fn end_table(
        &mut self,
        agent: &AnyAgent<'_, '_>,
        end: &TableEnd,
    ) -> Result<TableInstalled, Refused> {
        self.upload.end(agent.callers(), end)
    }

    /// The error that `epoch` does not wait.
    pub(crate) fn no_epoch(&self, epoch: u64) -> Refused {
        Refused {
            code: refusal::NO_EPOCH,
            text: Text::format(format_args!("epoch {epoch} was acknowledged, or never existed")),
        }
    }

    /// The recording with this id, or the only one for 0.
    fn find(&mut self, recording: u64) -> Result<&mut Recording, Refused> {
        let there = self.recordings().count();
        let (code, text) = match (there, recording) {
            (0, _) => (refusal::NO_RECORDING, Text::from("there is no recording; start one")),
            (1, 0) => (0, Text::default()),
            (_, 0) => (
                refusal::WHICH_RECORDING,
                Text::format(format_args!(
                    "there are several recordings: {}; name one",
                    Names(self)
                )),
            ),
            _ => (
                refusal::NO_RECORDING,
                Text::format(format_args!(
                    "recording {recording} does not exist any more; there are: {}",
                    Names(self)
                )),
            ),
        };
        let wanted = |one: &&mut Recording| {
            !one.is_free() && (recording == 0 && there == 1 || one.id() == recording)
        };
        let found = self.state.recordings.iter_mut().find(wanted);
        found.ok_or(Refused { code, text })
    }
}

/// Formats the names of the existing recordings for error texts.
struct Names<'r>(&'r Recorder<'r>);

impl core::fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (number, one) in self.0.recordings().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            write!(f, "`{}` (recording {})", one.settings().name, one.id())?;
        }
        Ok(())
    }
}
