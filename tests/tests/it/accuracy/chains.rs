//! Case 10.

use unikprof_profile::profile::Unwind;
use unikprof_tests::accuracy::broken_chains::{Chain, Effort, measure};

/// Guards the marks and the counters of stacks that are cut or broken, and the way by the table
/// past what is broken.
///
/// Nearly all the time is spent below the fault; what is sampled around it is less than a
/// thousandth, and the suite's own hundredth of a thousand samples is left for it: less likely than
/// 1e-7 by chance.
#[test]
#[ignore = "full: measures shares of time"]
fn chains_that_are_too_deep_or_broken_are_told() {
    let effort = Effort { run_ns: 1_000_000_000, period_ns: super::PERIOD_NS };
    let mut guest = super::guest();
    for chain in [Chain::Deep, Chain::Cyclic, Chain::Corrupted] {
        let found = measure(&mut guest, &effort, chain, Unwind::FramePointers).unwrap();
        assert!(found.adds_up && found.worker > 100, "{chain:?}: {found:?}");
        assert_eq!(found.counted, found.shown, "{chain:?}: {found:?}");
        assert!(found.counted * 100 >= found.worker * 99, "{chain:?}: {found:?}");
    }
    for chain in [Chain::Cyclic, Chain::Corrupted, Chain::Missing] {
        let found = measure(&mut guest, &effort, chain, Unwind::Table).unwrap();
        assert!(found.adds_up && found.worker > 100, "{chain:?}: {found:?}");
        assert!(found.beyond * 100 >= found.worker * 99, "{chain:?}: {found:?}");
    }
}
