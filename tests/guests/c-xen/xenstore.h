/* The host's key-value store, over a ring that the Xen tools have made. For use at boot: a call waits for its
 * answer, and no other code runs meanwhile. */
#ifndef XENSTORE_H
#define XENSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void xenstore_start(void);

/* Reads `folder/name` as a text; false if it does not exist or does not fit. A path without a leading slash is
 * relative to the guest's own folder. `folder` may be NULL. */
bool xenstore_read(const char *folder, const char *name, char *text, size_t room);

/* The same as a decimal number; 0 if it does not exist or is not a number. */
uint32_t xenstore_read_number(const char *folder, const char *name);

/* Writes a text; ends the guest if that is refused. */
void xenstore_write(const char *folder, const char *name, const char *text);

/* Writes a decimal number; ends the guest if that is refused. */
void xenstore_write_number(const char *folder, const char *name, uint32_t number);

#endif
