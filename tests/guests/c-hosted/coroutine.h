/* A coroutine with a stack of its own. */
#ifndef COROUTINE_H
#define COROUTINE_H

#include <stdint.h>

#include <unikprof.h>

/* Runs `work` once on the coroutine's stack, and returns its result. */
uint64_t coroutine_resume(uint64_t (*work)(uint64_t state), uint64_t state);

/* For `stack_bounds`: whether `address` is on the coroutine's stack. Fills in its bounds. */
int coroutine_has(uint64_t address, struct unikprof_range *bounds);

#endif
