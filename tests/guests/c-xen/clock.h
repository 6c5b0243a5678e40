/* Xen's clocks. Times are in ns of system time: what Xen's timer is set by, and what the agent's now_ns is here. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>

#include "xen.h"

/* Has Xen keep account of where the vCPU's time goes. */
void clock_start(void);

uint64_t clock_now_ns(void);

/* Since 1970. */
uint64_t clock_wall_ns(void);

/* How long the vCPU has been in a RUNSTATE_ so far, up to now. */
uint64_t clock_runstate_ns(unsigned state);

#endif
