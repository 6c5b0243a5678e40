/*
 * Writes a captured sample of a function without an unwind table. It is compiled twice: the function without tables
 * (-DUNTOLD), and its callers with them.
 */
#include <stdint.h>
#include <stdio.h>

void untold(const uint64_t *end);

#ifdef UNTOLD
static void decoy(void)
{
}

/* GCC's record is at the bottom of the frame. Above it is what a wrong stack pointer takes for return addresses. */
void untold(const uint64_t *end)
{
    void (*volatile decoys[64])(void);
    uint64_t head[6] = { 0 };

    for (int index = 0; index < 64; index++) {
        decoys[index] = decoy;
    }
    __asm__ volatile("adr %0, .; mov %1, sp; mov %2, x29" : "=r"(head[0]), "=r"(head[1]), "=r"(head[2]));
    head[4] = head[1];
    head[5] = end - (const uint64_t *)head[1];
    fwrite(head, 1, sizeof head, stdout);
    fwrite((const void *)head[1], 8, head[5], stdout);
    decoys[0]();
}
#else
/* The frames of these begin with their records, and their rules count from the stack pointer. */
__attribute__((noipa)) int inner(const uint64_t *end, int more)
{
    untold(end);
    return more + 1;
}

__attribute__((noipa)) int outer(const uint64_t *end, int more)
{
    return inner(end, more) + more;
}

int main(int count, char **words)
{
    (void)words;
    return outer((const uint64_t *)__builtin_frame_address(0) + 2, count) == 0;
}
#endif
