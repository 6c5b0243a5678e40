//! The command line of the program that builds the archives.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Runs it in an empty folder, which must stay empty.
fn run(words: &[&str]) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command-line");
    fs::create_dir_all(&folder).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_build-archive"));
    let output = program.args(words).current_dir(&folder).output().unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{words:?}");
    output
}

/// An option in the folder's place was taken for a folder of that name.
#[test]
fn an_option_is_no_folder() {
    for word in ["--help", "-h"] {
        let output = run(&[word]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", output.status);
        assert!(text.contains("FOLDER") && text.contains("--memory MIB"), "{text}");
    }
    for words in [&[][..], &["--dropin"], &["out", "--no-such-option"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("expected: build-archive"));
    }
}

/// The user learns at once, not by an error of a compiler, what is there for one processor only.
#[test]
fn what_aarch64_lacks_is_refused_with_the_reason() {
    for (option, reason) in [("--dropin", "APIC"), ("--trace", "breakpoints")] {
        let output = run(&["out", option, "--arch", "aarch64"]);
        assert_eq!(output.status.code(), Some(2), "{option}");
        let said = String::from_utf8(output.stderr).unwrap();
        let begin = format!("{option} is for x86_64: ");
        assert!(said.starts_with(&begin) && said.contains(reason), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(run(&["out", "--arch", "riscv64"]).status.code(), Some(2));
}
