/* The host's book of names and values, over a ring that the tools have made. For the boot: a call waits for its
 * answer, and no other code runs meanwhile. */
#ifndef XENSTORE_H
#define XENSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void xenstore_start(void);

/* Reads `folder/name` as a text; false where it is not there or does not fit. A path without a leading slash
 * begins at the guest's own folder. `folder` may be NULL. */
bool xenstore_read(const char *folder, const char *name, char *text, size_t room);

/* The same as a decimal number; 0 where it is not there, or is none. */
uint32_t xenstore_read_number(const char *folder, const char *name);

/* Writes a decimal number; ends the guest where that is refused. */
void xenstore_write_number(const char *folder, const char *name, uint32_t number);

#endif
