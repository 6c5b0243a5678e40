//! Hashes of short names and of long values: the time is in leaf functions that both callers share.

use super::{Buffers, Caller, Load};

pub(super) const LOAD: Load = Load {
    name: "hashes",
    callers: &[
        Caller { name: "hash_names", parts: 75, call: hash_names },
        Caller { name: "hash_values", parts: 25, call: hash_values },
    ],
};

#[inline(never)]
fn hash_names(buffers: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 1;
    for name in 0..parts as usize * 8 {
        let from = name % 4096;
        sum ^= mix(fnv_1a(&buffers.source[from..from + 24], sum));
    }
    sum
}

#[inline(never)]
fn hash_values(buffers: &mut Buffers, parts: u32) -> u64 {
    let mut sum = 1;
    for value in 0..parts as usize / 2 {
        let from = value % 4096;
        sum ^= mix(fnv_1a(&buffers.source[from..from + 500], sum)) ^ 9;
    }
    sum
}

/// Fowler, Noll and Vo's hash.
#[inline(never)]
fn fnv_1a(bytes: &[u8], seed: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325 ^ seed;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash
}

/// Stafford's variant 13 of the murmur finalizer: a handful of instructions.
#[inline(never)]
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
