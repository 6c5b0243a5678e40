/* The interrupt table: exceptions, which end the guest, and the one vector of Xen's upcalls. */
#ifndef INTERRUPTS_H
#define INTERRUPTS_H

#include <stdint.h>

#define UPCALL_VECTOR 0x40

/* The interrupted state as saved by the entry, lowest address first. Registers that C functions preserve are
 * not saved. */
struct interrupt_frame {
    uint64_t r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax;
    uint64_t rbp;
    uint64_t number; /* of an exception */
    uint64_t error; /* the processor's error code of an exception */
    uint64_t rip, cs, rflags, rsp, ss;
};

/* Loads the table. Interrupts stay off. */
void interrupts_start(void);

/* The same with another table. */
void interrupts_start_in_another(void);

/* Sets the gates of exceptions. */
void interrupts_handle_exceptions(void);

/* Writes the gate of a vector up to that of upcalls. */
void interrupts_set_gate(unsigned vector, const void *entry);

/* Passes breakpoints to the profiler; otherwise they end the guest, as other exceptions do. */
void interrupts_handle_breakpoints(void);

#endif
