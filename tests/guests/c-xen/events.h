/* Event channels: Xen's interrupts. */
#ifndef EVENTS_H
#define EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "interrupts.h"
#include "xen.h"

extern struct xen_shared_info shared_info;

/* What a port's event calls, with events masked. `frame` is what was interrupted, NULL where events were handled
 * at unmasking: nothing was interrupted then. */
typedef void (*event_handler)(const struct interrupt_frame *frame);

/* Maps the shared information and has Xen deliver upcalls. Events stay masked. */
void events_start(void);

/* Calls `handler` for each event of the port. */
void events_handle(uint32_t port, event_handler handler);

/* The port's events, from here on. */
uint32_t events_bind_virq(uint32_t virq);
uint32_t events_alloc_unbound(uint16_t remote_domain);
void events_send(uint32_t port);

/* Without a handler: waits until the port has an event, or until the time has come (system time). Events may be
 * masked, and stay so. */
void events_wait_for(uint32_t port, uint64_t until_ns);

/* Holds all events back; answers whether they were let through before, for events_restore. */
bool events_mask(void);

/* Lets events through. Those that have come meanwhile are handled here and now, with no frame. */
void events_unmask(void);

void events_restore(bool were_unmasked);

#endif
