//! A guest of the fleet, and what is known of it.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use unikprof_client::exit_code;
use unikprof_link::connection::{Access, AgentInfo, ConnectionError, Timeouts};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::key::{Key, KeyFileError};
use unikprof_link::record::{
    Patience, RecordError, RecorderStatus, RecordingStatus, RingFill, Session,
};
use unikprof_profile::caller_table::CallerTableError;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Counters, Runstate};
use unikprof_profile::recording::RecordingError;
use unikprof_profile::symbols::SymbolError;
use unikprof_proto::code::{mode, state};
use unikprof_report::report::ReportError;

use super::config::Guest;

/// How many profiles of one guest are taken at a time: an agent has four places for recordings and
/// for clients, and people need some.
pub(super) const PROFILES_AT_ONCE: usize = 2;

/// How long a guest may take to answer.
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(5), answer: Duration::from_secs(10) };

/// A guest of the fleet.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) guest: Guest,
    /// Raised when the guest leaves the fleet, or the program ends.
    pub(super) gone: Interrupt,
    left: Condvar,
    known: Mutex<Known>,
    /// One for each profile that is being taken.
    running: Mutex<Vec<Interrupt>>,
    /// Held until a recording has begun: two caller tables cannot be sent at a time.
    starting: Mutex<()>,
}

/// What is known of a guest.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Whether a thread asks it again and again.
    pub(super) is_followed: bool,
    /// What it answered last; `None` if that was not now.
    pub(super) last: Option<Arc<Answer>>,
    /// When it answered last.
    pub(super) answered: Option<SystemTime>,
    /// Why it did not answer after that.
    pub(super) failure: Option<String>,
    /// How often it did not answer.
    pub(super) failures: u64,
    /// The guest's own counters, by name.
    pub(super) counters: BTreeMap<String, i64>,
    pub(super) profiles: Profiles,
    /// The load between two answers each, the newest last; `None` where there was no answer.
    pub(super) loads: VecDeque<Option<Load>>,
    /// The function with the most samples of its own in what was recorded last.
    pub(super) hottest: Option<Hottest>,
    pub(super) firsts: Firsts,
}

impl Known {
    /// Whether it answered when it was asked last; `None` before it was asked. `Some(false)` too if
    /// it cannot be asked.
    pub(super) fn up(&self) -> Option<bool> {
        (self.last.is_some() || self.failure.is_some()).then_some(self.last.is_some())
    }

    /// Adds the newest load.
    pub(super) fn add_load(&mut self, load: Option<Load>) {
        if self.loads.len() == LOADS {
            self.loads.pop_front();
        }
        self.loads.push_back(load);
    }
}

/// What each recording of running time had counted when it was seen first: the ticks that it should
/// have had since then follow from the vCPUs' running time.
#[derive(Debug, Default)]
pub(super) struct Firsts {
    /// Of the agent; another one counts anew.
    instance: u64,
    /// By the recording's id: its ticks, and all vCPUs' running time in ns.
    seen: BTreeMap<u64, (u64, u64)>,
}

impl Firsts {
    pub(super) fn see(&mut self, answer: &Answer) {
        let (instance, recordings) = (answer.agent.instance, &answer.status.recordings);
        self.see_recordings(instance, recordings, answer.times.running_ns);
    }

    fn see_recordings(&mut self, instance: u64, all: &[RecordingStatus], running_ns: Option<u64>) {
        if self.instance != instance {
            (self.instance, self.seen) = (instance, BTreeMap::new());
        }
        let stays = |id: &u64| all.iter().any(|one| one.recording == *id);
        self.seen.retain(|id, _| stays(id));
        let Some(running_ns) = running_ns else { return };
        for one in all.iter().filter(|one| is_sampled(one)) {
            let first = (one.counters.ticks, running_ns);
            self.seen.entry(one.recording).or_insert(first);
        }
    }

    /// Running time by the period less the ticks, since the recording was seen first. Both are
    /// asked for one after the other: some ticks are no sign of anything. `None` if it does not
    /// sample running time now.
    pub(super) fn missing(&self, one: &RecordingStatus, running_ns: Option<u64>) -> Option<i64> {
        let (ticks, since_ns) = self.seen.get(&one.recording).filter(|_| is_sampled(one))?;
        let due = running_ns?.checked_sub(*since_ns)? / one.period_ns.max(1);
        let came = one.counters.ticks.checked_sub(*ticks)?;
        Some(i64::try_from(due).ok()?.saturating_sub_unsigned(came))
    }
}

/// Whether a recording has a tick for each period of running time.
fn is_sampled(one: &RecordingStatus) -> bool {
    one.state == state::RECORDING && one.mode == mode::CPU
}

/// How many [loads](Known::loads) are kept of a guest.
pub(super) const LOADS: usize = 60;

/// How a guest spent the time between two answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// How many vCPUs ran, in the mean.
    pub(super) running_vcpus: f64,
    /// See [`Runstate::stolen_share`].
    pub(super) stolen_share: Option<f64>,
}

/// Where most samples were.
#[derive(Debug)]
pub(super) struct Hottest {
    pub(super) function: String,
    /// Its share of all samples.
    pub(super) share: f64,
    /// The recording's mode.
    pub(super) mode: String,
    /// How much of the guest's time was looked at.
    pub(super) seconds: f64,
    pub(super) at: SystemTime,
    /// The guest's recording that it was copied from; `None` if it was recorded here.
    pub(super) recording: Option<String>,
}

/// A guest's answer to the question how it is.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) agent: AgentInfo,
    pub(super) status: RecorderStatus,
    pub(super) rings: Vec<RingFill>,
    /// How all its vCPUs together have spent their time since a moment that its platform chose.
    pub(super) times: Runstate,
}

impl Answer {
    /// The load since an earlier answer; `None` if it was another agent's, or nothing passed.
    pub(super) fn load_since(&self, earlier: &Answer) -> Option<Load> {
        let [now_ns, then_ns] = [self, earlier].map(|answer| answer.status.agent.now_ns);
        let passed_ns = now_ns.checked_sub(then_ns).filter(|ns| *ns != 0)?;
        if self.agent.instance != earlier.agent.instance {
            return None;
        }
        let times = self.times.since(&earlier.times);
        Some(Load {
            running_vcpus: times.running_ns? as f64 / passed_ns as f64,
            stolen_share: times.stolen_share(),
        })
    }

    /// The recording that always runs, whose last minutes can be copied from the guest's rings.
    pub(super) fn always_on(&self) -> Option<&RecordingStatus> {
        always_on(&self.agent, &self.status)
    }
}

/// See [`Answer::always_on`]. A recording of allocations is not one, however long it runs.
pub(super) fn always_on<'a>(
    agent: &AgentInfo,
    status: &'a RecorderStatus,
) -> Option<&'a RecordingStatus> {
    let mut recordings = status.recordings.iter().filter(|_| agent.keeps_time());
    recordings.find(|one| records_time_for_ever(one))
}

fn records_time_for_ever(one: &RecordingStatus) -> bool {
    one.state == state::RECORDING && one.duration_ns == 0 && !one.mode().is_heap()
}

/// All profiles that were begun of a guest since the program began, together.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    pub(super) taken: u64,
    pub(super) failed: u64,
    pub(super) counters: Counters,
    /// Of the last one.
    pub(super) missing: Option<i64>,
    /// What sampling cost, in ns.
    pub(super) cost_ns: u64,
}

/// A profile that is being taken: one of [`PROFILES_AT_ONCE`] until the value is dropped.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) member: Arc<Member>,
    pub(super) interrupt: Interrupt,
}

impl Running {
    /// What ends the recording when nobody waits for it any more.
    pub(super) fn waiting(&self) -> Waiting {
        Waiting(self.interrupt.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.member.running).retain(|other| !other.is(&self.interrupt));
    }
}

/// Somebody who waits for a profile; the recording ends in good order when the value is dropped.
#[derive(Debug)]
pub(super) struct Waiting(Interrupt);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.raise_once();
    }
}

/// A guest cannot be asked, recorded or named.
#[derive(Debug, thiserror::Error)]
pub(super) enum GuestError {
    #[error(transparent)]
    Key(#[from] KeyFileError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("{}", advised(.0))]
    Record(#[from] RecordError),
    #[error("{}", of_image(.0))]
    Symbols(#[from] SymbolError),
    #[error(transparent)]
    CallerTable(CallerTableError),
    #[error("the recording cannot be read: {0}")]
    Recording(#[from] RecordingError),
    #[error("the recording is incomplete: {0}")]
    Incomplete(String),
    #[error(
        "{} is incomplete, and was not replaced: the guest may still hold the rest, as \
         `unikprof-client connect ADDR check` tells; choose another folder, or move the file",
        path.display()
    )]
    Replaces { path: PathBuf },
    #[error(
        "the recording ended early: nobody waits for it, the server stops, or the guest has left \
         the fleet"
    )]
    Ended,
    #[error(
        "the guest has no last minutes: they need a recording without an end (`unikprof-client \
         connect ADDR start --name flight --preset default`, or one from boot) and an agent with a \
         ring"
    )]
    NothingRecent,
    #[error(transparent)]
    Report(#[from] ReportError),
    #[error("cannot keep the recording in a temporary file: {0}")]
    Temporary(std::io::Error),
}

impl From<CallerTableError> for GuestError {
    fn from(error: CallerTableError) -> Self {
        match error {
            CallerTableError::Symbols(error) => error.into(),
            error => GuestError::CallerTable(error),
        }
    }
}

impl GuestError {
    /// The program's exit code for it.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            GuestError::Key(error) => exit_code::of_key_file(error),
            GuestError::Connection(error) => exit_code::of_connection(error),
            GuestError::Record(error) => exit_code::of_record(error),
            GuestError::CallerTable(error) => exit_code::of_caller_table(error),
            GuestError::Recording(_) | GuestError::Symbols(_) => exit_code::INPUT,
            GuestError::Incomplete(_) | GuestError::Ended => exit_code::INCOMPLETE,
            GuestError::Report(_) | GuestError::Temporary(_) | GuestError::Replaces { .. } => {
                exit_code::OUTPUT
            }
            GuestError::NothingRecent => exit_code::REFUSED,
        }
    }

    /// What whoever may look is told: not where keys are.
    pub(super) fn told(&self) -> String {
        match self {
            GuestError::Key(_) => "its key cannot be used; the server's log says why".into(),
            other => other.to_string(),
        }
    }
}

impl Member {
    pub(super) fn new(guest: Guest) -> Member {
        Member {
            guest,
            gone: Interrupt::quitting_at_once(),
            left: Condvar::new(),
            known: Mutex::default(),
            running: Mutex::default(),
            starting: Mutex::default(),
        }
    }

    /// Connects. What a session waits for ends with `interrupt`.
    pub(super) fn session(
        &self,
        interrupt: Interrupt,
        reconnect: Duration,
    ) -> Result<Session, GuestError> {
        let how = &self.guest.how;
        let access = match &how.key_file {
            Some(path) => Key::read(path)?.into(),
            None => Access::Open,
        };
        let patience = Patience { timeouts: TIMEOUTS, reconnect };
        let address = self.guest.address.clone();
        Ok(Session::with_access(address, access, patience, interrupt)?)
    }

    pub(super) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Begins a profile; `None` if as many are being taken as may be.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Running> {
        let mut running = lock(&self.running);
        if running.len() >= PROFILES_AT_ONCE || self.gone.stop() {
            return None;
        }
        let interrupt = Interrupt::default();
        running.push(interrupt.clone());
        Some(Running { member: self.clone(), interrupt })
    }

    /// Waits; answers whether the guest still belongs to the fleet then.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let running = lock(&self.running);
        let stays = |_: &mut Vec<Interrupt>| !self.gone.stop();
        let waited = self.left.wait_timeout_while(running, time, stays);
        drop(waited);
        !self.gone.stop()
    }

    /// Waits until no other recording is about to begin.
    pub(super) fn start(&self) -> MutexGuard<'_, ()> {
        lock(&self.starting)
    }

    /// Ends everything that is done with the guest.
    pub(super) fn leave(&self) {
        let running = lock(&self.running);
        self.gone.raise();
        self.left.notify_all();
        for interrupt in running.iter() {
            interrupt.raise_once();
        }
    }
}

/// The error's text, without options of `unikprof-client`.
fn of_image(error: &SymbolError) -> String {
    match error {
        SymbolError::WrongBuildId { path, expected, .. } => format!(
            "{} is not the guest's image, whose build-id is {expected}: name the image that the \
             guest runs in fleet.toml",
            path.display()
        ),
        SymbolError::NotElf { path, .. } => format!(
            "{} is not an ELF file: name the guest's linked image as `image`, and a symbol list as \
             `symbols`",
            path.display()
        ),
        other => other.to_string(),
    }
}

/// An error's text, with the program whose subcommands it advises.
pub(super) fn advised(error: &RecordError) -> String {
    match error {
        RecordError::Leased { .. }
        | RecordError::GuestChanged
        | RecordError::NothingWaits { .. }
        | RecordError::NotBegun { .. } => {
            format!("{error} (these are subcommands of `unikprof-client connect ADDR`)")
        }
        other => other.to_string(),
    }
}

/// A thread that panicked has left nothing half done: each lock is held for single assignments
/// only.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tells the log in a line, with what others have written in it made harmless. A log that cannot be
/// written to is no reason to stop.
pub(super) fn log(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", Printable(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recording that runs for ever has no profile that would tell.
    #[test]
    fn missing_ticks_are_told_from_the_first_look_on() {
        const SECOND_NS: u64 = 1_000_000_000;
        let one = |mode, ticks| {
            let mut one = RecordingStatus {
                recording: 7,
                state: state::RECORDING,
                mode,
                period_ns: SECOND_NS / 100,
                ..RecordingStatus::default()
            };
            one.counters.ticks = ticks;
            one
        };
        let mut firsts = Firsts::default();
        let mut look = |instance, mode, ticks, seconds| {
            let running_ns = Some(seconds * SECOND_NS);
            firsts.see_recordings(instance, &[one(mode, ticks)], running_ns);
            firsts.missing(&one(mode, ticks), running_ns)
        };
        assert_eq!(look(1, mode::CPU, 5_000, 200), Some(0));
        assert_eq!(look(1, mode::CPU, 5_900, 210), Some(100));
        assert_eq!(look(1, mode::CPU, 6_001, 210), Some(-1));
        // Ticks of another clock, and another agent's.
        assert_eq!(look(1, mode::WALL, 6_001, 300), None);
        assert_eq!(look(2, mode::CPU, 10, 1), Some(0));
        assert_eq!(look(2, mode::CPU, 50, 2), Some(60));
    }

    #[test]
    fn an_endless_recording_of_allocations_is_not_the_always_on_one() {
        let one = |mode, duration_ns| RecordingStatus {
            state: state::RECORDING,
            mode,
            duration_ns,
            ..RecordingStatus::default()
        };
        assert!(records_time_for_ever(&one(mode::CPU, 0)));
        assert!(!records_time_for_ever(&one(mode::CPU, 1)));
        for mode in [mode::ALLOC, mode::LIVE] {
            assert!(!records_time_for_ever(&one(mode, 0)), "{mode}");
        }
    }
}
