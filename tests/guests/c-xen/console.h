/* Messages on the debug console, and the guest's end. */
#ifndef CONSOLE_H
#define CONSOLE_H

#include <stdint.h>

/* Writes to port 0xE9, which Xen prints line by line. */
void say(const char *text);

/* The same for a number in hexadecimal. */
void say_hex(uint64_t number);

/* Prints the reason, and ends the guest as crashed. */
__attribute__((noreturn)) void panic(const char *why);

/* Ends the guest if Xen has returned an error. */
void check(long result, const char *what);

#endif
