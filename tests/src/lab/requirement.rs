//! Cases that need a real Xen: one at a time, and none on machines that cannot have one.

use std::fs::File;

use super::error::{LabError, Unavailable};
use super::packages::create;
use crate::requirement::skip;

/// Runs a case that needs a lab; skips it, by name, on a machine that cannot run one.
///
/// Cases wait for each other, also for those of other processes: an emulated machine takes two processors.
pub fn run_or_skip(case: &str, body: impl FnOnce() -> Result<(), LabError>) {
    match reason_to_skip(take_turn().and_then(|_turn| body())) {
        Ok(None) => {}
        Ok(Some(reason)) => skip(case, reason),
        Err(error) => panic!("{case}: {error}"),
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
