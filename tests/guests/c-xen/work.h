/* The kernel's work: two threads with known shares. */
#ifndef WORK_H
#define WORK_H

/* Grinds when the baker requests it. */
void miller(void);

/* Bakes what the miller has ground, and sleeps now and then. */
void baker(void);

#endif
