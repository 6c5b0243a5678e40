//! Standard output: writing to it, and how wide it is.

use std::io::{self, Write};

use super::Failure;
use crate::report::DEFAULT_COLUMNS;

/// Writes to stdout. A reader that has gone, as in `| head`, ends the program quietly.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()).map_err(Failure::Stdout)
}

/// How wide a text for stdout may be: as wide as the terminal, where it is one.
pub(crate) fn columns() -> usize {
    match terminal_size::terminal_size_of(io::stdout()) {
        Some((terminal_size::Width(columns), _)) if columns != 0 => columns.into(),
        _ => DEFAULT_COLUMNS,
    }
}
