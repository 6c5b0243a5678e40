//! `collect`: every tick of every guest is somewhere, whatever is killed, full, or away.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde_json::Value;
use unikprof_client::recording::{Reading, Recording};
use unikprof_test_kit::engines::{Failure, Receiver};

use crate::harness::{Client, wait_until};
use crate::many_guests::ManyGuests;

const CLIENT: &str = env!("CARGO_BIN_EXE_hosted-client");

/// `unikprof-client collect`; killed as by `kill -9` when the value is dropped.
struct Collector(Child);

impl Collector {
    fn start(folder: &Path) -> Collector {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(folder.join("log"));
        let child = Command::new(CLIENT)
            .args(["collect", "--config", "fleet.toml"])
            .current_dir(folder)
            .stdout(fs::File::create(folder.join("said")).unwrap())
            .stderr(log.unwrap())
            .spawn();
        Collector(child.unwrap())
    }

    /// Sends what Ctrl-C sends, and waits for its end.
    fn end(mut self, folder: &Path) {
        let id = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-INT", &id])
                .status()
                .unwrap()
                .success()
        );
        let ended = wait_until("its end", || self.0.try_wait().unwrap());
        assert!(ended.success(), "{}", log(folder));
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap()
}

/// The guests of an audit in which everything adds up.
fn audit(folder: &Path) -> Vec<Value> {
    if !folder.join("spool").exists() {
        return Vec::new();
    }
    let output = Command::new(CLIENT)
        .args(["collect", "--config", "fleet.toml", "--audit", "--json"])
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let audit: Value = serde_json::from_str(&said).unwrap();
    audit["guests"].as_array().unwrap().clone()
}

/// A number of a guest's target.
fn ticks(guest: &Value, target: &str, amount: &str) -> u64 {
    let targets = guest["targets"].as_array().unwrap();
    let target = targets.iter().find(|it| it["name"] == target).unwrap();
    target[amount]["ticks"].as_u64().unwrap()
}

/// Waits until all guests are as `are`.
fn wait_for(what: &str, folder: &Path, guests: usize, are: impl Fn(&Value) -> bool) -> Vec<Value> {
    wait_until(what, || {
        let all = audit(folder);
        (all.len() == guests && all.iter().all(&are)).then_some(all)
    })
}

/// What the guest itself has counted in its recording.
fn counted(client: &Client) -> u64 {
    let status = client.connect(&["--json", "check"]).expect_json();
    let recordings = status["recordings"].as_array().unwrap();
    let one = recordings.iter().find(|one| one["name"] == "collect");
    one.unwrap()["counters"]["ticks"].as_u64().unwrap()
}

/// `UNIKPROF_COLLECT_SECONDS` makes the faults go on for longer.
#[test]
fn every_tick_is_somewhere_through_faults() {
    const GUESTS: usize = 3;
    let seconds = std::env::var("UNIKPROF_COLLECT_SECONDS");
    let seconds: u64 = seconds.map_or(0, |it| it.parse().expect("a number of seconds"));
    let mut many = ManyGuests::start(&["--guests", "3", "--round-trip", "4", "--stacks", "100"]);
    let folder = many.folder.path().to_owned();
    let engine = Receiver::start().unwrap();
    let mut toml = fs::File::options()
        .append(true)
        .open(folder.join("fleet.toml"))
        .unwrap();
    write!(
        toml,
        "[collect]\nevery = \"1s\"\n[[push]]\nkind = \"pyroscope\"\nurl = \"{}\"\n\
         [[push]]\nkind = \"folder\"\npath = \"recordings\"\n",
        engine.url()
    )
    .unwrap();
    drop(toml);
    engine.fail_always(Failure::Status(500, Vec::new()));
    let collector = Collector::start(&folder);
    // What one target does not take waits for it, and goes to the other.
    wait_for("ticks in the folder", &folder, GUESTS, |guest| {
        ticks(guest, "folder", "accepted") > 100 && ticks(guest, "pyroscope", "spooled") > 100
    });
    assert!(log(&folder).contains("pyroscope does not take profiles now"));
    // A person is told who has the recording.
    let refused = many
        .client(0)
        .connect(&["dump", "--name", "collect", "-o", "mine.unikprof"]);
    assert_eq!(refused.code, Some(12), "{refused:?}");
    drop(collector);

    let mut collector = Collector::start(&folder);
    engine.fail_next([
        Failure::Status(429, vec![("Retry-After".into(), "1".into())]),
        Failure::HalfAnswer,
        Failure::Close,
        Failure::NoAnswer,
    ]);
    engine.fail_always(None);
    wait_for("ticks at the engine", &folder, GUESTS, |guest| {
        ticks(guest, "pyroscope", "accepted") > 100
    });
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(500 + fastrand::u64(..4000)));
        engine.fail_next([Failure::Status(503, Vec::new()), Failure::NoAnswer]);
        drop(collector);
        collector = Collector::start(&folder);
    }
    many.order("restart guest-0001");
    let before = audit(&folder)[1]["ticks"].as_u64().unwrap();
    wait_for("another life", &folder, GUESTS, |guest| {
        guest["name"] != "guest-0001"
            || guest["lost"]["times"] == 1 && guest["ticks"].as_u64() > Some(before + 100)
    });
    many.order("rest all");
    // Nothing is counted any more, and all that was is delivered.
    wait_for("all ticks", &folder, GUESTS, |guest| {
        let fetched = guest["ticks"].as_u64().unwrap();
        // What the one that died had counted is not known any more.
        let index = (0..GUESTS).find(|index| guest["name"] == format!("guest-{index:04}"));
        let is_all = index == Some(1) || fetched == counted(&many.client(index.unwrap()));
        is_all
            && ticks(guest, "pyroscope", "accepted") == fetched
            && ticks(guest, "folder", "accepted") == fetched
    });
    collector.end(&folder);

    let guests = audit(&folder);
    let fetched = |guest: &Value| guest["ticks"].as_u64().unwrap();
    let accepted = |target: &str| -> u64 {
        let each = guests.iter().map(|guest| ticks(guest, target, "accepted"));
        each.sum()
    };
    let mut kept = 0;
    for guest in fs::read_dir(folder.join("recordings")).unwrap() {
        let path = guest.unwrap().path();
        for file in path
            .is_dir()
            .then(|| fs::read_dir(path).unwrap())
            .into_iter()
            .flatten()
        {
            let recording = Recording::open(&file.unwrap().path(), Reading::Strict).unwrap();
            kept += recording.profile.counters().ticks;
        }
    }
    assert_eq!(kept, accepted("folder"));
    let received = engine.received();
    assert_eq!(
        received.sum("samples"),
        i64::try_from(accepted("pyroscope")).unwrap()
    );
    assert_eq!(received.refused, [""; 0]);
    for (guest, lives) in guests.iter().zip(many.end()) {
        let counted: u64 = lives.iter().sum();
        if lives.len() == 1 {
            assert_eq!(fetched(guest), counted, "{guest}");
            assert_eq!(guest["lost"]["times"], 0, "{guest}");
        } else {
            // What died with the first life was counted in the time that is told as lost.
            let lost_ns = guest["lost"]["ns"].as_u64().unwrap();
            let most = lost_ns / 1_000_000_000 * 97 * 2 + 97;
            let died = counted.checked_sub(fetched(guest)).unwrap();
            assert!(died <= most, "{died} of {most}: {guest}");
        }
    }
}
