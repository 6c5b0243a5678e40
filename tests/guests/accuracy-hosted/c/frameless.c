/* Functions without frame pointers in the middle of a stack, which use that register for other values. */

#include <stdint.h>

typedef uint64_t (*frameless_work)(uint64_t state);

/* So many values are live over the calls that all callee-saved registers are used. */
uint64_t frameless_middle(frameless_work work, uint64_t state, uint32_t times)
{
    uint64_t a = state, b = state ^ 1, c = state ^ 2, d = state ^ 3, e = state ^ 4;
    for (uint32_t i = 0; i < times; i++) {
        a ^= work(a + b);
        b += c ^ a;
        c ^= d + b;
        d += e ^ c;
        e ^= a + d;
    }
    return a ^ b ^ c ^ d ^ e;
}

/* A second such frame, so that there are two in succession. */
uint64_t frameless_outer(frameless_work work, uint64_t state, uint32_t times)
{
    uint64_t a = state, b = state ^ 5, c = state ^ 6, d = state ^ 7;
    for (uint32_t i = 0; i < times; i++) {
        a ^= frameless_middle(work, a + d, 2);
        b += a ^ c;
        c ^= b + d;
        d += a ^ b;
    }
    return a ^ b ^ c ^ d;
}

/* A leaf that works without a frame. */
uint64_t frameless_leaf(uint64_t state, uint32_t steps)
{
    for (uint32_t i = 0; i < steps; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}
