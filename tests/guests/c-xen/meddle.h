/* What a guest may do with the interrupt table, the local APIC's timer and its memory, which the drop-in uses. */
#ifndef MEDDLE_H
#define MEDDLE_H

#include <stdbool.h>

/* Begins to use the timer, for `meddle=early`. Interrupts are off. */
void meddle_early(void);

/* Maps the pages of Xen's tools and of the local APIC, or unmaps them: they are not while the drop-in starts, for
 * `meddle=tools`, as in guests that map their memory only. */
void meddle_map_tools(bool is_mapped);

/* A thread that, five seconds after the start, uses the timer itself (`meddle=timer`), loads a table of its own
 * (`meddle=table`), writes the gate of its events anew (`meddle=gate`), unmaps memory and works with a frame pointer into
 * it (`meddle=memory`), writes the gates of exceptions anew before that (`meddle=exceptions`), or registers its area of run states anew (`meddle=runstate`). */
void meddler(void);

#endif
