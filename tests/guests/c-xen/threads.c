#include "threads.h"

#include <stddef.h>

#include "clock.h"
#include "command_line.h"
#include "console.h"
#include "events.h"
#include "profiler.h"
#include "timer.h"

#define THREADS 4

struct thread {
    uint64_t sp; /* valid while it does not run */
    bool waits;
    volatile bool *event;
    uint64_t until_ns;
};

/* The values that thread_switch pops, lowest address first. */
struct switched {
    uint64_t r15, r14, r13, r12, rbx, rbp;
    void (*go_on)(void);
};

/* switch.S */
extern void thread_switch(uint64_t *save_sp, uint64_t next_sp);
extern void thread_begin(void);

uint8_t thread_stacks[THREADS][THREAD_STACK_SIZE] __attribute__((aligned(THREAD_STACK_SIZE)));

unsigned thread_wakes;
static unsigned count;
static unsigned running;
static volatile bool due;
/* `wait=block`, instead of hlt */
static bool waits_by_hypercall;

static struct thread *thread_number(unsigned number)
{
    return (struct thread *)thread_stacks[number];
}

void threads_start(void)
{
    count = 1;
    waits_by_hypercall = command_line_is("wait", "block");
}

void thread_create(void (*body)(void))
{
    struct thread *thread = thread_number(count);
    struct switched *first = (struct switched *)thread_stacks[count + 1] - 1;
    if (count == THREADS) {
        panic("too many threads");
    }
    count++;
    /* A frame pointer of 0 ends a chain of frames. */
    *first = (struct switched) { .rbx = (uint64_t)body, .rbp = 0, .go_on = thread_begin };
    thread->sp = (uint64_t)first;
}

static bool can_run(struct thread *thread, uint64_t now_ns)
{
    if (!thread->waits) {
        return true;
    }
    if (thread->event != NULL && *thread->event) {
        *thread->event = false;
    } else if (thread->until_ns > now_ns) {
        return false;
    }
    thread->waits = false;
    return true;
}

/* The earliest deadline of the waiting threads. */
static uint64_t earliest_ns(void)
{
    uint64_t earliest = NO_DEADLINE;
    for (unsigned number = 0; number < count; number++) {
        const struct thread *thread = thread_number(number);
        if (thread->waits && thread->until_ns < earliest) {
            earliest = thread->until_ns;
        }
    }
    return earliest;
}

static inline void wait_for_upcall(void)
{
    if (waits_by_hypercall) {
        events_block();
        return;
    }
    /* The processor takes no interrupt between `sti` and the next instruction, so that none is missed. */
    __asm__ volatile("sti; hlt; cli" : : : "memory");
}

/* Blocks until the next upcall, at the latest at `until_ns`, with events masked before and after. The sampler
 * has no deadline meanwhile, so that an idle guest stays asleep: the timer is set only for the kernel's
 * deadline. A profile of blocked time shows this function below the waiting one. */
static __attribute__((noinline)) void block(uint64_t until_ns)
{
    profiler_on_block();
    timer_set_for_block(until_ns);
    wait_for_upcall();
    thread_wakes++;
    timer_set_sampler(profiler_on_wake());
}

/* The next thread that can run, in turns; blocks if there is none. */
static unsigned choose(void)
{
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        due = false;
        events_look();
        for (unsigned step = 1; step <= count; step++) {
            unsigned number = (running + step) % count;
            if (can_run(thread_number(number), now_ns)) {
                timer_set_own(earliest_ns());
                return number;
            }
        }
        block(earliest_ns());
    }
}

void threads_clock_changed(void)
{
    for (unsigned number = 0; number < count; number++) {
        struct thread *thread = thread_number(number);
        if (thread->until_ns != NO_DEADLINE) {
            thread->until_ns = 0;
        }
    }
}

static void run_another(void)
{
    /* Masked from the check of the events to the block; otherwise an event in between would be missed. */
    bool were_unmasked = events_mask();
    unsigned before = running;
    running = choose();
    if (running != before) {
        thread_switch(&thread_number(before)->sp, thread_number(running)->sp);
    }
    events_restore(were_unmasked);
}

void thread_wait(volatile bool *event, uint64_t until_ns)
{
    struct thread *thread = thread_number(running);
    thread->event = event;
    thread->until_ns = until_ns;
    thread->waits = true;
    run_another();
}

void thread_yield(void)
{
    if (due) {
        run_another();
    }
}

void threads_are_due(void)
{
    due = true;
}

bool thread_stack_of(uint64_t sp, uint64_t *start, uint64_t *end)
{
    *start = sp & ~(uint64_t)(THREAD_STACK_SIZE - 1);
    *end = *start + THREAD_STACK_SIZE;
    return *start >= (uint64_t)thread_stacks && *end <= (uint64_t)(thread_stacks + THREADS);
}
