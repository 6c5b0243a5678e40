//! `keygen`: generates a key file.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::failure::Failure;
use super::print;
use unikprof_link::key::{Key, Role};

/// The arguments of `keygen`.
#[derive(Debug, Args)]
#[command(after_help = KEYGEN_HELP)]
pub(super) struct KeygenArguments {
    /// The file to create; it must not exist. - is standard output, which must not be a terminal
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// The role to note in the file's comment; what the key may do is set in the guest's
    /// configuration
    #[arg(long, value_enum, default_value_t)]
    role: Role,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const KEYGEN_HELP: &str = "\
A client and an agent share a key. The agent's configuration gives it a role:
  view     info, check, events, copy, snapshot, top of a running recording,
           doctor ADDR
  control  everything but traces
  trace    everything
The key file is readable by its owner only (mode 0600). Its first line contains
the key's id, which is not secret; errors and `doctor` show it.

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
                "name the key file with -o FILE; a key is not printed on a terminal, where it \
                 would stay in \
                 the scrollback (`-o -` writes to a pipe)"
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
            "`-o -` writes the key to standard output, so it cannot be combined with --json".into(),
        ));
    }
    if io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "a key is not printed on a terminal, where it would stay in the scrollback: write it \
             to a \
             file with -o FILE, or to a pipe"
                .into(),
        ));
    }
    let key = Key::generate().map_err(Failure::Randomness)?;
    print(key.file_text(arguments.role, Timestamp::now()).as_bytes())?;
    tell!("key {} was written to standard output", key.id());
    Ok(())
}

/// What was made, and what to do with it.
fn made(key: &Key, path: &Path, role: Role) -> String {
    let (id, path) = (key.id(), path.display());
    format!(
        "key          {id}\n\
         wrote        {path}, readable by its owner only\n\
         guest        add the line that begins with `unikprof-key-1:` to the guest's \
         configuration, as a \
         key of the role {role}\n\
         client       unikprof-client connect ADDR --key-file {path} info\n"
    )
}
