/* VIRQ_TIMER, which the kernel keeps: the agent does not arm it here (it calls that a host's tick source).
 *
 * Xen has one single-shot timer for each vCPU, with two users: the kernel, for sleeping threads, and the
 * agent's sampler. It is set to the earlier of their deadlines. */
#ifndef TIMER_H
#define TIMER_H

#include <stdint.h>

/* No deadline; equal to UNIKPROF_NO_DEADLINE. */
#define NO_DEADLINE UINT64_MAX

/* Binds the timer's interrupt. Nothing is armed. */
void timer_start(void);

/* The kernel's deadline; threads_are_due() is called when it has passed. */
void timer_set_own(uint64_t deadline_ns);

/* The sampler's deadline, as returned by the agent. */
void timer_set_sampler(uint64_t deadline_ns);

/* Sets the timer only for the kernel's deadline, when the guest is about to block, with events masked. */
void timer_set_for_block(uint64_t deadline_ns);

#endif
