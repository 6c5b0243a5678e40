//! Work that only takes time.

/// One step of Marsaglia's xorshift generator, about 3 ns.
#[inline(always)]
pub(crate) fn step(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}

/// Works `steps` steps. The salt makes functions differ that the compiler would otherwise merge.
#[inline(always)]
pub(crate) fn spin(mut state: u64, steps: u32, salt: u64) -> u64 {
    for _ in 0..steps {
        state = step(state).wrapping_add(salt);
    }
    state | 1
}
