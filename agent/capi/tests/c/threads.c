/* Two threads poll and a third takes the upcalls, from before the start of the agent on, while the first records.
 * Each call succeeds, returns an error or is a counted loss. */
#include <pthread.h>
#include <unistd.h>

#include "guest.h"

#define ROUNDS 40
#define POLLS 300
/* The time that may pass between two of them. */
#define TURN_NS 3000000

static unsigned char caller_memory[1000];
static unsigned char ring[20000];
static int is_over;
static unsigned long polls_done, ticks_done, were_busy;
/* The limit up to which time may pass, advanced by the first thread's progress. Otherwise the agent's timeouts would
 * pass while that thread does not get a CPU, and its client would be disconnected as silent. */
static uint64_t time_ends_ns;

static uint64_t shared_now_ns(void *context)
{
    (void)context;
    return __atomic_load_n(&time_ns, __ATOMIC_SEQ_CST);
}

static uint64_t shared_running_ns(void *context, uint32_t vcpu)
{
    (void)vcpu;
    return shared_now_ns(context);
}

static int32_t shared_stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds)
{
    (void)context;
    (void)sp;
    bounds->start = reported_bounds.start;
    bounds->end = reported_bounds.end;
    return 1;
}

static void *upcalls(void *registers)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
        uint64_t deadline_ns;
        if (shared_now_ns(NULL) < __atomic_load_n(&time_ends_ns, __ATOMIC_SEQ_CST)) {
            __atomic_add_fetch(&time_ns, 300000, __ATOMIC_SEQ_CST);
        }
        deadline_ns = unikprof_on_tick(registers);
        unikprof_mark(unikprof_event_name("tick"), deadline_ns);
        __atomic_add_fetch(&ticks_done, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void *polls(void *unused)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
        unikprof_poll(shared_now_ns(NULL));
        __atomic_add_fetch(&polls_done, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}

/* Makes a call that may return UNIKPROF_E_BUSY because of another thread. */
#define PATIENTLY(answer, call)                                                \
    do {                                                                       \
        answer = (call);                                                       \
    } while (answer == UNIKPROF_E_BUSY)

/* Sends a request, and takes the answer in many turns. */
static void ask(int32_t client, const unsigned char *request, unsigned length)
{
    char answer[512];
    unsigned sent = 0;
    int64_t code;
    while (sent < length) {
        PATIENTLY(code, unikprof_connection_input(client, request + sent, length - sent));
        CHECK(code >= 0);
        sent += (unsigned)code;
    }
    for (int turn = 0; turn < POLLS;) {
        unikprof_poll(shared_now_ns(NULL));
        code = unikprof_take_error();
        /* The last one is of a tick before the start. */
        CHECK(code == UNIKPROF_OK || code == UNIKPROF_E_BUSY || code == UNIKPROF_E_NOT_STARTED);
        were_busy += code == UNIKPROF_E_BUSY;
        code = unikprof_connection_output(client, answer, sizeof answer);
        CHECK(code >= 0 || code == UNIKPROF_E_BUSY);
        if (code == UNIKPROF_E_BUSY) {
            /* The other thread may be kept from its CPU in the middle of its poll for all of these turns. */
            sched_yield();
            continue;
        }
        __atomic_store_n(&time_ends_ns, shared_now_ns(NULL) + TURN_NS, __ATOMIC_SEQ_CST);
        turn++;
    }
}

int main(void)
{
    struct unikprof_registers registers = guest_interrupted();
    pthread_t ticker, poller;
    int64_t code, client;

    config.caller_memory = caller_memory;
    config.caller_memory_length = sizeof caller_memory;
    /* If the archive has a flight recorder. */
    if (unikprof_ring_bytes(1, 0) != 0) {
        config.ring = ring;
        config.ring_length = sizeof ring;
    }
    ops.now_ns = shared_now_ns;
    ops.running_ns = shared_running_ns;
    ops.stack_bounds = shared_stack_bounds;
    CHECK(pthread_create(&ticker, NULL, upcalls, &registers) == 0);
    CHECK(pthread_create(&poller, NULL, polls, NULL) == 0);
    /* On a busy machine they may first get a CPU when all else is over. */
    while (__atomic_load_n(&ticks_done, __ATOMIC_SEQ_CST) == 0 || __atomic_load_n(&polls_done, __ATOMIC_SEQ_CST) == 0) {
        sched_yield();
    }
    PATIENTLY(code, start());
    CHECK_CODE(code, UNIKPROF_OK);
    PATIENTLY(client, unikprof_connection_open());
    CHECK(client >= 0);
    ask((int32_t)client, client_start, client_start_length);
    CHECK(unikprof_deadline() != UNIKPROF_NO_DEADLINE);
    for (int round = 0; round < ROUNDS; round++) {
        ask((int32_t)client, client_check, client_check_length);
    }
    ask((int32_t)client, client_stop, client_stop_length);
    /* The server may have to rest first, for its share of a CPU, and others may lack one within a call. */
    for (long turn = 0; turn < 1000L * POLLS && unikprof_deadline() != UNIKPROF_NO_DEADLINE; turn++) {
        unikprof_poll(shared_now_ns(NULL));
        __atomic_store_n(&time_ends_ns, shared_now_ns(NULL) + TURN_NS, __ATOMIC_SEQ_CST);
        if (turn % 100 == 99) {
            usleep(1000);
        }
    }
    CHECK(unikprof_deadline() == UNIKPROF_NO_DEADLINE);
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(ticker, NULL) == 0 && pthread_join(poller, NULL) == 0);
    printf("%lu polls of the other thread, %lu times both at once\n", polls_done, were_busy);
    puts("all as it should be");
    return 0;
}
