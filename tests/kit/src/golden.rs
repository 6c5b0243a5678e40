//! Outputs against checked-in files.
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::fs;

use crate::documents;

/// Compares with the file of this path in the repository, or writes it when asked to bless.
/// `command` blesses it.
#[track_caller]
pub fn check(path: &str, found: &str, command: &str) {
    let file = documents::root().join(path);
    if std::env::var_os("UNIKPROF_BLESS").is_some() {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, found).unwrap();
        return;
    }
    let expected = fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{path}: {error}; bless it with `{command}`"));
    if expected == found {
        return;
    }
    let line = expected.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    panic!(
        "{path} differs from line {}:\n  expected {:?}\n  found    {:?}\nif this is meant: \
         `{command}`",
        line + 1,
        expected.lines().nth(line),
        found.lines().nth(line)
    );
}
