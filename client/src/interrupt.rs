//! Ctrl-C, counted.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::deadline;

/// How long a program that gives up has to end in good order.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How often the user asked to stop; clones share the count.
///
/// Once means: end the recording and keep what there is. Twice means: give up now.
#[derive(Debug, Clone)]
pub struct Interrupt {
    count: Arc<AtomicU32>,
    quits_after: u32,
}

impl Default for Interrupt {
    /// Nobody asked yet, and the second time gives up.
    fn default() -> Self {
        Interrupt { count: Arc::default(), quits_after: 2 }
    }
}

impl Interrupt {
    /// One that gives up the first time: for what cannot be ended early in good order.
    pub fn quitting_at_once() -> Interrupt {
        Interrupt { quits_after: 1, ..Interrupt::default() }
    }

    /// The same count, for what gives up the first time.
    pub fn quitting_at_first(&self) -> Interrupt {
        Interrupt { quits_after: 1, ..self.clone() }
    }

    /// Counts SIGINT, SIGTERM and SIGHUP (the terminal was closed) from now on, instead of dying of
    /// them. One that comes more than a second after giving up ends the process at once, with
    /// `exit_code::INTERRUPTED`: until then the program has the time to tell what is left where. A
    /// SIGHUP that is ignored, as by `nohup`, stays ignored.
    ///
    /// # Errors
    /// The system's, where the signals cannot be had or the thread that waits for them cannot run.
    pub fn listen(&self) -> io::Result<()> {
        self.listen_telling(|| (), || ())
    }

    /// [`listen`](Self::listen); `stopping` is called at once when the user asks to stop, and
    /// `ending` before the process is ended.
    pub(crate) fn listen_telling(
        &self,
        stopping: impl Fn() + Send + 'static,
        ending: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let counted = self.clone();
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))?;
        thread::Builder::new().name("signals".into()).spawn(move || {
            let mut gave_up: Option<Instant> = None;
            for _ in signals.forever() {
                let count = counted.raise();
                if gave_up.is_some_and(|at| at.elapsed() >= LAST_WORDS) {
                    ending();
                    std::process::exit(crate::exit_code::INTERRUPTED.into());
                }
                if count >= counted.quits_after {
                    gave_up.get_or_insert_with(Instant::now);
                } else {
                    stopping();
                }
            }
        })?;
        Ok(())
    }

    /// Counts one request to stop; answers how many there were.
    pub fn raise(&self) -> u32 {
        self.count.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Asks to stop, if nobody did.
    pub fn raise_once(&self) {
        let _ = self.count.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether the other one is a clone of this.
    pub fn is(&self, other: &Interrupt) -> bool {
        Arc::ptr_eq(&self.count, &other.count)
    }

    /// Whether to end in good order.
    pub fn stop(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= 1
    }

    /// Sleeps; answers whether nobody gave up meanwhile.
    pub(crate) fn sleep_unless_quit(&self, wait: Duration) -> bool {
        self.sleep_until(deadline::after(wait), Interrupt::quit)
    }

    /// Sleeps until then, or until `ended`; answers whether it slept to the end.
    pub fn sleep_until(&self, end: Instant, ended: impl Fn(&Interrupt) -> bool) -> bool {
        const SLICE: Duration = Duration::from_millis(50);
        loop {
            if ended(self) {
                return false;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(SLICE));
        }
    }

    /// Whether to give up.
    pub(crate) fn quit(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.quits_after
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_who_ask_once_do_not_give_up() {
        let interrupt = Interrupt::default();
        interrupt.raise_once();
        interrupt.clone().raise_once();
        assert!(interrupt.stop() && !interrupt.quit());
    }

    #[test]
    fn the_first_signal_stops_and_the_second_quits() {
        let interrupt = Interrupt::default();
        interrupt.clone().raise();
        assert!(interrupt.stop() && !interrupt.quit());
        interrupt.raise();
        assert!(interrupt.quit());
    }
}
