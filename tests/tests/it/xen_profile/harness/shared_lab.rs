//! The lab of a case.

use unikprof_tests::lab::{LABS, Lab, LabConfig, LabError, Shared};
use unikprof_tests::profiled::start_profiled;

/// The name and the configuration of a lab.
pub(crate) struct Boot {
    /// Cases that name the same boot share its lab.
    pub(crate) name: &'static str,
    pub(crate) config: fn() -> Result<LabConfig, LabError>,
}

static LAB: Shared<&str, Lab> = Shared::new(LABS);

/// Runs a case that boots a lab by a program of its own, alone; skips it where there can be no lab.
pub(crate) fn without_lab(body: impl FnOnce()) {
    LAB.without(body);
}

/// Runs a case in the lab of `boot`, alone; skips it where there can be no lab.
pub(crate) fn on(boot: &Boot, body: impl FnOnce(&Lab)) {
    LAB.on(boot.name, |_| start_profiled(&(boot.config)()?), |lab| body(lab));
}
