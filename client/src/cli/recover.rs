//! `recover`: extracts a recording from a console log or a memory dump.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use thiserror::Error;
use unikprof_proto::console::MARK;

use super::failure::Failure;
use super::print;
use crate::file_bytes::FileBytes;
use crate::output::AtomicFile;
use crate::recover::{FoundAt, Remains, find};

/// The name that means standard input or output.
const STANDARD: &str = "-";

#[derive(Debug, Args)]
#[command(after_help = HELP, arg_required_else_help = true)]
pub(super) struct RecoverArguments {
    /// The guest's console log, or a dump of its memory; - is standard input
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// Write to this file; - is standard output. Default: the input's name followed by .unikprof
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Extract this one of several crashes, counted from 1; default: the last complete one
    #[arg(long, value_name = "NUMBER")]
    crash: Option<usize>,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
If a guest's panic handler writes the agent's crash dump, the guest's last
seconds are on its console, in lines that begin with `unikprof:`, or in its
memory. This command finds them among the other contents of the file and writes
them as a recording.

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
    #[error(
        "{} contains no crash dump: expected lines with `{MARK}` as in a console log, or a memory \
         block; check \
         that the guest's panic handler writes the agent's crash dump", path.display()
    )]
    Nothing { path: PathBuf },
    #[error("{} contains {found} crashes; there is no number {asked}", path.display())]
    NoSuchCrash { path: PathBuf, found: usize, asked: usize },
    #[error("the crash dump at {place} is unusable: {reason}")]
    Unusable { place: FoundAt, reason: String },
}

pub(super) fn run(arguments: &RecoverArguments) -> Result<(), Failure> {
    let path = &arguments.input;
    let output = output(arguments)?;
    let bytes = read(path).map_err(|source| RecoverError::Read { path: path.clone(), source })?;
    let all = find(&bytes);
    let number = match arguments.crash {
        Some(asked) if (1..=all.len()).contains(&asked) => asked,
        Some(asked) => {
            let found = all.len();
            let path = path.clone();
            return Err(RecoverError::NoSuchCrash { path, found, asked }.into());
        }
        None => {
            let whole = all.iter().rposition(|one| one.missing.is_none());
            whole.map_or(all.len(), |index| index + 1)
        }
    };
    let Some(remains) = number.checked_sub(1).and_then(|index| all.get(index)) else {
        return Err(RecoverError::Nothing { path: path.clone() }.into());
    };
    let reason = remains.missing.map(|missing| missing.to_string());
    if let Some(reason) = &reason
        && remains.file.is_empty()
    {
        return Err(RecoverError::Unusable { place: remains.place, reason: reason.clone() }.into());
    }
    let found = Found { remains, number, of: all.len() };
    match &output {
        None => print(&remains.file)?,
        Some(path) => {
            let file = AtomicFile::create_private(path)?;
            file.write_whole(|file| file.write_all(&remains.file))?;
            print(if arguments.json { found.json(path) } else { found.text(path) })?;
        }
    }
    match reason {
        None => Ok(()),
        Some(reason) => Err(Failure::Incomplete {
            path: output.unwrap_or_else(|| STANDARD.into()),
            reason: format!("{reason}; `report --salvage` reads the part before"),
        }),
    }
}

/// The file to write; `None` is standard output.
fn output(arguments: &RecoverArguments) -> Result<Option<PathBuf>, Failure> {
    let standard = Path::new(STANDARD);
    match &arguments.output {
        Some(path) if path == standard && arguments.json => Err(Failure::Usage(
            "the recording and JSON cannot both go to standard output: name a file with -o".into(),
        )),
        Some(path) if path == standard => Ok(None),
        Some(path) => Ok(Some(path.clone())),
        None if arguments.input == standard => Err(Failure::Usage(
            "reading from standard input needs an output name: add -o FILE".into(),
        )),
        None => {
            let mut name = arguments.input.clone().into_os_string();
            name.push(".unikprof");
            Ok(Some(name.into()))
        }
    }
}

fn read(path: &Path) -> io::Result<FileBytes> {
    if path == Path::new(STANDARD) {
        FileBytes::read(&mut io::stdin().lock())
    } else {
        FileBytes::open(path)
    }
}

struct Found<'a> {
    remains: &'a Remains<'a>,
    number: usize,
    of: usize,
}

impl Found<'_> {
    fn text(&self, path: &Path) -> String {
        let path = path.display();
        let which = match self.of {
            1 => String::new(),
            of => format!(", crash {} of {of} (select another with --crash)", self.number),
        };
        let salvage = match self.remains.missing {
            None => "",
            Some(_) => " --salvage",
        };
        format!(
            "found        a crash dump at {}{which}\n\
             wrote        {path}\n\
             next         unikprof-client report {path} --image GUEST.ELF --timeline{salvage}\n",
            self.remains.place,
        )
    }

    fn json(&self, path: &Path) -> String {
        let (line, byte) = match self.remains.place {
            FoundAt::Line(line) => (Some(line), None),
            FoundAt::Byte(byte) => (None, Some(byte)),
        };
        let value = json!({
            "file": path.to_string_lossy(),
            "crash": self.number,
            "crashes": self.of,
            "line": line,
            "byte": byte,
            "bytes": self.remains.file.len(),
            "whole": self.remains.missing.is_none(),
            "missing": self.remains.missing.map(|missing| missing.to_string()),
        });
        format!("{value:#}\n")
    }
}
