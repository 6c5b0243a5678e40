//! Case 4.

use unikprof_tests::accuracy::slow_down::{Effort, measure};

/// Guards the comparison of two recordings: a function twice as slow has moved by as much.
///
/// The bounds: six standard deviations, less likely than 1e-8, and an interval that is not so wide
/// that it would hold a function that has not moved. A factor of two is some 17 standard deviations
/// of ten pairs. How much these scatter makes the interval wider: with ten, less likely than 1e-8
/// so much that six are left; of three it was one run of ten.
#[test]
#[ignore = "full: measures shares of time"]
fn a_function_twice_as_slow_has_moved_by_as_much() {
    let effort = Effort { pairs: 10, run_ns: 500_000_000, period_ns: super::PERIOD_NS };
    let found = measure(&mut super::guest(), &effort, 100).unwrap();
    let shown = found.shown().unwrap();
    assert!(shown.deviations_from(found.truth).abs() < 6.0, "{found:?}");
    assert!(shown.deviations_from(1.0) > 6.0, "{found:?}");
}
