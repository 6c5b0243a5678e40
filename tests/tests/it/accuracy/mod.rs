//! The accuracy suite in small: the code of `accuracy`, fewer and shorter runs, generous bounds.
//!
//! A bound of chance says how seldom a sound agent misses it. Bounds hold on a loaded machine:
//! truth is CPU time, and time that others take is in neither the truth nor the profile.

mod blocked;
mod chains;
mod frame_pointers;
mod leaves;
mod masked;
mod overhead;
mod several;
mod shares;
mod slower;
mod steps;

use unikprof_tests::accuracy::hosted::{FramePointers, HostedGuest};

/// Fast enough for many samples in little time, slow enough for a loaded machine.
const PERIOD_NS: u64 = 1_000_000;

fn guest() -> HostedGuest {
    HostedGuest::start(FramePointers::Kept).unwrap()
}
