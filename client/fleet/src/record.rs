//! Records many guests at once: a file for each, all of them as one profile, and which of them
//! differ from the rest.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use thiserror::Error;
use unikprof_client::cli::shared::CommandError;
use unikprof_client::exit_code;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{Mode, Outcome, Settings, own_name};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Counters, Profile};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_profile::symbols::{FunctionId, GuestMerger, MergedNames, Symbolizer};

use super::config::{Config, Guest};
use super::differ::{Counts, Difference, Differences, FunctionShares};
use super::member::{GuestError, Member, advised, log};
use super::{file_name, roster, take};

/// How the recordings' names begin.
const PREFIX: &str = "fleet";

/// A thread and a few files for each.
const MOST_GUESTS: usize = 512;

/// How long a guest may be gone while it is recorded.
const RECONNECT: Duration = Duration::from_secs(30);

/// Which guests are recorded, and how.
#[derive(Debug)]
pub(crate) struct FleetRequest {
    /// Labels that a guest must have, all of them; `guest` is its name.
    pub(crate) labels: Vec<(String, String)>,
    /// 0: until the user has had enough.
    pub(crate) duration_ns: u64,
    /// In place of what `fleet.toml` says.
    pub(crate) period_ns: Option<u64>,
    pub(crate) mode: Option<Mode>,
}

/// All guests together.
#[derive(Debug)]
pub(crate) struct FleetRecording {
    /// Each guest that was asked, by name.
    pub(crate) guests: Vec<RecordedGuest>,
    pub(crate) profile: Profile,
    pub(crate) names: MergedNames,
    /// Those that differ from the rest, the most different first.
    pub(crate) different: Vec<Difference>,
}

#[derive(Debug)]
pub(crate) struct RecordedGuest {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) outcome: Result<GuestCounts, GuestError>,
}

#[derive(Debug)]
pub(crate) struct GuestCounts {
    pub(crate) file: PathBuf,
    /// Why the file has another name than the guest's, if so.
    pub(crate) displaced: Option<String>,
    pub(crate) counters: Counters,
    /// Why something is missing, if so.
    pub(crate) incomplete: Option<String>,
    /// How far it is from the rest, and how far chance alone would put it; `None` if there is no
    /// rest.
    pub(crate) distance: Option<(f64, f64)>,
}

/// Nothing can be recorded.
#[derive(Debug, Error)]
pub(crate) enum FleetRecordError {
    #[error("no guest of the fleet has all these labels: {wanted}; the fleet has {has}")]
    NoGuest { wanted: String, has: String },
    #[error(
        "{0} guests are too many to be recorded at once, at most {MOST_GUESTS}: choose some with \
         --label"
    )]
    TooMany(usize),
    #[error(
        "the guests `{0}` and `{1}` are to be recorded in different modes or at different rates: \
         give --mode and --rate"
    )]
    Unlike(String, String),
    #[error("cannot record a guest: {0}")]
    Thread(io::Error),
    #[error("the guests have too many stacks for one profile")]
    TooManyStacks,
}

impl From<FleetRecordError> for CommandError {
    fn from(error: FleetRecordError) -> CommandError {
        let exit_code = match error {
            FleetRecordError::Thread(_) | FleetRecordError::TooManyStacks => exit_code::OTHER,
            _ => exit_code::USAGE,
        };
        CommandError::new(error, exit_code)
    }
}

/// Records the guests of a fleet, each into a file of the folder. Ctrl-C ends all recordings early,
/// and keeps them.
///
/// # Errors
/// [`FleetRecordError`]: nothing was recorded, or cannot be shown together. What is wrong with single guests is told of
/// them.
pub(crate) fn record(
    config: Config,
    request: &FleetRequest,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<FleetRecording, FleetRecordError> {
    let guests = choose(config, request)?;
    let symbolizers: Vec<_> = guests.iter().map(|it| take::symbolizer(&it.how)).collect();
    let name = own_name(PREFIX);
    let recorded: Vec<_> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for (guest, symbolizer) in guests.iter().zip(symbolizers) {
            let path = folder.join(file_name::of_guest(&guest.name) + ".unikprof");
            let settings = Settings {
                name: name.clone(),
                period_ns: guest.how.period_ns,
                mode: guest.how.mode,
                duration_ns: request.duration_ns,
                ..Settings::default()
            };
            let record = move || -> Result<_, GuestError> {
                let symbolizer = symbolizer?;
                if is_incomplete(&path) {
                    return Err(GuestError::Replaces { path });
                }
                let member = Member::new(guest.clone());
                let mut session = member.session(interrupt.clone(), RECONNECT)?;
                // The user's own, unlike that of a server.
                if let Some(path) = &guest.how.key_file {
                    session.tell_key_file(path);
                }
                let outcome = take::record_to(&mut session, &symbolizer, settings, &path, &mut ())?;
                Ok((outcome, symbolizer))
            };
            let thread = thread::Builder::new().name("guest".into());
            threads.push(thread.spawn_scoped(scope, record).map_err(FleetRecordError::Thread)?);
        }
        let ended = threads.into_iter().map(|thread| {
            let panicked = || GuestError::Incomplete("its thread has panicked".into());
            thread.join().unwrap_or_else(|_| Err(panicked()))
        });
        Ok(ended.collect())
    })?;
    merge(&guests, recorded)
}

/// Whether a file is a recording that lacks something. Opening a pipe would wait for its writer.
fn is_incomplete(path: &Path) -> bool {
    let there = || Recording::open(path, Reading::Salvage);
    path.is_file() && there().is_ok_and(|there| there.completeness != Completeness::Complete)
}

/// What a guest's thread answers: its recording, and what names it.
type Recorded = Result<(Outcome, Symbolizer), GuestError>;

fn merge(guests: &[Guest], recorded: Vec<Recorded>) -> Result<FleetRecording, FleetRecordError> {
    let mut merger = GuestMerger::default();
    // Where each of these stands among all guests.
    let mut places = Vec::new();
    let mut all = Vec::new();
    for (guest, recorded) in guests.iter().zip(recorded) {
        let added = recorded.and_then(|(outcome, symbolizer)| {
            if let Some((epoch, error)) = &outcome.unacknowledged {
                log(&format!(
                    "warning: {}: the guest may still hold epoch {epoch}, which is in {}: {}",
                    guest.name,
                    outcome.path.display(),
                    advised(error)
                ));
            }
            let recording = Recording::open(&outcome.path, Reading::Strict)?;
            let symbolized = symbolizer.resolve(&recording.profile)?;
            let added = merger.add(&guest.name, &symbolized);
            let incomplete =
                outcome.incomplete.as_ref().map(advised).or(match recording.completeness {
                    Completeness::Complete => None,
                    Completeness::Incomplete(reason) | Completeness::Salvaged(reason) => {
                        Some(reason)
                    }
                });
            let counts = GuestCounts {
                file: outcome.path,
                displaced: outcome.displaced.map(|error| error.to_string()),
                counters: recording.profile.counters(),
                incomplete,
                distance: None,
            };
            Ok((counts, added))
        });
        let outcome = match added {
            Ok((guest_counts, added)) => {
                added.map_err(|_| FleetRecordError::TooManyStacks)?;
                places.push(all.len());
                Ok(guest_counts)
            }
            Err(error) => Err(error),
        };
        all.push(RecordedGuest {
            name: guest.name.clone(),
            address: guest.address.to_string(),
            outcome,
        });
    }
    let (profile, names, own) = merger.finish();
    let of_guest = |own: HashMap<FunctionId, u64>| -> Counts {
        own.into_iter().map(|(function, count)| (function, count as f64)).collect()
    };
    let counts: Vec<Counts> = own.into_iter().map(of_guest).collect();
    let found = Differences::of(&counts);
    for one in found.different.iter().chain(&found.alike) {
        if let Ok(counts) = &mut all[places[one.guest]].outcome {
            counts.distance = Some((one.distance, one.chance));
        }
    }
    let place = |one: Difference| Difference { guest: places[one.guest], ..one };
    let different = found.different.into_iter().map(place).collect();
    Ok(FleetRecording { guests: all, profile, names, different })
}

/// The guests that the request means, recorded as it says.
fn choose(config: Config, request: &FleetRequest) -> Result<Vec<Guest>, FleetRecordError> {
    let (all, problems) = roster::listed_now(config);
    for problem in problems {
        log(&format!("warning: {problem}"));
    }
    let is_meant = |guest: &&Guest| {
        let labels = guest.all_labels();
        request.labels.iter().all(|wanted| labels.contains(wanted))
    };
    let mut guests: Vec<Guest> = all.iter().filter(is_meant).cloned().collect();
    for guest in &mut guests {
        guest.how.period_ns = request.period_ns.unwrap_or(guest.how.period_ns);
        guest.how.mode = request.mode.unwrap_or(guest.how.mode);
    }
    if guests.len() > MOST_GUESTS {
        return Err(FleetRecordError::TooMany(guests.len()));
    }
    let Some(first) = guests.first() else {
        return Err(no_guest(request, &all));
    };
    let settings = |guest: &Guest| (guest.how.period_ns, guest.how.mode);
    match guests.iter().find(|guest| settings(guest) != settings(first)) {
        Some(other) => Err(FleetRecordError::Unlike(first.name.clone(), other.name.clone())),
        None => Ok(guests),
    }
}

fn no_guest(request: &FleetRequest, all: &[Guest]) -> FleetRecordError {
    /// A fleet may have very many.
    const SHOWN: usize = 20;
    let texts = |labels: &[(String, String)]| -> BTreeSet<String> {
        let text =
            |(key, value): &(String, String)| Printable(&format!("{key}={value}")).to_string();
        labels.iter().map(text).collect()
    };
    let join = |texts: BTreeSet<String>| {
        let shown: Vec<String> = texts.iter().take(SHOWN).cloned().collect();
        let more = if texts.len() > SHOWN { ", ..." } else { "" };
        shown.join(", ") + more
    };
    let has = all.iter().flat_map(|guest| texts(&guest.all_labels()));
    FleetRecordError::NoGuest {
        wanted: join(texts(&request.labels)),
        has: match all {
            [] => "no guests".into(),
            _ => join(has.collect()),
        },
    }
}

impl FleetRecording {
    /// A function's name, which comes from a guest's image.
    pub(crate) fn function(&self, shares: &FunctionShares) -> String {
        Printable(&self.names.function(shares.function).name).to_string()
    }

    /// Whether a recording has another name than its guest's.
    pub(crate) fn is_displaced(&self) -> bool {
        let mut counts = self.guests.iter().flat_map(|guest| &guest.outcome);
        counts.any(|counts| counts.displaced.is_some())
    }

    /// The program's exit code: that of the first guest that failed if all did.
    pub(crate) fn exit_code(&self) -> u8 {
        let is_whole = |guest: &RecordedGuest| {
            guest.outcome.as_ref().is_ok_and(|counts| counts.incomplete.is_none())
        };
        let failures = self.guests.iter().map(|guest| guest.outcome.as_ref().err());
        let failures: Option<Vec<&GuestError>> = failures.collect();
        match failures.as_deref() {
            Some([first, ..]) => first.exit_code(),
            _ if self.is_displaced() => exit_code::OUTPUT,
            _ if self.guests.iter().all(is_whole) => exit_code::SUCCESS,
            _ => exit_code::INCOMPLETE,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use unikprof_link::record::RecordError;
    use unikprof_profile::caller_table::CallerTableError;
    use unikprof_profile::output::OutputError;
    use unikprof_profile::symbols::SymbolError;

    use super::super::folder::tests::Sent;
    use super::*;

    /// Another program's file took the name: it is not read in place of the guest's own.
    #[test]
    fn a_recording_whose_name_was_taken_is_read_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let [taken, own] = ["web.unikprof", "own.unikprof"].map(|name| folder.path().join(name));
        fs::write(&taken, "another's").unwrap();
        Sent::default().write(&own);
        let outcome = Outcome {
            path: own.clone(),
            displaced: Some(OutputError::at(&taken)(io::Error::other("replaced"))),
            incomplete: None,
            unacknowledged: None,
        };
        let symbolizer = take::symbolizer(&Guest::named("web").how).unwrap();
        let merged = merge(&[Guest::named("web")], vec![Ok((outcome, symbolizer))]).unwrap();
        let counts = merged.guests[0].outcome.as_ref().unwrap();
        assert_eq!(counts.file, own);
        assert!(counts.displaced.as_ref().unwrap().contains("web.unikprof: replaced"));
        assert_eq!(merged.exit_code(), exit_code::OUTPUT);
    }

    /// The guest may still hold what an interrupted program did not fetch.
    #[test]
    fn an_incomplete_recording_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let guests = folder.path().join("fleet.toml");
        fs::write(&guests, "[[guests]]\nname = \"web\"\naddress = \"127.0.0.1:1\"\n").unwrap();
        let path = folder.path().join("web.unikprof");
        for (there, told) in
            [(Sent::incomplete("no answer"), "was not replaced"), (Sent::default(), "connect to")]
        {
            there.write(&path);
            let request =
                FleetRequest { labels: Vec::new(), duration_ns: 1, period_ns: None, mode: None };
            let config = Config::read(&guests).unwrap();
            let recorded = record(config, &request, folder.path(), &Interrupt::default()).unwrap();
            let failure = recorded.guests[0].outcome.as_ref().unwrap_err().to_string();
            assert!(failure.contains(told), "{failure}");
            // It advises a subcommand that exists.
            assert!(!failure.contains("connect ADDR status"), "{failure}");
        }
    }

    /// The program has no such subcommands and options.
    #[test]
    fn advice_names_the_program_that_it_is_for() {
        let told = GuestError::from(RecordError::NotBegun { recording: 1 }).to_string();
        assert!(told.contains("`stop --discard`"), "{told}");
        assert!(told.contains("subcommands of `unikprof-client connect"), "{told}");
        let wrong = SymbolError::WrongBuildId {
            path: "web.elf".into(),
            expected: "ab".parse().unwrap(),
            found: None,
        };
        let wrong = CallerTableError::Symbols(wrong);
        let told = GuestError::from(wrong).to_string();
        assert!(told.contains("build-id is ab") && !told.contains("--"), "{told}");
    }
}
