//! Case 6.

use unikprof_tests::accuracy::masked_events::{Effort, measure};

/// Guards the count of late samples and their mark: without it, whoever unmasks is charged with what ran
/// masked.
///
/// The bound: an ordinary sample falls on the microsecond after unmasking once in a thousand stretches;
/// four times in 40 less likely than 1e-6.
#[test]
fn masked_stretches_are_told_and_not_charged() {
    let effort = Effort {
        stretches: 40,
        masked_ns: 5_000_000,
        open_ns: 5_000_000,
        period_ns: super::PERIOD_NS,
    };
    let found = measure(&mut super::guest(), &effort).unwrap();
    assert!(found.late >= found.stretches, "{found:?}");
    assert_eq!(found.shown, found.late, "{found:?}");
    assert!(found.charged < 4, "{found:?}");
}
