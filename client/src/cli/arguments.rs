//! The arguments of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use super::access::{AccessArguments, CONNECTION};
use super::failure::Failure;
use super::install_docs::{CompletionsArguments, InstallDocsArguments};
use super::name_pattern::NamePattern;
use super::names::NameArguments;
use super::output_format::OutputFormat;
use super::recordings::{
    CheckArguments, DownloadArguments, RecordArguments, StartArguments, StopArguments,
};
use super::report::InputArguments;
use super::time::{ReportTimeArguments, WindowArguments};
use super::values;
use unikprof_link::connection::Address;
use unikprof_profile::profile::Measure;
use unikprof_report::report::FunctionName;

/// Profile a running Xen unikernel over TCP: record it, download the samples and show where
/// its time goes
#[derive(Debug, Parser)]
#[command(
    name = "unikprof-client",
    version,
    after_help = after_help(),
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) word: Word,
}

/// The whole command line. clap leaves an argument that may be missing out of the usage of what
/// follows it: ADDR, which stands before each command of `connect`.
pub(super) fn command() -> Command {
    let mut built = Arguments::command();
    built.build();
    let connect = built.find_subcommand_mut("connect").into_iter();
    let usages: Vec<_> = connect
        .flat_map(Command::get_subcommands_mut)
        .map(|word| {
            let usage = word.render_usage().to_string();
            let usage = usage.trim_start_matches("Usage: ");
            let usage = usage.replacen(" connect ", " connect [ADDR] ", 1);
            (word.get_name().to_owned(), usage)
        })
        .filter(|(name, _)| name != "help")
        .collect();
    Arguments::command().mut_subcommand("connect", |connect| {
        usages.into_iter().fold(connect, |connect, (name, usage)| {
            connect.mut_subcommand(name, |word| word.override_usage(usage))
        })
    })
}

impl Arguments {
    /// As [`Parser::try_parse_from`], by [`command`].
    pub(super) fn parse_words<T: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = T>,
    ) -> Result<Arguments, clap::Error> {
        let mut command = command();
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let matches = command.try_get_matches_from_mut(&words);
        Arguments::from_arg_matches(
            &matches.map_err(|error| with_fleet(with_meant(error, &command, &words)))?,
        )
    }
}

/// An error that names what was meant where a subcommand of `connect`, an address, or a recording
/// was given alone.
fn with_meant(mut error: clap::Error, command: &Command, words: &[OsString]) -> clap::Error {
    let connect = command.find_subcommand("connect");
    let is_of_connect = |word: &str| connect.is_some_and(|it| it.find_subcommand(word).is_some());
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
    {
        let next = words.iter().skip_while(|it| *it != word.as_str()).nth(1);
        let is_before_one = next.and_then(|next| next.to_str()).is_some_and(is_of_connect);
        let meant = if is_of_connect(word) {
            format!("connect ADDR {word}")
        } else if word.ends_with(".unikprof") {
            format!("report {word}")
        } else if (word.contains(['.', ':']) || is_before_one) && word.parse::<Address>().is_ok() {
            format!("connect {word}")
        } else {
            return error;
        };
        let meant = ContextValue::Strings(vec![meant]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// The subcommands of `unikprof-fleet`.
const OF_FLEET: [&str; 2] = ["collect", "serve"];

/// An error that names `unikprof-fleet` if one of its subcommands was given.
fn with_fleet(error: clap::Error) -> clap::Error {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) if OF_FLEET.contains(&word.as_str()) => word,
        _ => return error,
    };
    let message = format!(
        "`{word}` is a subcommand of `unikprof-fleet`: \
         cargo install --locked --path client/fleet\n"
    );
    clap::Error::raw(ErrorKind::InvalidSubcommand, message)
}

fn after_help() -> String {
    let demo = if cfg!(feature = "demo") {
        "  unikprof-client demo                                        try it without a guest\n"
    } else {
        ""
    };
    format!("Examples:\n{demo}{EXAMPLES}")
}

const EXAMPLES: &str = "\
\x20 unikprof-client connect 10.0.0.5 info                       describe the agent
  unikprof-client connect 10.0.0.5 record 30s -o run.unikprof record 30 seconds
  unikprof-client report run.unikprof --image guest.elf       list the hot functions
  unikprof-client report run.unikprof --image guest.elf --open show it in a browser
  unikprof-client diff old.unikprof new.unikprof              show what changed
  unikprof-client doctor run.unikprof --image guest.elf       check the profile's quality
  unikprof-client keygen -o guest.key                         make a key for an agent
  unikprof-client connect 10.0.0.5 --key-file guest.key info

Exit codes:
    0  success
    1  an error without a code of its own
    2  invalid command line
    3  could not connect, or the connection was lost and nothing was saved
    4  the peer is not an agent, has no common protocol version, or violated
       the protocol
    5  the agent rejected the request, or has nothing to fetch yet
    6  an input file is unreadable, damaged or the wrong one
    7  an output could not be written
    8  the recording is incomplete; what arrived was saved
    9  `doctor` found a problem (verdict `bad`)
   10  the agent requires a key, rejected the one given, or does not permit it
       the request; or the peer is not the agent that the key is for
   11  no recording has the given name, or several exist and none was named
   12  another client is fetching the recording; `copy` still works
   13  `diff` found what --fail-on names: the new recording is slower
  130  interrupted; nothing was saved

Many guests: unikprof-fleet";

#[derive(Debug, Subcommand)]
pub(super) enum Word {
    /// Talk to the agent in a guest: info, record, start, check, dump, copy, stop, events,
    /// snapshot, top, trace, leaks
    Connect(ConnectArguments),
    /// Show a recording as tables, a page, a flame graph, or in the formats of other viewers
    Report(Box<ReportArguments>),
    /// Show what changed between two recordings, and which changes are more than chance
    Diff(super::diff::DiffArguments),
    /// Show which code's memory grows, from what is held at two times
    Leaks(super::leaks::LeaksArguments),
    /// Show a recording in the Firefox profiler: serve it to the browser on this machine
    View(super::view::ViewArguments),
    /// Print what a recording sampled, a line each, for other programs
    Script(super::script::ScriptArguments),
    /// Extract a crashed guest's recording from its console log or memory dump
    Recover(super::recover::RecoverArguments),
    /// Check whether a recording, or an agent, gives trustworthy profiles
    Doctor(DoctorArguments),
    /// Compile an image's caller table into a file that can be linked into the image
    CallerTable(super::caller_table::CallerTableArguments),
    /// Write a guest's settings into its image: address, keys, a recording from boot
    Configure(Box<super::configure::ConfigureArguments>),
    /// Generate a key shared by a client and an agent
    Keygen(super::keygen::KeygenArguments),
    /// Record a demo guest on this machine and show its profile
    #[cfg(feature = "demo")]
    Demo(crate::demo::DemoArguments),
    /// Install the manual pages and the completions for bash, zsh and fish
    #[command(after_help = super::install_docs::HELP)]
    InstallDocs(InstallDocsArguments),
    /// Print a shell completion script
    #[command(after_help = "Example:\n  unikprof-client completions bash > \
                      ~/.local/share/bash-completion/completions/unikprof-client")]
    Completions(CompletionsArguments),
}

#[derive(Debug, Args)]
#[command(
    after_help = CONNECT_HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(super) struct ConnectArguments {
    /// The agent's address: HOST, HOST:PORT or [IPV6]:PORT; the default port is 7777
    ///
    /// Can be omitted if UNIKPROF_ADDR is set.
    #[arg(value_name = "ADDR", env = ADDRESS_VARIABLE)]
    pub(super) address: Option<Address>,
    #[command(flatten)]
    pub(super) access: AccessArguments,
    /// How long to retry a lost connection; 0s disables retries
    #[arg(
        long, value_name = "TIME", default_value = "30s", value_parser = values::duration,
        global = true, help_heading = CONNECTION
    )]
    pub(super) retry: Duration,
    /// Print the result as JSON
    #[arg(long, global = true, help_heading = "Output")]
    pub(super) json: bool,
    #[command(subcommand)]
    pub(super) word: ConnectWord,
}

/// The address that `connect` uses without ADDR.
const ADDRESS_VARIABLE: &str = "UNIKPROF_ADDR";

impl ConnectArguments {
    /// Where the agent listens.
    pub(super) fn address(&self) -> Result<Address, Failure> {
        self.address.clone().ok_or_else(|| {
            Failure::Usage(format!(
                "no address: write `connect ADDR ...`, or set {ADDRESS_VARIABLE} to where the \
                 agent listens"
            ))
        })
    }
}

const CONNECT_HELP: &str = "\
Examples:
  unikprof-client connect 10.0.0.5 record 30s
  unikprof-client connect [::1]:7777 record 1m -F 4999 -o %n-%t.unikprof
  unikprof-client connect web.lan record 10s --image guest.elf -o run.svg

  Flight recorder: a continuous recording, dumped when something went wrong:
  unikprof-client connect 10.0.0.5 start --name flight --preset default
  unikprof-client connect 10.0.0.5 check
  unikprof-client connect 10.0.0.5 dump --name flight -o so-far.unikprof
  unikprof-client connect 10.0.0.5 stop --name flight -o rest.unikprof

  An agent that requires a key:
  unikprof-client connect 10.0.0.5 --key-file guest.key record 30s
  UNIKPROF_KEY_FILE=guest.key unikprof-client connect 10.0.0.5 check

  Without repeating the address:
  export UNIKPROF_ADDR=10.0.0.5
  unikprof-client connect check";

#[derive(Debug, Subcommand)]
pub(super) enum ConnectWord {
    /// Describe the agent: versions, vCPUs, limits, mappings and build-ids
    Info,
    /// Record for a given time and write the result to a file
    #[command(after_help = super::recordings::RECORD_HELP)]
    Record(RecordArguments),
    /// Start a recording and leave it running in the guest
    #[command(after_help = super::recordings::START_HELP)]
    Start(StartArguments),
    /// List the recordings: start time, memory use and dropped samples
    Check(CheckArguments),
    /// Download what a recording counted since the last dump; the recording continues
    #[command(after_help = DUMP_HELP)]
    Dump(WindowedArguments),
    /// Download a copy of a recording without changing anything in the guest
    ///
    /// The copy has the contents of the rings and, if the recording has ended, the counts that
    /// `stop` has not fetched yet. It works while another client fetches the recording, and with a
    /// key of the role view.
    Copy(WindowedArguments),
    /// End a recording, download it and write it to a file
    Stop(StopArguments),
    /// Print the guest's events: its marks, spans and counters, blocking, steal and others
    #[command(after_help = EVENTS_HELP)]
    Events(EventsArguments),
    /// Show every vCPU's stack now, with names, registers and age
    #[command(after_help = super::snapshot::HELP)]
    Snapshot(super::snapshot::SnapshotArguments),
    /// Show a live table of the functions that take the time: in the last seconds and since it
    /// began to watch
    #[command(after_help = super::top::HELP)]
    Top(Box<super::top::TopArguments>),
    /// Trace every call of some functions, with its duration: a tree, a table, and what was slow
    #[command(after_help = super::trace::HELP, arg_required_else_help = true)]
    Trace(Box<super::trace::TraceArguments>),
    /// Look for memory that grows: which stacks allocate again and again what stays
    #[command(after_help = super::leaks::CONNECT_HELP, arg_required_else_help = true)]
    Leaks(super::leaks::ConnectLeaksArguments),
}

const DUMP_HELP: &str = "\
If the agent has a ring, the file also holds every sample that is still in it,
with its time, for `report --timeline` and `report --from ... --to ...`. --from,
--to and --last may reach further back than the recording's own --max-age.

Examples:
  unikprof-client connect 10.0.0.5 dump -o so-far.unikprof
  unikprof-client connect 10.0.0.5 dump --last 30s --image guest.elf -o slow.svg -o slow.unikprof
  unikprof-client connect 10.0.0.5 dump --from 21:34:50 --to 21:35:10 -o then.unikprof";

const EVENTS_HELP: &str = "\
Events are the guest's marks, spans and counters, vCPUs that blocked and woke,
recordings that began or ended, stolen time, resumes, and failed handshakes.
Unless a recording in mode wall or off-cpu is running, only blocks of at least
20 ms are kept.

Examples:
  unikprof-client connect 10.0.0.5 events --last 30s
  unikprof-client connect 10.0.0.5 events --from 21:34:50 --to 21:35:10
  unikprof-client connect 10.0.0.5 events --only mark,span,counter
  unikprof-client connect 10.0.0.5 --json events --follow";

#[derive(Debug, Args)]
pub(super) struct WindowedArguments {
    #[command(flatten)]
    pub(super) download: DownloadArguments,
    #[command(flatten)]
    pub(super) window: WindowArguments,
}

#[derive(Debug, Args)]
#[command(mut_arg("from", |from| {
    from.help("Only from this time on: -30s (before now), 21:34:50 or 2026-11-21T21:34:50Z (UTC)")
}))]
pub(super) struct EventsArguments {
    /// Keep printing events as they happen, until Ctrl-C
    #[arg(long, conflicts_with = "to")]
    pub(super) follow: bool,
    /// Only events of these kinds, for example mark,span,counter
    #[arg(long, value_name = "KINDS", value_enum, value_delimiter = ',')]
    pub(super) only: Vec<super::events::Kind>,
    #[command(flatten)]
    pub(super) window: WindowArguments,
}

/// Where results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArguments {
    /// Write to this file, in the format of its extension; can be repeated
    ///
    /// .unikprof is the raw recording, from which `report` makes all other formats; .html is a page
    /// that shows the recording over time and as a flame graph, .svg a flame graph, .pb.gz a pprof
    /// profile, .profile.json.gz is for the Firefox profiler, .speedscope.json for speedscope,
    /// .folded are folded stacks, .txt and .json tables. In the name, %t stands for the time (UTC),
    /// %n for the guest's name, %r for the recording's name and %% for a percent sign; - is
    /// standard output. Default: %n-%r-%t.unikprof.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(super) output: Vec<NamePattern>,
    /// The output format, regardless of the extension; otlp if the client was built with that feature
    #[arg(long, value_parser = values::output_format())]
    pub(super) format: Option<OutputFormat>,
}

#[derive(Debug, Args)]
#[command(after_help = REPORT_HELP, arg_required_else_help = true)]
pub(super) struct ReportArguments {
    #[command(flatten)]
    pub(super) input: InputArguments,
    /// What to show of allocations; default: bytes
    #[arg(long, value_enum, value_name = "MEASURE", help_heading = "Selection")]
    pub(super) by: Option<Measure>,
    /// Keep only stacks that contain a matching function
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    pub(super) focus: Option<FunctionName>,
    /// Drop stacks that contain a matching function
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    pub(super) ignore: Option<FunctionName>,
    /// Show who calls a function, with shares: its whole name, or a regular expression that one
    /// name matches
    #[arg(
        long, value_name = "FUNCTION", conflicts_with_all = ["callees", "timeline"],
        help_heading = "Selection"
    )]
    pub(super) callers: Option<FunctionName>,
    /// Show what a function calls, likewise
    #[arg(long, value_name = "FUNCTION", conflicts_with = "timeline", help_heading = "Selection")]
    pub(super) callees: Option<FunctionName>,
    /// Show a function's source lines and instructions with their samples, likewise
    ///
    /// Source files are read at their paths in the debug information.
    #[arg(
        long,
        value_name = "FUNCTION",
        conflicts_with_all = ["callers", "callees", "lines", "timeline"],
        help_heading = "Selection"
    )]
    pub(super) annotate: Option<FunctionName>,
    /// Show what rules find about the guest, with a score, evidence and the next step
    ///
    /// Stolen and masked time, load in lockstep, truncated or guessed callers, bursts, slow spans,
    /// a dominating function, memory copies and allocation, rising counters; of allocations a full
    /// live table and frees that are not reported. `doctor` judges the profile, this judges the
    /// guest. Pages have it in any case.
    #[arg(
        long,
        conflicts_with_all = ["annotate", "callers", "callees", "timeline"],
        help_heading = "Selection"
    )]
    pub(super) analyze: bool,
    /// A folder with the source files that --annotate shows, if they are not where they were
    /// compiled; can be repeated
    #[arg(long, value_name = "FOLDER", requires = "annotate", help_heading = "Selection")]
    pub(super) source: Vec<PathBuf>,
    /// Show source lines instead of whole functions
    #[arg(long, help_heading = "Selection")]
    pub(super) lines: bool,
    /// Attribute inlined functions to the function they were inlined into
    #[arg(long, help_heading = "Selection")]
    pub(super) no_inlines: bool,
    /// Number of functions in the text report; 0 lists all
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 30,
        value_parser = values::count,
        help_heading = "Selection"
    )]
    pub(super) top: usize,
    /// Print the whole accounting, all warnings, and the guest's own spans, counters and marks
    #[arg(long, help_heading = "Output")]
    pub(super) accounting: bool,
    /// Do not shorten names in the text report to the terminal's width (120 columns if there is
    /// none)
    #[arg(long, help_heading = "Output")]
    pub(super) wide: bool,
    /// Begin each folded stack with its labels: recording:NAME;vcpu:N;span:NAME
    #[arg(long, help_heading = "Output")]
    pub(super) labels: bool,
    /// Print the report as JSON; the same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    pub(super) json: bool,
    /// Open the page (.html) in a browser; without -o FILE.html it is written to the directory for
    /// temporary files
    #[arg(long, conflicts_with_all = ["json", "format"], help_heading = "Output")]
    pub(super) open: bool,
    #[command(flatten)]
    pub(super) time: ReportTimeArguments,
    #[command(flatten)]
    pub(super) trace: super::trace::TraceViewArguments,
    #[command(flatten)]
    pub(super) outputs: ReportOutputArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

/// Where reports go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct ReportOutputArguments {
    /// Write to this file, in the format of its extension; can be repeated
    ///
    /// .html is a page that shows the recording over time and as a flame graph; it needs a browser
    /// and no network. .svg is a flame graph, .pb.gz a pprof profile, .profile.json.gz is for the
    /// Firefox profiler, .speedscope.json for speedscope, .folded are folded stacks, .txt and .json
    /// tables. In the name, %t stands for the recording's time (UTC), %n for the guest's name, %r
    /// for the recording's name and %% for a percent sign; - is standard output. Default: text on
    /// standard output.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(super) output: Vec<NamePattern>,
    /// The output format, regardless of the extension; otlp if the client was built with that feature
    #[arg(long, value_parser = values::format())]
    pub(super) format: Option<unikprof_report::report::Format>,
}

const REPORT_HELP: &str = "\
Examples:
  unikprof-client report run.unikprof --image guest.elf
  unikprof-client report run.unikprof --image guest.elf -o run.html
  unikprof-client report run.unikprof --image guest.elf --open
  unikprof-client report run.unikprof --image guest.elf -o run.svg -o run.pb.gz
  unikprof-client report run.unikprof --image guest.elf --focus 'tcp::' --lines
  unikprof-client report run.unikprof --format folded | grep tcp
  unikprof-client report run.unikprof --image guest.elf --analyze
  unikprof-client report run.unikprof --image guest.elf --callers malloc
  unikprof-client report run.unikprof --image guest.elf --annotate malloc
  unikprof-client report dumps/ --image guest.elf -o day.svg

  Samples by time (if the agent has a ring):
  unikprof-client report run.unikprof --image guest.elf --timeline
  unikprof-client report run.unikprof --image guest.elf --from 12s --to 15s -o burst.svg
  unikprof-client report run.unikprof --image guest.elf --last 30s --in-span request";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_HELP, arg_required_else_help = true)]
pub(super) struct DoctorArguments {
    /// A recording, or an agent's address: HOST, HOST:PORT or [IPV6]:PORT
    ///
    /// A file of that name takes precedence over a host.
    #[arg(value_name = "FILE|ADDR")]
    pub(super) target: String,
    /// Print also what was found by the checks that are good
    #[arg(long)]
    pub(super) all: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) access: AccessArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

const DOCTOR_HELP: &str = "\
Each check is `good`, `look` (a caveat: the profile is usable if you know about
it) or `bad`, with advice on what to do. The exit code is 9 if any check is bad,
else 0.

Examples:
  unikprof-client doctor run.unikprof --image guest.elf
  unikprof-client doctor 10.0.0.5 --key-file guest.key
  unikprof-client doctor run.unikprof --json | jq '.checks[] | select(.verdict != \"good\")'";

#[cfg(test)]
mod tests {
    use super::*;
    use unikprof_link::connection::Timeouts;

    #[test]
    fn the_commands_are_valid() {
        command().debug_assert();
    }

    #[test]
    fn the_usage_of_what_needs_an_address_shows_it() {
        let words = ["unikprof-client", "connect", "::1", "record", "--no"];
        let usage = "Usage: unikprof-client connect [ADDR] record [OPTIONS] [DURATION]";
        let refused = Arguments::parse_words(words).map_err(|error| error.to_string());
        assert!(matches!(&refused, Err(text) if text.contains(usage)), "{refused:?}");
    }

    /// A stranger's first words, which are no subcommand.
    #[test]
    fn what_was_meant_is_named() {
        for (line, meant) in [
            ("localhost info", "connect localhost"),
            ("10.0.0.5 info", "connect 10.0.0.5"),
            ("record 30s", "connect ADDR record"),
            ("folder/run.unikprof", "report folder/run.unikprof"),
        ] {
            let words = ["unikprof-client"].into_iter().chain(line.split(' '));
            let refused = Arguments::parse_words(words).map_err(|error| error.to_string());
            let tip = format!("'{meant}'");
            assert!(matches!(&refused, Err(text) if text.contains(&tip)), "{line}: {refused:?}");
        }
    }

    /// A recording is looked at each second, so that is when its guest is found to be gone.
    #[test]
    fn a_guest_that_is_gone_is_told_within_ten_seconds() {
        let words = ["unikprof-client", "connect", "::1", "info"];
        let Ok(Arguments { word: Word::Connect(arguments) }) = Arguments::parse_words(words) else {
            panic!("{words:?}");
        };
        let answer = arguments.access.timeouts().answer;
        assert!(answer + Duration::from_secs(1) < Duration::from_secs(10));
        assert_eq!(answer, Timeouts::default().answer);
    }

    /// clap breaks what is too long for the terminal, in the middle of a paragraph that has its own
    /// breaks.
    #[test]
    fn paragraphs_fit_a_terminal() {
        fn look(word: &clap::Command) {
            let help = word.get_after_help().map(ToString::to_string);
            for line in help.iter().flat_map(|help| help.lines()) {
                let is_prose = !line.starts_with(' ');
                assert!(!is_prose || line.len() <= 80, "{}: {line}", word.get_name());
            }
            word.get_subcommands().for_each(look);
        }
        look(&command());
    }
}
