/* Messages on the debug console, Xen's console, and the guest's end. */
#ifndef CONSOLE_H
#define CONSOLE_H

#include <stdbool.h>
#include <stdint.h>

/* Writes to port 0xE9, which Xen prints line by line. */
void say(const char *text);

/* The same for a number in hexadecimal. */
void say_hex(uint64_t number);

/* Writes to Xen's console, whose ring of 2 KiB another domain reads when it has time. Waits for room, up to five
 * seconds; false if nothing was read for as long: the rest is dropped. Events may be masked. */
bool console_write(const char *text);

/* Waits until all of it was read, at most for as long: whoever ends the guest discards what is in the ring. */
void console_flush(void);

/* Prints the reason, and ends the guest as crashed. */
__attribute__((noreturn)) void panic(const char *why);

/* Ends the guest if Xen has returned an error. */
void check(long result, const char *what);

#endif
