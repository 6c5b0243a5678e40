//! Guests in C: compiled once for each way of keeping frames, and run; the client's program beside them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use serde_json::Value;
use tempfile::TempDir;

/// The functions that work.
pub(crate) const SOURCE: &str = include_str!("../../guests/c-hosted/work.c");

/// Time enough for anything that takes no time, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(60);

/// Whether the guest is compiled with frame pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frames {
    Kept,
    Omitted,
}

/// A running guest; it is killed when the value is dropped.
pub(crate) struct Guest {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Kept open: the guest says something at its end.
    _stdout: BufReader<ChildStdout>,
    address: String,
    program: PathBuf,
    folder: TempDir,
}

/// What a client has printed.
pub(crate) struct Said {
    pub(crate) stdout: String,
}

impl Guest {
    /// Compiles the guest and starts it.
    pub(crate) fn start(frames: Frames) -> Guest {
        Self::start_with(frames, &[])
    }

    /// The same, with arguments.
    pub(crate) fn start_with(frames: Frames, arguments: &[&str]) -> Guest {
        let program = compile(frames);
        let mut child = Command::new(&program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Guest {
            stdin: child.stdin.take(),
            child,
            _stdout: stdout,
            address,
            program,
            folder: TempDir::with_prefix("unikprof-c-guest-").unwrap(),
        }
    }

    /// The image with its symbols.
    pub(crate) fn image(&self) -> &str {
        self.program.to_str().unwrap()
    }

    /// Records until there are as many samples, however little of a processor the guest gets.
    pub(crate) fn record_samples(&self, least: u64, settings: &[&str]) {
        self.connect(&[&["start"], settings].concat());
        self.wait_for_samples(least);
        self.connect(&["stop", "-o", "run.unikprof"]);
    }

    /// Waits until the first recording has as many samples.
    pub(crate) fn wait_for_samples(&self, least: u64) {
        let end = Instant::now() + SOON;
        while self.connect(&["check", "--json"]).json()["recordings"][0]["counters"]["recorded"]
            .as_u64()
            < Some(least)
        {
            assert!(Instant::now() < end, "not {least} samples within {SOON:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// `unikprof-client report` of what was recorded, with the guest's image.
    pub(crate) fn report(&self, more: &[&str]) -> Said {
        let mut command = self.client();
        command
            .args(["report", "run.unikprof", "--image"])
            .arg(&self.program)
            .args(more);
        said(&command.output().unwrap())
    }

    /// What `unikprof-client doctor` prints of what was recorded, whatever it thinks of it.
    pub(crate) fn doctor(&self) -> String {
        let output = self
            .client()
            .args(["doctor", "run.unikprof"])
            .output()
            .unwrap();
        // Lines are broken to fit.
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Ends the guest, which stops its agent and says whether that went well.
    pub(crate) fn stop(mut self) {
        drop(self.stdin.take());
        let end = Instant::now() + SOON;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < end,
                "the guest has not ended within {SOON:?}"
            );
            thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}");
    }

    /// `unikprof-client connect` to the guest.
    pub(crate) fn connect(&self, words: &[&str]) -> Said {
        let mut command = self.client();
        said(
            &command
                .args(["connect", &self.address])
                .args(words)
                .output()
                .unwrap(),
        )
    }

    fn client(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hosted-client"));
        command.current_dir(self.folder.path());
        command
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

fn said(output: &Output) -> Said {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(
        output.status.success(),
        "{}: {stdout}{stderr}",
        output.status
    );
    Said { stdout }
}

fn compile(frames: Frames) -> PathBuf {
    static KEPT: OnceLock<PathBuf> = OnceLock::new();
    static OMITTED: OnceLock<PathBuf> = OnceLock::new();
    let (once, name, flag) = match frames {
        Frames::Kept => (&KEPT, "kept", "-fno-omit-frame-pointer"),
        Frames::Omitted => (&OMITTED, "omitted", "-fomit-frame-pointer"),
    };
    once.get_or_init(|| {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/c-hosted");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-hosted-{name}"));
        let mut units: Vec<PathBuf> = fs::read_dir(&sources)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "c"))
            .collect();
        units.sort();
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-std=gnu99",
            "-O2",
            "-g",
            flag,
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args(["-Wl,--build-id", "-I"])
        .arg(archive())
        .args(units)
        .arg(archive().join("libunikprof.a"))
        .arg("-o")
        .arg(&program);
        said(&gcc.output().unwrap());
        program
    })
    .clone()
}

/// The folder with the archive and its header, built by the command that an embedder uses.
fn archive() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-archive");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .args([
                "run",
                "--quiet",
                "-p",
                "unikprof-capi",
                "--bin",
                "build-archive",
                "--",
            ])
            .arg(&folder)
            .arg("--ring")
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        said(&command.output().unwrap());
        folder
    })
}
