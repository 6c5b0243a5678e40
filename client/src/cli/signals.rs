//! The signals with which users end the program.

use std::ffi::c_int;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::exit_code;
use crate::interrupt::Interrupt;

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
    listen_telling(interrupt, || (), |_| false)
}

/// [`listen`]; `stopping` is called at once when the user asks to stop. `ending` is called when the
/// user gives up, with whether the process ends in any case, and answers whether it is to end at
/// once because nothing is left to do.
pub(crate) fn listen_telling(
    interrupt: &Interrupt,
    stopping: impl Fn() + Send + 'static,
    ending: impl Fn(bool) -> bool + Send + 'static,
) -> io::Result<()> {
    let counted = interrupt.clone();
    let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        let mut gave_up: Option<Instant> = None;
        for _ in signals.forever() {
            counted.raise();
            if !counted.quit() {
                stopping();
                continue;
            }
            let is_late = gave_up.is_some_and(|at| at.elapsed() >= LAST_WORDS);
            if ending(is_late) || is_late {
                std::process::exit(exit_code::INTERRUPTED.into());
            }
            gave_up.get_or_insert_with(Instant::now);
        }
    })?;
    Ok(())
}

/// Whether the process ignores a signal, which it then inherited. Known on Linux only: its mask of
/// ignored signals has bit `signal - 1`.
fn is_ignored(signal: c_int) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
