//! The programs that are measured, each with the guests it has.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use unikprof_tests::process;

/// Guests that run, and the folder with their `fleet.toml`.
pub(super) struct Guests {
    pub(super) folder: TempDir,
    _process: Process,
}

/// A process that is killed when the value is dropped.
pub(super) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    pub(super) fn cpu_seconds(&self) -> f64 {
        process::cpu_seconds(&self.id()).unwrap_or(f64::NAN)
    }

    pub(super) fn peak_resident_kib(&self) -> u64 {
        process::peak_resident_kib(&self.id()).unwrap_or(0)
    }

    /// To disks.
    pub(super) fn written_bytes(&self) -> u64 {
        process::written_bytes(&self.id()).unwrap_or(0)
    }
}

impl Guests {
    /// So many, with a round trip of 50 ms.
    pub(super) fn start(guests: usize) -> Result<Guests, Box<dyn Error + Send + Sync>> {
        let folder = TempDir::with_prefix("unikprof-bench-")?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_many-guests"))
            .args(["--seconds", "3600", "--fleet", "fleet.toml", "--guests"])
            .arg(guests.to_string())
            .current_dir(folder.path())
            // Its end would end them.
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        let stderr = child.stderr.take();
        let _process = Process(child);
        BufReader::new(stderr.ok_or("no stderr")?).read_line(&mut line)?;
        if !line.starts_with("serving ") {
            return Err(line.into());
        }
        Ok(Guests { folder, _process })
    }

    /// Runs `unikprof-fleet` with these settings, which follow those of the guests, and waits until it
    /// has said its first line.
    pub(super) fn run(
        &self,
        command: &str,
        settings: &str,
    ) -> Result<(Process, String), Box<dyn Error + Send + Sync>> {
        let path = self.folder.path().join("fleet.toml");
        let mut toml = File::options().append(true).open(path)?;
        toml.write_all(settings.as_bytes())?;
        let said = self.folder.path().join("said");
        let child = Command::new(env!("CARGO_BIN_EXE_hosted-fleet"))
            .args([command, "--config", "fleet.toml"])
            .current_dir(self.folder.path())
            .stdout(File::create(&said)?)
            .spawn()?;
        let mut program = Process(child);
        loop {
            if let Some((line, _)) = fs::read_to_string(&said)?.split_once('\n') {
                return Ok((program, line.to_owned()));
            }
            if program.0.try_wait()?.is_some() {
                return Err("the program has ended".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}
