//! Case 6.

use unikprof_tests::accuracy::masked_events::{CHARGED_PERCENT, Effort, measure};

/// Guards the count of late samples and their mark: without it, whoever unmasks is charged with
/// what ran masked.
///
/// The suite's own goals: each stretch is told, and at most 1 % of the samples of masked stretches
/// are charged to the code that unmasks.
#[test]
#[ignore = "full: measures shares of time"]
fn masked_stretches_are_told_and_not_charged() {
    let effort = Effort {
        stretches: 200,
        masked_ns: 5_000_000,
        open_ns: 5_000_000,
        period_ns: super::PERIOD_NS,
    };
    let found = measure(&mut super::guest(), &effort).unwrap();
    assert!(found.is_told(CHARGED_PERCENT), "{found:?}");
}
