/* Xen's clocks. Times are in ns of system time, the clock of Xen's timer and of the agent's now_ns. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>

#include "xen.h"

/* Makes Xen account for the vCPU's time in each state. */
void clock_start(void);

uint64_t clock_now_ns(void);

/* The time since 1970. */
uint64_t clock_wall_ns(void);

/* The time that the vCPU has spent in a RUNSTATE_ until now. */
uint64_t clock_runstate_ns(unsigned state);

#endif
