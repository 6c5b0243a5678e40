//! One lab at a time, kept from case to case: a boot costs both processors for ten seconds.

use std::sync::{Mutex, MutexGuard, PoisonError};

use unikprof_tests::accuracy::error::AccuracyError;
use unikprof_tests::accuracy::xen::{XenGuest, steal};
use unikprof_tests::lab::{LabError, run_or_skip};

/// How the guest was built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramePointers {
    /// As the agent asks for; with a neighbour, which is paused.
    Kept,
    /// Without any.
    Omitted,
}

static RUNNING: Mutex<Option<(FramePointers, XenGuest)>> = Mutex::new(None);

/// Runs a case on a guest that was built so, alone; skips it, by name, where there can be no lab.
pub(crate) fn on(built: FramePointers, case: &str, body: impl FnOnce(&mut XenGuest)) {
    run_or_skip(case, || {
        let mut turn = Turn(RUNNING.lock().unwrap_or_else(PoisonError::into_inner));
        if turn.0.as_ref().is_none_or(|(found, _)| *found != built) {
            // The old one ends before the new one begins.
            *turn.0 = None;
            *turn.0 = Some((built, start(built)?));
        }
        if let Some((_, guest)) = turn.0.as_mut() {
            body(guest);
        }
        Ok(())
    });
}

fn start(built: FramePointers) -> Result<XenGuest, LabError> {
    let started = match built {
        FramePointers::Kept => XenGuest::with_frame_pointers().and_then(|guest| {
            steal::pause(&guest)?;
            Ok(guest)
        }),
        FramePointers::Omitted => XenGuest::without_frame_pointers(),
    };
    started.map_err(|error| match error {
        AccuracyError::Lab(error) => error,
        other => panic!("{other}"),
    })
}

struct Turn(MutexGuard<'static, Option<(FramePointers, XenGuest)>>);

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Dropped while panicking, a lab keeps its logs.
            *self.0 = None;
        }
    }
}
