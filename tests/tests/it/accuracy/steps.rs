//! Case 3.

use unikprof_tests::accuracy::step_lock::{Effort, STEPS, measure};

/// Guards the random interval: in step with the load, a recording would see one half of it.
///
/// The bound: six standard deviations of a half in all samples, less likely than 1e-8; sampled in
/// step it would be off by a half.
#[test]
#[ignore = "full: measures shares of time"]
fn a_load_in_step_with_the_sampler_has_its_shares() {
    let effort = Effort { runs: 4, run_ns: 300_000_000, period_ns: super::PERIOD_NS };
    let mut guest = super::guest();
    for step in STEPS {
        let found = measure(&mut guest, &effort, step, false).unwrap();
        let samples = f64::from(effort.runs) * effort.run_ns as f64 / effort.period_ns as f64;
        let off = (found.shown.share - found.truth).abs();
        assert!(off < 6.0 * (0.25 / samples).sqrt(), "{step:?}: {found:?}");
    }
}
