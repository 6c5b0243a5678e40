//! Work that takes time and nothing else.

/// One step of Marsaglia's xorshift generator, some 3 ns.
#[inline(always)]
pub(crate) fn step(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}

/// So many steps. The salt tells apart what the compiler would otherwise make one function.
#[inline(always)]
pub(crate) fn spin(mut state: u64, steps: u32, salt: u64) -> u64 {
    for _ in 0..steps {
        state = step(state).wrapping_add(salt);
    }
    state | 1
}
