//! The accuracy suite on a real Xen in small: the code of `accuracy --xen`, fewer and shorter runs,
//! generous bounds.
//!
//! Run it without the other suites, which would take time from its lab; and the lab stays booted
//! until the process ends:
//!
//! ```text
//! cargo test -p unikprof-tests --test it -- --ignored xen_accuracy::
//! ```
//!
//! The machine is emulated and may be shared: it stops for milliseconds, and an upcall takes a
//! hundred microseconds. So bounds of chance are wide, and each says which failure it still sees.
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_REQUIRE_ALL=1` that is a
//! failure.

mod shared_guest;

use shared_guest::{FramePointers, on};
use unikprof_tests::accuracy::xen::steal;
use unikprof_tests::accuracy::{
    blocking, broken_chains, masked_events, short_bursts, without_frame_pointers,
};

const PERIOD_NS: u64 = 5_000_000;
/// A period beside which an upcall is short in a slow emulator too.
const LONG_PERIOD_NS: u64 = 20_000_000;
/// Each takes some milliseconds in the emulator.
const SAMPLES: usize = 1_000;
/// The least number of them that full unwind tables lead to a caller.
const JUDGED: u64 = 950;
/// The most tries of a measurement that a busy machine spoils.
const TRIES: usize = 10;

/// Guards the caller table on a guest's own image: what is compared are the same samples, so
/// nothing is left to chance but which instructions they meet.
#[test]
#[ignore = "full: boots a real Xen"]
fn callers_are_right_by_the_table() {
    on(FramePointers::Kept, |guest| {
        let found = without_frame_pointers::measure(guest, "shrink-wrapped", SAMPLES).unwrap();
        assert!(found.table.judged >= JUDGED, "{found:?}");
        assert!(found.table.share() >= without_frame_pointers::GOAL, "{found:?}");
        assert!(found.naive.share() < found.table.share(), "{found:?}");
    });
}

/// Guards blocked time that is charged to nobody, or to another wait. It is measured, not sampled:
/// the bound is the suite's own.
#[test]
#[ignore = "full: boots a real Xen"]
fn waits_are_named_with_their_time() {
    on(FramePointers::Kept, |guest| {
        let effort = blocking::Effort { waits: 60, timer_ns: 15_000_000, network_ns: 25_000_000 };
        for waited in blocking::measure(guest, &effort).unwrap() {
            assert!(waited.truth_ns > 0, "{waited:?}");
            assert!(waited.error().abs() <= blocking::GOAL, "{waited:?}");
        }
    });
}

/// Guards late samples that are charged to the code that unmasks. A masked stretch lasts for five
/// periods, so its sample is late by three at least. What comes due within an upcall is charged to
/// what it interrupted: a few in a hundred. The bounds are the suite's own.
#[test]
#[ignore = "full: boots a real Xen"]
fn masked_stretches_are_told() {
    on(FramePointers::Kept, |guest| {
        let effort = masked_events::Effort {
            stretches: 60,
            masked_ns: 5 * LONG_PERIOD_NS,
            open_ns: 2 * LONG_PERIOD_NS,
            period_ns: LONG_PERIOD_NS,
        };
        let found = masked_events::measure(guest, &effort).unwrap();
        assert!(found.is_told(masked_events::CHARGED_PERCENT_ON_XEN), "{found:?}");
    });
}

/// Guards a sampler that draws anew at each wake, which would see next to none of the bursts.
#[test]
#[ignore = "full: boots a real Xen"]
fn short_bursts_are_sampled() {
    on(FramePointers::Kept, |guest| {
        let effort = short_bursts::Effort {
            bursts: 150,
            burst_ns: 6_000_000,
            every_ns: 20_000_000,
            period_ns: 20_000_000,
        };
        let found = short_bursts::measure(guest, &effort).unwrap();
        let ticks = (found.recorded + found.idle) as f64;
        assert!(ticks >= found.in_bursts / 2.0, "{found:?}");
        assert!(ticks <= found.in_all + 5.0 + found.in_all / 4.0, "{found:?}");
    });
}

/// Guards chains that are followed in circles, or shown as whole.
#[test]
#[ignore = "full: boots a real Xen"]
fn broken_chains_are_told() {
    on(FramePointers::Kept, |guest| {
        let effort = broken_chains::Effort { run_ns: 1_500_000_000, period_ns: PERIOD_NS };
        broken_chains::assert_each_is_told(guest, &effort);
    });
}

/// Guards stolen time that is charged to functions, or not told. Dom0 counts in tenths of a second,
/// which is two in a hundred here. Two sound intervals of 95 % miss each other in one of two
/// hundred pairs: four of twelve is no chance.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_neighbour_changes_no_share_and_its_time_is_told() {
    on(FramePointers::Kept, |guest| {
        let effort = steal::Effort { run_ns: 3_000_000_000, period_ns: PERIOD_NS };
        // Again where the machine stood still between the recording and a look from dom0.
        let is_told = (0..TRIES).any(|_| {
            let found = steal::measure(guest, &effort).unwrap();
            println!("{found:#?}");
            let apart = (found.stolen - found.stolen_by_dom0).abs();
            found.apart() < 4 && found.stolen > 0.2 && apart < 0.1
        });
        assert!(is_told);
    });
}

/// Guards the unwinding of every frame, where no frame pointer leads anywhere. By its name the
/// last: it needs a lab of its own.
#[test]
#[ignore = "full: boots a real Xen"]
fn without_frame_pointers_stacks_are_unwound() {
    on(FramePointers::Omitted, |guest| {
        let found = without_frame_pointers::measure(guest, "sorts", SAMPLES).unwrap();
        assert!(found.every_frame.judged >= JUDGED, "{found:?}");
        assert!(found.every_frame.share() >= without_frame_pointers::GOAL, "{found:?}");
    });
}
