//! `caller-table`: an image's caller table as a file.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::failure::Failure;
use super::print;
use crate::caller_table::{ImageTable, block_bytes};
use crate::output::AtomicFile;
use crate::profile::BuildId;
use crate::symbols::{Image, ImageOptions};

/// The name that means standard output.
const STDOUT: &str = "-";

#[derive(Debug, Args)]
#[command(after_help = HELP, arg_required_else_help = true)]
pub(super) struct CallerTableArguments {
    /// The image that the guest runs; it needs a build-id
    #[arg(value_name = "ELF")]
    image: PathBuf,
    /// Write to this file; - is standard output. Without it, the image's name and .callers
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print what was written as JSON
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
`record` and `start` send the agent such a table by themselves. A file is for
recordings that begin at boot, before any client is there. It belongs to one
image, which it knows by its build-id and in which it knows code by its place in
the file: linking must not change either afterwards. So link the image with a
section for it, behind the code and as long as this word says:

  assembly   .section .unikprof.callers, \"a\"
             .space BYTES
  Rust       #[unsafe(link_section = \".unikprof.callers\")]
             static TABLE: [u8; BYTES] = [0; BYTES];

then make the table and put it in, which leaves code and build-id as they are.
An image linked with the table in it (include_bytes!, .incbin) needs a build-id
that does not follow from its content, as -Wl,--build-id=0x... gives one.

Examples:
  unikprof-client caller-table guest.elf
  objcopy --update-section .unikprof.callers=guest.elf.callers guest.elf";

pub(super) fn run(arguments: &CallerTableArguments) -> Result<(), Failure> {
    let to_stdout = arguments.output.as_deref() == Some(Path::new(STDOUT));
    if to_stdout && arguments.json {
        return Err(Failure::Usage(
            "the table and JSON cannot both go to standard output: name a file with -o".into(),
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
    let mut file = AtomicFile::create(&path)?;
    if let Err(source) = file.write_all(&bytes) {
        return Err(file.failed(source).into());
    }
    file.publish()?;
    let summary = Summary {
        path: &path,
        rows: table.rows()?.len(),
        bytes: bytes.len(),
        table: &table,
    };
    print(if arguments.json {
        summary.json()
    } else {
        summary.text()
    })
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
        self.table
            .build_id()
            .map_or_else(|| "none".into(), BuildId::to_string)
    }

    /// Where the image is loaded, the agent adds a row before and one behind.
    fn block_bytes(&self) -> u64 {
        block_bytes(self.rows + 2)
    }

    fn text(&self) -> String {
        let tally = self.table.tally();
        let path = self.path.display();
        let mut text = format!(
            "wrote        {path}\n\
             rows         {} in {} bytes, from {} functions\n\
             build-id     {}\n\
             agent        needs a caller-table block of {} bytes for it\n\
             link it      objcopy --update-section .unikprof.callers={path} ELF, where the image has \
             kept {} bytes for that section (--help tells how)\n",
            self.rows,
            self.bytes,
            tally.functions,
            self.build_id(),
            self.block_bytes(),
            self.bytes,
        );
        if tally.damaged > 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "damaged      {} functions, whose callers are not known",
                tally.damaged
            );
        }
        if tally.contradicted_bytes > 0 {
            let _ = writeln!(
                text,
                "overlapping  {} bytes of code, described in two ways: nothing is known there",
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
