//! The signals with which users end the program.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::exit_code;
use unikprof_link::interrupt::Interrupt;

/// How long a program that gives up has to end in good order.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Counts SIGINT, SIGTERM and SIGHUP (the terminal was closed) from now on, instead of dying of
/// them. One that comes more than a second after giving up ends the process at once, with
/// `exit_code::INTERRUPTED`: until then the program has the time to tell what is left where. A
/// SIGHUP that is ignored, as by `nohup`, stays ignored.
///
/// # Errors
/// The system's, where the signals cannot be had or the thread that waits for them cannot run.
pub fn listen(interrupt: &Interrupt) -> io::Result<()> {
    listen_telling(interrupt, || None, |_| None)
}

/// [`listen`]; `stopping` is called at once when the user asks to stop. `ending` is called when the
/// user gives up, with whether the process ends in any case. Either answers the exit code to end
/// with at once if nothing is left to do.
pub(crate) fn listen_telling(
    interrupt: &Interrupt,
    stopping: impl Fn() -> Option<u8> + Send + 'static,
    ending: impl Fn(bool) -> Option<u8> + Send + 'static,
) -> io::Result<()> {
    let counted = interrupt.clone();
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut gave_up: Option<Instant> = None;
        for _ in signals.forever() {
            counted.raise();
            let has_given_up = counted.quit();
            let is_late = gave_up.is_some_and(|at| at.elapsed() >= LAST_WORDS);
            let code = if has_given_up { ending(is_late) } else { stopping() };
            if let Some(code) = code.or(is_late.then_some(exit_code::INTERRUPTED)) {
                std::process::exit(code.into());
            }
            if has_given_up {
                gave_up.get_or_insert_with(Instant::now);
            }
        }
    })?;
    Ok(())
}

/// Where the recording is, once all of it is in a file. From then on, a signal ends the process at
/// once: only reports are missing.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(Arc<OnceLock<PathBuf>>);

impl Kept {
    pub(super) fn is_in(&self, path: &Path) {
        let _ = self.0.set(path.into());
    }

    /// [`listen_telling`] that calls `stopping` while the recording is not kept.
    pub(super) fn listen(
        &self,
        interrupt: &Interrupt,
        stopping: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let (first, later) = (self.clone(), self.clone());
        let stopping = move || {
            let code = first.end();
            if code.is_none() {
                stopping();
            }
            code
        };
        listen_telling(interrupt, stopping, move |_| later.end())
    }

    fn end(&self) -> Option<u8> {
        let path = self.0.get()?;
        tell!("error: interrupted; the recording is in {}", path.display());
        Some(exit_code::OUTPUT)
    }
}

/// Whether the process ignores a signal, which it then inherited. Known on Linux only: its mask of
/// ignored signals has bit `signal - 1`.
fn is_ignored(signal: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
