//! Case 2.

use unikprof_tests::accuracy::leaf_callers::{GOAL, measure};

/// Guards the caller table, the byte rules, and the way both go from the client to a tick.
///
/// Nothing here is left to chance but where samples fall, and a wrong rule costs whole stretches of
/// a function: the goal is the suite's own.
#[test]
#[ignore = "full: measures shares of time"]
fn callers_of_leaves_are_right_with_the_table() {
    let mut naive_was_wrong = false;
    for found in measure(&mut super::guest(), 3_000).unwrap() {
        assert!(found.naive.judged >= 2_900, "{found:#?}");
        assert!(found.table.share() >= GOAL, "{found:#?}");
        assert!(found.every_frame.share() >= GOAL, "{found:#?}");
        assert!(found.bytes.share() >= found.naive.share() - 0.02, "{found:#?}");
        naive_was_wrong |= found.naive.share() < 0.9;
    }
    // Otherwise the loads are not what they should be, and the judge has nothing to judge.
    assert!(naive_was_wrong);
}
