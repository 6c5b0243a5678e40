//! `recover`: extracts a recording from console logs or memory dumps.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use thiserror::Error;

use super::failure::Failure;
use super::output_format::OutputFormat;
use super::outputs::no_input_is_replaced;
use super::print;
use crate::output::AtomicFile;
use crate::printable::{Printable, path_word};
use crate::recording::{Completeness, Reading, Recording};
use crate::recover::{Missing, Remains, Search};
use crate::units::grouped;

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
these are compressed by gzip, and writes them as a recording.

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
    Nothing { files: String, why: &'static str },
    #[error(
        "{} holds a complete recording and was not replaced by what is left of one: {missing}; \
         give another name with -o",
        path.display()
    )]
    Replaces { path: PathBuf, missing: Missing },
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
    for warning in &warnings {
        tell!("warning: {warning}");
    }
    let why = match warnings.is_empty() {
        false => "see the warning above",
        true => {
            "expected lines with `unikprof:` as in a console log, or a memory block; check that \
             the guest's panic handler writes the agent's crash dump"
        }
    };
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
    match &output {
        None => {
            if all.len() > 1 {
                tell!("{}", list(&all, number).trim_end());
            }
            print(&remains.file)?;
        }
        Some(path) => {
            if let Some(missing) = remains.missing
                && is_complete(path)
            {
                return Err(RecoverError::Replaces { path: path.clone(), missing }.into());
            }
            let file = AtomicFile::create_private(path)?;
            file.write_whole(|file| file.write_all(&remains.file))?;
            print(match arguments.json {
                true => json(&all, number, path, &warnings),
                false => text(&all, number, path),
            })?;
        }
    }
    match remains.missing {
        None => Ok(()),
        Some(missing) => Err(Failure::Incomplete {
            path: output.unwrap_or_else(|| STANDARD.into()),
            reason: missing.to_string(),
        }),
    }
}

/// Whether a file holds a recording of which nothing is missing.
fn is_complete(path: &Path) -> bool {
    let recording = || Recording::open(path, Reading::Strict).ok();
    path.is_file() && recording().is_some_and(|it| it.completeness == Completeness::Complete)
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
    format!(
        "found        crash dump{others}\n{}\
         wrote        {name}\n\
         next         unikprof-client report {} --image GUEST.ELF{}\n",
        list(all, number),
        path_word(path),
        if has_times { " --timeline" } else { "" },
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
