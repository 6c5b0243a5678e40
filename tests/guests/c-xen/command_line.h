/* The words of the kernel's command line: key=value. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "xen.h"

/* Stores the command line from Xen. */
void command_line_start(const struct xen_start_info *info);

/* Whether the word `key=value` is there. */
bool command_line_is(const char *key, const char *value);

/* Whether a word begins with `key=`. */
bool command_line_has(const char *key);

/* An IPv4 address as `key=10.0.2.50` or `key=10.0.2.50/24`; the prefix is 32 if it is missing. False if the key
 * is missing or no address follows. */
bool command_line_address(const char *key, uint8_t address[4], uint32_t *prefix);

#endif
