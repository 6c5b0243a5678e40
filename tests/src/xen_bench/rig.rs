//! A guest that works all the time, and how it is asked and recorded.

use anyhow::{Context as _, Result, bail};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use unikprof_link::connection::{Access, Address};
use unikprof_link::interrupt::Interrupt;
use unikprof_link::key::Key;
use unikprof_link::record::{self, Patience, Request, Session, Settings};
use unikprof_profile::recording::{Reading, Recording};

use crate::guest_statistics::GuestStatistics;
use crate::lab::{Lab, LabConfig};
use crate::profiled::{
    STATISTICS_PORT, address_of, profiled_guest, profiler_address, start_profiled,
};

pub(super) const GUEST: &str = "bench";

const BOOT: Duration = Duration::from_secs(60);
const DOM0: Duration = Duration::from_secs(120);

pub(super) struct Rig {
    lab: Lab,
    folder: PathBuf,
    /// The key's text, where the guest has one.
    key: Option<String>,
}

impl Rig {
    /// Boots a guest with the profiler that does what the command line says.
    pub(super) fn start(command_line: &str) -> Result<Rig> {
        eprintln!("booting a guest with `{command_line}`");
        let mut guest = profiled_guest(GUEST, command_line)?;
        guest.ports.push(ECHO_PORT);
        let lab = start_profiled(&LabConfig::with_guest(guest))?;
        Ok(Rig::of(lab))
    }

    /// The same for those who hold a key, which is drawn here and lies in xenstore before the guest
    /// runs.
    pub(super) fn start_with_key(command_line: &str) -> Result<Rig> {
        eprintln!("booting a guest with `{command_line}` and a key");
        let key = Key::generate()?;
        let key = key.to_text().to_string();
        let mut guest = profiled_guest(GUEST, command_line)?;
        guest.ports.push(ECHO_PORT);
        guest.command_line = guest.command_line.replace("=open:", "=keys:");
        guest.store = vec![("data/unikprof/control".to_owned(), key.clone())];
        let lab = start_profiled(&LabConfig::with_guest(guest))?;
        Ok(Rig { key: Some(key), ..Rig::of(lab) })
    }

    /// The same image, but nobody starts the profiler in it.
    pub(super) fn start_without_profiler(command_line: &str) -> Result<Rig> {
        eprintln!("booting a guest with `{command_line}` and no profiler");
        let mut guest = profiled_guest(GUEST, "")?;
        guest.command_line = format!("stats={STATISTICS_PORT} {command_line}");
        let lab = Lab::start(LabConfig::with_guest(guest))?;
        lab.wait_for_console(GUEST, "statistics on port", BOOT)?;
        Ok(Rig::of(lab))
    }

    fn of(lab: Lab) -> Rig {
        let folder = lab.folder().to_owned();
        Rig { lab, folder, key: None }
    }

    pub(super) fn statistics(&self) -> Result<GuestStatistics> {
        let address = address_of(&self.lab, GUEST, STATISTICS_PORT)?;
        GuestStatistics::read(address).context("the guest's statistics")
    }

    /// Lets the guest be for a while; answers what it said before and after.
    pub(super) fn watch(&self, turn: Duration) -> Result<(GuestStatistics, GuestStatistics)> {
        let before = self.statistics()?;
        thread::sleep(turn);
        Ok((before, self.statistics()?))
    }

    pub(super) fn session(&self) -> Result<Session> {
        let address = profiler_address(&self.lab, GUEST)?;
        let address = Address::new(address.ip().to_string(), address.port());
        let access = match &self.key {
            Some(text) => Key::parse(text.as_bytes())?.into(),
            None => Access::Open,
        };
        Ok(Session::with_access(address, access, Patience::default(), Interrupt::default())?)
    }

    pub(super) fn start_recording(&self, rate_hz: f64) -> Result<()> {
        let settings = Settings {
            name: GUEST.into(),
            period_ns: (1e9 / rate_hz) as u64,
            ..Settings::default()
        };
        self.session()?.start(&settings)?;
        Ok(())
    }

    pub(super) fn stop_recording(&self) -> Result<Recording> {
        let path = self.recording_path();
        fetch(&mut self.session()?, &path)?;
        Ok(Recording::open(&path, Reading::Strict)?)
    }

    /// The file for recordings; each takes the place of the one before.
    pub(super) fn recording_path(&self) -> PathBuf {
        self.folder.join("bench.unikprof")
    }

    /// Runs a script in dom0, in which `$ID` is the guest's number; answers what it printed.
    pub(super) fn dom0(&self, script: &str) -> Result<String> {
        let id = self.lab.domain_id(GUEST)?;
        let output = self.lab.dom0(&format!("ID={id}; {script}"), DOM0)?;
        if output.status == 0 {
            return Ok(output.text);
        }
        bail!("dom0, {script:?}: {}", output.text)
    }

    pub(super) fn echo(&self) -> Result<std::net::SocketAddr> {
        Ok(address_of(&self.lab, GUEST, ECHO_PORT)?)
    }
}

const ECHO_PORT: u16 = 7;

/// Ends the recording and writes it; it must be complete.
pub(super) fn fetch(session: &mut Session, path: &Path) -> Result<()> {
    let outcome = record::fetch(session, Request::Stop { recording: 0 }, path, &mut ())?;
    match outcome.incomplete {
        None => Ok(()),
        Some(reason) => Err(reason.into()),
    }
}

/// A mean with the half of its 95 % interval, by the t distribution's value for few samples.
pub(super) struct Mean {
    pub(super) mean: f64,
    pub(super) half: f64,
}

impl Mean {
    /// The mean of at least two values.
    pub(super) fn of(values: &[f64]) -> Mean {
        /// Student's t, two-sided 95 %, for 1 to 10 degrees of freedom.
        const T: [f64; 10] =
            [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let error = (squares / (count - 1.0).max(1.0) / count).sqrt();
        let t = T.get(values.len().saturating_sub(2)).copied().unwrap_or(2.0);
        Mean { mean, half: t * error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_two_values_is_wide() {
        let found = Mean::of(&[1.0, 3.0]);
        assert!((found.mean - 2.0).abs() < 1e-12);
        assert!((found.half - 12.706).abs() < 1e-9);
    }

    #[test]
    fn values_that_agree_have_no_interval() {
        assert!(Mean::of(&[4.0; 5]).half.abs() < 1e-12);
    }
}
