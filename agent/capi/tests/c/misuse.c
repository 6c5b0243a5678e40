/* Every misuse by a guest returns an error code with a text, and does no harm. */
#include <pthread.h>

#include "guest.h"

static void before_the_start(void)
{
    struct unikprof_registers registers = guest_interrupted();
    char buffer[128];
    CHECK(unikprof_on_tick(&registers) == UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_OK);
    CHECK(unikprof_on_tick(NULL) == UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_on_block(NULL), UNIKPROF_E_NOT_STARTED);
    CHECK(unikprof_on_wake() == UNIKPROF_NO_DEADLINE);
    CHECK(unikprof_deadline() == UNIKPROF_NO_DEADLINE);
    CHECK(unikprof_resume() == UNIKPROF_NO_DEADLINE);
    CHECK(unikprof_poll(5) == UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_connection_open(), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_connection_input(0, "x", 1), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_connection_output(0, buffer, 1), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_connection_close(0), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_frame_rx("x", 1), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_frame_tx(buffer, sizeof buffer), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_install_caller_table("x", 1), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_mark(0, 1), UNIKPROF_E_NOT_STARTED);
    CHECK(unikprof_busy_answer(buffer, sizeof buffer) > 8);
    CHECK_CODE(unikprof_busy_answer(NULL, 5), UNIKPROF_E_NULL);
}

/* One wrong value each, the others valid; a start with valid values succeeds afterwards. */
static void a_start_that_cannot_be(void)
{
    const struct unikprof_config good = config;
    const struct unikprof_ops good_ops = ops;
    const struct unikprof_mapping good_mapping = mapping;
    static char long_name[300];
    size_t least = unikprof_memory_bytes(&config);

#define REFUSED(change, code)                                                  \
    do {                                                                       \
        change;                                                                \
        CHECK_CODE(start(), code);                                             \
        config = good;                                                         \
        ops = good_ops;                                                        \
        mapping = good_mapping;                                                \
    } while (0)

    CHECK_CODE(unikprof_init(NULL, &ops, memory, sizeof memory), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_init(&config, NULL, memory, sizeof memory), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_init(&config, &ops, NULL, sizeof memory), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_init(&config, &ops, memory, 0), UNIKPROF_E_MEMORY);
    CHECK_CODE(unikprof_init(&config, &ops, memory, SIZE_MAX), UNIKPROF_E_MEMORY);
    CHECK(least > 1000 && least < sizeof memory);
    CHECK_CODE(unikprof_init(&config, &ops, memory, least - 1), UNIKPROF_E_MEMORY);
    CHECK(unikprof_memory_bytes(NULL) == 0);

    REFUSED(config.version = 0, UNIKPROF_E_VERSION);
    REFUSED(config.version++, UNIKPROF_E_VERSION);
    REFUSED(config.version = UINT32_MAX, UNIKPROF_E_VERSION);
    REFUSED(config.access = 0, UNIKPROF_E_ACCESS);
    REFUSED(config.access = 3, UNIKPROF_E_ACCESS);
    REFUSED(config.access = UNIKPROF_ACCESS_KEYS, UNIKPROF_E_UNSUPPORTED);
    REFUSED(config.flags = 2, UNIKPROF_E_FLAGS);
    REFUSED(config.vcpus = 0, UNIKPROF_E_VCPUS);
    REFUSED(config.vcpus = UINT32_MAX, UNIKPROF_E_VCPUS);
    REFUSED(config.vcpus = 2, UNIKPROF_E_VCPUS); /* without kick */
    REFUSED(config.recordings = 5, UNIKPROF_E_RECORDINGS);
    REFUSED((config.ring = memory, config.ring_length = sizeof memory), UNIKPROF_E_UNSUPPORTED);
    REFUSED((config.live_memory = memory, config.live_memory_length = sizeof memory), UNIKPROF_E_UNSUPPORTED);
    REFUSED(config.mappings = NULL, UNIKPROF_E_NULL);
    REFUSED(config.mapping_count = 0, UNIKPROF_E_MAPPINGS);
    REFUSED(config.mapping_count = 65, UNIKPROF_E_MAPPINGS);
    REFUSED(mapping.end = mapping.start, UNIKPROF_E_MAPPINGS);
    REFUSED((mapping.build_id = memory, mapping.build_id_length = 65), UNIKPROF_E_MAPPINGS);
    REFUSED(config.guest_name = "\xff", UNIKPROF_E_TEXT);
    REFUSED((memset(long_name, 'x', 299), config.guest_name = long_name), UNIKPROF_E_TEXT);
    REFUSED(ops.now_ns = NULL, UNIKPROF_E_OPS);
    REFUSED(ops.vcpu = NULL, UNIKPROF_E_OPS);
    REFUSED(ops.running_ns = NULL, UNIKPROF_E_OPS);
    REFUSED(ops.stack_bounds = NULL, UNIKPROF_E_OPS);
#undef REFUSED
    CHECK_CODE(start(), UNIKPROF_OK);
    CHECK_CODE(start(), UNIKPROF_E_STARTED);
}

/* The minimum length is enough at every alignment, and nothing outside is written. */
static size_t offset;

static void memory_in_any_alignment(void)
{
    size_t least = unikprof_memory_bytes(&config);
    memset(memory, 0xa5, sizeof memory);
    CHECK_CODE(unikprof_init(&config, &ops, memory + offset, least), UNIKPROF_OK);
    CHECK(memory[offset - 1] == 0xa5 && memory[offset + least] == 0xa5);
}

/* A packed structure, or one in a byte buffer, is read as any other. */
static void structures_in_any_alignment(void)
{
    static unsigned char places[3][256];
    struct unikprof_config moved = config;
    CHECK(sizeof config < 256 - 3 && sizeof ops < 256 - 3 && sizeof mapping < 256 - 3);
    moved.mappings = memcpy(places[0] + offset, &mapping, sizeof mapping);
    CHECK_CODE(unikprof_init(memcpy(places[1] + offset, &moved, sizeof moved),
                             memcpy(places[2] + offset, &ops, sizeof ops), memory, sizeof memory),
               UNIKPROF_OK);
}

static void connections_that_are_none(void)
{
    int32_t open[UNIKPROF_SESSIONS], again;
    char buffer[64];
    CHECK_CODE(start(), UNIKPROF_OK);
    CHECK_CODE(unikprof_connection_close(-1), UNIKPROF_E_CONNECTION);
    CHECK_CODE(unikprof_connection_input(0, "x", 1), UNIKPROF_E_CONNECTION);
    CHECK_CODE(unikprof_connection_output(INT32_MAX, buffer, 1), UNIKPROF_E_CONNECTION);
    for (unsigned index = 0; index < UNIKPROF_SESSIONS; index++) {
        open[index] = unikprof_connection_open();
        CHECK(open[index] >= 0);
    }
    CHECK_CODE(unikprof_connection_open(), UNIKPROF_E_SESSIONS);
    CHECK_CODE(unikprof_connection_input(open[0], NULL, 5), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_connection_input(open[0], NULL, 0), 0);
    CHECK_CODE(unikprof_connection_output(open[0], NULL, 5), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_connection_close(open[1]), UNIKPROF_OK);
    CHECK_CODE(unikprof_connection_close(open[1]), UNIKPROF_E_CONNECTION);
    /* The old id is not valid for the new client. */
    again = unikprof_connection_open();
    CHECK(again >= 0 && again != open[1]);
    CHECK_CODE(unikprof_connection_input(open[1], "x", 1), UNIKPROF_E_CONNECTION);
    /* A peer that does not speak the protocol is disconnected. */
    CHECK(unikprof_connection_input(again, "GET / HTTP/1.0\r\n\r\n", 18) == 18);
    while (unikprof_connection_output(again, buffer, sizeof buffer) > 0) {
    }
    CHECK_CODE(unikprof_connection_output(again, buffer, sizeof buffer), UNIKPROF_E_OVER);
    CHECK_CODE(unikprof_frame_rx("x", 1), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_install_caller_table("x", 1), UNIKPROF_E_TOO_LATE);
}

static void never_called(void *context, const void *bytes, size_t length)
{
    CHECK(context == NULL && bytes == NULL && length == 0);
}

static void never_called_for_a_line(void *context, const char *line)
{
    CHECK(context == NULL && line == NULL);
}

/* Calls of features that the archive was built without return an error. */
static void events_without_a_flight_recorder(void)
{
    char buffer[64];
    CHECK(unikprof_ring_bytes(1, 1000) == 0);
    CHECK_CODE(start(), UNIKPROF_OK);
    CHECK_CODE(unikprof_event_name("request"), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_event_name(NULL), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_mark(0, 1), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_counter(0, 1), UNIKPROF_E_UNSUPPORTED);
    CHECK(unikprof_span_begin(0) == 0);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_span_end(0, 0), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_crash_dump(never_called, NULL), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_crash_dump_into(buffer, sizeof buffer), UNIKPROF_E_UNSUPPORTED);
    CHECK_CODE(unikprof_crash_lines(buffer, sizeof buffer, never_called_for_a_line, NULL), UNIKPROF_E_UNSUPPORTED);
}

static int nested;

static void call_everything(void)
{
    char buffer[8];
    CHECK(unikprof_poll(1000) == 1000 + 1000000);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_E_BUSY);
    CHECK_CODE(start(), UNIKPROF_E_BUSY);
    CHECK_CODE(unikprof_connection_open(), UNIKPROF_E_BUSY);
    CHECK_CODE(unikprof_connection_output(0, buffer, sizeof buffer), UNIKPROF_E_BUSY);
    CHECK_CODE(unikprof_install_caller_table("x", 1), UNIKPROF_E_BUSY);
    CHECK_CODE(unikprof_start_at_boot(NULL), UNIKPROF_E_BUSY);
    nested++;
}

static void *on_another_thread(void *unused)
{
    call_everything();
    return unused;
}

/* Runs during the first thread's poll, until the second thread is done. */
static void call_from_another_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, on_another_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

/* An upcall may interrupt any call; all other nested calls return an error. */
static void calls_inside_of_calls(void)
{
    CHECK_CODE(start(), UNIKPROF_OK);
    on_clock = call_everything;
    unikprof_poll(time_ns);
    CHECK(nested == 1);
    on_clock = call_from_another_thread;
    unikprof_poll(time_ns);
    CHECK(nested == 2);
    CHECK(unikprof_connection_open() >= 0);
}

static void no_table(void)
{
    CHECK_CODE(start(), UNIKPROF_OK);
    CHECK_CODE(unikprof_install_caller_table(NULL, 10), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_install_caller_table("this is no table", 16), UNIKPROF_E_TABLE);
    CHECK(unikprof_connection_open() >= 0);
}

static void no_table_for_its_memory(void)
{
    static unsigned char callers[1000];
    config.caller_memory = callers + 1;
    config.caller_memory_length = sizeof callers - 1;
    no_table();
}

/* Ticks of a recording with invalid registers and stacks. */
static void a_recording(void)
{
    struct unikprof_registers registers = guest_interrupted();
    struct unikprof_registers wrong = registers;
    int32_t client;
    uint64_t deadline_ns;
    int ticks = 0;

    CHECK_CODE(start(), UNIKPROF_OK);
    client = unikprof_connection_open();
    CHECK(guest_converse(client, client_start, client_start_length) > 16);
    deadline_ns = unikprof_deadline();
    CHECK(deadline_ns > time_ns && deadline_ns < time_ns + 10000000);
    /* Early: the same deadline again. */
    CHECK(unikprof_on_tick(&registers) == deadline_ns);

    for (; ticks < 50; ticks++) {
        time_ns = deadline_ns;
        switch (ticks % 6) {
        case 0:
            deadline_ns = unikprof_on_tick(&registers);
            break;
        case 1: /* forced: no registers */
            deadline_ns = unikprof_on_tick(NULL);
            break;
        case 2: /* impossible registers */
            memset(&wrong, 0xff, sizeof wrong);
            deadline_ns = unikprof_on_tick(&wrong);
            break;
        case 3: /* a stack that does not hold the stack pointer */
            reported_bounds.end = reported_bounds.start;
            deadline_ns = unikprof_on_tick(&registers);
            registers = guest_interrupted();
            break;
        case 4: /* start and end swapped, and a frame pointer that points outside */
            reported_bounds.start = UINT64_MAX;
            wrong = registers;
            wrong.fp = 8;
            deadline_ns = unikprof_on_tick(&wrong);
            registers = guest_interrupted();
            wrong.fp = 8;
            unikprof_on_tick(&wrong);
            break;
        default: /* while it blocks there is no deadline */
            CHECK_CODE(unikprof_on_block(NULL), UNIKPROF_OK);
            CHECK(unikprof_deadline() == UNIKPROF_NO_DEADLINE);
            time_ns += 500;
            deadline_ns = unikprof_on_wake();
        }
        /* A tick that fell due before the block is due at once. */
        CHECK(deadline_ns >= time_ns && deadline_ns < time_ns + 10000000);
    }
    CHECK(bounds_asked > 10);

    CHECK(guest_converse(client, client_stop, client_stop_length) > 8);
    CHECK(unikprof_on_tick(&registers) == UNIKPROF_NO_DEADLINE);
}

int main(void)
{
    CHECK(unikprof_abi_version() == UNIKPROF_ABI_VERSION);
    for (int code = UNIKPROF_E_DUMP_ROOM; code < 0; code++) {
        CHECK(strcmp(unikprof_error_text(code), unikprof_error_text(1)) != 0);
    }
    CHECK(unikprof_error_text(UNIKPROF_E_DUMP_ROOM - 1)[0] != 0);
    before_the_start();
    apart(a_start_that_cannot_be);
    for (offset = 1; offset < 64; offset += 7) {
        apart(memory_in_any_alignment);
    }
    for (offset = 1; offset < 4; offset++) {
        apart(structures_in_any_alignment);
    }
    apart(connections_that_are_none);
    apart(events_without_a_flight_recorder);
    apart(calls_inside_of_calls);
    apart(no_table);
    apart(no_table_for_its_memory);
    apart(a_recording);
    return passed();
}
