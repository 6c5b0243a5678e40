/* Cooperative threads. One runs until it waits or yields.
 *
 * A stack is aligned to its size and holds its thread's record at the low end: which thread runs, and which stack
 * an address lies on, is told by the stack pointer and a mask. */
#ifndef THREADS_H
#define THREADS_H

/* unikprof_init takes up to 32 KiB. */
#define THREAD_STACK_SIZE 0x10000

#ifndef __ASSEMBLER__

#include <stdbool.h>
#include <stdint.h>

/* The running code becomes the first thread; boot.S has put it on the first stack. */
void threads_start(void);

/* A thread that runs `body`, which never returns. */
void thread_create(void (*body)(void));

/* Waits until `*event`, which is cleared, or until the time has come (clock_now_ns). `event` may be NULL. Where
 * no thread can run, the guest blocks. */
void thread_wait(volatile bool *event, uint64_t until_ns);

/* Lets the others run; at once where none of them is due. */
void thread_yield(void);

/* Something has happened that a thread may be waiting for. From upcalls. */
void threads_are_due(void);

/* The stack that an address lies on; false where it lies on none. From upcalls. */
bool thread_stack_of(uint64_t sp, uint64_t *start, uint64_t *end);

#endif
#endif
