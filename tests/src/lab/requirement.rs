//! Cases that need a real Xen: one at a time, and none on machines that cannot have one.

use std::fs::File;
use std::io::Write;

use super::error::LabError;
use super::packages::create;

/// With the value 1, a case that would be skipped fails instead.
pub const REQUIRED_VARIABLE: &str = "UNIKPROF_XEN_REQUIRED";

/// Runs a case that needs a lab; skips it, by name, on a machine that cannot run one.
///
/// Cases wait for each other, also for those of other processes: an emulated machine takes two processors.
///
/// # Panics
///
/// Panics where the case ends with an error, and where it would be skipped although
/// [`REQUIRED_VARIABLE`] is 1.
pub fn run_or_skip(case: &str, body: impl FnOnce() -> Result<(), LabError>) {
    let required = std::env::var_os(REQUIRED_VARIABLE).is_some_and(|value| value == "1");
    let result = take_turn().and_then(|_turn| body());
    match verdict(result, required) {
        Verdict::Passed => {}
        // Not `eprintln!`: the harness hides what a passing test prints.
        Verdict::Skipped(reason) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED {case}: {reason}");
        }
        Verdict::Failed(reason) => panic!("{case}: {reason}"),
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

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

fn verdict(result: Result<(), LabError>, required: bool) -> Verdict {
    match result {
        Ok(()) => Verdict::Passed,
        Err(LabError::Unavailable(reason)) if !required => Verdict::Skipped(reason.to_string()),
        Err(error) => Verdict::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::Unavailable;
    use super::*;

    #[test]
    fn only_an_unavailable_lab_is_a_skip_and_only_if_not_required() {
        let unavailable = || Err(Unavailable::ToolMissing { tool: "apt-get" }.into());
        assert!(matches!(verdict(unavailable(), false), Verdict::Skipped(_)));
        assert!(matches!(verdict(unavailable(), true), Verdict::Failed(_)));
        let broken = || Err(LabError::setup("a", "b"));
        assert!(matches!(verdict(broken(), false), Verdict::Failed(_)));
        assert_eq!(verdict(Ok(()), true), Verdict::Passed);
    }
}
