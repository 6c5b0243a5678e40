//! Hosted guests: processes of `accuracy-guest`, built with or without frame pointers.

use anyhow::{Context as _, Result};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use unikprof_link::connection::Address;
use unikprof_link::interrupt::Interrupt;
use unikprof_link::record::{self, Patience, Request, Session, Settings};
use unikprof_profile::caller_table::{CallerTable, prepare};
use unikprof_profile::profile::Unwind;
use unikprof_profile::symbols::{Force, ImageOptions, Images as SymbolImages, Symbolizer};

use super::capture::Captured;
use super::guest::{Captures, Guest};
use super::images::Images;
use super::recorded::Recorded;
use super::truth::Truth;
use crate::lab::guest_image::{cargo, locked_folder, run};

/// Whether the guest's Rust code keeps frame pointers. The standard library's is as it was
/// delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FramePointers {
    /// It does, as the agent asks for.
    Kept,
    /// It does not.
    Omitted,
}

/// The maximum time that a load may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// A process with an agent; it is killed when the value is dropped.
pub struct HostedGuest {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    address: SocketAddr,
    program: PathBuf,
    folder: TempDir,
    symbolizer: Symbolizer,
    /// The caller table that the client makes for this guest.
    callers: Option<CallerTable>,
}

impl HostedGuest {
    /// Builds the guest, where it is not built yet, and starts it.
    pub fn start(frame_pointers: FramePointers) -> Result<HostedGuest> {
        let program = build(frame_pointers)?;
        let mut images = SymbolImages::new(ImageOptions::default());
        images.add_image(&program, Force::No)?;
        let symbolizer = Symbolizer::new(images);
        let folder =
            TempDir::with_prefix("unikprof-accuracy-").context("making a folder for recordings")?;
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (Some(stdin), Some(stdout)) = (stdin, stdout) else {
            unreachable!("both are piped above");
        };
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut guest = HostedGuest {
            child,
            stdin,
            lines,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            program,
            folder,
            symbolizer,
            callers: None,
        };
        let line = guest.next_line()?;
        let address = line.strip_prefix("listening on ");
        let address = address.and_then(|address| address.parse().ok());
        guest.address = address
            .with_context(|| format!("the guest said {line:?}; expected `listening on ADDRESS`"))?;
        let session = guest.session()?;
        guest.callers = prepare(&guest.symbolizer, session.agent(), Unwind::Table)?.table;
        Ok(guest)
    }

    /// The guest does what `command` says, without a recording.
    pub(crate) fn tell(&mut self, command: &str) -> Result<Truth> {
        writeln!(self.stdin, "{command}")
            .with_context(|| format!("telling the guest to {command}"))?;
        Truth::parse(&self.next_line()?)
    }

    fn next_line(&mut self) -> Result<String> {
        self.lines
            .recv_timeout(PATIENCE)
            .with_context(|| format!("expected a line of the guest within {PATIENCE:?}"))
    }

    fn session(&self) -> Result<Session> {
        let address = Address::new(self.address.ip().to_string(), self.address.port());
        let session = Session::open(address, Patience::default(), Interrupt::default())?;
        Ok(session)
    }
}

impl HostedGuest {
    /// As [`Guest::record`], several recordings at once, each by its settings and under its own
    /// name.
    pub(crate) fn record_together(
        &mut self,
        settings: &[Settings],
        command: &str,
    ) -> Result<Vec<Recorded>> {
        let mut session = self.session()?;
        let mut started = Vec::new();
        for settings in settings {
            let one =
                session.start(&Settings { callers: self.callers.clone(), ..settings.clone() })?;
            started.push(one.recording);
        }
        let truth = self.tell(command)?;
        let mut recorded = Vec::new();
        for recording in started {
            let path = self.folder.path().join(format!("run-{recording}.unikprof"));
            let request = Request::Stop { recording };
            let outcome = record::fetch(&mut session, request, &path, &mut ())?;
            if let Some(reason) = outcome.incomplete {
                return Err(reason.into());
            }
            recorded.push(Recorded::open(&path, &self.symbolizer, truth.clone())?);
            fs::remove_file(&path).context("removing a recording")?;
        }
        Ok(recorded)
    }
}

impl Guest for HostedGuest {
    fn record(&mut self, settings: &Settings, command: &str) -> Result<Recorded> {
        let recorded = self.record_together(std::slice::from_ref(settings), command)?;
        recorded.into_iter().next().context("expected a recording")
    }

    fn capture(&mut self, load: &str, samples: usize) -> Result<Captures> {
        let path = self.folder.path().join("samples");
        let load = load.replace(' ', "_");
        self.tell(&format!("capture load={load} samples={samples} file={}", path.display()))?;
        let bytes = fs::read(&path).context("reading captured samples")?;
        let samples = Captured::read_all(&bytes)?;
        let session = self.session()?;
        let mappings = session.agent().mappings.iter();
        let images = Images::of_mappings(mappings, &self.program, |mapping| {
            let path = PathBuf::from(&mapping.path);
            // The kernel's own piece of code has a name and no file.
            path.is_absolute().then_some(path)
        })?;
        Ok(Captures {
            samples,
            images,
            callers: self.callers.as_ref().map_or_else(Vec::new, |table| table.rows().to_vec()),
        })
    }
}

impl Drop for HostedGuest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds the guest's program, optimised, in a folder of its own: its flags are not the
/// workspace's.
fn build(frame_pointers: FramePointers) -> Result<PathBuf> {
    let (name, keep) = match frame_pointers {
        FramePointers::Kept => ("accuracy-guest", "yes"),
        FramePointers::Omitted => ("accuracy-guest-without-frame-pointers", "no"),
    };
    let (target, _lock) = locked_folder(name)?;
    let flags = format!("-C force-frame-pointers={keep} -C link-arg=-Wl,--build-id=sha1");
    let mut command = cargo();
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/accuracy-hosted"))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", flags)
        .args(["build", "--release", "--quiet", "--locked", "--target-dir"])
        .arg(&target);
    run("building the guest", &mut command)?;
    Ok(target.join("release/accuracy-guest"))
}
