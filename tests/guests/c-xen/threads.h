/* Cooperative threads. A thread runs until it waits or yields.
 *
 * A stack is aligned to its size and contains its thread's record at the low end, so that masking the stack
 * pointer yields the running thread, and masking an address yields its stack. */
#ifndef THREADS_H
#define THREADS_H

/* unikprof_init takes up to 32 KiB. */
#define THREAD_STACK_SIZE 0x10000

#ifndef __ASSEMBLER__

#include <stdbool.h>
#include <stdint.h>

/* Makes the running code the first thread; boot.S has put it on the first stack. */
void threads_start(void);

/* Starts a thread that runs `body`, which must never return. */
void thread_create(void (*body)(void));

/* Waits until `*event` is set, and clears it, or until the given time (clock_now_ns). `event` may be NULL. If
 * no thread can run, the guest blocks. */
void thread_wait(volatile bool *event, uint64_t until_ns);

/* Lets other threads run; returns at once if none can. */
void thread_yield(void);

/* Called from upcalls after an event that a thread may be waiting for. */
void threads_are_due(void);

/* Time began anew: ends the waits that have a deadline. */
void threads_clock_changed(void);

/* How often the guest was woken while all threads waited. */
extern unsigned thread_wakes;

/* The stack that contains an address; false if there is none. May be called from upcalls. */
bool thread_stack_of(uint64_t sp, uint64_t *start, uint64_t *end);

#endif
#endif
