//! Case 11.

use unikprof_tests::accuracy::several_recordings::{DEVIATIONS, measure};

/// Guards that recordings share a sampler without sharing their targets: were the slow ones handed
/// every tick of the fast one, or those of one kind of code alone, their shares or their number
/// would be off.
#[test]
#[ignore = "full: measures shares of time"]
fn three_recordings_at_once_tell_the_same_truth() {
    let found = measure(&mut super::guest(), 3_000_000_000).unwrap();
    assert_eq!(found.len(), 3);
    for one in &found {
        let (function, off) = one.worst();
        assert!(one.is_whole, "{one:#?}");
        assert!(off < DEVIATIONS, "{function} is {off:.1} off in {one:#?}");
        // The slowest has some 420 samples: a fourth is five standard deviations.
        assert!((0.75..1.25).contains(&one.kept()), "{} in {one:#?}", one.kept());
    }
}
