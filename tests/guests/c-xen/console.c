#include "console.h"

#include "clock.h"
#include "events.h"
#include "hypercall.h"

/* Five seconds. */
#define LOOK_NS 50000000
#define LOOKS 100

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

static struct xen_console_ring *console(void)
{
    return (struct xen_console_ring *)(hvm_parameter(HVM_PARAM_CONSOLE_PFN) * PAGE_SIZE);
}

/* Waits until the ring has room for so many bytes. */
static bool console_wait(struct xen_console_ring *ring, uint32_t room)
{
    uint32_t port = (uint32_t)hvm_parameter(HVM_PARAM_CONSOLE_EVTCHN);
    for (unsigned look = 0; look < LOOKS; look++) {
        uint32_t used = ring->output_producer - ring->output_consumer;
        if (used + room <= sizeof ring->output) {
            return true;
        }
        events_send(port);
        events_wait_for(port, clock_now_ns() + LOOK_NS);
    }
    return false;
}

bool console_write(const char *text)
{
    struct xen_console_ring *ring = console();
    for (; *text != 0; text++) {
        uint32_t producer = ring->output_producer;
        if (producer - ring->output_consumer >= sizeof ring->output && !console_wait(ring, 1)) {
            return false;
        }
        ring->output[producer % sizeof ring->output] = *text;
        __atomic_store_n(&ring->output_producer, producer + 1, __ATOMIC_SEQ_CST);
    }
    return true;
}

void console_flush(void)
{
    struct xen_console_ring *ring = console();
    console_wait(ring, sizeof ring->output);
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
