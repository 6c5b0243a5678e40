//! Case 12.

use unikprof_tests::accuracy::overhead::{Effort, measure};

/// Guards against a stated cost without the timer's deliveries, which cost many times what the
/// agent's own code does.
#[test]
#[ignore = "full: measures shares of time"]
fn the_stated_cost_is_the_slow_down_within_a_factor_of_two() {
    let mut guest = super::guest();
    for rate_hz in [997, 8_000] {
        let effort = Effort { pairs: 40, run_ns: 100_000_000, rate_hz };
        let found = measure(&mut guest, &effort).unwrap();
        assert!(found.is_true(), "{rate_hz} Hz: {found:?}");
    }
}
