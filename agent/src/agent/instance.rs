//! The agent's instance id.

use crate::ground::platform::Platform;

/// Draws a new instance id, never 0: 64 bits of the platform's random source. Without one,
/// `previous`, `address` (of memory that the agent owns) and both clocks are hashed instead; two
/// agents then have different ids unless all of these are equal.
pub(super) fn draw<P: Platform + ?Sized>(platform: &P, previous: u64, address: u64) -> u64 {
    let drawn = platform.random().unwrap_or_else(|| {
        let parts = [address, platform.now_ns(), platform.cycles()];
        parts.into_iter().fold(previous, |hash, part| mix(hash ^ part))
    });
    // The source may repeat a number, but a renewed id must differ.
    match drawn {
        0 => 1,
        drawn if drawn == previous => mix(drawn) | 1,
        drawn => drawn,
    }
}

/// One round of the SplitMix64 generator.
fn mix(state: u64) -> u64 {
    let mut mixed = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
