//! The demo, from its guest to its files.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::peer::program;

#[test]
fn the_demo_records_its_guest_and_writes_every_report() {
    let here = tempfile::tempdir().unwrap();
    let words = ["demo", "--duration", "3s", "--output", "a/b"];
    let (stdout, _) = program::run(0, &words, here.path());
    assert!(stdout.lines().count() <= 40, "{stdout}");
    assert!(stdout.lines().nth(2) == Some("what takes the time"), "{stdout}");
    // On a busy machine some find the table locked.
    assert!(stdout.contains(" ticks, "), "{stdout}");
    let file = |name: &str| here.path().join("a/b").join(name);
    let mut names = vec!["demo.unikprof", "demo.folded", "demo.pb.gz", "demo.txt"];
    names.push("demo.html");
    let (_, written) = stdout.split_once("Written:").unwrap();
    let (_, next) = written.split_once("Try next:").unwrap();
    let called = program::command(&[], here.path()).get_program().to_owned();
    let called = format!("  {} report ", called.to_str().unwrap());
    assert!(next.lines().filter(|it| it.starts_with(&called)).count() >= 2, "{next}");
    let first = written.lines().find(|line| line.contains("demo."));
    assert!(first.unwrap().contains("demo.html"), "{written}");
    if cfg!(feature = "svg") {
        names.push("demo.svg");
    }
    for name in names {
        assert!(fs::metadata(file(name)).unwrap().len() > 100, "{name}");
        assert!(stdout.contains(name), "{stdout}");
    }
}

/// It is the guest that everybody has, so the pages' examples should work with it.
#[test]
#[ignore = "full: a client without optimization reads a large image"]
fn a_held_demo_can_be_traced() {
    let here = tempfile::tempdir().unwrap();
    let words = ["demo", "--hold", "--duration", "1s", "--output", "."];
    let mut demo = program::command(&words, here.path());
    let mut demo = demo.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stderr.take().unwrap()).lines().map(Result::unwrap);
    let held = lines.find(|line| line.contains("until Ctrl-C")).unwrap();
    let address = held.split(' ').find(|word| word.contains(':')).unwrap();
    let image = env!("CARGO_BIN_EXE_unikprof-client");
    let words = ["connect", address, "trace", "*note::is_spam", "--for", "1s", "--image", image];
    let traced = program::command(&words, here.path()).output().unwrap();
    demo.kill().unwrap();
    demo.wait().unwrap();
    let stderr = String::from_utf8(traced.stderr).unwrap();
    assert!(traced.status.success(), "{stderr}");
    program::has(&String::from_utf8(traced.stdout).unwrap(), &["note::is_spam"]);
}

#[test]
fn where_the_demo_writes_by_default_git_looks_away() {
    let (help, _) = program::run(0, &["demo", "--help"], Path::new("."));
    let (_, folder) = help.split_once("[default: unikprof").unwrap();
    let folder = format!("/unikprof{}", folder.split(']').next().unwrap());
    let ignored = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../.gitignore"));
    let ignored = ignored.unwrap();
    assert!(ignored.lines().any(|line| line == folder), "no {folder}");
}

#[test]
fn a_place_that_cannot_be_made_is_an_output_error() {
    let here = tempfile::tempdir().unwrap();
    program::run(7, &["demo", "--output", "/dev/null/demo"], here.path());
    program::run(2, &["demo", "--duration", "0s"], here.path());
}
