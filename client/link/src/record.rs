//! Starts a recording in the guest, follows it, and downloads its counts.
//!
//! ```no_run
//! use unikprof_link::connection::Timeouts;
//! use unikprof_link::interrupt::Interrupt;
//! use unikprof_link::record::{self, Patience, Session, Settings};
//!
//! let address = "10.0.0.5:7777".parse()?;
//! let patience = Patience::default();
//! let mut session = Session::open(address, patience, Interrupt::default())?;
//! let settings = Settings { duration_ns: 30_000_000_000, ..Settings::default() };
//! let outcome = record::record(&mut session, &settings, "web.unikprof".as_ref(), &mut ())?;
//! println!("{}", outcome.path.display());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! While a recording runs, [`record`] drains it: it fetches counts, records and stacks before the
//! guest's memory is full, so that a recording of any length is complete.
//!
//! No data is lost in transfer: if the connection breaks, the epoch is fetched again from that
//! point. It is cleared in the guest only once it is stored on the client's disk. If the connection
//! does not come back, the data that arrived is kept in a recording that is marked as incomplete.

mod approach;
mod collect;
mod discard;
mod epochs;
mod error;
mod events;
mod growth;
mod held;
mod live;
mod preset;
mod rings;
mod session;
mod settings;
mod snapshot;
mod trace;
mod upload;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unikprof_proto::code::state;
use unikprof_proto::message::TraceState;

pub use collect::Request;
use collect::{Collector, collect};
pub use discard::{discard, discard_at_the_end};
pub use epochs::EpochReader;
pub use error::RecordError;
pub use events::EventReader;
use growth::Growth;
pub use held::{dump_times, watch};
pub use live::LiveReader;
pub use preset::Preset;
pub use rings::{Asked, RingFill};
pub use session::{Patience, Session};
pub use settings::{DEFAULT_INTERVAL_BYTES, DEFAULT_NAME, Keep, Mode, Settings};
pub use snapshot::{Snapshot, SnapshotError, VcpuSnapshot};
pub use unikprof_profile::recorder_status::{RecorderStatus, RecordingStatus};

pub use trace::{OrderedFunction, OrderedProbe, TraceOrder, trace};

use crate::connection::ConnectionError;
use unikprof_profile::caller_table::Interrupted;
use unikprof_profile::output::OutputError;
use unikprof_profile::profile;

/// How often a running recording is looked at, at least.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// How long a recording runs before it is drained for the first time, and the shortest and the
/// longest time between two drains.
const FIRST_DRAIN: Duration = Duration::from_millis(250);
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A recording that has run for less than ten times this is drained this often: what a guest that
/// crashes takes with it is no more than this, or a tenth of the recording.
const SHORT_RECORDING_PAUSE: Duration = Duration::from_secs(1);

/// The time between two drains of what is held, unless the guest waits for one.
const LONGEST_LIVE_PAUSE: Duration = Duration::from_secs(600);

/// An event while a recording is made.
#[derive(Debug)]
pub enum Event<'a> {
    /// The recording runs; its progress.
    Running {
        /// The recording.
        recording: &'a RecordingStatus,
        /// The recorder, which may have other recordings as well.
        recorder: &'a RecorderStatus,
    },
    /// A trace is sent to the agent, which sets its probes.
    SettingUp {
        /// Its functions.
        functions: usize,
        /// Their probes.
        probes: usize,
    },
    /// A trace is under way; its progress.
    Tracing {
        /// Its state.
        state: &'a TraceState,
        /// The calls of all functions so far.
        calls: u64,
        /// Its length in ns; 0: it does not end by itself.
        duration_ns: u64,
    },
    /// A trace has failed, or the user gave it up.
    Abandoned {
        /// Whether the agent answered that the probes are removed.
        is_restored: bool,
    },
    /// Progress of the download.
    Fetching {
        /// Samples so far.
        samples: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Another recording prevents the agent from accepting this recording's caller table.
    CallerTableNotTaken {
        /// Whether the recording uses the table that the agent has; otherwise callers of functions
        /// without a frame will be guessed.
        uses_held: bool,
    },
    /// The connection broke; the client reconnects.
    ConnectionLost(&'a ConnectionError),
    /// Another client ended the recording, when it had run for so long.
    EndedByAnother {
        /// From the start of sampling.
        after: Duration,
    },
    /// The agent refuses something for now; it is tried again.
    Waiting(&'a RecordError),
    /// The connection is back.
    Reconnected,
}

/// Receives events; `()` ignores them.
pub trait Observer {
    /// Called for each event, on the thread that records.
    fn event(&mut self, event: Event<'_>);
}

impl Observer for () {
    fn event(&mut self, _: Event<'_>) {}
}

/// How a recording ended.
#[derive(Debug)]
pub struct Outcome {
    /// The recording file. It has the name that was asked for unless it was `displaced`.
    pub path: PathBuf,
    /// Why the file has another name: its own was removed or replaced while it was written.
    pub displaced: Option<OutputError>,
    /// Why the recording is incomplete; `None` if it is complete.
    pub incomplete: Option<RecordError>,
    /// The first epoch that the agent still holds although the file contains it, and the reason.
    /// The next recording may have to discard it, unless [another client](RecordError::Leased)
    /// fetches it.
    pub unacknowledged: Option<(u64, RecordError)>,
}

/// Records according to `settings` and writes the recording to `path`.
///
/// The guest ends the recording when its duration has passed. An
/// [`Interrupt`](crate::interrupt::Interrupt) ends it earlier; a second one aborts.
pub fn record(
    session: &mut Session,
    settings: &Settings,
    path: &Path,
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    // An output that cannot be written is reported before half a minute is spent.
    let writer = session.create_recording(path)?;
    let (started, has_callers) = session.start_telling(settings, observer)?;
    let recording = started.recording;
    let partial = settings.partial.clone().filter(|_| has_callers);
    let growth = partial.map(|table| Growth::new(Some(table)));
    let mut collector =
        Collector::new(session, writer).named(Some(&settings.name)).following(growth);
    let request = Request::Stop { recording };
    let collected = match drain_until_end(&mut collector, recording, observer) {
        Ok(true) => Ok(()),
        Ok(false) => collector.collect(request, observer),
        Err(error) => Err(error),
    };
    if collected.is_ok() {
        collector.tell_end(settings.duration_ns, observer);
    }
    let guest = collector.session.guest_words();
    let collected = collected.map_err(|error| error.while_running(request, &settings.name, guest));
    collector.finish(collected, request)
}

/// Stops a recording, or fetches its counts so far and leaves it running, and writes them to
/// `path`, together with the rings' records if the agent has rings.
pub fn fetch(
    session: &mut Session,
    request: Request,
    path: &Path,
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    fetch_part(session, request, Asked::default(), path, None, observer)
}

/// As [`fetch`], with the rings' records from the requested part of the recording's time. Errors
/// name the recording by `name`.
pub fn fetch_part(
    session: &mut Session,
    request: Request,
    asked: Asked,
    path: &Path,
    name: Option<&str>,
    observer: &mut dyn Observer,
) -> Result<Outcome, RecordError> {
    let writer = session.create_recording(path)?;
    collect(session, request, asked, writer, name, observer)
}

/// How the names of recordings of a [first second](first_second) begin.
const FIRST_SECOND: &str = "first-second";

/// The functions that one second of samples interrupts, from which the [first
/// rows](unikprof_profile::caller_table::PartialTable::first) of a caller table too large for the agent are
/// chosen. Makes a separate recording without a caller table. Empty if the agent rejects that
/// recording, for example because it has as many as it can hold.
pub fn first_second(
    session: &mut Session,
    settings: &Settings,
) -> Result<Interrupted, RecordError> {
    discard_first_seconds(session)?;
    let agent = session.agent();
    let period_ns = settings.period_ns.min(Settings::default().period_ns);
    let first = Settings {
        name: own_name(FIRST_SECOND),
        period_ns: period_ns.max(agent.min_period_ns),
        interval_bytes: settings.interval_bytes,
        mode: settings.mode,
        // The interrupted function, behind a frame that says that it waits.
        depth: Some(agent.max_depth.min(2)),
        duration_ns: 1_000_000_000,
        ..Settings::default()
    };
    let folder = tempfile::tempdir().map_err(OutputError::at(&std::env::temp_dir()))?;
    let writer = session.create_recording(&folder.path().join("first-second.unikprof"))?;
    let observer = &mut ();
    let recording = match session.start_observed(&first, observer) {
        Ok(started) => started.recording,
        Err(RecordError::Connection(ConnectionError::Refused { .. })) => {
            return Ok(Interrupted::new());
        }
        Err(error) => return Err(error),
    };
    let mut collector = Collector::new(session, writer).following(Some(Growth::new(None)));
    if !drain_until_end(&mut collector, recording, observer)? {
        collector.collect(Request::Stop { recording }, observer)?;
    }
    let growth = collector.growth();
    Ok(growth.map(Growth::into_interrupted).unwrap_or_default())
}

/// Discards recordings of a first second whose clients did not live to fetch them: each takes a
/// place in the agent.
fn discard_first_seconds(session: &mut Session) -> Result<(), RecordError> {
    let observer = &mut ();
    let recorder = session.check(observer)?;
    let is_left =
        |one: &&RecordingStatus| is_own_name(FIRST_SECOND, &one.name) && one.is_unclaimed();
    for left in recorder.recordings.iter().filter(is_left) {
        match discard(session, left.recording, observer) {
            // Another client was faster.
            Ok(())
            | Err(
                RecordError::Leased { .. }
                | RecordError::Connection(ConnectionError::Refused { .. }),
            ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A name that no other recording has.
pub fn own_name(what: &str) -> String {
    // Without random numbers, one client of this machine at a time is told from the others.
    let number = getrandom::u32().unwrap_or_else(|_| std::process::id());
    format!("{what}-{number:08x}")
}

/// Whether a name is one that [`own_name`] makes, and not a person's.
pub fn is_own_name(what: &str, name: &str) -> bool {
    let number = name.strip_prefix(what).and_then(|rest| rest.strip_prefix('-'));
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    number.is_some_and(|number| number.len() == 8 && number.bytes().all(is_digit))
}

/// Fetches what a recording has counted, and the records of the rings, before the guest's memory is
/// full, until the recording has ended or the user wants it to. Returns whether all of it has been
/// fetched.
fn drain_until_end(
    collector: &mut Collector<'_>,
    recording: u64,
    observer: &mut dyn Observer,
) -> Result<bool, RecordError> {
    // When it was drained last, or was first seen to be recording.
    let (mut since, mut is_first) = (None, true);
    // Samples that were taken before rows were added are told from those after.
    let mut has_grown = false;
    loop {
        // On a slow line each drain is due as soon as the one before has ended.
        if collector.session.is_stopped() {
            return Ok(false);
        }
        let looked = Instant::now();
        let recorder = collector.session.check(observer)?;
        let Some(status) = recorder.by_id(recording) else {
            return Err(RecordError::Gone { recording });
        };
        observer.event(Event::Running { recording: status, recorder: &recorder });
        if status.state == state::FINISHED {
            return Ok(false);
        }
        let now = Instant::now();
        let pause = collector.between_drains(between_drains(status));
        let due = match (status.state, is_first) {
            (state::RECORDING, _) if has_grown => now,
            // The agent does not know the rate yet.
            (state::RECORDING, true) if status.mode() != profile::Mode::Live => {
                *since.get_or_insert(now) + FIRST_DRAIN
            }
            (state::RECORDING, _) => *since.get_or_insert(now) + pause,
            _ => now + CHECK_EVERY,
        };
        if due <= now {
            if collector.drain(recording, observer)? {
                return Ok(true);
            }
            has_grown = collector.grow(observer)?;
            (since, is_first) = (Some(counts_from(looked, Instant::now(), pause)), false);
            continue;
        }
        // A little longer than the guest needs: its clock and ours are not the same.
        let left = status.left().map(|left| left + Duration::from_millis(20));
        // A quarter of the wait, so that a guest which wants to be fetched sooner is noticed.
        let look = (pause / 4).clamp(SHORTEST_PAUSE, CHECK_EVERY);
        let wait = left.map_or(look, |left| left.min(look));
        if collector.session.sleep(wait.min(due - now)) {
            return Ok(false);
        }
    }
}

/// From when the pause behind a drain counts, so that the next one, if it takes as long, has ended
/// when the pause is over: what is counted meanwhile is at risk until then. Later if the guest would
/// get no pause.
fn counts_from(looked: Instant, ended: Instant, pause: Duration) -> Instant {
    let took = ended.saturating_duration_since(looked);
    let rested = ended.checked_sub(pause.saturating_sub(SHORTEST_PAUSE));
    let earlier = looked.checked_sub(took).unwrap_or(looked);
    rested.map_or(looked, |rested| earlier.max(rested))
}

/// How long the guest's memory may fill up between two drains: a quarter of what it holds at the
/// present rate. No longer at all where it waits for a fetch, as when the rate has risen since.
fn between_drains(status: &RecordingStatus) -> Duration {
    if status.wants_fetch {
        return SHORTEST_PAUSE;
    }
    if status.mode() == profile::Mode::Live {
        // What is held is fetched at the end; each fetch is another file's worth of it.
        return LONGEST_LIVE_PAUSE;
    }
    let windows = [status.samples_window_ns, status.stacks_window_ns];
    let least = windows.into_iter().flatten().min();
    let longest = longest_pause(status.elapsed());
    let wait = least.map_or(longest, |ns| Duration::from_nanos(ns / 4));
    wait.clamp(SHORTEST_PAUSE, longest)
}

/// The longest time between two drains of a recording that has run for so long.
fn longest_pause(elapsed: Duration) -> Duration {
    (elapsed / 10).clamp(SHORT_RECORDING_PAUSE, LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that crashes takes a second of a short recording with it at most.
    #[test]
    fn a_short_recording_is_drained_each_second() {
        let paused = |seconds: u64| longest_pause(Duration::from_secs(seconds)).as_secs();
        assert_eq!([0, 9, 10, 30, 1_000].map(paused), [1, 1, 1, 3, 10]);
    }

    /// Guards more than a second at risk where drains are slow.
    #[test]
    fn the_next_drain_ends_a_second_after_the_last_began() {
        let (looked, second) = (Instant::now(), Duration::from_secs(1));
        let ends = |took_ms: u64| {
            let took = Duration::from_millis(took_ms);
            (counts_from(looked, looked + took, second) + second + took - looked).as_millis()
        };
        assert_eq!([0, 100, 375].map(ends), [1_000; 3]);
        assert_eq!(ends(1_200), 2 * 1_200 + SHORTEST_PAUSE.as_millis());
    }

    #[test]
    fn recordings_of_people_are_left_alone() {
        assert!(is_own_name("serve", &own_name("serve")));
        assert!(is_own_name(FIRST_SECOND, "first-second-0badcafe"));
        for (what, name) in [
            (FIRST_SECOND, "first-seconds"),
            (FIRST_SECOND, "first-second-of-march"),
            ("serve", "serve"),
            ("serve", "serve-"),
            ("serve", "serve-nightly"),
            ("serve", "serve-12345678x"),
            ("serve", "serve-ABCDEF12"),
        ] {
            assert!(!is_own_name(what, name), "{name}");
        }
    }
}
