/* The agent in this kernel. Without it (-DWITHOUT_AGENT, and profiler.c left out) the kernel is what it was
 * before: what the agent adds is the difference. */
#ifndef PROFILER_H
#define PROFILER_H

#include <stdint.h>

#include "interrupts.h"
#include "timer.h"

#ifndef WITHOUT_AGENT

/* Starts the agent; ends the guest where it does not start. */
void profiler_start(void);

/* Serves the agent's clients, as a thread of its own. */
__attribute__((noreturn)) void profiler_serve(void);

/* The timer has fired; `frame` is NULL where the upcall was forced. Answers the sampler's next deadline. */
uint64_t profiler_on_tick(const struct interrupt_frame *frame);

/* Around the block, with events masked. The sampler has no deadline in between; the answer is its next. */
void profiler_on_block(void);
uint64_t profiler_on_wake(void);

#else

#include <stddef.h>

#include "threads.h"

static inline void profiler_start(void)
{
}

__attribute__((noreturn)) static inline void profiler_serve(void)
{
    for (;;) {
        thread_wait(NULL, NO_DEADLINE);
    }
}

static inline uint64_t profiler_on_tick(const struct interrupt_frame *frame)
{
    (void)frame;
    return NO_DEADLINE;
}

static inline void profiler_on_block(void)
{
}

static inline uint64_t profiler_on_wake(void)
{
    return NO_DEADLINE;
}

#endif
#endif
