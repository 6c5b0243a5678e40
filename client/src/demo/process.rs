//! The demo's guest, seen from the client.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::{DemoError, GUEST_WORD};
use crate::connection::Address;

/// What the guest says before its address, in its first line.
pub(super) const ANNOUNCEMENT: &str = "listening on ";

/// How long the guest may take to listen.
const START_SECONDS: u64 = 20;

/// How long the guest may take to end when it is told to.
const END: Duration = Duration::from_secs(2);

/// A running guest. It ends when this is dropped, and also when this process dies: its stdin closes.
pub(super) struct GuestProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    address: Address,
}

impl GuestProcess {
    /// Starts this program as a guest and waits until it listens.
    pub(super) fn start() -> Result<GuestProcess, DemoError> {
        let program = std::env::current_exe().map_err(DemoError::Start)?;
        let mut command = Command::new(program);
        command
            .arg(GUEST_WORD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // Ctrl-C is for the client, which then fetches what the guest has counted.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(DemoError::Start)?;
        let stdout = child.stdout.take();
        let mut guest = GuestProcess {
            stdin: child.stdin.take(),
            child,
            address: Address::new("127.0.0.1", 0),
        };
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            const LONGEST: u64 = 256;
            let mut line = String::new();
            if let Some(stdout) = stdout {
                // An error leaves the line empty, and that is told below.
                let _ = BufReader::new(stdout.take(LONGEST)).read_line(&mut line);
            }
            let _ = sender.send(line);
        });
        let line = receiver
            .recv_timeout(Duration::from_secs(START_SECONDS))
            .map_err(|_| DemoError::Silent(START_SECONDS))?;
        if line.is_empty() {
            let status = guest.child.wait().map_err(DemoError::Start)?;
            return Err(DemoError::EndedEarly(status));
        }
        let announced = line.trim_end().strip_prefix(ANNOUNCEMENT);
        guest.address = announced
            .and_then(|address| address.parse().ok())
            .ok_or(DemoError::Announcement(line))?;
        Ok(guest)
    }

    /// Where the guest's agent listens.
    pub(super) fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for GuestProcess {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
