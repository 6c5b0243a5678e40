//! The guests: processes of `hosted-guest`, and what the system knows of them.

use anyhow::{Context as _, Result, bail};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::target::{KeyFiles, Keys, Target};

/// A running guest; it is killed when the value is dropped.
pub(crate) struct Guest {
    child: Child,
    /// The guest ends when this does.
    stdin: Option<ChildStdin>,
    /// Kept, so that the guest can print.
    stdout: BufReader<ChildStdout>,
    /// The address of its agent, and the keys.
    pub(crate) target: Target,
    /// The address of its own service, if it has one.
    pub(crate) service: Option<SocketAddr>,
}

/// A process's use of the machine, as the system tells it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    /// Memory in use, in KiB.
    pub(crate) resident_kib: u64,
    pub(crate) descriptors: usize,
    /// CPU time of the agent's own thread, in ns.
    pub(crate) agent_cpu_ns: u64,
    /// The time for which the agent's own thread was ready while others ran, in ns.
    pub(crate) agent_waited_ns: u64,
}

impl Guest {
    /// Starts a guest with one of the program's loads; the files of its keys are made in `folder`.
    pub(crate) fn start(
        program: &Path,
        load: &str,
        folder: &Path,
        keys: Option<Keys>,
    ) -> Result<Guest> {
        // Ahead of its peers, which on this machine take their CPU from the same few; where that is
        // not allowed, beside them.
        let mut command = Command::new("nice");
        command.args(["-n", "-15"]).arg(program).arg(load);
        match &keys {
            None => drop(command.arg("--open")),
            Some(keys) => {
                let files = KeyFiles::write(keys, folder).context("writing keys")?;
                command.arg("--view-key-file").arg(files.view);
                command.arg("--control-key-file").arg(files.control);
            }
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("starting the guest")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are piped above");
        };
        let mut stdout = BufReader::new(stdout);
        let address = told(&mut stdout, "listening on ", "`listening on ADDRESS`");
        let service = match load {
            "service" => told(&mut stdout, "serving on ", "`serving on ADDRESS`").map(Some),
            _ => Ok(None),
        };
        let mut guest = Guest {
            child,
            stdin: Some(stdin),
            stdout,
            target: Target { address: SocketAddr::from(([127, 0, 0, 1], 0)), keys },
            service: None,
        };
        // With the guest in its value it ends here whatever went wrong.
        guest.target.address = address?;
        guest.service = service?;
        guest.run_the_agent_first();
        Ok(guest)
    }

    /// The agent's thread is ahead of all others where the system allows it: what it takes is then
    /// its own work, and not the machine's.
    fn run_the_agent_first(&self) {
        for thread in self.threads_of_the_agent() {
            let _ = Command::new("chrt")
                .args(["--fifo", "--pid", "10", &thread])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
        }
    }

    /// The ids of the threads that serve its agent's clients.
    fn threads_of_the_agent(&self) -> Vec<String> {
        let folder = format!("/proc/{}/task", self.child.id());
        let threads = fs::read_dir(folder).into_iter().flatten().flatten();
        threads
            .filter(|thread| {
                let name = fs::read_to_string(thread.path().join("comm"));
                name.is_ok_and(|name| name.trim() == "unikprof")
            })
            .map(|thread| thread.file_name().to_string_lossy().into_owned())
            .collect()
    }

    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.stdin.take());
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).context("reading from the guest")?;
        Ok(())
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Its use of the machine; zeros where the system does not say.
    pub(crate) fn footprint(&self) -> Footprint {
        let folder = format!("/proc/{}", self.child.id());
        let status = fs::read_to_string(format!("{folder}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let descriptors = fs::read_dir(format!("{folder}/fd")).map_or(0, Iterator::count);
        let mut footprint = Footprint {
            resident_kib: resident.map_or(0, |text| numbers(text).next().unwrap_or(0)),
            descriptors,
            ..Footprint::default()
        };
        for thread in self.threads_of_the_agent() {
            let path = format!("{folder}/task/{thread}/schedstat");
            let times = fs::read_to_string(path).unwrap_or_default();
            let mut times = numbers(&times);
            footprint.agent_cpu_ns += times.next().unwrap_or(0);
            footprint.agent_waited_ns += times.next().unwrap_or(0);
        }
        footprint
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address on the next line that begins with `label`.
fn told(from: &mut impl BufRead, label: &str, expected: &'static str) -> Result<SocketAddr> {
    loop {
        let mut line = String::new();
        let length = from.read_line(&mut line).context("reading from the guest")?;
        let found = line.trim_end();
        match found.strip_prefix(label).map(str::parse) {
            Some(Ok(address)) => return Ok(address),
            // It tells the ids of its keys first.
            None if length > 0 => {}
            _ => {
                bail!("the guest said {found:?}; expected {expected}");
            }
        }
    }
}

fn numbers(text: &str) -> impl Iterator<Item = u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok())
}
