//! Case 10.

use unikprof_tests::accuracy::broken_chains::{Chain, Effort, measure};

/// Guards the marks and the counters of stacks that are cut or broken.
///
/// Nearly all the time is spent below the fault; what is sampled around it is less than a thousandth, and a
/// twentieth is left for it.
#[test]
fn chains_that_are_too_deep_or_broken_are_told() {
    let effort = Effort {
        run_ns: 300_000_000,
        period_ns: super::PERIOD_NS,
    };
    let mut guest = super::guest();
    for chain in [Chain::Deep, Chain::Cyclic, Chain::Corrupted] {
        let found = measure(&mut guest, &effort, chain).unwrap();
        assert!(found.adds_up && found.worker > 100, "{chain:?}: {found:?}");
        assert_eq!(found.counted, found.shown, "{chain:?}: {found:?}");
        assert!(
            found.counted * 20 >= found.worker * 19,
            "{chain:?}: {found:?}"
        );
    }
}
