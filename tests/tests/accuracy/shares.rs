//! Case 1.

use unikprof_tests::accuracy::known_shares::{Effort, measure};
use unikprof_tests::accuracy::statistics::least_hits;

/// Guards the sampler, the walk's leaf and the client's intervals: were samples drawn unevenly, or
/// intervals too narrow, fewer would hold the truth.
///
/// The bound: of 120 intervals that hold with probability 0.9 each, fewer than this with probability 1e-6.
/// They are said to hold with 0.95, but at few samples and within one run they are neither exact nor
/// independent.
#[test]
fn stated_intervals_hold_the_truth() {
    let effort = Effort {
        runs: 10,
        run_ns: 300_000_000,
        period_ns: super::PERIOD_NS,
    };
    let found = measure(&mut super::guest(), &effort).unwrap();
    let least = least_hits(found.coverage.stated, 0.9, 1e-6);
    assert!(found.coverage.held >= least, "{least} of {found:#?}");
    // And all together they are near it: six standard deviations, less likely than 1e-8.
    for (name, truth, shown) in &found.functions {
        let deviation = (truth * (1.0 - truth) / found.samples as f64).sqrt();
        let off = (shown.share - truth).abs();
        assert!(off < 6.0 * deviation, "{name}: {truth} {shown:?}");
    }
}
