/* Prints how much stack the calls take, and checks that upcalls work on a stack that is aligned to 8 bytes only,
 * change no vector or floating-point state and call no memory function. */
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
    CHECK(unikprof_on_tick(&registers) >= time_ns);
}

static void do_mark(void)
{
    unikprof_mark(unikprof_event_name("mark"), 1);
}

static void drop_piece(void *context, const void *bytes, size_t length)
{
    CHECK(context == NULL && bytes != NULL && length != 0);
    CHECK_STACK();
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

/* --- The guest's memory functions, in place of the C library's (`--wrap`). Like those of a kernel that
 * saves no vector registers in upcalls, they use none, so what the calls change does not depend on the
 * `memcpy` that the C library chooses for the processor. --- */

static int memory_calls;

void *__real_memcpy(void *to, const void *from, size_t length);
/* The archive's own. */
void *__real_memmove(void *to, const void *from, size_t length);

void *__wrap_memmove(void *to, const void *from, size_t length)
{
    CHECK_STACK();
    memory_calls++;
    return __real_memmove(to, from, length);
}

void *__wrap_memcpy(void *to, const void *from, size_t length)
{
    return __wrap_memmove(to, from, length);
}

void *__wrap_memset(void *to, int value, size_t length)
{
    void *at = to;
    CHECK_STACK();
    memory_calls++;
    __asm__ volatile("rep stosb" : "+D"(at), "+c"(length) : "a"(value) : "memory");
    return to;
}

int __wrap_memcmp(const void *left, const void *right, size_t length)
{
    const unsigned char *a = left, *b = right;
    CHECK_STACK();
    memory_calls++;
    for (; length != 0 && *a == *b; length--) {
        a++;
        b++;
    }
    return length == 0 ? 0 : *a - *b;
}

/* --- The state beside the general registers. Nothing else here uses it, since this file is compiled for
 * general registers only. --- */

/* Components of the state, as bits of XCR0. */
enum { X87, SSE, AVX, OPMASK = 5, ZMM_HIGH, ZMM_16_TO_31, COMPONENTS };

/* As `xsave` writes it; the first 512 bytes as `fxsave` does. */
struct state {
    unsigned char bytes[4096];
} __attribute__((aligned(64)));

struct part {
    uint32_t start, length;
};

/* The components that the processor has and the kernel has enabled; 0 if there is no `xsave`. */
static uint32_t enabled;
static struct part parts[COMPONENTS] = {
    [X87] = { 32, 128 },
    [SSE] = { 160, 256 },
};

static void find_components(void)
{
    uint32_t a = 1, b, c = 0, d;
    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if ((c & 1u << 27) == 0) {
        return;
    }
    __asm__("xgetbv" : "=a"(enabled), "=d"(d) : "c"(0));
    enabled &= 1 << X87 | 1 << SSE | 1 << AVX | 1 << OPMASK | 1 << ZMM_HIGH | 1 << ZMM_16_TO_31;
    for (uint32_t component = AVX; component < COMPONENTS; component++) {
        if ((enabled & 1u << component) != 0) {
            a = 13;
            c = component;
            __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
            CHECK(b + a <= sizeof(struct state));
            parts[component] = (struct part){ .start = b, .length = a };
        }
    }
}

static void save(struct state *state)
{
    if (enabled != 0) {
        __asm__ volatile("xsave %0" : "+m"(*state) : "a"(enabled), "d"(0));
    } else {
        __asm__ volatile("fxsave %0" : "+m"(*state));
    }
}

static void restore(const struct state *state)
{
    if (enabled != 0) {
        __asm__ volatile("xrstor %0" : : "m"(*state), "a"(enabled), "d"(0));
    } else {
        __asm__ volatile("fxrstor %0" : : "m"(*state));
    }
}

/* Calls a function with the stack misaligned by 8 bytes and a pattern in all registers except the general
 * ones; returns the components that it has changed. */
static uint32_t changed_by(uint64_t function, uint64_t first, uint64_t second, uint64_t third)
{
    static struct state own, pattern, before, after;
    uint32_t changed = 0;
    save(&own);
    pattern = own;
    /* What of the state is in use; `xrstor` initializes all else. */
    memset(pattern.bytes + 512, 0, 64);
    memcpy(pattern.bytes + 512, &enabled, sizeof enabled);
    for (int component = 0; component < COMPONENTS; component++) {
        memset(pattern.bytes + parts[component].start, 0x5a, parts[component].length);
    }
    /* No x87 register is empty. */
    pattern.bytes[4] = 0xff;
    restore(&pattern);
    save(&before);
    memory_calls = 0;
    __asm__ volatile("mov %%rsp, %%r12\n\t"
                     "and $-16, %%rsp\n\t"
                     "sub $8, %%rsp\n\t"
                     "call *%[function]\n\t"
                     "mov %%r12, %%rsp\n\t"
                     : "+D"(first), "+S"(second), "+d"(third)
                     : [function] "b"(function)
                     : "rax", "rcx", "r8", "r9", "r10", "r11", "r12", "memory", "cc");
    save(&after);
    restore(&own);
    for (uint32_t component = 0; component < COMPONENTS; component++) {
        for (uint32_t at = 0; at < parts[component].length; at++) {
            uint32_t byte = parts[component].start + at;
            changed |= (uint32_t)(before.bytes[byte] != after.bytes[byte]) << component;
        }
    }
    /* The control words. */
    for (int byte = 0; byte < 32; byte++) {
        changed |= (uint32_t)(before.bytes[byte] != after.bytes[byte]) << (byte < 24 ? X87 : SSE);
    }
    return changed;
}

/* Functions that change one component each, or one more. */
__asm__(".text\n"
        "change_x87: fninit\n ret\n"
        "change_sse: pxor %xmm15, %xmm15\n ret\n"
        "change_avx: vzeroupper\n ret\n"
        "change_opmask: kxorw %k7, %k7, %k7\n ret\n"
        "change_zmm: vpxorq %zmm0, %zmm0, %zmm0\n ret\n"
        "change_zmm_31: vpxorq %zmm31, %zmm31, %zmm31\n ret\n");
void change_x87(void), change_sse(void), change_avx(void);
void change_opmask(void), change_zmm(void), change_zmm_31(void);

/* A change that the check does not see would be one on some processors only. */
static void check_that_changes_are_seen(void)
{
    static void (*const changes[COMPONENTS])(void) = {
        [X87] = change_x87,       [SSE] = change_sse,      [AVX] = change_avx,
        [OPMASK] = change_opmask, [ZMM_HIGH] = change_zmm, [ZMM_16_TO_31] = change_zmm_31,
    };
    for (uint32_t component = 0; component < COMPONENTS; component++) {
        if (parts[component].length != 0) {
            uint32_t changed = changed_by((uint64_t)changes[component], 0, 0, 0);
            CHECK((changed & 1u << component) != 0);
        }
    }
}

/* Whether an upcall that has saved no vector registers may make this call. */
static int is_for_upcalls(uint64_t function, uint64_t first, uint64_t second)
{
    return changed_by(function, first, second, 0) == 0 && memory_calls == 0;
}

int main(void)
{
    static unsigned char ring[32 << 10], copied[2][64];
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
    find_components();
    check_that_changes_are_seen();
    /* The C library's. */
    printf("memcpy changes %x\n",
           changed_by((uint64_t)__real_memcpy, (uint64_t)copied[0], (uint64_t)copied[1], sizeof copied[0]));
    time_ns = unikprof_deadline();
    CHECK(is_for_upcalls((uint64_t)unikprof_on_tick, (uint64_t)&registers, 0));
    CHECK(is_for_upcalls((uint64_t)unikprof_event_name, (uint64_t)"name", 0));
    name = unikprof_event_name("name");
    CHECK(is_for_upcalls((uint64_t)unikprof_mark, (uint64_t)name, 5));
    CHECK(is_for_upcalls((uint64_t)unikprof_counter, (uint64_t)name, 5));
    CHECK(is_for_upcalls((uint64_t)unikprof_span_begin, (uint64_t)name, 0));
    CHECK(is_for_upcalls((uint64_t)unikprof_span_end, (uint64_t)name, 5));
    CHECK(is_for_upcalls((uint64_t)unikprof_async_span_begin, (uint64_t)name, 0));
    CHECK(is_for_upcalls((uint64_t)unikprof_span_trace, 0, 0));
    CHECK(is_for_upcalls((uint64_t)unikprof_span_enter, 0, 0));
    CHECK(is_for_upcalls((uint64_t)unikprof_span_leave, 0, 0));
    /* It may call the memory functions, and uses no such registers itself. */
    CHECK(changed_by((uint64_t)unikprof_crash_dump, (uint64_t)drop_piece, 0, 0) == 0);
    CHECK(bounds_asked == 2);
    printf("stack: init %zu, a request %zu, poll %zu, tick %zu, event %zu, crash dump %zu bytes, the guest's "
           "functions included\n",
           bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]);
    CHECK(bytes[0] <= 40 << 10 && bytes[1] <= 16 << 10 && bytes[2] <= 16 << 10 && bytes[3] <= 2 << 10);
    CHECK(bytes[4] <= 2 << 10 && bytes[5] <= 6 << 10);
    return passed();
}
