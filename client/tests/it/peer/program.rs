//! The client's program, run as a user would.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Peer;

/// Runs `connect PEER WORDS`, demands this exit code, and answers stdout and stderr.
#[track_caller]
pub fn connect(code: i32, peer: &Peer, words: &[&str], folder: &Path) -> (String, String) {
    let address = peer.address.to_string();
    run(code, &[&["connect", &address], words].concat(), folder)
}

/// The same without a peer.
#[track_caller]
pub fn run(code: i32, words: &[&str], folder: &Path) -> (String, String) {
    finished(code, &mut command(words, folder))
}

/// The program with these words, in a folder, and without the settings of who runs the tests.
pub fn command(words: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unikprof-client"));
    command
        .args(words)
        .current_dir(folder)
        .env_remove("UNIKPROF_ADDR")
        .env_remove("UNIKPROF_KEY_FILE")
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::null());
    command
}

/// A program that a closed terminal ends, also if tests run where SIGHUP is ignored, as by `nohup`;
/// its path and words are still to be given.
#[cfg(unix)]
pub fn heeding_hangup() -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP");
    command
}

/// Sends a signal to a program.
#[cfg(unix)]
#[track_caller]
pub fn signal(signal: &str, program: u32) {
    let sent = Command::new("kill").args(["-s", signal, &program.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// Runs, demands this exit code, and answers stdout and stderr.
#[track_caller]
pub fn finished(code: i32, command: &mut Command) -> (String, String) {
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        output.status.code(),
        Some(code),
        "{command:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
    );
    assert!(!stderr.contains("panicked"), "{stderr}");
    (stdout, stderr)
}

#[track_caller]
pub fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[track_caller]
pub fn is_empty(folder: &Path) {
    let left = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(left, 0, "a failure leaves no file behind");
}
