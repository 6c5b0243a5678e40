//! `keygen`: a new key, and where it belongs.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::failure::Failure;
use super::print;
use crate::key::{Key, Role};

/// What `keygen` takes.
#[derive(Debug, Args)]
#[command(after_help = KEYGEN_HELP)]
pub(super) struct KeygenArguments {
    /// The file to write; it must not exist. - is standard output, which must not be a terminal
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// What the key is for: a comment in the file; the guest's configuration says what it allows
    #[arg(long, value_enum, default_value_t)]
    role: Role,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const KEYGEN_HELP: &str = "\
A client and an agent share a key; the agent's configuration gives it a role:
  view     info, check, events and copy
  control  everything
The key file is made for its owner alone (mode 0600). Its first line tells the
key's id, which is no secret: errors and `doctor` name it.

Examples:
  unikprof-client keygen -o guest.key
  unikprof-client keygen -o guest-view.key --role view
  unikprof-client keygen -o - | vault kv put secret/guest key=-";

pub(super) fn run(arguments: &KeygenArguments) -> Result<(), Failure> {
    let path = match arguments.output.as_deref() {
        Some(path) if path == Path::new("-") => return to_stdout(arguments),
        Some(path) => path,
        None => {
            return Err(Failure::Usage(
                "name the file for the key with -o FILE: a key that is shown on a terminal stays in its \
                 history (`-o -` writes to a pipe)"
                    .into(),
            ));
        }
    };
    let key = Key::generate().map_err(Failure::Randomness)?;
    key.write_new(path, arguments.role)?;
    print(if arguments.json {
        format!(
            "{:#}\n",
            json!({
                "id": key.id().to_string(),
                "role": arguments.role.to_string(),
                "file": path.to_string_lossy(),
            })
        )
    } else {
        made(&key, path, arguments.role)
    })
}

fn to_stdout(arguments: &KeygenArguments) -> Result<(), Failure> {
    if arguments.json {
        return Err(Failure::Usage(
            "`-o -` writes the key itself to standard output, so there is no room for --json"
                .into(),
        ));
    }
    if io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "a key that is shown on a terminal stays in its history: write it to a file with -o FILE, or \
             to a pipe"
                .into(),
        ));
    }
    let key = Key::generate().map_err(Failure::Randomness)?;
    print(key.file_text(arguments.role, Timestamp::now()).as_bytes())?;
    eprintln!("key {} was written to standard output", key.id());
    Ok(())
}

/// What was made, and what to do with it.
fn made(key: &Key, path: &Path, role: Role) -> String {
    let (id, path) = (key.id(), path.display());
    format!(
        "key          {id}\n\
         wrote        {path}, for its owner alone\n\
         the guest    put the line that begins with `unikprof-key-1:` into the guest's configuration, as a \
         key of the role {role}\n\
         the client   unikprof-client connect ADDR --key-file {path} info\n"
    )
}
