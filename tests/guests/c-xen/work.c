/* Of ten parts `grind` takes five, `knead` three and `prove` two.
 *
 * `miller` calls `mill`, which calls `grind`: a leaf, for which gcc sets up no frame in any case. `baker` calls
 * `bake`, which calls `knead`, a function with a frame because it calls others; and `prove`, which works with
 * events masked: ticks that become due in it are delivered when it unmasks, without registers. A caller
 * modifies each result, so that no call becomes a tail jump; nothing is inlined or cloned. */
#include "work.h"

#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "console.h"
#include "events.h"
#include "threads.h"
#include "timer.h"

#define PART 20000
#define BATCHES 5
#define SLEEP_NS 5000000
/* In a separate page (link.ld): QEMU runs a loop that crosses a page boundary more slowly. */
#define WORK __attribute__((noinline, noclone, section(".text.work")))

static volatile bool grain_is_there, flour_is_there;
static uint64_t flour = 1;
static uint64_t parts_done;

WORK static void part_done(void)
{
    parts_done++;
    /* Threads that wait for the network or the time go first. */
    thread_yield();
}

WORK static uint64_t grind(uint64_t state)
{
    for (unsigned left = PART; left > 0; left--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}

WORK static uint64_t mill(uint64_t state)
{
    for (unsigned part = 0; part < 5; part++) {
        state = grind(state) | 1;
        part_done();
    }
    return state;
}

WORK static uint64_t knead(uint64_t state)
{
    for (unsigned left = PART; left > 0; left--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    part_done();
    return state;
}

WORK static uint64_t prove(uint64_t state)
{
    bool were_unmasked = events_mask();
    for (unsigned left = PART; left > 0; left--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    events_restore(were_unmasked);
    part_done();
    return state;
}

WORK static uint64_t bake(uint64_t state)
{
    for (unsigned part = 0; part < 3; part++) {
        state = knead(state) | 1;
    }
    for (unsigned part = 0; part < 2; part++) {
        state = prove(state) | 1;
    }
    return state;
}

void miller(void)
{
    for (;;) {
        thread_wait(&grain_is_there, NO_DEADLINE);
        flour = mill(flour) | 1;
        flour_is_there = true;
    }
}

void baker(void)
{
    for (;;) {
        for (unsigned batch = 0; batch < BATCHES; batch++) {
            grain_is_there = true;
            thread_wait(&flour_is_there, NO_DEADLINE);
            flour = bake(flour) | 1;
        }
        thread_wait(NULL, clock_now_ns() + SLEEP_NS);
    }
}

/* Of the drop-in, if it is linked in. */
extern int32_t unikprof_event_name(const char *text) __attribute__((weak));
extern int32_t unikprof_mark(int32_t name, uint64_t value) __attribute__((weak));

void sleeper(void)
{
    int32_t name = unikprof_event_name != NULL ? unikprof_event_name("nap") : -1;
    for (unsigned nap = 1;; nap++) {
        unsigned before = thread_wakes;
        thread_wait(NULL, clock_now_ns() + 10000000000);
        if (unikprof_mark != NULL) {
            unikprof_mark(name, nap);
        }
        say("c-xen: nap ");
        say_hex(nap);
        say(", wakes: ");
        say_hex(thread_wakes - before);
        say("\n");
    }
}

WORK static void spin(void)
{
    for (;;) {
        __asm__ volatile("");
    }
}

WORK void stuck(void)
{
    say("c-xen: stuck in a loop\n");
    /* An event meanwhile, which nobody handles if the threads do. */
    timer_set_own(clock_now_ns() + 1000000000);
    spin();
}
