/* The agent in this kernel. Without it (-DWITHOUT_AGENT, and without profiler.c) the kernel is the same as
 * before; the difference is what the agent adds. */
#ifndef PROFILER_H
#define PROFILER_H

#include <stdbool.h>
#include <stdint.h>

#include "interrupts.h"
#include "timer.h"

#ifndef WITHOUT_AGENT

#include <unikprof.h>

/* Starts the agent. If that fails, the guest runs on without it and says why. */
void profiler_start(void);

/* Called when the guest is about to end after an exception: prints what was recorded. */
void profiler_crash(void);

/* Serves the agent's clients, in a separate thread. */
__attribute__((noreturn)) void profiler_serve(void);

/* Called when the timer has fired; `frame` is NULL if the upcall was forced. Returns the sampler's next
 * deadline. */
uint64_t profiler_on_tick(const struct interrupt_frame *frame);

/* Called for a breakpoint, with all registers of the interrupted code. Returns whether it is the profiler's: then it
 * has changed the registers to continue with. */
struct unikprof_trap_frame;
bool profiler_on_breakpoint(struct unikprof_trap_frame *frame);

/* Called when an exception is reported, with its address: returns the one that the kernel's programmer knows. */
uint64_t profiler_original_pc(uint64_t pc);

/* Called before and after a block, with events masked. The sampler has no deadline in between; profiler_on_wake
 * returns its next one. */
void profiler_on_block(void);
uint64_t profiler_on_wake(void);

/* Called by the heap. Not functions of their own: stacks begin at the caller of what they call. */
static inline void profiler_on_alloc(const void *memory, size_t size)
{
    unikprof_on_alloc(memory, size);
}

static inline void profiler_on_realloc(const void *old, const void *memory, size_t size)
{
    unikprof_on_realloc(old, memory, size);
}

static inline void profiler_on_free(const void *memory)
{
    unikprof_on_free(memory);
}

/* Notes how many rounds `stock` has begun. */
void profiler_count_rounds(unsigned rounds);

#else

#include <stddef.h>

#include "threads.h"

static inline void profiler_start(void)
{
}

static inline void profiler_crash(void)
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

struct unikprof_trap_frame;

static inline bool profiler_on_breakpoint(struct unikprof_trap_frame *frame)
{
    (void)frame;
    return false;
}

static inline uint64_t profiler_original_pc(uint64_t pc)
{
    return pc;
}

static inline void profiler_on_block(void)
{
}

static inline uint64_t profiler_on_wake(void)
{
    return NO_DEADLINE;
}

static inline void profiler_on_alloc(const void *memory, size_t size)
{
    (void)memory;
    (void)size;
}

static inline void profiler_on_realloc(const void *old, const void *memory, size_t size)
{
    (void)old;
    (void)memory;
    (void)size;
}

static inline void profiler_on_free(const void *memory)
{
    (void)memory;
}

static inline void profiler_count_rounds(unsigned rounds)
{
    (void)rounds;
}

#endif
#endif
