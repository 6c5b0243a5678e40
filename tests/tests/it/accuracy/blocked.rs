//! Cases 7 and 8.

use unikprof_tests::accuracy::{blocking, short_bursts};

/// Guards blocked time: the functions that wait, and how long.
///
/// Nothing here is left to chance: both sides read clocks. The suite's goal is 0.02; what others
/// take of the machine between two readings is not in it.
#[test]
#[ignore = "full: measures shares of time"]
fn waits_are_named_and_as_long_as_they_were() {
    let effort = blocking::Effort { waits: 50, timer_ns: 10_000_000, network_ns: 7_000_000 };
    for found in blocking::measure(&mut super::guest(), &effort).unwrap() {
        // Less than was asked for if the thread loses its processor between its request and its
        // wait.
        assert!(found.truth_ns > 100_000_000, "{found:?}");
        assert!(found.error().abs() < 0.1, "{found:?}");
    }
}

/// Guards the remainder that is kept while the guest blocks: a sampler that drew anew at each wake
/// would see nothing of bursts shorter than half its period.
///
/// The bound: five standard deviations and one sample, less likely than 1e-6.
#[test]
#[ignore = "full: measures shares of time"]
fn short_bursts_have_as_many_samples_as_periods() {
    let effort = short_bursts::Effort {
        bursts: 3_000,
        burst_ns: 300_000,
        every_ns: 1_000_000,
        period_ns: super::PERIOD_NS,
    };
    let found = short_bursts::measure(&mut super::guest(), &effort).unwrap();
    assert!(found.in_bursts > 500.0, "{found:?}");
    assert!(found.off() == 0.0, "{found:?}, off by {}", found.off());
}
