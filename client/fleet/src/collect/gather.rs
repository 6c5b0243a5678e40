//! Fetches what a guest has counted, again and again, into the spool.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use unikprof_link::connection::ConnectionError;
use unikprof_link::record::{EpochReader, Preset, RecordError, RecordingStatus, Session, Settings};
use unikprof_profile::caller_table;
use unikprof_profile::profile::Unwind;
use unikprof_profile::recording::{Reading, Recording, RecordingError};
use unikprof_profile::units;
use unikprof_proto::code::state;

use super::super::member::{GuestError, Member, advised, log};
use super::super::take::symbolizer;
use super::books::{EpochId, Span};
use super::spool::{GuestSpool, Spool, SpoolError};

/// The name of the recording that a collector leaves running in each guest.
pub(super) const NAME: &str = "collect";

/// Within so long, a guest that is new in the fleet has been asked: a thousand are not asked at
/// once.
const FIRST: Duration = Duration::from_secs(15);

/// A guest that is down is tried again after so long, twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// How long a connection that breaks is taken up again.
const RECONNECT: Duration = Duration::from_secs(30);

/// How often a recording is looked at between two fetches, and the shortest time between two looks.
const LOOKS: u32 = 3;
const SHORTEST: Duration = Duration::from_millis(250);

/// How far a guest's clock may be from this machine's.
const CLOCKS_APART_NS: u64 = 30_000_000_000;

/// Prepares caller tables for as many guests at a time as there are processors: each takes one, and
/// memory for an image.
static PREPARING: LazyLock<Places> =
    LazyLock::new(|| Places::new(thread::available_parallelism().map_or(1, usize::from)));

/// Epochs that are read back at a time: one is several times as long in memory as it is on disk.
static READING: LazyLock<Places> =
    LazyLock::new(|| Places::new(thread::available_parallelism().map_or(1, usize::from)));

/// Places for work of which only so much is done at a time.
struct Places {
    free: Mutex<usize>,
    freed: Condvar,
}

/// A place, until it is dropped.
struct Place<'a>(&'a Places);

impl Places {
    fn new(count: usize) -> Places {
        Places { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Waits for a place.
    fn take(&self) -> Place<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[derive(Debug, thiserror::Error)]
enum GatherError {
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error("{}", advised(.0))]
    Record(#[from] RecordError),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error("what the guest sent cannot be read: {0}")]
    Recording(#[from] RecordingError),
}

/// Fetches from a guest until it leaves the fleet.
pub(super) fn keep(member: &Member, spool: &Spool, every: Duration) {
    despite_panics(member, LONGEST_RETRY, || keep_on(member, spool, every));
}

/// Works for a guest, and after a panic again. One guest's data that this program has not foreseen
/// must not end its collection for ever.
fn despite_panics(member: &Member, wait: Duration, work: impl Fn()) {
    while catch_unwind(AssertUnwindSafe(&work)).is_err() {
        log(&format!(
            "warning: {}: collecting from it has panicked, by a mistake of this program; it is \
             tried again",
            member.guest.name
        ));
        if !member.wait(wait) {
            return;
        }
    }
}

fn keep_on(member: &Member, spool: &Spool, every: Duration) {
    let mut wait = every.min(FIRST).mul_f64(fastrand::f64());
    let (mut retry, mut is_down) = (FIRST_RETRY, false);
    while member.wait(wait) {
        let (other, is_shifted) = (Cell::new(false), Cell::new(false));
        let mut gatherer =
            Gatherer { member, spool, every, has_answered: false, other, is_shifted };
        let Err(error) = gatherer.follow() else {
            return;
        };
        if gatherer.has_answered {
            (retry, is_down) = (FIRST_RETRY, false);
        }
        if !is_down && !member.gone.stop() {
            log(&format!("warning: {}: {error}", member.guest.name));
            is_down = true;
        }
        wait = retry.mul_f64(0.5 + fastrand::f64());
        retry = (retry * 2).min(LONGEST_RETRY);
    }
}

struct Gatherer<'a> {
    member: &'a Member,
    spool: &'a Spool,
    every: Duration,
    /// Whether anything was fetched over this session.
    has_answered: bool,
    /// Whether another client has the recording, which the log was told.
    other: Cell<bool>,
    /// Whether the guest's clock is wrong, which the log was told.
    is_shifted: Cell<bool>,
}

/// A moment by two clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    /// This machine's, in ns since 1970.
    unix_ns: u64,
    /// The guest's monotonic one, in ns.
    guest_ns: u64,
}

impl Moment {
    /// Of a status that was answered just now.
    fn of(status: &RecordingStatus) -> Moment {
        Moment { unix_ns: now_unix_ns(), guest_ns: status.now_ns }
    }

    /// When the guest's clock showed this, by this machine's clock.
    fn unix_ns(self, guest_ns: u64) -> u64 {
        self.unix_ns.saturating_add(guest_ns).saturating_sub(self.guest_ns)
    }
}

impl Gatherer<'_> {
    /// Fetches over one session, until it fails or the guest leaves the fleet.
    fn follow(&mut self) -> Result<(), GatherError> {
        let guest = self.spool.guest(&self.member.guest)?;
        // One whose settings have changed is followed anew while the thread before may still be at
        // work.
        let _alone = guest.alone();
        let mut session = self.member.session(self.member.gone.clone(), RECONNECT)?;
        let recording = self.lease(&mut session, &guest)?;
        let mut reader = EpochReader::new(&session, recording);
        let mut began: Option<Instant> = None;
        loop {
            let recorder = session.check(&mut ())?;
            let Some(status) = recorder.by_id(recording) else {
                return Err(RecordError::Gone { recording }.into());
            };
            let now = Moment::of(status);
            let left = began.map(|began| self.due(status).saturating_sub(began.elapsed()));
            match left.filter(|left| !left.is_zero()) {
                None => {
                    began = Some(Instant::now());
                    self.fetch(&mut session, &mut reader, &guest, now)?;
                    self.has_answered = true;
                }
                Some(left) if self.member.wait(left.min(self.every / LOOKS)) => {}
                Some(_) => return Ok(()),
            }
        }
    }

    /// How long after a fetch the next one is due: before the memory is full that the guest has
    /// left.
    fn due(&self, status: &RecordingStatus) -> Duration {
        let window = status.stacks_window_ns.map(|ns| Duration::from_nanos(ns / 2));
        let due = window.unwrap_or(self.every).clamp(SHORTEST, self.every);
        if status.wants_fetch || status.state == state::FINISHED { SHORTEST } else { due }
    }

    /// The recording that is fetched; started if there is none that is as the fleet wants it.
    fn lease(&self, session: &mut Session, guest: &GuestSpool) -> Result<u64, GatherError> {
        let how = &self.member.guest.how;
        let recorder = session.check(&mut ())?;
        if let Ok(found) = recorder.find(Some(NAME)) {
            let recording = found.recording;
            let is_wanted = found.state != state::FINISHED
                && found.mode == how.mode.code()
                && found.period_ns == how.period_ns;
            if is_wanted {
                return Ok(recording);
            }
            // The rest of what another configuration wanted.
            let now = Moment::of(found);
            let mut reader = EpochReader::new(session, recording);
            reader.end(session)?;
            match self.fetch(session, &mut reader, guest, now) {
                Err(GatherError::Record(RecordError::Gone { .. })) => {}
                other => other?,
            }
        }
        let _starting = self.member.start();
        let place = PREPARING.take();
        if self.member.gone.stop() {
            return Err(RecordError::from(ConnectionError::Interrupted).into());
        }
        let callers = symbolizer(how).and_then(|symbolizer| {
            Ok(caller_table::prepare(&symbolizer, session.agent(), Unwind::FramePointers)?)
        });
        drop(place);
        let (callers, held_callers) = match callers {
            Ok(callers) => (callers.table, callers.held),
            // The image of another build, for example: better a few guessed callers than none.
            Err(error) => {
                let name = &self.member.guest.name;
                log(&format!("warning: {name}: {error}; it is recorded without a caller table"));
                (None, None)
            }
        };
        let settings = Settings {
            name: NAME.into(),
            period_ns: how.period_ns,
            mode: how.mode,
            callers,
            held_callers,
            ..Preset::Default.settings()
        };
        Ok(session.start(&settings)?.recording)
    }

    /// Fetches all epochs up to `now`, or a little later.
    fn fetch(
        &self,
        session: &mut Session,
        reader: &mut EpochReader,
        guest: &GuestSpool,
        now: Moment,
    ) -> Result<(), GatherError> {
        loop {
            let (epochs, is_all) = match reader.pending(session) {
                Err(error @ RecordError::Leased { .. }) => {
                    if !self.other.replace(true) {
                        let name = &self.member.guest.name;
                        log(&format!("warning: {name}: {}. It is tried again", advised(&error)));
                    }
                    return Ok(());
                }
                other => other?,
            };
            self.other.set(false);
            let is_empty = epochs.is_empty();
            for epoch in epochs {
                if !guest.has(session.agent().instance, epoch) {
                    self.fetch_one(session, reader, guest, epoch, now)?;
                }
                reader.acknowledge(session, epoch)?;
            }
            if is_all || is_empty {
                return Ok(());
            }
        }
    }

    /// Fetches an epoch into the spool. It is read back before the guest may forget it.
    fn fetch_one(
        &self,
        session: &mut Session,
        reader: &mut EpochReader,
        guest: &GuestSpool,
        epoch: u64,
        now: Moment,
    ) -> Result<(), GatherError> {
        let path = guest.incoming();
        reader.fetch(session, epoch, &path)?;
        let place = READING.take();
        let Recording { profile, ended_ns, .. } = Recording::open(&path, Reading::Strict)?;
        let id = EpochId { instance: session.agent().instance, epoch, ended_ns };
        if guest.repeats_last(id) {
            return Ok(());
        }
        let (told, counters) = (profile.recording(), profile.counters());
        let span = span(told.started_unix_ns, told.elapsed_ns, now.unix_ns(ended_ns));
        self.tell_shift(told.started_unix_ns, span.from_unix_ns);
        drop(profile);
        drop(place);
        Ok(self.spool.add(guest, id, span, &counters)?)
    }

    /// Tells once that the guest's clock is not believed.
    fn tell_shift(&self, guest_unix_ns: Option<u64>, unix_ns: u64) {
        let shift_ns = guest_unix_ns.map_or(0, |told| told.abs_diff(unix_ns));
        let is_new = !self.is_shifted.replace(shift_ns != 0);
        if is_new && shift_ns != 0 {
            let direction = if guest_unix_ns < Some(unix_ns) { "behind" } else { "ahead of" };
            log(&format!(
                "warning: {}: its clock is {} {direction} this machine's: its profiles are shifted",
                self.member.guest.name,
                units::duration(shift_ns)
            ));
        }
    }
}

/// The time of an epoch that ended at `ended_unix_ns` by this machine's clock, from when the guest
/// says that it began. If the guest's clock is [too far](CLOCKS_APART_NS) from this machine's,
/// which engines go by, it does not count.
fn span(started_unix_ns: Option<u64>, elapsed_ns: u64, ended_unix_ns: u64) -> Span {
    let began_unix_ns = ended_unix_ns.saturating_sub(elapsed_ns);
    let is_close = |told: &u64| told.abs_diff(began_unix_ns) <= CLOCKS_APART_NS;
    let from_unix_ns = started_unix_ns.filter(is_close).unwrap_or(began_unix_ns);
    Span { from_unix_ns, to_unix_ns: from_unix_ns.saturating_add(elapsed_ns) }
}

fn now_unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::super::config::Guest;
    use super::*;

    fn member() -> Member {
        Member::new(Guest::named("web"))
    }

    #[test]
    fn only_so_much_is_done_at_a_time() {
        let places = Places::new(2);
        let (most, now) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _place = places.take();
                    let count = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(count, Ordering::SeqCst);
                    thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert!(most.into_inner() <= 2);
        // All are free again, also after a panic.
        let panics = || {
            let _place = places.take();
            panic!("of no consequence");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        let _two = (places.take(), places.take());
    }

    #[test]
    fn a_clock_that_is_wrong_is_not_believed() {
        const S: u64 = 1_000_000_000;
        // An epoch of 15 s that ended 100 s ago, and has waited since.
        let now = Moment { unix_ns: 1_700_000_000 * S, guest_ns: 500 * S };
        let began = now.unix_ns - 115 * S;
        let from = |started| {
            let Span { from_unix_ns, to_unix_ns } = span(started, 15 * S, now.unix_ns(400 * S));
            assert_eq!(to_unix_ns, from_unix_ns + 15 * S);
            from_unix_ns
        };
        for right in [began, began - 30 * S, began + 30 * S] {
            assert_eq!(from(Some(right)), right);
        }
        // Slow from its start, or fast.
        for wrong in [None, Some(7), Some(1_000_000_000 * S), Some(began + 31 * S), Some(u64::MAX)]
        {
            assert_eq!(from(wrong), began);
        }
        // One that ended after the guest was asked.
        assert_eq!(now.unix_ns(501 * S), now.unix_ns + S);
        assert_eq!(span(Some(7), u64::MAX, now.unix_ns(u64::MAX)).to_unix_ns, u64::MAX);
    }

    #[test]
    fn a_guest_is_followed_again_after_a_panic_unless_it_has_left() {
        let (member, calls) = (member(), Cell::new(0));
        let work = || {
            calls.set(calls.get() + 1);
            assert!(calls.get() >= 3, "of no consequence");
        };
        despite_panics(&member, Duration::ZERO, work);
        assert_eq!(calls.get(), 3);
        member.leave();
        calls.set(0);
        despite_panics(&member, Duration::from_secs(3600), work);
        assert_eq!(calls.get(), 1);
    }
}
