//! `record` and the user's Ctrl-C.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::{fs, iter};

/// Guards against a first Ctrl-C that seems to be ignored, and a second that gives up what was kept.
#[test]
fn the_first_interrupt_is_acknowledged_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // It accepts connections, and never answers.
    let guest = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = guest.local_addr().unwrap();
    let guests = format!("[[guests]]\nname = \"web\"\naddress = \"{address}\"\n");
    fs::write(folder.path().join("fleet.toml"), guests).unwrap();
    let mut record = Command::new(env!("CARGO_BIN_EXE_unikprof-fleet"))
        .args(["record", "--guests", "fleet.toml", "-o", "run/"])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _connection = guest.accept().unwrap();
    let pid = record.id().to_string();
    let interrupted = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(interrupted.success());
    let mut lines = BufReader::new(record.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    record.kill().unwrap();
    record.wait().unwrap();
    let rest = lines.map_while(Result::ok);
    let all: Vec<String> = iter::once(line).chain(rest).collect();
    assert!(all[0].starts_with("stopping; the samples so far are kept"), "{all:?}");
}
