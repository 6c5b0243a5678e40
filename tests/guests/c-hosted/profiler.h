/* The agent in a Linux process: its clocks, its one vCPU and its timer. */
#ifndef PROFILER_H
#define PROFILER_H

#include <stdint.h>

/* Starts the agent, with the calling thread as its one vCPU. `stack_end` is where the thread's outermost
 * frame ends: behind the return address of the function that calls this. Ends the process where it cannot. */
void profiler_start(uint64_t stack_end);

/* Begins a recording that clients find by this name. Ends the process where it cannot. */
void profiler_record(const char *name);

/* Sets the timer for the sampler's next deadline: call it behind everything that may have begun a
 * recording. */
void profiler_arm(void);

/* The monotonic clock in ns. */
uint64_t profiler_now_ns(void);

#endif
