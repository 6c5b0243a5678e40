/* The guest's work. */
#ifndef WORK_H
#define WORK_H

#include <stdint.h>

/* One round of 100 parts. */
uint64_t day(uint64_t state);

/* Called after each part. */
void part_done(void);

#endif
