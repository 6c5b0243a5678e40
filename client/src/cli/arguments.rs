//! The words of the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use regex::Regex;

use super::access::{AccessArguments, CONNECTION};
use super::failure::Failure;
use super::names::NameArguments;
use super::recordings::{
    CheckArguments, DownloadArguments, RecordArguments, StartArguments, StopArguments,
};
use super::time::{ReportTimeArguments, WindowArguments};
use super::values;
use crate::connection::Address;
use crate::output::{NamePattern, OutputFormat};

/// Profiles a running Xen unikernel over TCP: records it, downloads the counts and shows where
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

fn after_help() -> String {
    let demo = if cfg!(feature = "demo") {
        "  unikprof-client demo                                        see it work without a guest\n"
    } else {
        ""
    };
    format!("Examples:\n{demo}{EXAMPLES}")
}

const EXAMPLES: &str = "\
\x20 unikprof-client connect 10.0.0.5 info                       who is there?
  unikprof-client connect 10.0.0.5 record 30s -o run.unikprof record it
  unikprof-client report run.unikprof --image guest.elf       see what is hot
  unikprof-client report run.unikprof --image guest.elf -o run.svg
  unikprof-client doctor run.unikprof --image guest.elf       can it be trusted?
  unikprof-client keygen -o guest.key                         a key for a guest's agent
  unikprof-client connect 10.0.0.5 --key-file guest.key info

Exit codes:
    0  done
    1  anything that has no code of its own
    2  the command line is wrong
    3  no connection, or it was lost and nothing could be kept
    4  what answers is no agent, speaks other versions or breaks the protocol
    5  the agent refused
    6  an input file is unreadable, damaged or the wrong one
    7  an output could not be written
    8  the recording is incomplete; what arrived was kept
    9  `doctor` found something bad
   10  the agent asks for a key, or does not accept or allow the one given
   11  no recording has the name given, or there are several and none was named
   12  another client fetches the recording; `copy` works beside it
  130  interrupted; nothing was kept";

#[derive(Debug, Subcommand)]
pub(super) enum Word {
    /// Talk to the agent in a guest: info, record, start, check, dump, copy, stop, events
    Connect(ConnectArguments),
    /// Show a recording: tables, flame graph, pprof and others
    Report(ReportArguments),
    /// Find what a crashed guest left in a console's log or a dump of its memory
    Recover(super::recover::RecoverArguments),
    /// Say whether a recording, or what an agent would record, can be trusted
    Doctor(DoctorArguments),
    /// Compile an image's caller table into a file to link into it
    CallerTable(super::caller_table::CallerTableArguments),
    /// Make a key that a client and an agent share
    Keygen(super::keygen::KeygenArguments),
    /// Record a demo guest on this machine and show the result
    #[cfg(feature = "demo")]
    Demo(crate::demo::DemoArguments),
    /// The demo's guest: a process of its own, started by `demo`
    #[cfg(feature = "demo")]
    #[command(name = crate::demo::GUEST_WORD, hide = true)]
    DemoGuest,
    /// Print a script that completes this program's words in a shell
    #[command(
        after_help = "Example:\n  unikprof-client completions bash > ~/.local/share/bash-completion/completions/unikprof-client"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = CONNECT_HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(super) struct ConnectArguments {
    /// Where the agent listens: HOST, HOST:PORT or [IPV6]:PORT; the port is 7777 if not given
    ///
    /// May be left out if UNIKPROF_ADDR is set.
    #[arg(value_name = "ADDR", env = ADDRESS_VARIABLE)]
    pub(super) address: Option<Address>,
    /// How long the agent may take to accept the connection and for each part of an answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration, global = true, help_heading = CONNECTION)]
    pub(super) timeout: Duration,
    /// How long a lost connection is tried again; 0s: not at all
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration, global = true, help_heading = CONNECTION)]
    pub(super) retry: Duration,
    /// Print the result as JSON
    #[arg(long, global = true, help_heading = "Output")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) access: AccessArguments,
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
                "no address: write `connect ADDR ...`, or set {ADDRESS_VARIABLE} to where the agent listens"
            ))
        })
    }
}

const CONNECT_HELP: &str = "\
Examples:
  unikprof-client connect 10.0.0.5 record 30s
  unikprof-client connect [::1]:7777 record 1m -F 4999 -o %n-%t.unikprof
  unikprof-client connect web.lan record 10s --image guest.elf -o run.svg

  A flight recorder: a recording that goes on by itself, looked at when something went wrong:
  unikprof-client connect 10.0.0.5 start --name flight --preset default
  unikprof-client connect 10.0.0.5 check
  unikprof-client connect 10.0.0.5 dump --name flight -o so-far.unikprof
  unikprof-client connect 10.0.0.5 stop --name flight -o rest.unikprof

  An agent that asks for a key:
  unikprof-client connect 10.0.0.5 --key-file guest.key record 30s
  UNIKPROF_KEY_FILE=guest.key unikprof-client connect 10.0.0.5 check

  The same guest again and again:
  export UNIKPROF_ADDR=10.0.0.5
  unikprof-client connect check";

#[derive(Debug, Subcommand)]
pub(super) enum ConnectWord {
    /// Tell who the agent is: versions, vCPUs, limits, mappings and build-ids
    Info,
    /// Record for a while, download the result and write it
    #[command(after_help = super::recordings::RECORD_HELP)]
    Record(RecordArguments),
    /// Start a recording and leave it running in the guest, beside others
    #[command(after_help = super::recordings::START_HELP)]
    Start(StartArguments),
    /// Tell which recordings there are, since when, how full they are and what was dropped
    Check(CheckArguments),
    /// Download what a recording counted since the last dump; it goes on
    #[command(after_help = DUMP_HELP)]
    Dump(WindowedArguments),
    /// Download a copy of the counts that wait and of what the rings hold, and change nothing in the guest
    ///
    /// Works beside another client that fetches the recording. Counts wait once a recording's duration has
    /// passed, until `stop` has fetched them; of a recording that goes on there is what the rings hold. A key
    /// with the role view is enough.
    Copy(WindowedArguments),
    /// End a recording, download what it counted and write it
    Stop(StopArguments),
    /// Print what happened in the guest: its own marks, spans and counters, and more
    #[command(after_help = EVENTS_HELP)]
    Events(EventsArguments),
}

const DUMP_HELP: &str = "\
Where the agent keeps what happened when, the file also holds each sample with
its time, as far as the guest's ring still has them; `report --timeline` and
`report --from ... --to ...` show these. --from, --to and --last take every
sample of that time from the ring, also from before the recording's --max-age.

Examples:
  unikprof-client connect 10.0.0.5 dump -o so-far.unikprof
  unikprof-client connect 10.0.0.5 dump --last 30s --image guest.elf -o slow.svg -o slow.unikprof
  unikprof-client connect 10.0.0.5 dump --from 21:34:50 --to 21:35:10 -o then.unikprof";

const EVENTS_HELP: &str = "\
Marks, spans and counters of the guest's own; vCPUs that blocked and woke (where
no recording counts blocked time: waits of 20 ms and more); recordings that
began or ended, steal, resumes and failed handshakes.

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
pub(super) struct EventsArguments {
    /// Go on: print events as they happen, until Ctrl-C
    #[arg(long, conflicts_with = "to")]
    pub(super) follow: bool,
    /// Only events of these kinds, as in mark,span,counter
    #[arg(long, value_name = "KINDS", value_enum, value_delimiter = ',')]
    pub(super) only: Vec<super::events::Kind>,
    #[command(flatten)]
    pub(super) window: WindowArguments,
}

/// Where results go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct OutputArguments {
    /// Write to this file; its ending tells the format. May be given again
    ///
    /// .unikprof is the raw recording, from which `report` makes all others; .svg a flame graph,
    /// .pb.gz for pprof, .folded for other flame graph tools, .txt and .json tables. %t in the name
    /// becomes the time (UTC), %n the guest's name, %r the recording's, %% a percent sign; - is
    /// standard output. Without any: %n-%r-%t.unikprof.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(super) output: Vec<NamePattern>,
    /// The format, whatever the ending: unikprof, text, folded, svg, pprof or json
    #[arg(long)]
    pub(super) format: Option<OutputFormat>,
}

#[derive(Debug, Args)]
#[command(after_help = REPORT_HELP, arg_required_else_help = true)]
pub(super) struct ReportArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    pub(super) recording: PathBuf,
    /// Read a damaged or cut file as far as it is whole
    #[arg(long)]
    pub(super) salvage: bool,
    /// Only stacks with a function whose name matches
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    pub(super) focus: Option<Regex>,
    /// No stacks with a function whose name matches
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    pub(super) ignore: Option<Regex>,
    /// Tell the lines of a function apart
    #[arg(long, help_heading = "Selection")]
    pub(super) lines: bool,
    /// Count inlined functions as the function they were inlined into
    #[arg(long, help_heading = "Selection")]
    pub(super) no_inlines: bool,
    /// How many functions the text lists; 0 for all
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 30,
        help_heading = "Selection"
    )]
    pub(super) top: usize,
    /// Whole names in the text's tables, however long; else they are shortened to fit the terminal,
    /// or 120 columns
    #[arg(long, help_heading = "Output")]
    pub(super) wide: bool,
    /// Folded stacks begin with their labels: recording:NAME;vcpu:N;span:NAME
    #[arg(long, help_heading = "Output")]
    pub(super) labels: bool,
    /// Print the report as JSON: short for --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) time: ReportTimeArguments,
    #[command(flatten)]
    pub(super) outputs: ReportOutputArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

/// Where reports go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct ReportOutputArguments {
    /// Write to this file; its ending tells the format. May be given again
    ///
    /// .svg is a flame graph, .pb.gz for pprof, .folded for other flame graph tools, .txt and .json
    /// tables. %t in the name becomes the time of the recording (UTC), %n the guest's name,
    /// %r the recording's, %% a percent sign; - is standard output, which gets the text if no file is named.
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub(super) output: Vec<NamePattern>,
    /// The format, whatever the ending: text, folded, svg, pprof or json
    #[arg(long)]
    pub(super) format: Option<crate::report::Format>,
}

const REPORT_HELP: &str = "\
Examples:
  unikprof-client report run.unikprof --image guest.elf
  unikprof-client report run.unikprof --image guest.elf -o run.svg -o run.pb.gz
  unikprof-client report run.unikprof --image guest.elf --focus 'tcp::' --lines
  unikprof-client report run.unikprof --format folded | grep tcp

  Where the agent keeps what happened when:
  unikprof-client report run.unikprof --image guest.elf --timeline
  unikprof-client report run.unikprof --image guest.elf --from 12s --to 15s -o burst.svg
  unikprof-client report run.unikprof --image guest.elf --last 30s --in-span request";

#[derive(Debug, Args)]
#[command(after_help = DOCTOR_HELP, arg_required_else_help = true)]
pub(super) struct DoctorArguments {
    /// A recording, or where an agent listens: HOST, HOST:PORT or [IPV6]:PORT
    ///
    /// A file that exists is taken before a host of that name.
    #[arg(value_name = "FILE|ADDR")]
    pub(super) target: String,
    /// How long the agent may take to accept the connection and for each part of an answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::duration, help_heading = CONNECTION)]
    pub(super) timeout: Duration,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) access: AccessArguments,
    #[command(flatten)]
    pub(super) names: NameArguments,
}

const DOCTOR_HELP: &str = "\
Each check is good, look (the profile can be used, if this is known) or bad, and
says what to do. The exit code is 9 if one is bad, and 0 if none is.

Examples:
  unikprof-client doctor run.unikprof --image guest.elf
  unikprof-client doctor 10.0.0.5 --key-file guest.key
  unikprof-client doctor run.unikprof --json | jq '.checks[] | select(.verdict != \"good\")'";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_words_make_sense() {
        Arguments::command().debug_assert();
    }

    /// clap breaks what is too long for the terminal, in the middle of a paragraph that has its own breaks.
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
        look(&Arguments::command());
    }
}
