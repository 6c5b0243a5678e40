//! `caller-table`: writes an image's caller table to a file.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::describe::INDENT;
use super::failure::Failure;
use super::outputs::no_input_is_replaced;
use super::print;
use super::screen::pasted;
use unikprof_profile::caller_table::{ImageTable, block_bytes};
use unikprof_profile::output::AtomicFile;
use unikprof_profile::printable::path_word;
use unikprof_profile::profile::BuildId;
use unikprof_profile::symbols::{Image, ImageOptions};

/// The name that means standard output.
const STDOUT: &str = "-";

#[derive(Debug, Args)]
#[command(after_help = HELP, arg_required_else_help = true)]
pub(super) struct CallerTableArguments {
    /// The guest's ELF image; it needs a build-id
    #[arg(value_name = "ELF")]
    image: PathBuf,
    /// Write to this file; - is standard output. Default: the image's name followed by .callers
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
`record` and `start` send the agent such a table automatically. A file is for
recordings that start at boot, before a client connects. It is valid for one
build-id and refers to code by file offset, so adding it must change neither:
link the image with an empty section after the code, of the size that this
command prints:

  assembly   .section .unikprof.callers, \"a\"
             .space BYTES
  Rust       #[unsafe(link_section = \".unikprof.callers\")]
             static TABLE: [u8; BYTES] = [0; BYTES];
  C          __attribute__((section(\".unikprof.callers\")))
             static const char table[BYTES] = { 0 };

Then make the table and copy it into the section; this changes neither code nor
build-id. If the table is instead linked in (include_bytes!, .incbin), the image
needs a fixed build-id: -Wl,--build-id=0x...

Examples:
  unikprof-client caller-table guest.elf
  objcopy --update-section .unikprof.callers=guest.elf.callers guest.elf";

pub(super) fn run(arguments: &CallerTableArguments) -> Result<(), Failure> {
    let to_stdout = arguments.output.as_deref() == Some(Path::new(STDOUT));
    if to_stdout && arguments.json {
        return Err(Failure::Usage(
            "the table and the JSON cannot both be written to standard output: name a file with -o"
                .into(),
        ));
    }
    let image = Image::open(&arguments.image)?;
    let table = ImageTable::compile(&image, &ImageOptions::default().debug_dirs)?;
    let bytes = table.to_file()?;
    if to_stdout {
        return print(bytes);
    }
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => beside(&arguments.image),
    };
    no_input_is_replaced([&arguments.image], [path.as_path()])?;
    AtomicFile::create(&path)?.write_whole(|file| file.write_all(&bytes))?;
    let summary =
        Summary { path: &path, rows: table.rows()?.len(), bytes: bytes.len(), table: &table };
    print(if arguments.json { summary.json() } else { summary.text() })
}

/// The image's name with `.callers` behind it.
fn beside(image: &Path) -> PathBuf {
    let mut name = image.to_path_buf().into_os_string();
    name.push(".callers");
    name.into()
}

struct Summary<'a> {
    path: &'a Path,
    rows: usize,
    bytes: usize,
    table: &'a ImageTable,
}

impl Summary<'_> {
    fn build_id(&self) -> String {
        self.table.build_id().map_or_else(|| "none".into(), BuildId::to_string)
    }

    /// Where the image is loaded, the agent adds a row before and one behind.
    fn block_bytes(&self) -> u64 {
        block_bytes(self.rows + 2)
    }

    fn text(&self) -> String {
        let tally = self.table.tally();
        let mut text = format!(
            "wrote        {}\n\
             rows         {} in {} bytes, from {} functions\n\
             build-id     {}\n\
             agent        needs a caller-table block of {} bytes\n\
             section      of the image: must have {} bytes (see --help)\n\
             next         {}\n",
            self.path.display(),
            self.rows,
            self.bytes,
            tally.functions,
            self.build_id(),
            self.block_bytes(),
            self.bytes,
            pasted(
                INDENT,
                "objcopy",
                &format!("--update-section .unikprof.callers={} ELF", path_word(self.path))
            ),
        );
        if tally.damaged > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "damaged      {} functions; their callers are unknown",
                tally.damaged
            );
        }
        if tally.contradicted_bytes > 0 {
            let _ = writeln!(
                text,
                "overlapping  {} bytes of code with contradicting descriptions; callers there are \
                 unknown",
                tally.contradicted_bytes
            );
        }
        text
    }

    fn json(&self) -> String {
        let tally = self.table.tally();
        let value = json!({
            "file": self.path.to_string_lossy(),
            "build_id": self.build_id(),
            "rows": self.rows,
            "bytes": self.bytes,
            "block_bytes": self.block_bytes(),
            "functions": tally.functions,
            "damaged_functions": tally.damaged,
            "contradicted_bytes": tally.contradicted_bytes,
        });
        format!("{value:#}\n")
    }
}
