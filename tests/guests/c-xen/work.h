/* What the kernel works on: two threads with known shares. */
#ifndef WORK_H
#define WORK_H

/* Grinds when it is told to. */
void miller(void);

/* Bakes, of what the miller has ground, and sleeps now and then. */
void baker(void);

#endif
