/* VIRQ_TIMER, which the kernel keeps: the agent has no timer of its own here (it calls that a host's tick source).
 *
 * Xen's single-shot timer is one for each vCPU. Two want it: the kernel, for whoever sleeps, and the agent's
 * sampler. It is set to the earlier of their deadlines. */
#ifndef TIMER_H
#define TIMER_H

#include <stdint.h>

/* In the place of a deadline; the same number as UNIKPROF_NO_DEADLINE. */
#define NO_DEADLINE UINT64_MAX

/* Binds the timer's interrupt. Nothing is armed. */
void timer_start(void);

/* The kernel's deadline; threads_are_due() is called when it has passed. */
void timer_set_own(uint64_t deadline_ns);

/* The sampler's deadline, as the agent has answered it. */
void timer_set_sampler(uint64_t deadline_ns);

/* The kernel's deadline alone, as the guest is about to block, with events masked. */
void timer_set_for_block(uint64_t deadline_ns);

#endif
