/* Save and restore. */
#ifndef SUSPEND_H
#define SUSPEND_H

/* A thread that looks once in half a second whether the host asks for a suspend. */
void suspender(void);

#endif
