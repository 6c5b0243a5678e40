//! `unikprof-fleet collect` in a folder with a `fleet.toml`, whose spool and recordings are beside
//! it; and its audit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread::{panicking, sleep};
use std::time::Duration;

use serde_json::Value;
use unikprof_profile::recording::{Reading, Recording};
use unikprof_test_kit::engines::{Failure, Receiver, Series};

use super::wait_until;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hosted-fleet");

/// Between two looks at an audit: each is a process, and others need the machine.
const LOOK: Duration = Duration::from_millis(100);

/// The collector; killed as by `kill -9` when the value is dropped.
pub(crate) struct Collector {
    folder: PathBuf,
    child: Option<Child>,
}

/// The time for which faults go on; 0 unless `UNIKPROF_COLLECT_SECONDS` asks for more.
pub(crate) fn seconds() -> Duration {
    let seconds = std::env::var("UNIKPROF_COLLECT_SECONDS");
    Duration::from_secs(seconds.map_or(0, |it| it.parse().expect("a number of seconds")))
}

/// Answers, and a lack of them, after which a profile must be delivered again.
pub(crate) fn bad_answers() -> [Failure; 3] {
    [
        Failure::Status(429, vec![("Retry-After".into(), "1".into())]),
        Failure::HalfAnswer,
        Failure::NoAnswer,
    ]
}

impl Collector {
    pub(crate) fn start(folder: &Path) -> Collector {
        let mut collector = Collector { folder: folder.into(), child: None };
        collector.start_again();
        collector
    }

    /// Kills the one that is there, as `kill -9` does, and starts the next one.
    pub(crate) fn start_again(&mut self) {
        self.kill();
        let log =
            fs::File::options().create(true).append(true).open(self.folder.join("collect.log"));
        let child = Command::new(PROGRAM)
            .args(["collect", "--config", "fleet.toml"])
            .current_dir(&self.folder)
            .stdout(fs::File::create(self.folder.join("collect.said")).unwrap())
            .stderr(log.unwrap())
            .spawn();
        self.child = Some(child.unwrap());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The same at some moment of the next seconds, while the engine's answers are lost.
    pub(crate) fn start_again_among_lost_answers(&mut self, engine: &Receiver) {
        sleep(Duration::from_millis(500 + fastrand::u64(..4000)));
        engine.fail_next([Failure::Status(503, Vec::new()), Failure::NoAnswer]);
        self.start_again();
    }

    /// Sends what Ctrl-C sends, and waits for its end.
    pub(crate) fn end(&mut self) {
        let mut child = self.child.take().expect("a collector at work");
        let id = child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &id]).status();
        assert!(sent.unwrap().success());
        let ended = wait_until("its end", || child.try_wait().unwrap());
        assert!(ended.success(), "{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("collect.log")).unwrap()
    }

    /// The output of `collect --audit`, in which everything adds up.
    pub(crate) fn told(&self, options: &[&str]) -> String {
        let output = self.audited(options).unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{errors}{}", self.log());
        said.into_owned()
    }

    fn audited(&self, options: &[&str]) -> io::Result<Output> {
        Command::new(PROGRAM)
            .args(["collect", "--config", "fleet.toml", "--audit"])
            .args(options)
            .current_dir(&self.folder)
            .output()
    }

    /// The guests of such an audit, each with ticks of as many outcomes.
    pub(crate) fn audit(&self) -> Vec<Value> {
        if !self.folder.join("spool").exists() {
            return Vec::new();
        }
        let audit: Value = serde_json::from_str(&self.told(&["--json"])).unwrap();
        let guests = audit["guests"].as_array().unwrap().clone();
        for guest in &guests {
            let outcomes = guest["outcomes"].as_object().unwrap().values();
            let sum: u64 = outcomes.filter_map(Value::as_u64).sum();
            assert_eq!(sum, fetched(guest), "{guest:#}");
        }
        guests
    }

    /// Waits until there are so many guests and all of them are as `are`.
    pub(crate) fn wait_for(
        &self,
        what: &str,
        guests: usize,
        are: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        wait_until(what, || {
            let all = self.audit();
            let found = (all.len() == guests && all.iter().all(&are)).then_some(all);
            if found.is_none() {
                sleep(LOOK);
            }
            found
        })
    }

    /// Asserts that the folder `recordings` has of each guest what it has accepted.
    pub(crate) fn expect_in_folder(&self, audit: &[Value]) {
        for guest in audit {
            let files = self.files(guest["name"].as_str().unwrap());
            let profiles = files.iter().map(|file| {
                let recording = Recording::open(file, Reading::Strict).unwrap();
                recording.profile.counters().ticks
            });
            let kept: u64 = profiles.sum();
            assert_eq!(kept, ticks(guest, "folder", "accepted"), "{guest:#}");
        }
    }

    /// The folder's files of a guest.
    pub(crate) fn files(&self, guest: &str) -> Vec<PathBuf> {
        let folder = self.folder.join("recordings").join(guest);
        let files = fs::read_dir(folder).unwrap();
        files.map(|file| file.unwrap().path()).collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if panicking()
            && let Ok(output) = self.audited(&[])
        {
            let said = String::from_utf8_lossy(&output.stdout);
            eprintln!("the collector's log:\n{}{said}", self.log());
        }
        self.kill();
    }
}

/// All ticks of a guest in the audit.
pub(crate) fn fetched(guest: &Value) -> u64 {
    guest["ticks"].as_u64().unwrap()
}

/// The ticks that a target has `accepted` of the guest, `rejected` or `dropped`, or that wait for
/// it: `spooled`.
pub(crate) fn ticks(guest: &Value, target: &str, amount: &str) -> u64 {
    let targets = guest["targets"].as_array().unwrap();
    let target = targets.iter().find(|it| it["name"] == target).unwrap();
    target[amount]["ticks"].as_u64().unwrap()
}

/// Whether nothing waits any more for a target.
pub(crate) fn is_delivered(guest: &Value, target: &str) -> bool {
    ticks(guest, target, "accepted") + ticks(guest, target, "dropped") == fetched(guest)
}

/// Asserts that an engine has the samples of each guest that the audit says. What was fetched last
/// may still wait for it.
pub(crate) fn expect_at(engine: &Receiver, target: &str, audit: &[Value]) {
    let received = engine.received();
    assert_eq!(received.refused, [""; 0]);
    for guest in audit {
        let of_guest = |series: &Series| series["guest"] == guest["name"].as_str().unwrap();
        let series = received.series.iter().filter(|(labels, _)| of_guest(labels));
        let taken = series.flat_map(|(_, times)| times.values());
        let samples: i64 = taken.map(|taken| taken.values["samples"]).sum();
        let samples = u64::try_from(samples).unwrap();
        let recorded = guest["outcomes"]["recorded"].as_u64().unwrap();
        // The audit does not tell which outcomes were dropped, or wait.
        let away = ["dropped", "spooled"].map(|amount| ticks(guest, target, amount));
        let least = recorded.saturating_sub(away.iter().sum());
        let most = recorded.min(ticks(guest, target, "accepted"));
        assert!((least..=most).contains(&samples), "{samples}: {guest:#}");
    }
}
