//! A real Xen in a box: hypervisor, dom0 and guests in an emulated machine, without root.
//!
//! A [`Lab`] downloads Debian's packages once into a cache under `target/`, boots Xen with a Linux
//! dom0 in QEMU's software emulation, creates the guests, forwards ports of the loopback to them,
//! and kills everything when it is dropped. Several labs run at once, each in its own folder and
//! with its own ports.
//!
//! ```no_run
//! use std::time::Duration;
//! use unikprof_lab::{GuestConfig, Lab, LabConfig, LabError, build_xen_guest};
//!
//! # fn main() -> Result<(), LabError> {
//! let mut guest = GuestConfig::new("echo", build_xen_guest(&[])?);
//! guest.ports = vec![7777];
//! let lab = Lab::start(LabConfig::with_guest(guest))?;
//! lab.wait_for_console("echo", "listening", Duration::from_secs(30))?;
//! let port = lab.forwarded("echo", 7777);
//! println!("{}", lab.dom0("xl list", Duration::from_secs(10))?.text);
//! # Ok(())
//! # }
//! ```
//!
//! Xen and dom0 take about six seconds. Times measured inside are those of an emulator: compare
//! them with each other, never with hardware.

// Not published: an error's message describes it.
#![allow(missing_docs)]

mod board;
mod cache;
mod cases;
mod config;
mod cpio;
pub mod demo;
mod dom0;
mod error;
mod flat_image;
pub mod guest_image;
mod kernel;
mod machine;
mod packages;
pub mod profiled;
pub mod requirement;
mod run_folder;
mod signs;
mod sizing;
mod toolchain;

use std::fmt;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use board::{Board, Facts, Stream};
use cache::Cache;
pub use cases::{LABS, Shared, run_or_skip};
pub use config::{GuestConfig, LabConfig, Processor};
use dom0::CommandFailure;
pub use dom0::Dom0Output;
pub use error::LabError;
pub use guest_image::{
    aarch64_compiler, build_xen_guest, build_xen_guest_for, build_xen_guest_with_dropin,
    build_xen_guest_without_frame_pointers,
};
use machine::{Hardware, Machine};
use signs::{BootOutcome, boot_outcome, console_text, domain_id, guest_end, line_with};
pub use signs::{ConsolePosition, GuestEnd};

/// Keeps the logs of a lab that ended well; those of one whose case panics stay always, for a day.
pub(crate) const KEEP_VARIABLE: &str = "UNIKPROF_XEN_KEEP";

const TAIL_LINES: usize = 40;
/// A dead guest's last words may still be on their way through xenconsoled.
const LAST_WORDS: Duration = Duration::from_secs(2);
const START_TRIES: u32 = 5;

/// Is everything here that a lab runs? If not, the first lab downloads it, or [`download`] does.
pub fn is_downloaded(processor: Processor) -> bool {
    Cache::is_filled(processor)
}

/// Downloads and unpacks what a lab runs, unless it is there: about 170 MB, and for aarch64 another
/// 250 MB.
pub fn download(processor: Processor) -> Result<(), LabError> {
    Cache::open(processor).map(drop)
}

/// A running machine with Xen, dom0 and guests. Dropping it ends them.
pub struct Lab {
    machine: Machine,
    board: Arc<Board>,
    guests: Vec<Guest>,
    folder: PathBuf,
}

struct Guest {
    config: GuestConfig,
    /// Index of its first port among the machine's forwards.
    first_forward: usize,
}

impl Lab {
    /// Boots the machine and creates the guests; returns when `xl` has started each of them.
    ///
    /// The first call on a machine downloads about 170 MB.
    pub fn start(config: LabConfig) -> Result<Self, LabError> {
        config.check()?;
        let cache = Cache::open(config.processor)?;
        let folder = run_folder::create(cache.folder())?;
        let initrd = folder.join("initrd");
        dom0::write_initramfs(&cache, &config, &initrd)?;
        let (hardware, first_forwards) = sizing::hardware(&config, &initrd)?;
        let deadline = Instant::now() + config.boot_deadline;

        let guests = config.guests.iter().cloned().zip(first_forwards);
        let mut lab = Self {
            board: Arc::new(Board::default()),
            machine: Machine::none(),
            guests: guests.map(|(config, first_forward)| Guest { config, first_forward }).collect(),
            folder,
        };
        lab.boot(&cache, &hardware, &config, deadline)?;
        for index in 0..lab.guests.len() {
            let create = lab.guests[index].config.create_command();
            lab.launch(index, &create, deadline)?;
        }
        Ok(lab)
    }

    /// Waits until a guest's console has shown a line containing `pattern`, and returns the line.
    ///
    /// Text written since the guest's creation (or restore) counts, early output included.
    pub fn wait_for_console(
        &self,
        guest: &str,
        pattern: &str,
        within: Duration,
    ) -> Result<String, LabError> {
        let index = self.index(guest)?;
        let deadline = Instant::now() + within;
        let waited_for = format!("{pattern:?} on the console of {guest}");
        // The console comes in pieces: a line is whole when its end is there.
        let line = |facts: &Facts| {
            let text = console_text(facts, index);
            let (whole, _) = text.rsplit_once('\n')?;
            line_with(whole, pattern)
        };
        let ended =
            |facts: &Facts| facts.machine_ended().is_some() || guest_end(facts, index).is_some();
        let outcome = self.board.wait(deadline, |facts| match line(facts) {
            Some(line) => Some(Some(line)),
            None => ended(facts).then_some(None),
        });
        match outcome {
            Some(Some(line)) => Ok(line),
            Some(None) => self
                .board
                .wait(deadline.min(Instant::now() + LAST_WORDS), line)
                .ok_or_else(|| self.explain(Some(index), waited_for, within)),
            None => Err(self.explain(Some(index), waited_for, within)),
        }
    }

    pub fn wait_for_end(&self, guest: &str, within: Duration) -> Result<GuestEnd, LabError> {
        let index = self.index(guest)?;
        self.board
            .wait(Instant::now() + within, |facts| match guest_end(facts, index) {
                Some(end) => Some(Some(end)),
                None => facts.machine_ended().map(|_| None),
            })
            .flatten()
            .ok_or_else(|| self.explain(None, format!("the end of {guest}"), within))
    }

    /// Everything a guest has written: early lines first, then its console ring.
    pub fn guest_console(&self, guest: &str) -> Result<String, LabError> {
        let index = self.index(guest)?;
        Ok(self.board.look(|facts| console_text(facts, index)))
    }

    /// Returns the text that a guest has written since `position`, and moves `position` on.
    pub fn new_console(
        &self,
        guest: &str,
        position: &mut ConsolePosition,
    ) -> Result<String, LabError> {
        let index = self.index(guest)?;
        Ok(self.board.look(|facts| position.advance(facts, index)))
    }

    pub fn domain_id(&self, guest: &str) -> Result<u16, LabError> {
        let index = self.index(guest)?;
        self.board
            .look(|facts| domain_id(facts, index))
            .ok_or_else(|| LabError::Config(format!("{guest} has no domain")))
    }

    /// Runs a shell script in dom0 and returns its output and status; a status other than 0 is no
    /// error.
    ///
    /// `xl`, `xenctx`, `xen-hvmctx`, `xenstore-*` and busybox are there.
    pub fn dom0(&self, script: &str, within: Duration) -> Result<Dom0Output, LabError> {
        dom0::run(self.command_port()?, script, Instant::now() + within)
            .map_err(|failure| self.explain_failure(script, within, failure))
    }

    /// Runs a shell script in dom0 that must succeed, and returns the bytes that it printed.
    pub fn dom0_bytes(&self, script: &str, within: Duration) -> Result<Vec<u8>, LabError> {
        dom0::run_for_bytes(self.command_port()?, script, Instant::now() + within)
            .and_then(dom0::bytes_of_success)
            .map_err(|failure| self.explain_failure(script, within, failure))
    }

    fn explain_failure(&self, script: &str, within: Duration, failure: CommandFailure) -> LabError {
        let waited_for = format!("dom0 running {script:?}");
        if self.board.look(|facts| facts.machine_ended().is_some()) {
            return self.explain(None, waited_for, within);
        }
        match failure {
            CommandFailure::Late(tail) => LabError::TimedOut { waited_for, after: within, tail },
            CommandFailure::Broken(text) => LabError::setup(&waited_for, text),
        }
    }

    /// Creates a guest again from the image that `xl save` left in dom0, under the same name.
    /// `store` is written into its part of xenstore before it runs.
    ///
    /// Its console and its end are followed anew.
    pub fn restore(
        &self,
        guest: &str,
        image: &str,
        store: &[(String, String)],
        within: Duration,
    ) -> Result<(), LabError> {
        let index = self.index(guest)?;
        let config = &self.guests[index].config;
        let command = config.start_command("restore", image, store);
        self.launch(index, &command, Instant::now() + within)
    }

    /// The port on 127.0.0.1 that leads to `port` of a guest; `None` if its configuration has no
    /// such port.
    pub fn forwarded(&self, guest: &str, port: u16) -> Option<u16> {
        let guest = self.guests.iter().find(|g| g.config.name == guest)?;
        let offset = guest.config.ports.iter().position(|&p| p == port)?;
        self.machine.port(guest.first_forward + offset)
    }

    /// The port on 127.0.0.1 that leads to one of the guest's `other_ports`.
    pub fn forwarded_from(&self, guest: &str, at: SocketAddrV4) -> Option<u16> {
        let guest = self.guests.iter().find(|g| g.config.name == guest)?;
        let offset = guest.config.other_ports.iter().position(|&p| p == at)?;
        let offset = guest.config.ports.len() + offset;
        self.machine.port(guest.first_forward + offset)
    }

    /// The kernel of a guest, as its configuration has it; `None` if there is no such guest.
    pub fn kernel(&self, guest: &str) -> Option<&Path> {
        let guest = self.guests.iter().find(|g| g.config.name == guest)?;
        Some(&guest.config.kernel)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn boot(
        &mut self,
        cache: &Cache,
        hardware: &Hardware,
        config: &LabConfig,
        deadline: Instant,
    ) -> Result<(), LabError> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.board = Arc::new(Board::default());
            self.machine = Machine::start(cache, hardware, &self.folder, &self.board)?;
            let outcome = self.board.wait(deadline, boot_outcome);
            return match outcome {
                Some(BootOutcome::Ready) => Ok(()),
                Some(BootOutcome::Failed(reason)) => {
                    let tail = self.board.look(|facts| facts.tail(Stream::Serial, TAIL_LINES));
                    Err(LabError::BootFailed { reason, tail })
                }
                Some(BootOutcome::MachineEnded)
                    if self.machine.lost_a_port() && tries < START_TRIES =>
                {
                    continue;
                }
                Some(BootOutcome::MachineEnded) | None => {
                    Err(self.explain(None, "dom0 to be ready".to_owned(), config.boot_deadline))
                }
            };
        }
    }

    /// Runs `xl` in the foreground, which tells the guest's end, and attaches to its console.
    fn launch(&self, index: usize, command: &str, deadline: Instant) -> Result<(), LabError> {
        let name = &self.guests[index].config.name;
        let port = self.command_port()?;
        let (fate, console) = (Stream::Fate(index), Stream::Console(index));
        self.board.reopen(fate);
        self.board.reopen(console);
        let broken = |e| LabError::setup(format!("running {command:?} in dom0"), e);
        dom0::follow(port, command, &self.board, fate).map_err(broken)?;
        let start = Instant::now();
        let created = self.board.wait(deadline, |facts| {
            if domain_id(facts, index).is_some() {
                return Some(true);
            }
            (facts.closed(fate) || facts.machine_ended().is_some()).then_some(false)
        });
        match created {
            Some(true) => dom0::follow(port, &format!("xl console {name}"), &self.board, console)
                .map_err(broken),
            Some(false) if self.board.look(|facts| facts.machine_ended().is_none()) => {
                let (output, tail) = self.board.look(|facts| {
                    (facts.text(fate).to_owned(), facts.tail(Stream::Serial, TAIL_LINES))
                });
                Err(LabError::GuestNotCreated { guest: name.clone(), output, tail })
            }
            _ => Err(self.explain(None, format!("xl to create {name}"), start.elapsed())),
        }
    }

    /// The error for something that did not come: who ended, or nobody did.
    fn explain(&self, guest: Option<usize>, waited_for: String, after: Duration) -> LabError {
        let messages = self.machine.messages();
        self.board.look(|facts| {
            if let Some(status) = facts.machine_ended() {
                let tail = format!("{messages}{}", facts.tail(Stream::Serial, TAIL_LINES));
                return LabError::MachineEnded { status: status.to_owned(), waited_for, tail };
            }
            let Some(index) = guest else {
                let tail = facts.tail(Stream::Serial, TAIL_LINES);
                return LabError::TimedOut { waited_for, after, tail };
            };
            let guest = self.guests[index].config.name.clone();
            let tail = board::tail(&console_text(facts, index), TAIL_LINES);
            match guest_end(facts, index) {
                Some(GuestEnd::Crash(how)) => LabError::GuestCrashed { guest, how, tail },
                Some(GuestEnd::InOrder(reason)) => {
                    LabError::GuestEnded { guest, reason, waited_for, tail }
                }
                None => LabError::TimedOut { waited_for, after, tail },
            }
        })
    }

    fn index(&self, guest: &str) -> Result<usize, LabError> {
        self.guests
            .iter()
            .position(|g| g.config.name == guest)
            .ok_or_else(|| LabError::Config(format!("no guest is called {guest:?}")))
    }

    fn command_port(&self) -> Result<u16, LabError> {
        self.machine.port(0).ok_or_else(|| LabError::setup("talking to dom0", "no machine"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.machine = Machine::none();
        if std::thread::panicking() || std::env::var_os(KEEP_VARIABLE).is_some() {
            // The largest file, and the one that tells nothing.
            let _ = std::fs::remove_file(self.folder.join("initrd"));
            eprintln!("the lab's logs are in {}", self.folder.display());
        } else {
            // A folder that stays is only clutter.
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl fmt::Debug for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guests: Vec<&str> = self.guests.iter().map(|g| g.config.name.as_str()).collect();
        f.debug_struct("Lab").field("folder", &self.folder).field("guests", &guests).finish()
    }
}

/// The target folder of this checkout: `CARGO_TARGET_DIR`, or `target/` at its root.
pub(crate) fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from)
}

/// A length of time on the command line, as in `4s`.
pub fn parse_duration(text: &str) -> Result<Duration, jiff::Error> {
    jiff::fmt::friendly::SpanParser::new().parse_unsigned_duration(text)
}
