//! The client's own program.

use anyhow::anyhow;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::speaker::Role;
use super::target::{KeyFiles, Keys};

/// The client's program with what it needs to talk to one guest.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    keys: Option<KeyFiles>,
}

pub(crate) struct Running {
    child: Child,
    words: String,
}

/// A client that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) words: String,
    /// `None` where a signal ended it.
    pub(crate) code: Option<i32>,
    /// Its standard error.
    pub(crate) said: String,
}

/// A time longer than any client of a soak takes.
const PATIENCE: Duration = Duration::from_secs(120);

impl Program {
    /// The program at `path`; the files of its keys are made in `folder`.
    pub(crate) fn new(path: &Path, folder: &Path, keys: Option<&Keys>) -> io::Result<Program> {
        let keys = match keys {
            None => None,
            Some(keys) => Some(KeyFiles::write(keys, folder)?),
        };
        Ok(Program { path: path.into(), keys })
    }

    /// Begins `connect ADDRESS WORDS`.
    pub(crate) fn begin(
        &self,
        address: SocketAddr,
        role: Role,
        words: &[&str],
    ) -> io::Result<Running> {
        self.begin_into(Stdio::null(), address, role, words)
    }

    /// The same; what it prints as its result goes to `results`.
    pub(crate) fn begin_into(
        &self,
        results: Stdio,
        address: SocketAddr,
        role: Role,
        words: &[&str],
    ) -> io::Result<Running> {
        let mut command = Command::new(&self.path);
        command.args(["connect", &address.to_string()]).args(words);
        command.args(["--timeout", "5s", "--retry", "20s"]);
        if let Some(KeyFiles { view, control, .. }) = &self.keys {
            let key = match role {
                Role::View => view,
                Role::Control => control,
            };
            command.arg("--key-file").arg(key);
        }
        let child = command.stdin(Stdio::null()).stdout(results).stderr(Stdio::piped()).spawn()?;
        Ok(Running { child, words: words.join(" ") })
    }

    /// Runs `connect ADDRESS WORDS` to its end.
    pub(crate) fn run(
        &self,
        address: SocketAddr,
        role: Role,
        words: &[&str],
    ) -> io::Result<Finished> {
        self.begin(address, role, words)?.finish()
    }
}

impl Running {
    /// Kills it after a while, unless it has ended; answers whether it was killed.
    pub(crate) fn kill_after(mut self, wait: Duration) -> bool {
        thread::sleep(wait);
        let early = matches!(self.child.try_wait(), Ok(None));
        let _ = self.child.kill();
        let _ = self.child.wait();
        early
    }

    /// Asks it to end after a while, as Ctrl-C would, and waits for its end. It is SIGTERM, since
    /// who is started in the background is started with SIGINT ignored.
    pub(crate) fn interrupt_after(self, wait: Duration) -> io::Result<Finished> {
        thread::sleep(wait);
        let id = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &id]).stderr(Stdio::null()).status()?;
        self.finish()
    }

    pub(crate) fn finish(mut self) -> io::Result<Finished> {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() > end => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    let text = format!("`{}` did not end in {PATIENCE:?}", self.words);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                None => thread::sleep(Duration::from_millis(3)),
            }
        };
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            // It says little: the pipe cannot have been full.
            stderr.read_to_string(&mut said)?;
        }
        Ok(Finished { words: self.words, code: status.code(), said })
    }
}

impl Finished {
    pub(crate) fn outcome(&self) -> String {
        match self.code {
            Some(0) => "done".into(),
            Some(3) => "line lost".into(),
            Some(4) => "broken protocol".into(),
            Some(5) => "refused".into(),
            Some(8) => "kept in part".into(),
            Some(11) => "no such recording".into(),
            Some(12) => "leased to another".into(),
            Some(130) => "interrupted".into(),
            Some(code) => format!("code {code}"),
            None => "killed".into(),
        }
    }

    /// Whether others were in its way: the agent had no session for it and said so or closed before
    /// a word, or another one holds the lease.
    pub(crate) fn was_crowded(&self) -> bool {
        match self.code {
            Some(3 | 12) => true,
            Some(5) => self.said.contains("sessions"),
            _ => false,
        }
    }

    /// As an error, where it must have been done.
    pub(crate) fn into_error(self) -> anyhow::Error {
        let Finished { words, code, said } = self;
        anyhow!("`{words}` ended with {code:?}:\n{said}")
    }
}
