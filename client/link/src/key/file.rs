//! Key files: created readable by their owner only, and rejected if others can read them.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use jiff::Timestamp;
use thiserror::Error;
use zeroize::Zeroizing;

use super::{Key, KeyFormatError};
use unikprof_profile::printable::path_word;

/// The longest key file: a key and some lines of comment.
const MAX_BYTES: usize = 4096;

/// Permissions that make a key file anybody else's.
const OTHERS: u32 = 0o077;

/// What a key is to be used for. The guest says what it allows; in the file this is a comment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Role {
    /// Read only: info, check, events, copy, snapshot, top of a running recording and doctor ADDR
    View,
    /// Everything but traces
    #[default]
    Control,
    /// Everything, also traces, which write breakpoints into the guest's code
    Trace,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::View => "view",
            Role::Control => "control",
            Role::Trace => "trace",
        })
    }
}

/// Why a key file cannot be used or made; shows nothing of what is in it.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is a folder or a device.
    #[error("the key file {} is not a regular file, so its permissions do not protect the \
             key", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// Other users can access it.
    #[error(
        "other users can access the key file {} (mode {mode:04o}): run `chmod 600 {}`, and replace \
         the key if \
         this machine has other users",
        path.display(),
        path_word(path)
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is too long for a key file.
    #[error("the key file {} is longer than {MAX_BYTES} bytes, so it is not a key \
             file", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// No line of it is a key.
    #[error(
        "the key file {} contains no key: expected a line with `unikprof-key-1:` and 64 \
         hexadecimal digits, as written by \
         `unikprof-client keygen`",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It has more than one key.
    #[error(
        "the key file {} contains a second key in line {line}: put each key into its own file",
        path.display()
    )]
    Several {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The line with the key is invalid.
    #[error("line {line} of the key file {} is invalid: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with the line.
        source: KeyFormatError,
    },
    /// The file to be made exists.
    #[error(
        "{} already exists. Keys are not overwritten, because clients would be locked out: choose \
         another name, \
         or move the old file away",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write the key file {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Key {
    /// Reads a key file: one line with the key, and lines that are empty or begin with `#`.
    pub fn read(path: &Path) -> Result<Key, KeyFileError> {
        let failed = |source| KeyFileError::Read { path: path.into(), source };
        // Opening a pipe would wait for its other end.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(KeyFileError::NotAFile { path: path.into() });
        }
        let file = File::open(path).map_err(failed)?;
        // Of the file that is open, not of one that had the name before.
        check(path, &file.metadata().map_err(failed)?)?;
        let mut bytes = Zeroizing::new([0; MAX_BYTES + 1]);
        let length = read_all(file, bytes.as_mut_slice()).map_err(failed)?;
        if length > MAX_BYTES {
            return Err(KeyFileError::TooLong { path: path.into() });
        }
        parse(path, &bytes[..length])
    }

    /// Writes a new key file that its owner alone can read; `role` is a comment in it.
    pub fn write_new(&self, path: &Path, role: Role) -> Result<(), KeyFileError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => KeyFileError::Exists { path: path.into() },
            _ => KeyFileError::Write { path: path.into(), source },
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path).map_err(failed)?;
        let contents = self.file_text(role, Timestamp::now());
        let written = file.write_all(contents.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|source| {
            // Half a key is none.
            let _ = fs::remove_file(path);
            failed(source)
        })
    }

    /// What a key file holds.
    pub fn file_text(&self, role: Role, made: Timestamp) -> Zeroizing<String> {
        let comment = format!(
            "# unikprof key {}, role {role}, made {}\n",
            self.id(),
            made.strftime("%Y-%m-%d")
        );
        let key = self.to_text();
        let mut text = Zeroizing::new(String::with_capacity(comment.len() + key.len() + 1));
        text.push_str(&comment);
        text.push_str(&key);
        text.push('\n');
        text
    }
}

fn check(path: &Path, found: &Metadata) -> Result<(), KeyFileError> {
    if !found.is_file() {
        return Err(KeyFileError::NotAFile { path: path.into() });
    }
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o7777;
        if mode & OTHERS != 0 {
            return Err(KeyFileError::Exposed { path: path.into(), mode });
        }
    }
    Ok(())
}

/// Reads until the end or until the buffer is full.
fn read_all(mut file: File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Key, KeyFileError> {
    let mut key = None;
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let found = Key::parse(line).map_err(|source| KeyFileError::Format {
            path: path.into(),
            line: at + 1,
            source,
        })?;
        if key.replace(found).is_some() {
            return Err(KeyFileError::Several { path: path.into(), line: at + 1 });
        }
    }
    key.ok_or_else(|| KeyFileError::Empty { path: path.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parsed(text: &str) -> Result<Key, KeyFileError> {
        parse(Path::new("k"), text.as_bytes())
    }

    #[test]
    fn comments_and_ends_of_lines_of_any_kind_are_passed_over() {
        let key = Key::generate().unwrap();
        let text = format!("# one\r\n\r\n{}\r\n  # two\n\n", *key.to_text());
        assert_eq!(parsed(&text).unwrap().id(), key.id());
        let without_end = key.to_text();
        assert_eq!(parsed(&without_end).unwrap().id(), key.id());
    }
}
