//! Case 9.

use unikprof_profile::profile::Unwind;
use unikprof_tests::accuracy::hosted::{FramePointers, HostedGuest};
use unikprof_tests::accuracy::without_frame_pointers::{GOAL, measure, record};

/// Guards `--unwind table`: code of a C compiler that keeps no frame pointer in the middle of a
/// stack.
#[test]
#[ignore = "full: measures shares of time"]
fn stacks_with_and_without_frame_pointers_are_whole() {
    let found = measure(&mut super::guest(), "frameless", 3_000).unwrap();
    assert!(found.every_frame.judged >= 2_900, "{found:?}");
    assert!(found.every_frame.share() >= GOAL, "{found:?}");
    assert!(found.naive.share() < 0.5, "no need of the table: {found:?}");
}

/// The same for a guest that keeps none at all, also on the whole way from the client to a
/// recording.
#[test]
#[ignore = "full: measures shares of time"]
fn stacks_of_a_guest_without_frame_pointers_are_whole() {
    let mut guest = HostedGuest::start(FramePointers::Omitted).unwrap();
    for load in ["small functions", "sorts"] {
        let found = measure(&mut guest, load, 3_000).unwrap();
        assert!(found.every_frame.judged >= 2_900, "{load}: {found:?}");
        assert!(found.every_frame.share() >= GOAL, "{load}: {found:?}");
        assert!(found.naive.share() < 0.5, "{load}: {found:?}");
    }
    let outermost = "accuracy_guest::main";
    let found = record(&mut guest, outermost, 1_000_000_000, Unwind::Table).unwrap();
    assert!(found.samples > 200 && found.share() >= GOAL, "{found:?}");
}
