#include "console.h"

#include "hypercall.h"

static void put(char byte)
{
    __asm__ volatile("outb %0, %1" : : "a"(byte), "Nd"((uint16_t)0xe9));
}

void say(const char *text)
{
    while (*text != 0) {
        put(*text++);
    }
}

void say_hex(uint64_t number)
{
    say("0x");
    for (int shift = 60; shift >= 0; shift -= 4) {
        put("0123456789abcdef"[number >> shift & 15]);
    }
}

void panic(const char *why)
{
    struct xen_shutdown crash = { SHUTDOWN_CRASH };
    say("c-xen: ");
    say(why);
    say("\n");
    hypercall_sched(SCHEDOP_SHUTDOWN, &crash);
    for (;;) {
        __asm__ volatile("cli; hlt");
    }
}

void check(long result, const char *what)
{
    if (result < 0) {
        say("c-xen: error ");
        say_hex((uint64_t)-result);
        say(" of ");
        say(what);
        say("\n");
        panic("Xen has refused");
    }
}
