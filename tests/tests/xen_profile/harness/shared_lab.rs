//! One lab at a time, kept from case to case for as long as they need the same: a boot costs both
//! processors for ten seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};

use unikprof_tests::lab::{Lab, LabConfig, LabError, run_or_skip};
use unikprof_tests::profiled::start_profiled;

/// What a lab is booted for.
pub(crate) struct Boot {
    /// Cases that name the same boot share its lab.
    pub(crate) name: &'static str,
    /// The guests.
    pub(crate) config: fn() -> Result<LabConfig, LabError>,
}

struct Running {
    boot: &'static str,
    lab: Lab,
}

static RUNNING: Mutex<Option<Running>> = Mutex::new(None);

/// Runs a case in the lab of `boot`, alone; skips it, by name, where there can be no lab.
pub(crate) fn on(boot: &Boot, case: &str, body: impl FnOnce(&Lab)) {
    run_or_skip(case, || {
        let mut turn = Turn(RUNNING.lock().unwrap_or_else(PoisonError::into_inner));
        if turn.0.as_ref().is_none_or(|found| found.boot != boot.name) {
            // The old one ends before the new one begins.
            *turn.0 = None;
            *turn.0 = Some(Running {
                boot: boot.name,
                lab: start_profiled(&(boot.config)()?)?,
            });
        }
        if let Some(running) = turn.0.as_ref() {
            body(&running.lab);
        }
        Ok(())
    });
}

struct Turn(MutexGuard<'static, Option<Running>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Dropped while panicking, a lab keeps its logs.
            *self.0 = None;
        }
    }
}
