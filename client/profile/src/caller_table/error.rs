//! Why there is no caller table, or only a part of it.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::block_bytes;
use super::processor::Processor;
use super::section::SectionError;
use crate::symbols::{SymbolError, SymbolWarning};

/// An image of which no table can be made.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are named for what they hold")]
pub enum CompileError {
    /// The file's own tables make no sense.
    #[error("{} is a damaged ELF file: {problem}; rebuild it or copy it again", path.display())]
    Elf { path: PathBuf, problem: object::Error },
    /// It was written to while it was read.
    #[error("{} changed while it was read: try again when it is complete", path.display())]
    Changed { path: PathBuf },
    /// It is for another processor.
    #[error(
        "{} is for another architecture: caller tables are supported for {}, found {found}",
        path.display(), Processor::SUPPORTED
    )]
    Architecture { path: PathBuf, found: String },
    /// It holds no code.
    #[error(
        "{} has no executable segment with code: name the linked image that the guest runs, not an \
         object or debug \
         file",
        path.display()
    )]
    NoCode { path: PathBuf },
    /// Nothing in it says how to unwind.
    #[error(
        "{} has no call frame information: neither .eh_frame nor .debug_frame, nor a debug file \
         with one of them; compile it with -C force-unwind-tables=yes (Rust) or \
         -fasynchronous-unwind-tables (C), and keep .eh_frame in the linker script",
        path.display()
    )]
    NoCallFrames { path: PathBuf },
    /// What there is describes nothing of its code.
    #[error(
        "the call frame information of {} describes none of its code: {elsewhere} functions are \
         outside of it, \
         {damaged} are damaged; link the image again, and do not change addresses afterwards",
        path.display()
    )]
    NoFunctions {
        path: PathBuf,
        /// How many functions lie outside its executable segments.
        elsewhere: usize,
        /// How many functions make no sense.
        damaged: usize,
    },
    /// A section breaks its own format.
    #[error("{section} of {} is damaged: {problem}; rebuild the file or copy it \
             again", path.display())]
    Section { path: PathBuf, section: &'static str, problem: String },
    /// A table file needs a build-id.
    #[error(
        "{} has no build-id, which a table file needs to identify its image: link it with \
         --build-id \
         (-Wl,--build-id through a compiler)",
        path.display()
    )]
    NoBuildId { path: PathBuf },
    /// The image is larger than a table can describe.
    #[error(
        "{} is too large for a caller table: code must lie within the first 4 GiB of the file, in \
         at most {} rows", path.display(), super::image_table::MAX_ROWS
    )]
    TooLarge { path: PathBuf },
}

impl CompileError {
    pub(super) fn section(
        path: &Path,
        section: &'static str,
        problem: SectionError,
    ) -> CompileError {
        CompileError::Section {
            path: path.into(),
            section,
            problem: match problem {
                SectionError::Format(error) => error.to_string(),
                SectionError::Endless => {
                    "its functions share more instructions than any compiler writes".into()
                }
            },
        }
    }
}

/// Why a guest has no table although one is needed, or its images are the wrong ones.
#[derive(Debug, Error)]
pub enum CallerTableError {
    /// An image that the user named cannot be used.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// A table is needed, and there is none.
    #[error("`--unwind table` needs a caller table: {0}")]
    Needed(Note),
}

/// Why callers are not known for all of a guest's code.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Error)]
pub enum Note {
    #[error(
        "no image of {program}, so callers of leaf functions are guessed; name the image with \
         --image"
    )]
    NoImage { program: String },
    #[error("{0}; callers of its leaf functions are guessed")]
    Image(CompileError),
    #[error(transparent)]
    Symbols(SymbolWarning),
    #[error("caller tables are supported for {}, but the guest is {found}", Processor::SUPPORTED)]
    Architecture { found: String },
    #[error("{}", no_room(*needed, *least, *room))]
    NoRoom { needed: usize, least: Option<usize>, room: u32 },
    #[error(
        "of {needed} caller-table rows ({least} essential) {sent} are sent, {}; for all, give the \
         agent a block of {} bytes",
        if *grows {
            "others when their code runs"
        } else {
            "callers of other leaf functions are guessed"
        },
        block_bytes(*needed)
    )]
    Partial { needed: usize, least: usize, sent: usize, room: u32, grows: bool },
    #[error("the guest's code needs more than {} caller-table rows", super::image_table::MAX_ROWS)]
    TooManyRows,
}

fn no_room(needed: usize, least: Option<usize>, room: u32) -> String {
    let least = match least {
        Some(least) => format!(" ({least} essential)"),
        None => String::new(),
    };
    let has = match room {
        0 => "the agent has no memory for a caller table".to_owned(),
        room => format!("the agent has room for {room}"),
    };
    let guessed = if least.is_empty() { "" } else { ": leaf callers are guessed" };
    format!(
        "the caller table has {needed} rows{least}, but {has}{guessed}; give it a caller-table \
         block of {} bytes",
        block_bytes(needed)
    )
}
