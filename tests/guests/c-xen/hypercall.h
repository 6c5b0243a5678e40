/* Calls to Xen. All return 0 or more, or a negative error number. */
#ifndef HYPERCALL_H
#define HYPERCALL_H

#include <stdint.h>

#include "xen.h"

extern uint8_t hypercall_page[];

/* Makes Xen fill the hypercall page. No hypercall is possible before. */
void hypercall_start(void);

static inline long hypercall(unsigned number, uint64_t first, uint64_t second, uint64_t third)
{
    long result;
    __asm__ volatile("call *%[entry]"
                     : "=a"(result), "+D"(first), "+S"(second), "+d"(third)
                     : [entry] "r"(hypercall_page + number * 32)
                     : "rcx", "r8", "r9", "r10", "r11", "memory");
    return result;
}

static inline long hypercall_sched(unsigned operation, void *argument)
{
    return hypercall(HYPERCALL_SCHED_OP, operation, (uint64_t)argument, 0);
}

static inline long hypercall_event(unsigned operation, void *argument)
{
    return hypercall(HYPERCALL_EVENT_CHANNEL_OP, operation, (uint64_t)argument, 0);
}

/* These are for the only vCPU. */
static inline long hypercall_vcpu(unsigned operation, void *argument)
{
    return hypercall(HYPERCALL_VCPU_OP, operation, 0, (uint64_t)argument);
}

/* Returns the parameter; ends the guest if there is none. */
uint64_t hvm_parameter(uint32_t index);

void hvm_set_parameter(uint32_t index, uint64_t value);

/* Makes Xen map a page of its own (a table, the shared information) at `page`. */
void map_xen_page(uint32_t space, void *page);

#endif
