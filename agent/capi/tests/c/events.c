/* A guest with a flight recorder: its events, all misuse of them, and its crash dumps, which it prints as
 * hexadecimal. */
#include "guest.h"

#define BLOCK (64 << 10)

static unsigned char ring[64 << 10];
static unsigned char block[BLOCK];
static int lines_logged;
static uint32_t reported_vcpu;
static int32_t interrupting;
static unsigned interruptions;

static void guest_log(void *context, const char *line)
{
    CHECK(context == stack && strlen(line) > 20);
    lines_logged++;
}

static uint32_t guest_or_no_vcpu(void *context)
{
    CHECK(context == stack);
    return reported_vcpu;
}

/* An upcall that interrupts the writing of an event, with events of its own and a tick. */
static void interrupt(void)
{
    struct unikprof_registers registers = guest_interrupted();
    uint64_t span = unikprof_span_begin(interrupting);
    CHECK(span != 0);
    unikprof_on_tick(&registers);
    CHECK_CODE(unikprof_mark(interrupting, 2), UNIKPROF_OK);
    CHECK_CODE(unikprof_span_end(interrupting, span), UNIKPROF_OK);
    interruptions++;
}

/* Every call for events, refused for the same reason. */
static void all_refused(int32_t code)
{
    CHECK_CODE(unikprof_event_name("request"), code);
    CHECK_CODE(unikprof_mark(0, 1), code);
    CHECK_CODE(unikprof_counter(0, -1), code);
    CHECK(unikprof_span_begin(0) == 0);
    CHECK_CODE(unikprof_take_error(), code);
    CHECK_CODE(unikprof_span_end(0, 1), code);
}

static void names_that_are_none(void)
{
    static char text[300];
    CHECK_CODE(unikprof_event_name(NULL), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_event_name(""), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_event_name("a\nb"), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_event_name("\xff"), UNIKPROF_E_EVENT_NAME);
    memset(text, 'x', sizeof text - 1);
    CHECK_CODE(unikprof_event_name(text), UNIKPROF_E_EVENT_NAME);
    text[UNIKPROF_MAX_EVENT_NAME + 1] = 0;
    CHECK_CODE(unikprof_event_name(text), UNIKPROF_E_EVENT_NAME);
    /* There are no names yet, so neither id is valid. */
    CHECK_CODE(unikprof_mark(0, 1), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_counter(255, 1), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_mark(-1, 1), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_mark(256, 1), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_mark(INT32_MIN, 1), UNIKPROF_E_EVENT_NAME);
    CHECK(unikprof_span_begin(UNIKPROF_E_NO_RING) == 0);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_E_EVENT_NAME);
    CHECK_CODE(unikprof_span_end(INT32_MAX, 5), UNIKPROF_E_EVENT_NAME);
    text[UNIKPROF_MAX_EVENT_NAME] = 0;
    CHECK_CODE(unikprof_event_name(text), 0);
}

static void names_until_there_are_no_more(void)
{
    char text[16];
    for (int number = 0; number < (int)UNIKPROF_MAX_EVENT_NAMES; number++) {
        snprintf(text, sizeof text, "event %d", number);
        CHECK_CODE(unikprof_event_name(text), number);
    }
    CHECK_CODE(unikprof_event_name("one more"), UNIKPROF_E_EVENT_NAMES);
    CHECK_CODE(unikprof_event_name("event 255"), 255);
    CHECK_CODE(unikprof_mark(255, 1), UNIKPROF_OK);
}

/* Events that c_guests.rs checks. */
static void events(void)
{
    int32_t request = unikprof_event_name("request"), depth = unikprof_event_name("queue depth");
    uint64_t span;
    interrupting = unikprof_event_name("upcall");
    CHECK(request == 0 && depth == 1 && interrupting == 2);
    CHECK_CODE(unikprof_event_name("request"), request);
    time_ns += 1000;
    span = unikprof_span_begin(request);
    CHECK(span != 0);
    time_ns += 1000;
    CHECK_CODE(unikprof_counter(depth, -7), UNIKPROF_OK);
    on_clock = interrupt;
    CHECK_CODE(unikprof_mark(request, UINT64_MAX), UNIKPROF_OK);
    CHECK(interruptions == 1);
    time_ns += 1000;
    CHECK_CODE(unikprof_span_end(request, span), UNIKPROF_OK);
    /* The end of a span that was not begun is ignored, and without a known vCPU a span is lost. */
    CHECK_CODE(unikprof_span_end(request, 0), UNIKPROF_OK);
    reported_vcpu = UNIKPROF_NO_VCPU;
    CHECK(unikprof_span_begin(request) == 0);
    CHECK_CODE(unikprof_take_error(), UNIKPROF_OK);
    CHECK_CODE(unikprof_mark(request, 3), UNIKPROF_OK);
    reported_vcpu = 7;
    CHECK_CODE(unikprof_mark(request, 3), UNIKPROF_OK);
    reported_vcpu = 0;
}

static void print(const char *name, const unsigned char *bytes, int64_t length)
{
    printf("%s; ", name);
    for (int64_t index = 0; index < length; index++) {
        printf("%02x", bytes[index]);
    }
    printf("\n");
}

struct pieces {
    unsigned char bytes[BLOCK];
    size_t length;
};

static void keep(void *context, const void *bytes, size_t length)
{
    struct pieces *pieces = context;
    CHECK(length <= sizeof pieces->bytes - pieces->length);
    memcpy(pieces->bytes + pieces->length, bytes, length);
    pieces->length += length;
}

static struct pieces left;

/* A panic in the middle of an event. */
static void panic(void)
{
    CHECK_CODE(unikprof_crash_dump(keep, &left), UNIKPROF_OK);
}

static void print_line(void *context, const char *line)
{
    CHECK(strlen(line) < 78 && strchr(line, '\n') == NULL);
    ++*(size_t *)context;
    printf("line %s\n", line);
}

static void what_is_left(int32_t name)
{
    int64_t used;
    size_t lines = 0;
    CHECK_CODE(unikprof_crash_dump(NULL, NULL), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_crash_dump_into(NULL, 5), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_crash_dump_into(NULL, 0), UNIKPROF_E_DUMP_ROOM);
    CHECK_CODE(unikprof_crash_dump_into(block, 100), UNIKPROF_E_DUMP_ROOM);
    on_clock = panic;
    CHECK_CODE(unikprof_mark(name, 4), UNIKPROF_OK);
    CHECK(left.length > 100);
    print("dump", left.bytes, (int64_t)left.length);
    used = unikprof_crash_dump_into(block, sizeof block);
    CHECK(used > (int64_t)left.length && used < (int64_t)sizeof block);
    print("block", block, used);
    CHECK_CODE(unikprof_crash_lines(NULL, 5, print_line, &lines), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_crash_lines(block, (size_t)used, NULL, NULL), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_crash_lines(block, (size_t)used, print_line, &lines), UNIKPROF_OK);
    CHECK(lines > 10 && lines < (size_t)used);
}

static void recordings_at_boot(void)
{
    struct unikprof_boot_recording flight = {
        .name = "flight", .max_age_ns = 60000000000u,
    };
    const struct unikprof_boot_recording good = flight;
    static char long_name[66];
    int64_t first;
    CHECK_CODE(unikprof_start_at_boot(&flight), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(start(), UNIKPROF_OK);
    memset(long_name, 'x', sizeof long_name - 1);
#define REFUSED(change, code)                                                  \
    do {                                                                       \
        change;                                                                \
        CHECK_CODE(unikprof_start_at_boot(&flight), code);                     \
        flight = good;                                                         \
    } while (0)
    CHECK_CODE(unikprof_start_at_boot(NULL), UNIKPROF_E_NULL);
    REFUSED(flight.name = NULL, UNIKPROF_E_NULL);
    REFUSED(flight.name = "\xff", UNIKPROF_E_TEXT);
    REFUSED(flight.mode = 3, UNIKPROF_E_RECORDING);
    CHECK(lines_logged == 0);
    REFUSED(flight.name = "", UNIKPROF_E_RECORDING);
    REFUSED(flight.name = long_name, UNIKPROF_E_RECORDING);
    REFUSED(flight.period_ns = 1, UNIKPROF_E_RECORDING);
    REFUSED(flight.depth = 129, UNIKPROF_E_RECORDING);
    CHECK(lines_logged == 4);
    CHECK(unikprof_deadline() == UNIKPROF_NO_DEADLINE);

    first = unikprof_start_at_boot(&flight);
    CHECK(first > 0 && unikprof_deadline() != UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_start_at_boot(&flight), UNIKPROF_E_RECORDING); /* the name is in use */
    flight.name = "second";
    flight.mode = UNIKPROF_MODE_OFF_CPU;
    CHECK(unikprof_start_at_boot(&flight) > first);
    flight.name = "third";
    CHECK_CODE(unikprof_start_at_boot(&flight), UNIKPROF_E_RECORDING); /* there is room for two */
    CHECK_CODE(unikprof_install_caller_table("x", 1), UNIKPROF_E_TOO_LATE);
    unikprof_poll(time_ns);
    CHECK_CODE(unikprof_start_at_boot(&flight), UNIKPROF_E_TOO_LATE);
}

static void without_a_ring(void)
{
    CHECK_CODE(start(), UNIKPROF_OK);
    all_refused(UNIKPROF_E_NO_RING);
    CHECK_CODE(unikprof_crash_dump(keep, &left), UNIKPROF_OK);
    CHECK(left.length > 50);
}

static size_t offset;

/* The shortest valid block; nothing outside is written. */
static void a_short_ring_in_any_alignment(void)
{
    size_t least = config.ring_length;
    config.ring = ring + offset;
    memset(ring, 0xa5, sizeof ring);
    CHECK_CODE(start(), UNIKPROF_OK);
    names_that_are_none();
    for (int mark = 0; mark < 1000; mark++) {
        CHECK_CODE(unikprof_mark(0, 1), UNIKPROF_OK);
    }
    CHECK(ring[offset - 1] == 0xa5 && ring[offset + least] == 0xa5);
}

static void many_names(void)
{
    CHECK_CODE(start(), UNIKPROF_OK);
    names_until_there_are_no_more();
}

int main(void)
{
    struct unikprof_registers registers = guest_interrupted();
    size_t least = unikprof_ring_bytes(1, 0), with_one;
    int32_t request = 0;

    all_refused(UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_crash_dump(keep, &left), UNIKPROF_E_NOT_STARTED);
    CHECK_CODE(unikprof_crash_dump_into(block, sizeof block), UNIKPROF_E_NOT_STARTED);

    ops.log = guest_log;
    ops.vcpu = guest_or_no_vcpu;
    apart(without_a_ring);

    /* Blocks that are too short, and the shortest valid one. */
    CHECK(least > 256 * 48 && least < sizeof ring - 64);
    CHECK(unikprof_ring_bytes(2, 1000) > unikprof_ring_bytes(1, 1000) + 16000);
    CHECK(unikprof_ring_bytes(UINT32_MAX, SIZE_MAX) == SIZE_MAX);
    config.ring = ring;
    for (size_t length = 0; length < least; length += length < least - 2 ? least - 2 : 1) {
        config.ring_length = length;
        CHECK_CODE(start(), UNIKPROF_E_RING);
    }
    config.ring_length = SIZE_MAX;
    CHECK_CODE(start(), UNIKPROF_E_RING);
    config.ring_length = least;
    for (offset = 1; offset < 64; offset += 7) {
        apart(a_short_ring_in_any_alignment);
    }

    config.ring = ring;
    config.ring_length = sizeof ring;
    apart(many_names);

    with_one = unikprof_memory_bytes(&config);
    config.recordings = UNIKPROF_MAX_RECORDINGS + 1;
    CHECK(unikprof_memory_bytes(&config) == 0);
    CHECK_CODE(start(), UNIKPROF_E_RECORDINGS);
    config.recordings = 2;
    CHECK(unikprof_memory_bytes(&config) > with_one);
    CHECK_CODE(unikprof_init(&config, &ops, memory, with_one), UNIKPROF_E_MEMORY);

    recordings_at_boot();
    for (int tick = 0; tick < 5; tick++) {
        time_ns = unikprof_deadline();
        CHECK(unikprof_on_tick(&registers) >= time_ns);
    }
    events();
    what_is_left(request);
    return passed();
}
