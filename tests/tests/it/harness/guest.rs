//! Guests: processes of the program `hosted-guest`.

use std::ffi::OsStr;
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
        Guest::start_with(load, &["--open"])
    }

    /// The same with these options.
    pub(crate) fn start_with(load: &str, options: &[impl AsRef<OsStr>]) -> Guest {
        Guest::spawn(Command::new(Guest::program()).arg(load).args(options))
    }

    /// Starts a guest that asks for one of these keys.
    pub(crate) fn start_with_keys(load: &str, view: &Path, control: &Path) -> Guest {
        let options = ["--view-key-file", "--control-key-file"].map(OsStr::new);
        let [view, control] = [view, control].map(Path::as_os_str);
        Guest::start_with(load, &[options[0], view, options[1], control])
    }

    /// Starts a guest that records from its beginning, under this name.
    pub(crate) fn start_recording(load: &str, name: &str) -> Guest {
        Guest::start_with(load, &["--open", "--record-at-boot", name])
    }

    /// Says something on its standard input.
    pub(crate) fn tell(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Starts a guest by this command.
    pub(crate) fn spawn(command: &mut Command) -> Guest {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
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
        let mut guest =
            Guest { child, stdin, lines, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        guest.address = guest.told("listening on ").parse().unwrap();
        guest
    }

    /// The program that guests run: the image with their symbols.
    pub(crate) fn program() -> &'static Path {
        Path::new(env!("CARGO_BIN_EXE_hosted-guest"))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The address of its agent.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn client(&self) -> Client {
        Client::of(self.address)
    }

    /// A client of a guest whose allocator has begun to report to the agent, which it does a moment
    /// after the agent listens.
    pub(crate) fn allocating_client(&self) -> Client {
        let client = self.client();
        wait_until("an allocation", || {
            let info = client.connect(&["--json", "info"]).expect_json();
            (info["records_allocations"] == true).then_some(())
        });
        client
    }

    /// The text after `label` on the next line of the guest's that begins with it.
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
