//! Takes parcels from the spool to one target, the oldest of each guest first.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use unikprof_link::interrupt::Interrupt;
use unikprof_profile::profile::{Mapping, Profile};
use unikprof_profile::recording::{Reading, Recording, RecordingError};
use unikprof_profile::symbols::{KnownNames, SymbolError, Symbolized, Symbolizer};

use super::super::config::{Guest, How, Push, PushTo};
use super::super::folder::{Folder, FolderError};
use super::super::member::{GuestError, log};
use super::super::push::{self, Delivery, Target, Verdict};
use super::super::take;
use super::books::{Fate, Parcel};
use super::rejected::Rejected;
use super::spool::Spool;

/// How many deliveries to an engine are under way at a time. An engine that takes 100 ms for each
/// takes 160 a second: those of 1,500 guests.
const ENGINE_WORKERS: usize = 16;

/// How many additions to a folder: they wait for the disk, not for a network.
const FOLDER_WORKERS: usize = 4;

/// How long a worker waits when there is nothing to deliver.
const IDLE: Duration = Duration::from_millis(200);

/// A target that fails is tried again after so long, twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// How often the log says that a target fails: one that fails on some profiles only would fill it.
const TELL: Duration = Duration::from_secs(60);

/// A parcel is rejected that was refused so often, at least so far apart: over an hour.
const REFUSALS: u32 = 5;
const APART: Duration = Duration::from_secs(15 * 60);

/// How many builds of guests a worker keeps the names of, and for how long: images may change.
const MOST_NAMED: usize = 16;
const NAMED_FOR: Duration = Duration::from_secs(600);

/// Somewhere that parcels are delivered to.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) name: String,
    to: To,
    rejected: Rejected,
    /// Between two refusals of a parcel that count.
    apart: Duration,
    failing: Mutex<Failing>,
}

#[derive(Debug)]
enum To {
    Engine(Box<dyn Target>),
    Folder(Folder),
}

/// How long nothing is to be sent.
#[derive(Debug, Default)]
struct Failing {
    until: Option<Instant>,
    retry: Duration,
    /// Whether the log says that the target fails, and when it said so last.
    is_told: bool,
    told: Option<Instant>,
    /// The parcels that the target has accepted, and those that it has refused at least once.
    accepted: u64,
    refused: u64,
}

/// The refusals of a guest's next parcel.
#[derive(Debug, Clone, Copy)]
struct Refused {
    number: u64,
    /// How many count. The next one does if the target has accepted more than this by then.
    times: u32,
    last: Instant,
    last_accepted: u64,
    /// What the target had accepted and refused at the first one.
    accepted: u64,
    refused: u64,
}

impl Receiver {
    /// The receiver for an entry; a folder is locked for this process. What it rejects is kept
    /// beside the spool, up to so many bytes.
    pub(super) fn new(push: &Push, spool: &Path, bytes: u64) -> Result<Receiver, FolderError> {
        let to = match &push.to {
            PushTo::Engine(engine, remote) => To::Engine(push::target(*engine, remote)),
            PushTo::Folder { path, keep_for, keep_bytes } => {
                To::Folder(Folder::open(path, *keep_for, *keep_bytes)?)
            }
        };
        Ok(Receiver {
            name: push.name.clone(),
            to,
            rejected: Rejected::open(spool, &push.name, bytes),
            apart: APART,
            failing: Mutex::default(),
        })
    }

    /// How many threads [work](Self::work) for it.
    pub(super) fn workers(&self) -> usize {
        match self.to {
            To::Engine(_) => ENGINE_WORKERS,
            To::Folder(_) => FOLDER_WORKERS,
        }
    }

    /// Delivers the parcels of each guest whose index is `worker`, modulo [the
    /// workers](Self::workers), until `ended`.
    ///
    /// After a failed delivery the guests behind that one are next: an engine that fails on the
    /// profiles of one guest only must not keep the others' in the spool.
    pub(super) fn work(&self, worker: usize, spool: &Spool, ended: &Interrupt) {
        let mut names = Names::default();
        let mut refused = BTreeMap::new();
        let mut first = 0;
        while !ended.stop() {
            let mut is_idle = true;
            let mut guests = spool.guests();
            guests.retain(|it| it.index % self.workers() == worker);
            let count = guests.len();
            guests.rotate_left(first % count.max(1));
            for (at, guest) in guests.iter().enumerate() {
                if ended.stop() || self.is_failing() {
                    break;
                }
                let Some((parcel, path)) = guest.next(&self.name) else {
                    continue;
                };
                let Some(described) = guest.guest() else {
                    continue;
                };
                is_idle = false;
                let deliver = || self.deliver(&described, &parcel, &path, &mut names);
                let fate = match despite_panics(deliver) {
                    Outcome::Settled(fate) => {
                        self.works(&fate);
                        fate
                    }
                    Outcome::Empty => Fate::Accepted,
                    Outcome::Unusable(reason) if is_gone(&path) => Fate::Dropped(reason),
                    Outcome::Unusable(reason) => Fate::Rejected(reason),
                    Outcome::Later { reason, after } => {
                        first = (first + at + 1) % count;
                        self.fails(&reason, after);
                        if !self.refuses_alone(&mut refused, guest.index, parcel.number) {
                            continue;
                        }
                        Fate::Rejected(format!("refused while others are accepted: {reason}"))
                    }
                };
                self.keep(&described, &parcel, &path, &fate);
                guest.settle(&self.name, &parcel, fate);
            }
            if is_idle {
                let until = Instant::now() + IDLE;
                ended.sleep_until(until, Interrupt::stop);
            }
        }
    }

    /// Deletes what a folder need not keep.
    pub(super) fn clean(&self) {
        if let To::Folder(folder) = &self.to
            && let Err(error) = folder.clean(std::time::SystemTime::now())
        {
            log(&format!("warning: {}: {error}", self.name));
        }
    }

    fn deliver(&self, guest: &Guest, parcel: &Parcel, path: &Path, names: &mut Names) -> Outcome {
        let engine = match &self.to {
            To::Engine(engine) => engine,
            To::Folder(folder) => {
                return match folder.add(&guest.name, path, parcel.span.to_unix_ns) {
                    Ok(()) => Outcome::Settled(Fate::Accepted),
                    Err(error) if error.is_the_parcels() || is_gone(path) => {
                        Outcome::unusable(error)
                    }
                    Err(error) => Outcome::later(error),
                };
            }
        };
        let recording = match Recording::open(path, Reading::Strict) {
            Ok(recording) => recording,
            // As for want of open files.
            Err(error @ RecordingError::Open { .. }) if !is_gone(path) => {
                return Outcome::later(error);
            }
            Err(error) => return Outcome::unusable(error),
        };
        if recording.profile.samples().is_empty() {
            return Outcome::Empty;
        }
        let verdict = names.with(guest, &recording.profile, |symbolized| {
            engine.deliver(&Delivery {
                guest,
                symbolized,
                from_unix_ns: parcel.span.from_unix_ns,
                to_unix_ns: parcel.span.to_unix_ns,
            })
        });
        match verdict {
            Err(error) => Outcome::unusable(error),
            Ok(Verdict::Accepted) => Outcome::Settled(Fate::Accepted),
            Ok(Verdict::Never { reason, in_part }) => Outcome::Settled(match in_part {
                true => Fate::InPart(reason),
                false => Fate::Rejected(reason),
            }),
            Ok(Verdict::Later { reason, after }) => Outcome::Later { reason, after },
        }
    }

    /// Keeps what the target will not take, and tells of it.
    fn keep(&self, guest: &Guest, parcel: &Parcel, path: &Path, fate: &Fate) {
        let kept = |reason| {
            let folder = self.rejected.folder.display();
            match self.rejected.keep(&guest.name, parcel, path, reason) {
                Ok(()) => format!("; it is kept in {folder}"),
                Err(error) => format!("; it cannot be kept in {folder}: {error}"),
            }
        };
        let (reason, kept) = match fate {
            Fate::Accepted => return,
            Fate::Rejected(reason) | Fate::InPart(reason) => (reason, kept(reason)),
            Fate::Dropped(reason) => (reason, String::new()),
        };
        let (guest, name) = (&guest.name, &self.name);
        log(&format!("warning: {guest}: {name} does not take a profile: {reason}{kept}"));
    }

    /// Counts a refusal of a guest's next parcel, and answers whether the parcel is the reason: the
    /// target has refused it over an hour, in which it accepted more others than it refused.
    fn refuses_alone(&self, all: &mut BTreeMap<usize, Refused>, guest: usize, number: u64) -> bool {
        let mut failing = self.failing();
        let accepted = failing.accepted;
        let known = all.get(&guest).copied().filter(|known| known.number == number);
        let Some(mut known) = known else {
            failing.refused += 1;
            let (last, refused) = (Instant::now(), failing.refused);
            let times = 1;
            let new = Refused { number, times, last, last_accepted: accepted, accepted, refused };
            all.insert(guest, new);
            return false;
        };
        if known.last.elapsed() < self.apart || known.last_accepted == accepted {
            return false;
        }
        known.times += 1;
        (known.last, known.last_accepted) = (Instant::now(), accepted);
        all.insert(guest, known);
        if known.times < REFUSALS {
            return false;
        }
        // If not, the target was in trouble, and the count begins anew.
        all.remove(&guest);
        accepted - known.accepted > failing.refused - known.refused
    }

    fn is_failing(&self) -> bool {
        let until = self.failing().until;
        until.is_some_and(|until| Instant::now() < until)
    }

    fn works(&self, fate: &Fate) {
        let mut failing = self.failing();
        (failing.until, failing.retry) = (None, Duration::ZERO);
        failing.accepted += u64::from(*fate == Fate::Accepted);
        let was_told = std::mem::take(&mut failing.is_told);
        drop(failing);
        if was_told {
            log(&format!("{}: works again", self.name));
        }
    }

    fn fails(&self, reason: &str, after: Option<Duration>) {
        let mut failing = self.failing();
        if failing.until.is_some_and(|until| Instant::now() < until) {
            // Another worker has said so.
            return;
        }
        let is_old = |told: Instant| told.elapsed() >= TELL;
        let is_new = !failing.is_told && failing.told.is_none_or(is_old);
        if is_new {
            (failing.is_told, failing.told) = (true, Some(Instant::now()));
        }
        failing.retry = (failing.retry * 2).clamp(FIRST_RETRY, LONGEST_RETRY);
        let wait = failing.retry.mul_f64(0.5 + fastrand::f64());
        failing.until = Some(Instant::now() + wait.max(after.unwrap_or_default()));
        drop(failing);
        if is_new {
            let name = &self.name;
            log(&format!(
                "warning: {name} does not take profiles now: {reason}; they wait in the spool"
            ));
        }
    }

    fn failing(&self) -> std::sync::MutexGuard<'_, Failing> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum Outcome {
    Settled(Fate),
    /// There is nothing in it for an engine, which was not asked.
    Empty,
    /// By a fault of the parcel's file or of this program; nor was the target asked.
    Unusable(String),
    Later {
        reason: String,
        after: Option<Duration>,
    },
}

impl Outcome {
    fn later(error: impl std::fmt::Display) -> Outcome {
        Outcome::Later { reason: error.to_string(), after: None }
    }

    fn unusable(error: impl std::fmt::Display) -> Outcome {
        Outcome::Unusable(error.to_string())
    }
}

/// Whether a parcel's file is no more, so that it can never be delivered.
fn is_gone(path: &Path) -> bool {
    path.try_exists().is_ok_and(|exists| !exists)
}

/// Delivers; a parcel that this program panics over would stay in the way of its guest for ever.
fn despite_panics(deliver: impl FnOnce() -> Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(deliver)).unwrap_or_else(|_| {
        Outcome::unusable("delivering it has panicked, by a mistake of this program")
    })
}

/// The names of the builds that were delivered last.
#[derive(Default)]
struct Names(Vec<Named>);

struct Named {
    how: How,
    mappings: Vec<Mapping>,
    symbolizer: Symbolizer,
    known: KnownNames,
    since: Instant,
}

impl Names {
    /// Names a profile's frames. What cannot be had is left out: an image of another build, a
    /// folder that is not there.
    fn with<T>(
        &mut self,
        guest: &Guest,
        profile: &Profile,
        then: impl FnOnce(&Symbolized<'_>) -> T,
    ) -> Result<T, SymbolError> {
        self.0.retain(|named| named.since.elapsed() < NAMED_FOR);
        let is_it = |named: &Named| named.how == guest.how && named.mappings == profile.mappings();
        let index = match self.0.iter().position(is_it) {
            Some(index) => index,
            None => {
                if self.0.len() >= MOST_NAMED {
                    self.0.remove(0);
                }
                self.0.push(Named::new(guest, profile));
                self.0.len() - 1
            }
        };
        let Named { symbolizer, known, .. } = &mut self.0[index];
        match symbolizer.resolve_new(profile, known) {
            Ok(symbolized) => Ok(then(&symbolized)),
            // A file has changed since.
            Err(_) => Ok(then(&Symbolizer::default().resolve(profile)?)),
        }
    }
}

impl Named {
    fn new(guest: &Guest, profile: &Profile) -> Named {
        let how = &guest.how;
        // With both, else with what can be had.
        let tries = [(true, true), (false, true), (true, false)];
        let named = tries.into_iter().find_map(|(has_image, has_symbols)| {
            let how = How {
                image: how.image.clone().filter(|_| has_image),
                symbols: how.symbols.clone().filter(|_| has_symbols),
                ..How::default()
            };
            let named = take::symbolizer(&how).and_then(|symbolizer| {
                symbolizer.resolve(profile)?;
                Ok(symbolizer)
            });
            let tell = |error: &GuestError| {
                let name = &guest.name;
                log(&format!("warning: {name}: {error}; profiles come without these names"));
            };
            named.inspect_err(tell).ok()
        });
        Named {
            how: how.clone(),
            mappings: profile.mappings().to_vec(),
            symbolizer: named.unwrap_or_default(),
            known: KnownNames::default(),
            since: Instant::now(),
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::sync::Arc;

    use unikprof_profile::profile::Counters;

    use super::super::super::config::{Engine, Remote};
    use super::super::super::folder::tests::Sent;
    use super::super::audit::Audit;
    use super::super::books::{EpochId, Span};
    use super::super::spool::GuestSpool;
    use super::*;

    fn receivers(folder: &Path) -> [Receiver; 2] {
        let engine = Remote { url: "http://127.0.0.1:1".into(), ..Remote::default() };
        let folder =
            PushTo::Folder { path: folder.join("recordings"), keep_for: None, keep_bytes: None };
        [PushTo::Engine(Engine::Parca, engine), folder].map(|to| {
            let name = "a".into();
            Receiver::new(&Push { name, to }, Path::new("spool"), 0).unwrap()
        })
    }

    fn parcel() -> Parcel {
        Parcel {
            number: 1,
            id: EpochId { instance: 1, epoch: 1, ended_ns: 1 },
            outcomes: [1, 0, 0, 0, 0, 0].into(),
            span: Span { from_unix_ns: 1, to_unix_ns: 2 },
        }
    }

    fn deliver(receiver: &Receiver, path: &Path) -> Outcome {
        receiver.deliver(&Guest::named("web"), &parcel(), path, &mut Names::default())
    }

    /// A process may have no file to open left for a moment; a link to itself can be opened as
    /// little.
    #[test]
    fn a_parcel_is_given_up_for_its_own_faults_only() {
        let folder = tempfile::tempdir().unwrap();
        let [no_parcel, gone, closed] = ["no", "gone", "closed"].map(|it| folder.path().join(it));
        fs::write(&no_parcel, "no parcel").unwrap();
        std::os::unix::fs::symlink(&closed, &closed).unwrap();
        for receiver in receivers(folder.path()) {
            for path in [&no_parcel, &gone] {
                let outcome = deliver(&receiver, path);
                assert!(matches!(outcome, Outcome::Unusable(_)), "{outcome:?}");
            }
            let outcome = deliver(&receiver, &closed);
            assert!(matches!(outcome, Outcome::Later { .. }));
        }
    }

    /// Else an engine that is away would be said to work again, and asked anew at once.
    #[test]
    fn an_epoch_without_samples_says_nothing_of_an_engine() {
        let folder = tempfile::tempdir().unwrap();
        let [full, empty] = ["full", "empty"].map(|it| folder.path().join(it));
        Sent::default().write(&full);
        Sent::without_counts().write(&empty);
        let [engine, _] = receivers(folder.path());
        let outcome = deliver(&engine, &full);
        assert!(matches!(outcome, Outcome::Later { .. }));
        let outcome = deliver(&engine, &empty);
        assert!(matches!(outcome, Outcome::Empty), "{outcome:?}");
    }

    fn engine(spool: &Path, target: impl Target + 'static) -> Receiver {
        Receiver {
            name: "engine".into(),
            to: To::Engine(Box::new(target)),
            rejected: Rejected::open(spool, "engine", u64::MAX),
            apart: Duration::ZERO,
            failing: Mutex::default(),
        }
    }

    /// A guest of which a parcel waits.
    fn waiting(spool: &Spool, name: char) -> Arc<GuestSpool> {
        let guest = spool.guest(&Guest::named(&name.to_string())).unwrap();
        Sent::default().write(&guest.incoming());
        let Parcel { id, span, .. } = parcel();
        let counters = Counters { recorded: 1, ..Counters::default() };
        spool.add(&guest, id, span, &counters).unwrap();
        guest
    }

    /// Accepts a profile when it has got one from each worker.
    #[derive(Debug)]
    struct Slow(std::sync::Barrier);

    impl Target for Slow {
        fn deliver(&self, _: &Delivery<'_>) -> Verdict {
            self.0.wait();
            Verdict::Accepted
        }
    }

    /// An engine is a network away: one profile after the other, the spool of a large fleet would
    /// fill.
    #[test]
    fn an_engine_that_takes_long_has_many_profiles_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), u64::MAX, vec!["engine".into()]).unwrap();
        let guests: Vec<_> = ('a'..='p').map(|name| waiting(&spool, name)).collect();
        let receiver = Arc::new(engine(folder.path(), Slow(std::sync::Barrier::new(16))));
        let (spool, ended) = (Arc::new(spool), Interrupt::default());
        for worker in 0..receiver.workers() {
            let (receiver, spool, ended) = (receiver.clone(), spool.clone(), ended.clone());
            std::thread::spawn(move || receiver.work(worker, &spool, &ended));
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while guests.iter().any(|it| it.next("engine").is_some()) {
            assert!(Instant::now() < deadline, "they wait for each other");
            std::thread::sleep(Duration::from_millis(20));
        }
        ended.raise();
    }

    /// Accepts the profiles of all guests but one.
    #[derive(Debug)]
    struct Picky;

    impl Target for Picky {
        fn deliver(&self, delivery: &Delivery<'_>) -> Verdict {
            match delivery.guest.name.as_str() {
                "a" => Verdict::Later { reason: "500".into(), after: None },
                _ => Verdict::Accepted,
            }
        }
    }

    /// As where an engine answers 500 to a profile that it has a mistake for. That one is not in
    /// the way of its guest for ever.
    #[test]
    fn an_engine_that_fails_on_one_guest_takes_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spool");
        let spool = Spool::open(&path, u64::MAX, vec!["engine".into()]).unwrap();
        // The last one has the same worker as the first one.
        let guests: Vec<_> = ('a'..='q').map(|name| waiting(&spool, name)).collect();
        let last = &guests[ENGINE_WORKERS];
        let receiver = engine(&path, Picky);
        let ended = Interrupt::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| receiver.work(0, &spool, &ended));
            while last.next("engine").is_some() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            while guests[0].next("engine").is_some() && Instant::now() < deadline {
                receiver.failing().until = None;
                if last.next("engine").is_none() {
                    waiting(&spool, 'q');
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            ended.raise();
        });
        spool.flush().unwrap();
        let audit = Audit::read(&path).unwrap().to_string();
        assert!(audit.contains("0 in the spool, 1 rejected, 0 dropped (last: refused"), "{audit}");
        let rejected = folder.path().join("spool-rejected/engine");
        let told = format!("engine: 1 of 1 rejected profiles are kept in {}", rejected.display());
        assert!(audit.contains(&told), "{audit}");
        let kept = rejected.join("00000000000000000001-a.unikprof");
        assert!(Recording::open(&kept, Reading::Strict).is_ok());
        let answer = fs::read_to_string(kept.with_extension("txt")).unwrap();
        assert_eq!(answer, "refused while others are accepted: 500\n");
    }

    /// An engine in trouble says nothing about a parcel.
    #[test]
    fn a_parcel_is_refused_alone_if_more_others_are_accepted_than_refused() {
        let mut engine = engine(Path::new("spool"), Picky);
        let mut all = BTreeMap::new();
        for (accepted, others, apart, expected) in [
            (1, 0, Duration::ZERO, true),
            (0, 0, Duration::ZERO, false),
            (1, REFUSALS, Duration::ZERO, false),
            (1, 0, APART, false),
        ] {
            engine.apart = apart;
            all.clear();
            let mut is_alone = false;
            for _ in 0..REFUSALS {
                is_alone |= engine.refuses_alone(&mut all, 99, 1);
                for guest in 0..others as usize {
                    engine.refuses_alone(&mut all, guest, 1);
                }
                (0..accepted).for_each(|_| engine.works(&Fate::Accepted));
            }
            assert_eq!(is_alone, expected, "{accepted} accepted, {others} others");
        }
    }

    /// Else an engine that fails on the profiles of one guest writes two lines to the log every
    /// second.
    #[test]
    fn failures_between_successes_are_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let [engine, _] = receivers(folder.path());
        let fail = || {
            engine.failing().until = None;
            engine.fails("500", None);
            engine.failing().is_told
        };
        assert!(fail());
        engine.works(&Fate::Accepted);
        assert!(!fail());
        assert!(engine.is_failing());
        let long_ago = Instant::now().checked_sub(TELL);
        engine.failing().told = long_ago;
        assert_eq!(fail(), long_ago.is_some());
    }

    #[test]
    fn a_parcel_that_panics_is_given_up() {
        let outcome = despite_panics(|| panic!("of no consequence"));
        assert!(matches!(outcome, Outcome::Unusable(_)));
    }
}
