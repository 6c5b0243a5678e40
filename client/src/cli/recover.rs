//! `recover`: extracts a recording from console logs or memory dumps.

use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use thiserror::Error;
use unikprof_proto::console::{LETTERS, MARK};

use super::describe::INDENT;
use super::exit_code::INCOMPLETE;
use super::failure::Failure;
use super::output_format::OutputFormat;
use super::outputs::{no_input_is_replaced, warn};
use super::print;
use super::screen::pasted;
use unikprof_profile::output::AtomicFile;
use unikprof_profile::printable::{Printable, path_word};
use unikprof_profile::recording::{Completeness, Reading, Recording};
use unikprof_profile::recover::{Missing, Remains, Search};
use unikprof_profile::units::grouped;

/// The name that means standard input or output.
const STANDARD: &str = "-";

#[derive(Debug, Args)]
#[command(after_help = HELP, arg_required_else_help = true)]
pub(super) struct RecoverArguments {
    /// The guest's console log, or a dump of its memory; - is standard input. Several files of a
    /// rotated log may be given in any order
    #[arg(value_name = "FILE", required = true)]
    inputs: Vec<PathBuf>,
    /// Write to this file; - is standard output. Default: the first input's name followed by
    /// .unikprof
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Extract this one of several crashes, counted from 1; default: the newest by its own time
    #[arg(long, value_name = "NUMBER")]
    crash: Option<usize>,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
If a guest's panic handler writes the agent's crash dump, the guest's last
seconds are on its console, in lines that begin with `unikprof:`, or in its
memory. This command finds them among the other contents of the files, also if
these are compressed by gzip, and writes them as a recording. It replaces no
recording of another crash, and none that holds more of the same one.

Examples:
  unikprof-client recover /var/log/xen/console/guest-web.log -o crash.unikprof
  unikprof-client report crash.unikprof --image guest.elf --timeline

  xl dmesg | unikprof-client recover - -o crash.unikprof
  xl dump-core web web.core && unikprof-client recover web.core";

/// Why nothing was recovered.
#[derive(Debug, Error)]
pub(crate) enum RecoverError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("no crash dump in {files}: {why}")]
    Nothing { files: String, why: String },
    #[error(
        "{} holds {holds}, and was not replaced: give another name with -o",
        path.display()
    )]
    Replaces { path: PathBuf, holds: &'static str },
    #[error("there are {found} crashes; there is no number {asked}")]
    NoSuchCrash { found: usize, asked: usize },
    #[error(
        "crash dump {number} is unusable: the description of the guest at its beginning, which its \
         end repeats, is missing ({missing})"
    )]
    Unusable { number: usize, missing: Missing },
}

pub(super) fn run(arguments: &RecoverArguments) -> Result<(), Failure> {
    let output = output(arguments)?;
    no_input_is_replaced(&arguments.inputs, output.as_deref())?;
    let mut search = Search::default();
    let mut warnings = Vec::new();
    for path in &arguments.inputs {
        let read = if path == Path::new(STANDARD) {
            search.read(io::stdin().lock())
        } else {
            File::open(path).and_then(|file| search.read(file))
        };
        let obstacle = read.map_err(|source| RecoverError::Read { path: path.clone(), source })?;
        warnings.extend(obstacle.map(|what| format!("{} is {what}", path.display())));
    }
    if search.given_up > 0 {
        let given_up = search.given_up;
        warnings.push(format!("{given_up} earlier crashes were left out to save memory"));
    }
    if let Some(reason) = &search.refusal {
        warnings.push(format!("a guest crashed and wrote no crash dump: {}", Printable(reason)));
    }
    warn(&warnings, false);
    let why = why(&warnings, search.spoiled);
    let all = search.finish();
    let newest = all.iter().enumerate().max_by_key(|(_, one)| (!one.file.is_empty(), one.unix_ns));
    let Some((newest, _)) = newest else {
        let files = match &arguments.inputs[..] {
            [only] => only.display().to_string(),
            all => format!("the {} files", all.len()),
        };
        return Err(RecoverError::Nothing { files, why }.into());
    };
    let number = arguments.crash.unwrap_or(newest + 1);
    let Some(remains) = number.checked_sub(1).and_then(|index| all.get(index)) else {
        return Err(RecoverError::NoSuchCrash { found: all.len(), asked: number }.into());
    };
    if let Some(missing) = remains.missing
        && remains.file.is_empty()
    {
        return Err(RecoverError::Unusable { number, missing }.into());
    }
    let Some(path) = output else {
        if all.len() > 1 {
            tell!("{}", list(&all, number).trim_end());
        }
        let written = print(&remains.file);
        let Some(missing) = remains.missing else {
            return written;
        };
        tell!("error: the recording is incomplete: {missing}");
        // A reader that has had enough is no failure to hide that.
        return Err(written
            .err()
            .filter(|failure| failure.text().is_some())
            .unwrap_or(Failure::Told { exit_code: INCOMPLETE }));
    };
    if let Some(holds) = what_is_kept(&path, remains) {
        return Err(RecoverError::Replaces { path, holds }.into());
    }
    let file = AtomicFile::create_private(&path)?;
    file.write_whole(|file| file.write_all(&remains.file))?;
    let shown = print(match arguments.json {
        true => json(&all, number, &path, &warnings),
        false => text(&all, number, &path),
    });
    Failure::of_recording(path, None, shown, false, remains.missing)
}

/// Why there is no crash dump.
fn why(warnings: &[String], spoiled: usize) -> String {
    match spoiled {
        // A program that writes such lines has the mark among its constants.
        2.. => format!(
            "{spoiled} lines with `unikprof:` are cut or altered; each must be in the log as the \
             guest wrote it, {} characters from there on: check what cuts, wraps or changes lines",
            MARK.len() + LETTERS
        ),
        _ if !warnings.is_empty() => "see the warning above".into(),
        _ => "expected lines with `unikprof:` as in a console log, or a memory block; check that \
              the guest's panic handler writes the agent's crash dump"
            .into(),
    }
}

/// What a file holds that must not be replaced by these remains: a recording, unless it is of the
/// same crash and holds no more of it.
fn what_is_kept(path: &Path, remains: &Remains) -> Option<&'static str> {
    // Opening a pipe would wait for its writer.
    let length = path.metadata().ok().filter(Metadata::is_file)?.len();
    let there = Recording::open(path, Reading::Salvage).ok()?;
    let this = Recording::read(&remains.file[..], path, Reading::Salvage).ok();
    let crash = |of: &Recording| (of.agent.instance, of.agent.monotonic_ns, of.created_unix_ns);
    let Some(this) = this.filter(|this| crash(this) == crash(&there)) else {
        return Some("another recording");
    };
    // What is assembled grows with what there is, apart from the words that tell what is missing.
    let held = |of: &Recording, length: u64| match &of.completeness {
        Completeness::Complete => u64::MAX,
        Completeness::Incomplete(reason) | Completeness::Salvaged(reason) => {
            length.saturating_sub(reason.len() as u64)
        }
    };
    let is_more = held(&there, length) > held(&this, remains.file.len() as u64);
    (remains.missing.is_some() && is_more).then_some("more of this crash")
}

/// The file to write; `None` is standard output.
fn output(arguments: &RecoverArguments) -> Result<Option<PathBuf>, Failure> {
    let standard = Path::new(STANDARD);
    match &arguments.output {
        Some(path) if path == standard && arguments.json => Err(Failure::Usage(
            "the recording and JSON cannot both go to standard output: name a file with -o".into(),
        )),
        Some(path) if path == standard => Ok(None),
        Some(path) if matches!(OutputFormat::from_path(path), Ok(OutputFormat::Report(_))) => {
            Err(Failure::Usage(format!(
                "{} would be a report, and `recover` writes a recording: name it CRASH.unikprof, \
                 then use `report`",
                path.display()
            )))
        }
        Some(path) => Ok(Some(path.clone())),
        None if arguments.inputs[0] == standard => Err(Failure::Usage(
            "reading from standard input needs an output name: add -o FILE".into(),
        )),
        None => {
            let mut name = arguments.inputs[0].clone().into_os_string();
            name.push(".unikprof");
            Ok(Some(name.into()))
        }
    }
}

/// The crashes, one per line.
fn list(all: &[Remains], chosen: usize) -> String {
    let mut list = String::new();
    for (number, one) in (1..).zip(all) {
        let mark = if number == chosen { '>' } else { ' ' };
        let guest = one.guest.as_deref().unwrap_or("unnamed");
        let whole = match one.missing {
            None => "complete".to_owned(),
            Some(_) if one.file.is_empty() => "unusable".to_owned(),
            Some(missing) => match missing.percent() {
                Some(percent) => format!("incomplete, {percent} %"),
                None => "incomplete".to_owned(),
            },
        };
        list += &format!(
            "  {mark} {number}  {}  {}  {} bytes  {whole}\n",
            date(one).map_or("at an unknown time".to_owned(), |date| date.to_string()),
            Printable(guest),
            grouped(bytes(one) as u64)
        );
    }
    list
}

fn date(one: &Remains) -> Option<Timestamp> {
    let date = Timestamp::from_nanosecond(one.unix_ns.into()).ok();
    date.filter(|_| one.unix_ns > 0)
}

fn bytes(one: &Remains) -> usize {
    one.missing.map_or(one.file.len(), |missing| missing.found)
}

fn text(all: &[Remains], number: usize, path: &Path) -> String {
    let remains = &all[number - 1];
    let name = path.display();
    let others = match all.len() {
        1 => String::new(),
        of => format!(" {number} of {of} (select another with --crash)"),
    };
    // What a report can show of it.
    let recording = Recording::read(&remains.file[..], path, Reading::Strict).ok();
    let has_times = recording.is_some_and(|recording| {
        recording.span.is_some() && !recording.profile.recording().mode.is_heap()
    });
    let times = if has_times { " --timeline" } else { "" };
    let words = format!("{} --image GUEST.ELF{times}", path_word(path));
    format!(
        "found        crash dump{others}\n{}\
         wrote        {name}\n\
         next         {}\n",
        list(all, number),
        pasted(INDENT, "unikprof-client report", &words),
    )
}

fn json(all: &[Remains], number: usize, path: &Path, warnings: &[String]) -> String {
    let crash = |one: &Remains| {
        json!({
            "guest": one.guest,
            "unix_ns": date(one).map(|_| one.unix_ns),
            "bytes": bytes(one),
            "percent": one.missing.map_or(Some(100), |missing| missing.percent()),
            "usable": !one.file.is_empty(),
            "whole": one.missing.is_none(),
            "missing": one.missing.map(|missing| missing.to_string()),
        })
    };
    let all: Vec<_> = all.iter().map(crash).collect();
    let file = path.to_string_lossy();
    let value = json!({ "file": file, "crash": number, "crashes": all, "warnings": warnings });
    format!("{value:#}\n")
}
