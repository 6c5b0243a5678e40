/* Functions with known shares of the work: of 100 parts `sixty` takes 60, `thirty` 30, `ten` 10.
 *
 * Each works on its own lines. `morning` calls the first and the last, `evening` the second; a caller modifies
 * each result, so that no call becomes a tail jump. After each part there is a call: gcc omits the frame of a
 * function that calls nothing, even with frame pointers enabled. With frame pointers disabled, it keeps values
 * in the frame pointer register over that call. */
#include "work.h"

#define PART 5000
#define NOINLINE __attribute__((noinline, noclone))

NOINLINE static uint64_t sixty(uint64_t state)
{
    for (unsigned part = 0; part < 60; part++) {
        for (unsigned left = PART; left > 0; left--) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        part_done();
    }
    return state;
}

NOINLINE static uint64_t thirty(uint64_t state)
{
    for (unsigned part = 0; part < 30; part++) {
        for (unsigned left = PART; left > 0; left--) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        part_done();
    }
    return state;
}

NOINLINE static uint64_t ten(uint64_t state)
{
    for (unsigned part = 0; part < 10; part++) {
        for (unsigned left = PART; left > 0; left--) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        part_done();
    }
    return state;
}

NOINLINE static uint64_t morning(uint64_t state)
{
    state = sixty(state);
    return ten(state) ^ 3;
}

NOINLINE static uint64_t evening(uint64_t state)
{
    return thirty(state) ^ 5;
}

NOINLINE uint64_t day(uint64_t state)
{
    state = morning(state);
    return evening(state) | 1;
}
