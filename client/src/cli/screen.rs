//! Standard output: writing to it, and how wide it is.

use std::io::{self, Write};
use std::path::Path;

use super::Failure;
use crate::charset;
use unikprof_report::report::DEFAULT_COLUMNS;

/// Writes to stdout. A reader that has gone, as in `| head`, ends the program quietly.
pub(crate) fn print(bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()).map_err(Failure::Stdout)
}

/// [`print`], with text for people in the characters of the locale, and other formats as they are.
pub(crate) fn print_local(is_text: bool, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    match str::from_utf8(bytes.as_ref()) {
        Ok(text) if is_text => print(charset::local(text.to_owned())),
        _ => print(bytes),
    }
}

/// [`print_local`], for what is to be kept: if there is no standard output, nobody has it.
pub(crate) fn print_output(is_text: bool, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    if is_stdout_closed() {
        return Err(Failure::Stdout(io::ErrorKind::BrokenPipe.into()));
    }
    print_local(is_text, bytes)
}

/// Whether the program was started without a standard output. Rust then opens /dev/null in its
/// place, for reading as well, which a shell's `> /dev/null` does not.
fn is_stdout_closed() -> bool {
    const READ_AND_WRITE: u32 = 2;
    let told = std::fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    let flags = told.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & 3 == READ_AND_WRITE)
        && std::fs::read_link("/proc/self/fd/1").is_ok_and(|path| path == Path::new("/dev/null"))
}

/// How wide a text for stdout may be.
pub(crate) fn columns() -> usize {
    known_columns().unwrap_or(DEFAULT_COLUMNS)
}

/// As COLUMNS says, or as wide as the terminal; `None` if there is neither.
pub(super) fn known_columns() -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || {
        let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(io::stdout())?;
        Some(usize::from(columns))
    };
    named.or_else(of_terminal).filter(|columns| *columns > 0)
}

/// A command for people to paste, behind so many columns. On a terminal that is too narrow its words
/// go on in a second line, which a shell joins to the first.
pub(crate) fn pasted(indent: usize, command: &str, words: &str) -> String {
    pasted_in(known_columns(), indent, command, words)
}

fn pasted_in(columns: Option<usize>, indent: usize, command: &str, words: &str) -> String {
    let width = indent + command.chars().count() + 1 + words.chars().count();
    match columns.is_some_and(|columns| width > columns) {
        true => format!("{command} \\\n{:indent$}{words}", ""),
        false => format!("{command} {words}"),
    }
}

/// How wide a text for stderr may be, if it is a terminal.
pub(crate) fn error_columns() -> Option<usize> {
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(io::stderr())?;
    (columns > 0).then_some(columns.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards `next` lines that a terminal of 80 columns cuts in two.
    #[test]
    fn a_command_that_is_too_wide_goes_on_behind_a_backslash() {
        let pasted = |columns| pasted_in(columns, 4, "client report", "long.unikprof --open");
        assert_eq!(pasted(Some(38)), "client report long.unikprof --open");
        assert_eq!(pasted(Some(37)), "client report \\\n    long.unikprof --open");
        assert_eq!(pasted(None), "client report long.unikprof --open");
    }
}
