/* What a guest may do with the interrupt table, the local APIC's timer and its memory, which the drop-in uses. */
#ifndef MEDDLE_H
#define MEDDLE_H

/* Begins to use the timer, for `meddle=early`. Interrupts are off. */
void meddle_early(void);

/* A thread that, five seconds after the start, uses the timer itself (`meddle=timer`), loads a table of its own
 * (`meddle=table`), writes the gate of its events anew (`meddle=gate`), unmaps memory and works with a frame pointer into
 * it (`meddle=memory`), or registers its area of run states anew (`meddle=runstate`). */
void meddler(void);

#endif
