/* Allocations of known sizes, and books of their number: the word `allocations=yes`.
 *
 * `stock`, a thread, goes round about 200 times a second. In each round it calls `order` eight times (600 bytes,
 * freed at once), `list` once (256 bytes, moved to 512 and to 1,024, and freed), `jar` once (2,000 bytes, freed when
 * a hundred newer ones are there), and every eighth time `crumb` (1,000 bytes, never freed). Before each round `wish`
 * asks for more than the heap has, and in each round a free is reported of what was never allocated; it goes no further
 * if `wish` gets something. The number of rounds since the start is the counter `rounds` in the flight recorder. */
#include "work.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "console.h"
#include "heap.h"
#include "profiler.h"
#include "threads.h"

#define ROUND_NS 5000000
#define ORDERS 8
#define JARS 100
#define ROUNDS_A_CRUMB 8
/* So many that the pool still has memory. */
#define CRUMBS 20000
#define WORK __attribute__((noinline, noclone))

static void *jars[JARS];

/* Uses the memory, so that the compiler keeps the allocation. */
static void fill(void *memory, size_t size)
{
    for (size_t at = 0; at < size; at += 64) {
        ((volatile uint8_t *)memory)[at] = (uint8_t)at;
    }
}

WORK static void order(void)
{
    void *memory = malloc(600);
    fill(memory, 600);
    free(memory);
}

WORK static void list(void)
{
    void *memory = malloc(256);
    memory = realloc(memory, 512);
    memory = realloc(memory, 1024);
    fill(memory, 1024);
    free(memory);
}

WORK static void *jar(void)
{
    void *memory = malloc(2000);
    fill(memory, 2000);
    return memory;
}

WORK static void *crumb(void)
{
    void *memory = malloc(1000);
    fill(memory, 1000);
    return memory;
}

/* Whether there is no memory for it. It looks at the result, so that it is in the stack while `malloc` runs. */
WORK static bool wish(void)
{
    return malloc(2 << 20) == NULL;
}

void stock(void)
{
    unsigned crumbs = 0;
    for (unsigned round = 0; wish(); round++) {
        profiler_count_rounds(round);
        profiler_on_free(jars);
        for (unsigned at = 0; at < ORDERS; at++) {
            order();
        }
        list();
        free(jars[round % JARS]);
        jars[round % JARS] = jar();
        if (round % ROUNDS_A_CRUMB == 0 && crumbs < CRUMBS) {
            crumb();
            crumbs++;
        }
        thread_wait(NULL, clock_now_ns() + ROUND_NS);
    }
    panic("there was memory for a wish");
}
