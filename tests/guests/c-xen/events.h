/* Event channels: Xen's interrupts. */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "interrupts.h"
#include "xen.h"

extern struct xen_shared_info shared_info;

/* The handler of a port's events, called with events masked. `frame` is the interrupted state, or NULL if the
 * event was handled at unmasking, which interrupts nothing. */
typedef void (*event_handler)(const struct interrupt_frame *frame);

/* Maps the shared information page and makes Xen deliver upcalls. Events stay masked. */
void events_start(void);

/* Calls `handler` for each event of the port. */
void events_handle(uint32_t port, event_handler handler);

/* Unmasks the port's events. */
uint32_t events_bind_virq(uint32_t virq);
uint32_t events_alloc_unbound(uint16_t remote_domain);
void events_send(uint32_t port);

/* For a port without a handler: waits until the port has an event, or until the given system time. Events may
 * be masked, and stay masked. */
void events_wait_for(uint32_t port, uint64_t until_ns);

/* Waits for an event by SCHEDOP_block, with events masked before and after. */
void events_block(void);

/* Masks all events; returns whether they were unmasked before, for events_restore. */
bool events_mask(void);

/* Calls the handlers of pending events, if upcalls do not. With events masked. */
void events_look(void);

/* Unmasks events. Those that have arrived meanwhile are handled here, without a frame. */
void events_unmask(void);

void events_restore(bool were_unmasked);

#endif
