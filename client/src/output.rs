//! Output files: their names, their formats, and a way to write them that never leaves half a file.

mod atomic;
mod format;
mod name;

pub(crate) use atomic::temporary_beside;
pub use atomic::{AtomicFile, OutputError, folder_of, remove_partial, sync_folder};
pub(crate) use format::{OutputFormat, UnknownOutputFormat};
pub use name::{NamePattern, NamedAfter};
