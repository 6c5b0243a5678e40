/* The agent in a Linux process: its clocks, its one vCPU and its timer. */
#ifndef PROFILER_H
#define PROFILER_H

#include <stdint.h>

/* Starts the agent, with the calling thread as its only vCPU: other threads are not sampled, and must not call the
 * agent. `stack_end` is the end of the thread's outermost frame: the address after the return address of the function
 * that calls this. Ends the process on failure. */
void profiler_start(uint64_t stack_end);

/* Begins a recording with this name. Ends the process on failure. */
void profiler_record(const char *name);

/* Sets the timer for the sampler's next deadline. Call it after everything that may have begun a recording. */
void profiler_arm(void);

/* The monotonic clock in ns. */
uint64_t profiler_now_ns(void);

#endif
