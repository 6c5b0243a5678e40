/* Words to whoever watches the guest, and its end. */
#ifndef CONSOLE_H
#define CONSOLE_H

#include <stdint.h>

/* Writes to port 0xE9, which Xen prints line by line. */
void say(const char *text);

/* The same for a number in hexadecimal. */
void say_hex(uint64_t number);

/* Says why, and ends the guest as crashed. */
__attribute__((noreturn)) void panic(const char *why);

/* Ends the guest where Xen has answered an error. */
void check(long result, const char *what);

#endif
