/* The kernel's work: two threads with known shares, and one with known allocations. */
#ifndef WORK_H
#define WORK_H

/* Grinds when the baker requests it. */
void miller(void);

/* Bakes what the miller has ground, and sleeps now and then. */
void baker(void);

/* Instead of them: sleeps, and says every ten seconds how often it was woken. */
void sleeper(void);

/* Instead of them: never ends, and never blocks. */
void stuck(void);

/* Beside them: allocates memory; see stock.c. */
void stock(void);

#endif
