//! Cases that need a real Xen: one at a time, and none on machines that cannot have one.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::error::{LabError, Unavailable};
use super::packages::create;
use crate::requirement::skip;

/// Runs a case that needs a lab; skips it on a machine that cannot run one.
///
/// Cases wait for each other, also for those of other processes: an emulated machine takes two processors.
pub fn run_or_skip(body: impl FnOnce() -> Result<(), LabError>) {
    match reason_to_skip(take_turn().and_then(|_turn| body())) {
        Ok(None) => {}
        Ok(Some(reason)) => skip(reason),
        Err(error) => panic!("{error}"),
    }
}

/// One lab, or a guest in one, kept from case to case for as long as they need the same: a boot costs both processors
/// for ten seconds.
pub struct Shared<K, T>(Mutex<Option<(K, T)>>);

impl<K: PartialEq, T> Shared<K, T> {
    /// Nothing yet.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Runs a case, alone, with what `make` makes of `key`; skips it where there can be no lab.
    pub fn on(
        &self,
        key: K,
        make: impl FnOnce(&K) -> Result<T, LabError>,
        body: impl FnOnce(&mut T),
    ) {
        run_or_skip(|| {
            let mut turn = Turn(self.0.lock().unwrap_or_else(PoisonError::into_inner));
            if turn.0.as_ref().is_none_or(|(found, _)| *found != key) {
                // The old one ends before the new one begins.
                *turn.0 = None;
                let made = make(&key)?;
                *turn.0 = Some((key, made));
            }
            if let Some((_, made)) = turn.0.as_mut() {
                body(made);
            }
            Ok(())
        });
    }
}

impl<K, T> Shared<K, T> {
    /// Runs a case that boots a machine of its own. Ends the shared one first; skips the case where there can be no lab.
    pub fn without(&self, body: impl FnOnce()) {
        run_or_skip(|| {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
            super::download()?;
            body();
            Ok(())
        });
    }
}

struct Turn<'s, K, T>(MutexGuard<'s, Option<(K, T)>>);

impl<K, T> Drop for Turn<'_, K, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Dropped while panicking, a lab keeps its logs.
            *self.0 = None;
        }
    }
}

/// Only that there can be no lab is a reason.
fn reason_to_skip(result: Result<(), LabError>) -> Result<Option<Unavailable>, LabError> {
    match result {
        Ok(()) => Ok(None),
        Err(LabError::Unavailable(reason)) => Ok(Some(reason)),
        Err(error) => Err(error),
    }
}

/// Waits for the cases before; the file's lock ends when it is closed, also by the death of its process.
fn take_turn() -> Result<File, LabError> {
    let folder = super::target_folder();
    create(&folder)?;
    let step = "waiting for a turn";
    let turn = File::create(folder.join("xen-lab.turn")).map_err(|e| LabError::setup(step, e))?;
    turn.lock().map_err(|e| LabError::setup(step, e))?;
    Ok(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unavailable_lab_is_a_reason_to_skip() {
        let unavailable = Unavailable::ToolMissing { tool: "apt-get" };
        assert!(matches!(
            reason_to_skip(Err(unavailable.into())),
            Ok(Some(_))
        ));
        assert!(reason_to_skip(Err(LabError::setup("a", "b"))).is_err());
        assert!(matches!(reason_to_skip(Ok(())), Ok(None)));
    }
}
