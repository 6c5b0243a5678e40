/* What the guest works on. */
#ifndef WORK_H
#define WORK_H

#include <stdint.h>

/* How many parts were done. */
extern uint64_t parts_done;

/* One round of 100 parts. */
uint64_t day(uint64_t state);

#endif
