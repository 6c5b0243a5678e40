//! The client's program, run as a user would.

use std::ffi::OsStr;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use unikprof_profile::recording::{Reading, Recording};

use super::{SOON, wait_until};

/// Clients of one address, and a folder for what they write.
pub(crate) struct Client {
    address: SocketAddr,
    folder: TempDir,
    key: Option<PathBuf>,
    /// Files of keys that it must never print, beside its own.
    hidden: Vec<PathBuf>,
    image: Option<PathBuf>,
}

/// The time that clients give the agent: a loaded machine keeps it from its processor. Under
/// emulation a round trip takes 0.3 s when the lab is busy, and a segment lost on the way is sent
/// again after 6 s.
const TIMEOUT: &str = "30s";

/// A client under way; it is killed when the value is dropped.
pub(crate) struct RunningClient {
    child: Child,
    words: String,
    output: Option<[Output; 2]>,
}

/// The output of a client on one of its streams.
struct Output {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

/// A client that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    words: String,
    /// `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Client {
    pub(crate) fn of(address: SocketAddr) -> Client {
        Client {
            address,
            folder: TempDir::with_prefix("unikprof-hosted-").unwrap(),
            key: None,
            hidden: Vec::new(),
            image: None,
        }
    }

    /// The same at another address.
    pub(crate) fn at(self, address: SocketAddr) -> Client {
        Client { address, ..self }
    }

    /// The same, showing the key in a file.
    pub(crate) fn with_key(self, file: &Path) -> Client {
        Client { key: Some(file.into()), ..self }
    }

    /// The same, which must never print the keys in these files.
    pub(crate) fn hiding(self, files: &[&Path]) -> Client {
        Client { hidden: files.iter().map(|file| file.to_path_buf()).collect(), ..self }
    }

    /// The same, of a guest that runs another program than the hosted
    /// [`Guest::program`](super::Guest::program).
    pub(crate) fn with_image(self, file: &Path) -> Client {
        Client { image: Some(file.into()), ..self }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn image(&self) -> &Path {
        let image = self.image.as_deref();
        image.unwrap_or_else(|| super::Guest::program())
    }

    /// A place in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program itself, in the folder.
    pub(crate) fn command(&self) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_hosted-client"))
    }

    /// `unikprof-fleet record WORDS`, in the folder.
    pub(crate) fn record_fleet(&self, words: &[&str]) -> RunningClient {
        let mut command = self.command_of(env!("CARGO_BIN_EXE_hosted-fleet"));
        RunningClient::spawn(command.arg("record").args(words))
    }

    fn command_of(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        for variable in ["DEBUGINFOD_URLS", "UNIKPROF_ADDR", "UNIKPROF_KEY_FILE"] {
            command.env_remove(variable);
        }
        command
    }

    /// Begins `unikprof-client connect ADDRESS WORDS`.
    pub(crate) fn begin(&self, words: &[impl AsRef<OsStr>]) -> RunningClient {
        let mut command = self.command();
        command.arg("connect").arg(self.address.to_string());
        if let Some(key) = &self.key {
            command.arg("--key-file").arg(key);
        }
        command.args(["--timeout", TIMEOUT]);
        RunningClient::spawn(command.args(words))
    }

    /// Runs `unikprof-client connect ADDRESS WORDS` to its end.
    pub(crate) fn connect(&self, words: &[impl AsRef<OsStr>]) -> Finished {
        let finished = self.begin(words).finish();
        for key in self.key.iter().chain(&self.hidden) {
            let key = std::fs::read_to_string(key).unwrap();
            let secret = key.rsplit(':').next().unwrap().trim();
            let said = [&finished.stdout, &finished.stderr];
            assert!(!said.iter().any(|it| it.contains(secret)), "a key was shown");
        }
        finished
    }

    /// The same, which must succeed.
    pub(crate) fn must(&self, words: &[impl AsRef<OsStr>]) -> Finished {
        self.connect(words).expect_success()
    }

    /// Runs `unikprof-client WORDS` in the folder, without a guest.
    pub(crate) fn run(&self, words: &[impl AsRef<OsStr>]) -> Finished {
        RunningClient::spawn(self.command().args(words)).finish()
    }

    /// Records for a while, and expects that to succeed.
    pub(crate) fn record(&self, duration: &str, more: &[&str]) -> Recording {
        self.must(&[&["record", duration, "-o", "run.unikprof"], more].concat());
        self.recording("run.unikprof")
    }

    /// Records until there are as many samples, however little of a processor the guest gets.
    pub(crate) fn record_samples(&self, least: u64, settings: &[&str]) -> Recording {
        self.must(&[&["start"], settings].concat());
        self.wait_for_samples(least);
        self.stop("run.unikprof")
    }

    /// Waits until each of these recordings has as many samples; answers the status.
    pub(crate) fn wait_for_samples_of(&self, names: &[&str], least: u64) -> Value {
        wait_until("samples in each recording", || {
            let status = self.connect(&["check", "--json"]).expect_json();
            let all = status["recordings"].as_array().unwrap();
            let has = |name: &&str| {
                all.iter().any(|one| {
                    one["name"] == **name && one["counters"]["recorded"].as_u64() >= Some(least)
                })
            };
            names.iter().all(has).then_some(status)
        })
    }

    /// Runs `record` until it has as many samples and Ctrl-C ends it; the recording's name is
    /// `run`.
    pub(crate) fn record_until(&self, least: u64, more: &[&str]) -> Finished {
        let words = ["record", "1h", "--name", "run", "-o", "run.unikprof"];
        let running = self.begin(&[&words, more].concat());
        self.wait_for_samples_of(&["run"], least);
        running.interrupt();
        running.finish().expect_success()
    }

    /// Stops the only recording, into a file of the folder; nothing may be missing.
    pub(crate) fn stop(&self, name: &str) -> Recording {
        self.must(&["stop", "-o", name]);
        self.recording(name)
    }

    /// Reads a recording in the folder; nothing may be missing.
    pub(crate) fn recording(&self, name: &str) -> Recording {
        Recording::open(&self.path(name), Reading::Strict).unwrap()
    }

    /// The status in `check --json`; see [`expect_status`](Finished::expect_status).
    pub(crate) fn status(&self) -> Value {
        self.connect(&["check", "--json"]).expect_status()
    }

    /// The names of all recordings in the guest.
    pub(crate) fn recording_names(&self) -> Vec<String> {
        let status = self.connect(&["check", "--json"]).expect_json();
        let all = status["recordings"].as_array().unwrap();
        let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
        all.iter().map(name).collect()
    }

    /// Waits until `check` says so; answers what it said. An agent that has no session left is
    /// asked again.
    pub(crate) fn wait_for_status(&self, what: &str, so: impl Fn(&Value) -> bool) -> Value {
        wait_until(what, || {
            let finished = self.connect(&["check", "--json"]);
            if finished.code == Some(unikprof_client::exit_code::REFUSED.into()) {
                return None;
            }
            Some(finished.expect_status()).filter(|status| so(status))
        })
    }

    /// Waits until the only recording has as many samples; answers the status.
    pub(crate) fn wait_for_samples(&self, least: u64) -> Value {
        self.wait_for_status(&format!("{least} samples"), |status| {
            status["counters"]["recorded"].as_u64() >= Some(least)
        })
    }

    /// Runs `unikprof-client report NAME MORE` with the guest's image.
    pub(crate) fn report(&self, name: &str, more: &[&str]) -> Finished {
        self.report_with(name, self.image(), more)
    }

    /// The same with another image.
    pub(crate) fn report_with(&self, name: &str, image: &Path, more: &[&str]) -> Finished {
        let words = ["report", name, "--image"].map(OsStr::new);
        let more = more.iter().map(OsStr::new);
        let words = words.into_iter().chain([image.as_os_str()]).chain(more);
        self.run(&words.collect::<Vec<_>>())
    }

    /// The folded stacks of `run.unikprof`, outermost function first, each with its samples or
    /// nanoseconds.
    pub(crate) fn folded(&self, more: &[&str]) -> Vec<(String, u64)> {
        let words = [&["--format", "folded"], more].concat();
        let lines = self.report("run.unikprof", &words).expect_success().stdout;
        let split = |line: &str| {
            let (stack, weight) = line.rsplit_once(' ').unwrap();
            (stack.to_owned(), weight.parse().unwrap())
        };
        lines.lines().map(split).collect()
    }
}

impl RunningClient {
    /// Starts the command, which is a client's.
    pub(crate) fn spawn(command: &mut Command) -> RunningClient {
        let words =
            command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output =
            [Output::of(child.stdout.take().unwrap()), Output::of(child.stderr.take().unwrap())];
        RunningClient { child, words, output: Some(output) }
    }

    /// Waits until it has printed so many lines.
    pub(crate) fn wait_for_lines(&self, least: usize) {
        let [stdout, _] = self.output.as_ref().unwrap();
        wait_until("lines of the client", || {
            let text = stdout.text.lock().unwrap();
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            (lines >= least).then_some(())
        });
    }

    /// Waits until it has said this on its standard error.
    pub(crate) fn wait_for_words(&self, words: &str) {
        let [_, stderr] = self.output.as_ref().unwrap();
        wait_until("words of the client", || {
            let text = stderr.text.lock().unwrap();
            let is_said = String::from_utf8_lossy(&text).contains(words);
            is_said.then_some(())
        });
    }

    /// Sends what Ctrl-C sends.
    pub(crate) fn interrupt(&self) {
        self.signal("-INT");
    }

    /// Sends a signal, as `kill` calls it.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn finish(self) -> Finished {
        self.finish_within(SOON)
    }

    /// The same where it takes longer.
    pub(crate) fn finish_within(mut self, most: Duration) -> Finished {
        let end = Instant::now() + most;
        let ended = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() >= end {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                break None;
            }
            thread::sleep(Duration::from_millis(5));
        };
        let [stdout, stderr] = self.output.take().unwrap();
        let (stdout, stderr) = (stdout.whole(), stderr.whole());
        let Some(status) = ended else {
            panic!(
                "not within {most:?}: the end of `{}`, which said:\n{stdout}{stderr}",
                self.words
            );
        };
        Finished { words: self.words.clone(), code: status.code(), stdout, stderr }
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Asserts the exit code; answers itself.
    pub(crate) fn expect_code(self, code: u8) -> Finished {
        assert_eq!(
            self.code,
            Some(code.into()),
            "`{}` said:\n{}{}",
            self.words,
            self.stdout,
            self.stderr
        );
        self
    }

    pub(crate) fn expect_success(self) -> Finished {
        self.expect_code(unikprof_client::exit_code::SUCCESS)
    }

    /// Its output, which must be JSON and its exit code 0.
    pub(crate) fn expect_json(self) -> Value {
        let finished = self.expect_success();
        serde_json::from_str(&finished.stdout).unwrap()
    }

    /// The status that it printed, in which what is said of the only recording stands beside what
    /// is said of the agent; without one its state is `idle`.
    pub(crate) fn expect_status(self) -> Value {
        let mut status = self.expect_json();
        let recordings = status["recordings"].as_array().cloned().unwrap_or_default();
        match recordings.as_slice() {
            [] => {
                status["state"] = "idle".into();
                status["epochs"] = 0.into();
            }
            [Value::Object(only)] => {
                for (name, value) in only {
                    status[name.as_str()] = value.clone();
                }
            }
            _ => {}
        }
        status
    }
}

impl Output {
    /// Begins to read.
    fn of(mut from: impl Read + Send + 'static) -> Output {
        let text = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let length @ 1.. = from.read(&mut buffer).unwrap() {
                read.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Output { text, reader }
    }

    /// All of it, once the stream has ended.
    fn whole(self) -> String {
        self.reader.join().unwrap();
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}
