/* Prints how much stack the calls take, and checks that upcalls work on a stack that is aligned to 8 bytes only
 * and change no SSE state. */
#define _GNU_SOURCE
#include "guest.h"

#include <ucontext.h>

static unsigned char painted[128 << 10] __attribute__((aligned(4096)));
static struct unikprof_registers registers;
static int32_t client;
static ucontext_t back, there;

static void do_init(void)
{
    CHECK_CODE(start(), UNIKPROF_OK);
}

static void do_conversation(void)
{
    char answer[512];
    CHECK(unikprof_connection_input(client, client_start, client_start_length) > 0);
    while (unikprof_connection_output(client, answer, sizeof answer) > 0) {
    }
    unikprof_poll(time_ns);
}

static void do_poll(void)
{
    unikprof_poll(time_ns);
}

static void do_tick(void)
{
    time_ns = unikprof_deadline();
    CHECK(unikprof_on_tick(&registers) > time_ns);
}

static void do_mark(void)
{
    unikprof_mark(unikprof_event_name("mark"), 1);
}

static void drop_piece(void *context, const void *bytes, size_t length)
{
    CHECK(context == NULL && bytes != NULL && length != 0);
}

static void do_crash_dump(void)
{
    unikprof_crash_dump(drop_piece, NULL);
}

static size_t stack_of(void (*call)(void))
{
    size_t untouched = 0;
    memset(painted, 0xa5, sizeof painted);
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = painted;
    there.uc_stack.ss_size = sizeof painted;
    there.uc_link = &back;
    makecontext(&there, call, 0);
    CHECK(swapcontext(&back, &there) == 0);
    while (painted[untouched] == 0xa5) {
        untouched++;
    }
    return sizeof painted - untouched;
}

/* Calls a function with the stack misaligned by 8 bytes; returns whether xmm0 to xmm15 and the control
 * words are unchanged. The guest's own functions do not use them, since this file is compiled without SSE;
 * therefore the clobber list omits them. */
static int is_called_misaligned(uint64_t function, uint64_t first, uint64_t second)
{
    static unsigned char before[512] __attribute__((aligned(16)));
    static unsigned char after[512] __attribute__((aligned(16)));
    static unsigned char pattern[16] = "0123456789abcdef";
    __asm__ volatile("movups %[pattern], %%xmm0\n\t"
                     "movaps %%xmm0, %%xmm7\n\t"
                     "movaps %%xmm0, %%xmm15\n\t"
                     "mov %%rsp, %%r12\n\t"
                     "and $-16, %%rsp\n\t"
                     "sub $8, %%rsp\n\t"
                     "fxsave %[before]\n\t"
                     "call *%[function]\n\t"
                     "fxsave %[after]\n\t"
                     "mov %%r12, %%rsp\n\t"
                     : [before] "+m"(before), [after] "+m"(after), "+D"(first), "+S"(second)
                     : [pattern] "m"(pattern), [function] "b"(function)
                     : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "memory", "cc");
    return memcmp(before, after, 416) == 0;
}

int main(void)
{
    static unsigned char ring[32 << 10];
    size_t bytes[6];
    int32_t name;
    /* If the archive has a flight recorder. */
    if (unikprof_ring_bytes(1, 0) != 0) {
        config.ring = ring;
        config.ring_length = sizeof ring;
    }
    registers = guest_interrupted();
    bytes[0] = stack_of(do_init);
    client = unikprof_connection_open();
    bytes[1] = stack_of(do_conversation);
    bytes[2] = stack_of(do_poll);
    bytes[3] = stack_of(do_tick);
    bytes[4] = stack_of(do_mark);
    bytes[5] = stack_of(do_crash_dump);
    time_ns = unikprof_deadline();
    CHECK(is_called_misaligned((uint64_t)unikprof_on_tick, (uint64_t)&registers, 0));
    CHECK(is_called_misaligned((uint64_t)unikprof_event_name, (uint64_t)"name", 0));
    name = unikprof_event_name("name");
    CHECK(is_called_misaligned((uint64_t)unikprof_mark, (uint64_t)name, 5));
    CHECK(is_called_misaligned((uint64_t)unikprof_counter, (uint64_t)name, 5));
    CHECK(is_called_misaligned((uint64_t)unikprof_span_begin, (uint64_t)name, 0));
    CHECK(is_called_misaligned((uint64_t)unikprof_span_end, (uint64_t)name, 5));
    CHECK(is_called_misaligned((uint64_t)unikprof_crash_dump, (uint64_t)drop_piece, 0));
    CHECK(bounds_asked == 2);
    printf("stack: init %zu, a request %zu, poll %zu, tick %zu, event %zu, crash dump %zu bytes, the guest's "
           "functions included\n",
           bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]);
    CHECK(bytes[0] <= 40 << 10 && bytes[1] <= 16 << 10 && bytes[2] <= 16 << 10 && bytes[3] <= 2 << 10);
    CHECK(bytes[4] <= 2 << 10 && bytes[5] <= 6 << 10);
    return stop();
}
