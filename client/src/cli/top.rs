//! `connect ADDR top`: a live table of a guest's functions.

mod picture;
mod screen;
mod text;
mod watch;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::Args;
use unikprof_proto::code::{role, state};

use super::failure::Failure;
use super::names::NameArguments;
use super::recordings::SamplingArguments;
use super::{print, signals, values};
use crate::charset;
use picture::Picture;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{RecordError, Session, Settings, own_name};
use unikprof_profile::symbols::Symbolizer;
pub(super) use watch::Target;
use watch::Watch;

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

/// The id of the recording to show; `None` if `top` has to start one.
pub(super) fn choose(
    session: &mut Session,
    arguments: &TopArguments,
) -> Result<Option<u64>, Failure> {
    if !session.agent().keeps_time() {
        return Err(RecordError::NoRing.into());
    }
    arguments.sampling.check(None)?;
    if arguments.settings().mode.is_heap() {
        return Err(of_time_alone());
    }
    if arguments.own {
        return Ok(None);
    }
    let mut recorder = session.check(&mut ())?;
    if arguments.name.is_none() {
        // What has ended does not move.
        let goes_on = |state| matches!(state, state::RECORDING | state::DELAYED);
        recorder.recordings.retain(|one| goes_on(one.state) && !one.mode().is_heap());
        if recorder.recordings.is_empty() {
            return match session.agent().role {
                role::VIEW => Err(RecordError::NothingRuns.into()),
                _ => Ok(None),
            };
        }
    }
    let found = recorder.find(arguments.name.as_deref()).map_err(RecordError::from)?;
    if found.mode().is_heap() {
        return Err(of_time_alone());
    }
    Ok(Some(found.recording))
}

fn of_time_alone() -> Failure {
    Failure::Usage("top shows recordings of time; for allocations use `record` or `leaks`".into())
}

/// Shows the recording `of`, or one that is started with these settings, until the user has enough.
pub(super) fn run(
    session: &mut Session,
    interrupt: &Interrupt,
    symbolizer: &Symbolizer,
    arguments: &TopArguments,
    of: Target,
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
    let watch = Watch::begin(session, interrupt, symbolizer, of, arguments.window)?;
    if on_screen {
        return screen::run(watch, interrupt, arguments.every);
    }
    let mut left = arguments.count;
    let show = |picture: Picture| {
        let text = if json {
            format!("{}\n", picture.json(arguments.top))
        } else {
            charset::local(text::table(&picture, arguments.top, super::screen::columns()))
        };
        print(text)?;
        left = left.map(|left| left.saturating_sub(1));
        Ok(left != Some(0))
    };
    watch.run(arguments.every, show)
}
