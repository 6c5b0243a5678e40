//! Output files: their names, their formats, and a way to write them that never leaves half a file.

mod atomic;
mod format;
mod name;

pub(crate) use atomic::temporary_beside;
pub use atomic::{AtomicFile, OutputError};
#[cfg(feature = "fleet")]
pub(crate) use atomic::{folder_of, remove_partial, sync_folder};
pub(crate) use format::{OutputFormat, UnknownOutputFormat};
pub(crate) use name::{NamePattern, NamedAfter};
