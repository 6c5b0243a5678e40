//! Guests: processes of the program `hosted-guest`.

use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Instant;

use super::{Client, SOON, wait_until};

/// A running guest; it is killed when the value is dropped.
pub(crate) struct Guest {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    address: SocketAddr,
}

impl Guest {
    /// Starts a guest with one of the program's loads.
    pub(crate) fn start(load: &str) -> Guest {
        Guest::spawn(Command::new(Guest::program()).args([load, "--open"]))
    }

    /// Starts a guest that asks for one of these keys.
    pub(crate) fn start_with_keys(load: &str, view: &Path, control: &Path) -> Guest {
        let mut command = Command::new(Guest::program());
        command.arg(load);
        command.arg("--view-key-file").arg(view);
        command.arg("--control-key-file").arg(control);
        Guest::spawn(&mut command)
    }

    /// Starts a guest with several keys of the role control.
    pub(crate) fn start_with_control_keys(load: &str, files: &[&Path]) -> Guest {
        let mut command = Command::new(Guest::program());
        command.arg(load);
        for file in files {
            command.arg("--control-key-file").arg(file);
        }
        Guest::spawn(&mut command)
    }

    /// Starts a guest that records from its beginning, under this name.
    pub(crate) fn start_recording(load: &str, name: &str) -> Guest {
        let words = [load, "--open", "--record-at-boot", name];
        Guest::spawn(Command::new(Guest::program()).args(words))
    }

    /// Starts a copy of the program.
    pub(crate) fn start_program(program: &Path, load: &str) -> Guest {
        Guest::spawn(Command::new(program).args([load, "--open"]))
    }

    /// Starts a copy of the program with a caller table of its own.
    pub(crate) fn start_with_callers(program: &Path, load: &str, table: &Path) -> Guest {
        let mut command = Command::new(program);
        Guest::spawn(
            command
                .args([load, "--open"])
                .env("UNIKPROF_TEST_CALLERS", table),
        )
    }

    /// Starts a guest whose agent has room for so many rows of a caller table.
    pub(crate) fn start_with_caller_rows(load: &str, rows: usize) -> Guest {
        let bytes = unikprof_agent::caller_table_bytes(rows).to_string();
        let mut command = Command::new(Guest::program());
        Guest::spawn(
            command
                .args([load, "--open"])
                .env("UNIKPROF_TEST_CALLER_BYTES", bytes),
        )
    }

    /// Says something on its standard input.
    pub(crate) fn tell(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn spawn(command: &mut Command) -> Guest {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut guest = Guest {
            child,
            stdin,
            lines,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        guest.address = guest.told("listening on ").parse().unwrap();
        guest
    }

    /// The program that guests run: the image with their symbols.
    pub(crate) fn program() -> &'static Path {
        Path::new(env!("CARGO_BIN_EXE_hosted-guest"))
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where its agent listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client of this guest.
    pub(crate) fn client(&self) -> Client {
        Client::of(self.address)
    }

    /// What follows `label` on the next line of the guest's that begins with it.
    pub(crate) fn told(&self, label: &str) -> String {
        let end = Instant::now() + SOON;
        loop {
            match self.lines.recv_timeout(end - Instant::now()) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(label) {
                        return rest.to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("the guest did not say `{label}` within {SOON:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the guest ended before it said `{label}`")
                }
            }
        }
    }

    /// Passes over what it has said so far.
    pub(crate) fn forget_lines(&self) {
        while self.lines.try_recv().is_ok() {}
    }

    /// Asserts that the guest has not ended by itself.
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the guest has ended: {ended:?}");
    }

    /// Tells the guest to end, and waits until it has.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        wait_until("the end of the guest", || self.child.try_wait().unwrap())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
