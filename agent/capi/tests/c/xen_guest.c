/* The functions of unikprof_xen.h. */
#include <unikprof_xen.h>

#include "check.h"

#define STACK_BYTES 4096
#ifdef __aarch64__
#define TICK(pc, sp, fp) unikprof_xen_tick(pc, sp, fp, 0)
#else
#define TICK unikprof_xen_tick
#endif

static uint64_t clock_value;
/* The guest is scheduled away while it reads, this many times. */
static int interruptions;
static struct unikprof_xen guest;

static uint64_t clock_ns(void)
{
    if (interruptions > 0) {
        interruptions--;
        guest.runstate.time[RUNSTATE_running] += 10;
        guest.runstate.time[RUNSTATE_runnable] += 1000;
        guest.runstate.state_entry_time = clock_value += 1000;
    }
    return clock_value;
}

static void times(const struct unikprof_ops *ops)
{
    struct unikprof_runstate times = { 0 };

    clock_value = 5000;
    guest.runstate.state_entry_time = 4000;
    guest.runstate.time[RUNSTATE_running] = 100;
    guest.runstate.time[RUNSTATE_runnable] = 20;
    guest.runstate.time[RUNSTATE_blocked] = 3;
    guest.runstate.time[RUNSTATE_offline] = 7;
    CHECK(ops->now_ns(ops->context) == 5000);
    CHECK(ops->running_ns(ops->context, 0) == 1100);
    CHECK(ops->blocked_ns(ops->context, 0) == 3);
    CHECK(ops->runstate(ops->context, 0, &times));
    CHECK(times.running_ns == 1100 && times.runnable_ns == 20);
    CHECK(times.blocked_ns == 3 && times.offline_ns == 7);

    /* A mix of old and new times would add time that never passed. */
    interruptions = 2;
    CHECK(ops->runstate(ops->context, 0, &times));
    CHECK(times.running_ns == 120 && times.runnable_ns == 2020);

    /* The clock may read slightly earlier than the last change. */
    clock_value = guest.runstate.state_entry_time - 1;
    CHECK(ops->running_ns(ops->context, 0) == 120);
}

static void bounds(const struct unikprof_ops *ops)
{
    struct unikprof_range range = { 0 };

    CHECK(ops->stack_bounds(ops->context, 0x7ff8, &range) == 1);
    CHECK(range.start == 0x7000 && range.end == 0x8000);
    CHECK(ops->stack_bounds(ops->context, 0x8000, &range) == 1);
    CHECK(range.start == 0x8000 && range.end == 0x9000);
    guest.stack_bytes = 0;
    CHECK(ops->stack_bounds(ops->context, 0x8000, &range) == 0);
    guest.stack_bytes = STACK_BYTES;

    CHECK(ops->code_bounds(ops->context, (uint64_t)guest.code_start, &range) == 1);
    CHECK(range.start == (uint64_t)guest.code_start && range.end == (uint64_t)guest.code_end);
    CHECK(ops->code_bounds(ops->context, (uint64_t)guest.code_end, &range) == 0);
}

/* Searches the first `length` bytes of these notes. */
static int finds(const uint32_t *words, size_t length, const void *id, size_t id_length)
{
    const char *notes = (const char *)words;
    struct unikprof_mapping mapping = unikprof_xen_mapping(&guest, 0x1000, notes, notes + length);
    CHECK(mapping.start == (uint64_t)guest.code_start && mapping.end == (uint64_t)guest.code_end);
    CHECK(mapping.file_offset == 0x1000);
    return mapping.build_id == id && mapping.build_id_length == id_length;
}

static void notes(void)
{
    /* Xen's with an odd description, then the build-id. */
    uint32_t words[] = { 4, 5, 18, 0x6e6558, 1, 2, 4, 8, 3, 0x554e47, 0xa, 0xb, 0xc };
    const size_t all = 12 * sizeof *words;

    CHECK(finds(words, all, &words[10], 8));
    CHECK(finds(words, sizeof words, &words[10], 8));
    CHECK(finds(NULL, 0, NULL, 0));
    /* Truncated anywhere, nothing after the end is read as part of a note. */
    for (size_t length = 0; length < all; length++) {
        CHECK(finds(words, length, NULL, 0));
    }
    words[7] = UINT32_MAX;
    CHECK(finds(words, sizeof words, NULL, 0));
    words[7] = 8;
    words[0] = UINT32_MAX;
    CHECK(finds(words, sizeof words, NULL, 0));
    words[0] = 4;
    words[8] = 1;
    CHECK(finds(words, sizeof words, NULL, 0));
}

int main(void)
{
    static const char code[64];
    struct unikprof_ops ops = unikprof_xen_ops(&guest);
    struct unikprof_mapping mapping;
    struct unikprof_config config = {
        .version = UNIKPROF_ABI_VERSION, .vcpus = 1, .access = UNIKPROF_ACCESS_OPEN, .mapping_count = 1,
    };
    static char memory[1 << 20];

    guest.clock_ns = clock_ns;
    guest.stack_bytes = STACK_BYTES;
    guest.code_start = code;
    guest.code_end = code + sizeof code;
    times(&ops);
    bounds(&ops);
    notes();

    CHECK(unikprof_xen_deadline(17) == 17 && unikprof_xen_deadline(UNIKPROF_NO_DEADLINE) == 0);
    CHECK(TICK(1, 2, 3) == UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_E_NOT_STARTED);
    mapping = unikprof_xen_mapping(&guest, 0, NULL, NULL);
    config.mappings = &mapping;
    CHECK_CODE(unikprof_init(&config, &ops, memory, sizeof memory), UNIKPROF_OK);
    CHECK(TICK((uint64_t)code, (uint64_t)&ops, 0) == UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_OK);
    printf("all as it should be\n");
    return 0;
}
