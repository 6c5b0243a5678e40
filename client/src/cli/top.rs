//! `connect ADDR top`: a live table of a guest's functions.

mod picture;
mod screen;
mod text;
mod watch;

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::{Duration, Instant};
use std::{panic, thread};

use clap::Args;
use unikprof_proto::code::{role, state};

use super::connect::{Warnings, find_callers};
use super::exit_code;
use super::failure::Failure;
use super::names::NameArguments;
use super::outputs::warn;
use super::recordings::SamplingArguments;
use super::{print, signals, values};
use crate::charset;
use crate::progress::{ProgressLine, READING_IMAGES};
use picture::Picture;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{RecordError, Session, Settings, own_name};
use unikprof_profile::caller_table::Reserve;
use unikprof_profile::symbols::Symbolizer;
use watch::{Target, Watch};

pub(super) const HELP: &str = "\
Without --name, top shows the recording that is running. It reads the guest's
rings, as copy does: nothing in the guest changes, no other client is disturbed,
and a key with the role view is enough. If no recording is running, top starts
one of its own, which takes a key with the role control, and discards it at the
end; the options under Sampling are for that one.

On a terminal, keys change the table: s sorts by the next column, t toggles self
and total, / filters by a regex, space freezes, ? lists all keys, q quits.
Otherwise top prints a table each interval, or with --json a line. What is
`watched` is all that top has seen: since it began, and the window before.

Examples:
  unikprof-client connect 10.0.0.5 top --image guest.elf
  unikprof-client connect 10.0.0.5 top --name flight --window 1m
  unikprof-client connect 10.0.0.5 top --own -F 4999 --image guest.elf
  unikprof-client connect 10.0.0.5 --json top --count 1";

/// How long new pictures or keys are waited for before the other is looked for.
const WAIT: Duration = Duration::from_millis(50);

/// How long the guest is waited for at the end, before and after giving up: half of a second in
/// all, so that a busy machine takes less than one.
const LAST_WAIT: Duration = Duration::from_millis(250);
/// The same without a screen, which a script has: nobody waits, and nothing is to be left behind.
const PATIENT_WAIT: Duration = Duration::from_secs(5);
const LAST_LOOK: Duration = Duration::from_millis(10);

/// The longest window: its records are kept in memory.
const LONGEST_WINDOW: Duration = Duration::from_secs(600);

#[derive(Debug, Args)]
pub(super) struct TopArguments {
    /// The recording to show; may be left out if only one is running
    #[arg(long, value_name = "NAME", value_parser = values::name, conflicts_with = "own")]
    name: Option<String>,
    /// Start a recording for this command even if others are running
    #[arg(long)]
    own: bool,
    /// The time that the columns of the last seconds cover, up to 10m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = window)]
    window: Duration,
    /// How often the table is renewed
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = every)]
    every: Duration,
    /// Print so many tables as plain text, or lines with --json, and end
    #[arg(
        short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..)
    )]
    count: Option<u64>,
    /// How many functions a plain table lists; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 30, value_parser = values::count)]
    top: usize,
    #[command(flatten)]
    pub(super) sampling: SamplingArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

fn window(text: &str) -> Result<Duration, String> {
    match values::duration(text)? {
        time if time >= Duration::from_secs(1) && time <= LONGEST_WINDOW => Ok(time),
        _ => Err("the window is 1s to 10m long".into()),
    }
}

fn every(text: &str) -> Result<Duration, String> {
    match values::duration(text)? {
        time if time >= Duration::from_millis(100) => Ok(time),
        _ => Err("the table is renewed every 100ms at most".into()),
    }
}

impl TopArguments {
    /// The recording that `top` starts for itself.
    pub(super) fn settings(&self) -> Settings {
        self.sampling.apply_to(Settings { name: own_name("top"), ..watch::own_settings() })
    }
}

/// The recording to show, or the settings of one that `top` has to start.
pub(super) fn choose(session: &mut Session, arguments: &TopArguments) -> Result<Target, Failure> {
    if !session.agent().keeps_time() {
        return Err(RecordError::NoRing.into());
    }
    arguments.sampling.check(None)?;
    let settings = arguments.settings();
    if settings.mode.is_heap() {
        return Err(of_time_alone());
    }
    if arguments.own {
        return own(session, settings);
    }
    let mut recorder = session.check(&mut ())?;
    if arguments.name.is_none() {
        // What has ended does not move.
        let goes_on = |state| matches!(state, state::RECORDING | state::DELAYED);
        recorder.recordings.retain(|one| goes_on(one.state) && !one.mode().is_heap());
        if recorder.recordings.is_empty() {
            return match session.agent().role {
                role::VIEW => Err(RecordError::NothingRuns.into()),
                _ => own(session, settings),
            };
        }
    }
    let found = recorder.find(arguments.name.as_deref()).map_err(RecordError::from)?;
    if found.mode().is_heap() {
        return Err(of_time_alone());
    }
    Ok(Target::Running(found.recording))
}

fn own(session: &Session, settings: Settings) -> Result<Target, Failure> {
    settings.check(session.agent())?;
    Ok(Target::Own(Box::new(settings)))
}

fn of_time_alone() -> Failure {
    Failure::Usage("top shows recordings of time; for allocations use `record` or `leaks`".into())
}

/// Shows a recording until the user has enough. Images are read and the guest is asked on a thread
/// of its own, which writes nothing to the terminal and is not waited for if the user quits while
/// it is busy.
pub(super) fn run(
    session: &mut Session,
    interrupt: &Interrupt,
    symbolizer: &Symbolizer,
    arguments: &TopArguments,
    mut target: Target,
    json: bool,
) -> Result<(), Failure> {
    let on_screen = !json
        && arguments.count.is_none()
        && io::stdout().is_terminal()
        && io::stdin().is_terminal();
    // From here on there may be something to clean up.
    if on_screen {
        screen::listen(interrupt).map_err(Failure::Signals)?;
    } else {
        signals::listen(interrupt).map_err(Failure::Signals)?;
    }
    let (sender, pictures) = sync_channel(1);
    let (later, warnings) = channel();
    let has_started = &AtomicBool::new(false);
    let progress = &(!on_screen).then(ProgressLine::on_stderr);
    if let Some(progress) = progress {
        progress.prepare(READING_IMAGES);
    }
    thread::scope(|scope| {
        let follower = scope.spawn(move || {
            // Those that come while the table is on the screen are printed below it.
            let tell = |warning: String| match on_screen {
                true => later.send(warning).unwrap_or_default(),
                false => warn([warning], false),
            };
            let mut prepare = || {
                arguments.names.check(symbolizer, session.agent())?;
                let Target::Own(settings) = &mut target else {
                    return Ok(Vec::new());
                };
                let unwinding = &arguments.sampling.unwinding;
                find_callers(session, unwinding, symbolizer, Reserve::Nothing, settings)
            };
            let notes = prepare()?;
            if let Some(progress) = progress {
                progress.finish();
            }
            notes.iter().filter(|_| !json).for_each(|note| tell(note.to_string()));
            if interrupt.stop() {
                return Ok(());
            }
            has_started.store(matches!(target, Target::Own(_)), Ordering::Relaxed);
            let observer = &mut Warnings(|warning: &str| tell(warning.into()));
            let window = arguments.window;
            let watch = Watch::begin(session, interrupt, symbolizer, target, window, observer)?;
            let mut left = arguments.count;
            watch.run(arguments.every, |picture| {
                left = left.map(|left| left.saturating_sub(1));
                // Where nobody shows pictures any more, the interrupt was raised.
                Ok(sender.send(picture).is_ok() && left != Some(0))
            })
        });
        let shown = match on_screen {
            true => screen::run(pictures, interrupt).map_err(Failure::Stdout),
            false => print_each(pictures, interrupt, arguments.top, json),
        };
        let has_quit = interrupt.stop();
        interrupt.raise_once();
        let has_ended = || {
            // By the clock: on a busy machine each sleep is longer than it should be.
            let end = Instant::now() + if on_screen { LAST_WAIT } else { PATIENT_WAIT };
            while !follower.is_finished() && Instant::now() < end {
                thread::sleep(LAST_LOOK);
            }
            follower.is_finished()
        };
        let is_busy = has_quit && !has_ended() && {
            // A guest that is gone does not answer, and one that is busy has much to name.
            interrupt.raise();
            !has_ended()
        };
        warn(warnings.try_iter(), false);
        if is_busy {
            if has_started.load(Ordering::Relaxed) {
                tell!("warning: top was still busy; what it started in the guest ends by itself");
            }
            std::process::exit(exit_code::SUCCESS.into());
        }
        let followed = follower.join();
        shown?;
        followed.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    })
}

/// Prints each picture, until there are no more or the user interrupts.
fn print_each(
    pictures: Receiver<Picture>,
    interrupt: &Interrupt,
    top: usize,
    json: bool,
) -> Result<(), Failure> {
    loop {
        match pictures.recv_timeout(WAIT) {
            Ok(picture) if json => print(format!("{}\n", picture.json(top)))?,
            Ok(picture) => {
                print(charset::local(text::table(&picture, top, super::screen::columns())))?;
            }
            Err(RecvTimeoutError::Timeout) if !interrupt.stop() => {}
            Err(_) => return Ok(()),
        }
    }
}
