/* A guest that reports its allocations. */
#include "guest.h"

#define OBJECTS 1000

extern const unsigned char client_heap[];
extern const unsigned client_heap_length;
extern const unsigned char client_fetch[];
extern const unsigned client_fetch_length;
extern const unsigned char client_fetch_second[];
extern const unsigned client_fetch_second_length;
extern char __executable_start[], etext[];

static unsigned char live[64 << 10];
static char objects[OBJECTS][16];
/* The vCPU that the guest runs on, of VCPUS, and how often it was asked for. */
static uint32_t current;
static unsigned asked;

static uint32_t current_vcpu(void *context)
{
    CHECK(context == stack);
    asked++;
    return current;
}

static uint64_t running_ns(void *context, uint32_t vcpu)
{
    CHECK(context == stack && vcpu < VCPUS);
    return time_ns;
}

static void kick(void *context, uint32_t vcpu)
{
    CHECK(context == stack && vcpu < VCPUS);
}

/* Every odd call: nothing may happen, also without an agent. */
static void odd_calls(void)
{
    unikprof_on_alloc(NULL, 100);
    unikprof_on_alloc(NULL, 0);
    unikprof_on_alloc(objects[0], 0);
    unikprof_on_free(NULL);
    unikprof_on_free(objects[1]);
    unikprof_on_realloc(NULL, NULL, 0);
    unikprof_on_realloc(objects[2], NULL, 100);
    unikprof_on_sampled_alloc(NULL, 100, 16);
    unikprof_on_sampled_alloc((void *)1, 0, 16);
    unikprof_on_sampled_alloc((void *)1, 100, 0);
}

/* What a language's runtime has drawn: one that stays, and one that goes. */
static void drawn(void)
{
    unikprof_on_sampled_alloc((void *)1, 1 << 20, 16);
    unikprof_on_sampled_alloc((void *)3, 1 << 20, 16);
    unikprof_on_free((void *)1);
}

/* The allocator's caller. */
__attribute__((noinline)) static void site(unsigned number, size_t size)
{
    unikprof_on_alloc(objects[number], size);
    __asm__ volatile("" : : : "memory");
}

/* Called inside an upcall of the agent, which reads the clock: an allocation may come there too. */
static void allocate_inside(void)
{
    unikprof_on_alloc(objects[4], 1 << 20);
    unikprof_on_free(objects[4]);
}

/* Each vCPU allocates 8 KiB after an allocation at which the agent looks: with several, each allocation asks for the vCPU
 * once and no more, so it does not enter the agent. The next one does. */
static void chunks(void)
{
    for (current = 0; current < VCPUS; current++) {
        site(0, 64);
        asked = 0;
        for (unsigned number = 0; number < 128; number++) {
            site(0, 64);
        }
        CHECK(asked == (VCPUS == 1 ? 0 : 128));
    }
    current = 0;
}

static void answer(int32_t connection, const char *name, const unsigned char *bytes, unsigned length)
{
    static unsigned char all[16384];
    int64_t used = 0;
    CHECK_CODE(unikprof_connection_input(connection, bytes, length), (int64_t)length);
    for (int turn = 0; turn < 100; turn++) {
        int64_t given = unikprof_connection_output(connection, all + used, sizeof all - (size_t)used);
        CHECK(given >= 0);
        used += given;
        unikprof_poll(time_ns);
    }
    printf("%s; ", name);
    for (int64_t index = 0; index < used; index++) {
        printf("%02x", all[index]);
    }
    puts("");
}

int main(void)
{
    uint64_t base = (uint64_t)__executable_start;
    int32_t client;

    (void)guest_interrupted();
    odd_calls();
    unikprof_on_alloc(objects[0], 1000);
    CHECK(unikprof_arena("heap", 1, 2) == UNIKPROF_E_NOT_STARTED || unikprof_ring_bytes(1, 0) == 0);

    mapping.start = base;
    mapping.end = (uint64_t)etext;
    reported_bounds.start = (uint64_t)&client - 4096;
    reported_bounds.end = (uint64_t)__builtin_frame_address(0) + 16;
    CHECK(unikprof_live_bytes(1000) < sizeof live);
    config.vcpus = VCPUS;
    ops.vcpu = current_vcpu;
    ops.running_ns = running_ns;
    ops.kick = kick;
    config.live_memory = live;
    config.live_memory_length = unikprof_live_bytes(1) - 1;
    CHECK_CODE(start(), UNIKPROF_E_LIVE);
    odd_calls();
    site(0, 1 << 20);
    CHECK(asked == 0);
    config.live_memory_length = sizeof live;
    CHECK_CODE(start(), UNIKPROF_OK);
    odd_calls();
    chunks();

    client = unikprof_connection_open();
    answer(client, "begun", client_heap, client_heap_length);
    /* Sampled from the first on: each is larger than the interval, and much less than a chunk. */
    for (unsigned number = 0; number < OBJECTS; number++) {
        time_ns++;
        current = number / 10 % VCPUS;
        site(number, 600);
        if (number % 2 == 0) {
            unikprof_on_free(objects[number]);
        }
    }
    odd_calls();
    unikprof_on_realloc(objects[1], objects[1], 1 << 20);
    on_clock = allocate_inside;
    site(0, 1 << 20);
    CHECK(on_clock == NULL);
    unikprof_on_free(objects[0]);
    drawn();
    answer(client, "stopped", client_stop, client_stop_length);
    answer(client, "fetched", client_fetch, client_fetch_length);
    if (VCPUS > 1) {
        answer(client, "fetched", client_fetch_second, client_fetch_second_length);
    }
    printf("site; %llu\n", (unsigned long long)((uint64_t)site - base));
    for (unsigned number = 0; number < OBJECTS; number++) {
        unikprof_on_free(objects[number]);
    }
    if (unikprof_ring_bytes(1, 0) == 0) {
        CHECK_CODE(unikprof_arena("heap", 1, 2), UNIKPROF_E_UNSUPPORTED);
    }
    return passed();
}
