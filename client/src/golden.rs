//! Outputs against checked-in files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

const BLESS: &str = "UNIKPROF_BLESS=1 cargo test -p unikprof-client";

/// Compares with the file of this name below `client/tests`, or writes it when asked to bless.
#[track_caller]
pub(crate) fn check(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    if std::env::var_os("UNIKPROF_BLESS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, found).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; bless it with `{BLESS}`", path.display()));
    if expected == found {
        return;
    }
    let line = expected.lines().zip(found.lines()).take_while(|(a, b)| a == b).count();
    panic!(
        "{name} differs from line {}:\n  expected {:?}\n  found    {:?}\nif this is meant: \
         `{BLESS}`",
        line + 1,
        expected.lines().nth(line),
        found.lines().nth(line)
    );
}
