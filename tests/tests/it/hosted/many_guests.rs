//! `many-guests`: what it tells of its guests' ticks is what clients find.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Client, wait_until};

/// `many-guests`; killed when the value is dropped.
pub(crate) struct ManyGuests {
    pub(crate) folder: TempDir,
    child: Child,
    stdin: ChildStdin,
    addresses: Vec<SocketAddr>,
}

impl ManyGuests {
    pub(crate) fn start(options: &[&str]) -> ManyGuests {
        let folder = TempDir::with_prefix("unikprof-many-").unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_many-guests"))
            .args(["--port", "0", "--seconds", "3600", "--fleet", "fleet.toml"])
            .args(options)
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("serving "), "{line}");
        let fleet = std::fs::read_to_string(folder.path().join("fleet.toml")).unwrap();
        let addresses = fleet.lines().filter_map(|line| line.strip_prefix("address = "));
        let addresses = addresses.map(|address| address.trim_matches('"').parse().unwrap());
        ManyGuests {
            stdin: child.stdin.take().unwrap(),
            addresses: addresses.collect(),
            child,
            folder,
        }
    }

    pub(crate) fn client(&self, guest: usize) -> Client {
        Client::of(self.addresses[guest]).with_key(&self.folder.path().join("key"))
    }

    pub(crate) fn order(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    /// Ends the guests; answers the ticks of each guest's lives.
    pub(crate) fn end(mut self) -> Vec<Vec<u64>> {
        self.order("quit");
        let mut text = String::new();
        let mut stdout = self.child.stdout.take().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success());
        let report: Value = serde_json::from_str(&text).unwrap();
        let ticks = |life: &Value| life["ticks"].as_u64().unwrap();
        let lives = |guest: &Value| -> Vec<u64> {
            guest["lives"].as_array().unwrap().iter().map(ticks).collect()
        };
        let guests: Vec<Vec<u64>> =
            report["guests"].as_array().unwrap().iter().map(lives).collect();
        let sum: u64 = guests.iter().flatten().sum();
        assert_eq!(report["ticks"], sum);
        guests
    }
}

impl Drop for ManyGuests {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An audit adds up only if each tick is counted once, in the instance that had it.
#[test]
#[ignore = "full: records a guest"]
fn each_tick_is_told_and_found_once_through_restarts() {
    let mut many = ManyGuests::start(&["--guests", "3", "--round-trip", "4", "--stacks", "100"]);
    let record = |client: &Client| {
        let recording = client.record_samples(150, &["-F", "970"]);
        let counters = recording.profile.counters();
        assert_eq!(counters.ticks, counters.recorded, "{counters:?}");
        let stacks = recording.profile.samples();
        assert_eq!(stacks.len(), 100, "each of the stacks comes in its turn");
        counters.ticks
    };
    let instance = |client: &Client| {
        let info = client.connect(&["--json", "info"]);
        (info.code == Some(0)).then(|| info.expect_json()["instance"].clone())
    };
    let (first, second) = (many.client(0), many.client(1));
    let mut expected = vec![vec![record(&first)], vec![record(&second)], vec![0]];
    let before = [&first, &second].map(|client| instance(client).unwrap());
    many.order("resume guest-0000");
    many.order("restart guest-0001");
    for ((client, before), expected) in [&first, &second].iter().zip(before).zip(&mut expected) {
        wait_until("another instance", || instance(client).filter(|now| *now != before));
        expected.push(record(client));
    }
    assert_eq!(many.end(), expected);
}

/// Without the delay a collector would be measured on a way that nobody has.
#[test]
#[ignore = "full: records a guest"]
fn a_request_takes_its_round_trips() {
    let many = ManyGuests::start(&["--guests", "1", "--round-trip", "200"]);
    let client = many.client(0);
    let start = Instant::now();
    client.must(&["info"]);
    // The connection, the preambles, the handshake and a request.
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(4 * 200), "{took:?}");
    assert_eq!(many.end(), [[0]]);
}
