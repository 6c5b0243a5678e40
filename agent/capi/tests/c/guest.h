/* A guest with one vCPU, a clock that the test advances, and an artificial stack. */
#ifndef GUEST_H
#define GUEST_H

#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define CODE 0x400000u
#define FRAMES 4

static uint64_t time_ns = 1000000000;
static uint64_t stack[2 * FRAMES];
/* If not NULL, called once by `now_ns`. */
static void (*on_clock)(void);
static int bounds_asked;
static struct unikprof_range reported_bounds;

static uint64_t guest_now_ns(void *context)
{
    void (*call)(void) = on_clock;
    CHECK(context == stack);
    CHECK_STACK();
    on_clock = NULL;
    if (call != NULL) {
        call();
    }
    return time_ns;
}

static uint32_t guest_vcpu(void *context)
{
    CHECK(context == stack);
    return 0;
}

static uint64_t guest_running_ns(void *context, uint32_t vcpu)
{
    CHECK(context == stack && vcpu == 0);
    return time_ns;
}

static int32_t guest_stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds)
{
    CHECK(context == stack && sp != 0);
    CHECK(bounds->start == 0 && bounds->end == 0);
    bounds_asked++;
    bounds->start = reported_bounds.start;
    bounds->end = reported_bounds.end;
    return 1;
}

/* A chain of frames; the registers of its leaf. */
static struct unikprof_registers guest_interrupted(void)
{
    struct unikprof_registers registers = { .pc = CODE };
    for (int frame = 0; frame < FRAMES; frame++) {
        stack[2 * frame] = frame + 1 == FRAMES ? 0 : (uint64_t)&stack[2 * frame + 2];
        stack[2 * frame + 1] = CODE + 0x100u * (unsigned)(frame + 1);
    }
    reported_bounds.start = (uint64_t)stack;
    reported_bounds.end = (uint64_t)(stack + 2 * FRAMES);
    registers.sp = registers.fp = (uint64_t)stack;
    return registers;
}

/* What the guest starts the agent with. */
static unsigned char memory[1 << 20];
static struct unikprof_mapping mapping = { .start = CODE, .end = CODE + 0x1000 };
static struct unikprof_config config = {
    .version = UNIKPROF_ABI_VERSION,
    .vcpus = 1,
    .access = UNIKPROF_ACCESS_OPEN,
    .mapping_count = 1,
    .mappings = &mapping,
};
static struct unikprof_ops ops = {
    .context = stack,
    .now_ns = guest_now_ns,
    .vcpu = guest_vcpu,
    .running_ns = guest_running_ns,
    .stack_bounds = guest_stack_bounds,
};

static inline int32_t start(void)
{
    return unikprof_init(&config, &ops, memory, sizeof memory);
}

/* An image has one agent for as long as it runs: a test with an agent of its own runs in a process of its own. */
static inline void apart(void (*test)(void))
{
    int status;
    pid_t child;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        test();
        exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* The end of a test that has not failed: the result of `main`. */
static inline int passed(void)
{
    puts("all as it should be");
    return 0;
}

/* --- A client's side: enough of the wire to record --- */

/* The preamble and a request to start a recording of 1 ms, encoded by c_guests.rs. */
extern const unsigned char client_start[];
extern const unsigned client_start_length;
extern const unsigned char client_stop[];
extern const unsigned client_stop_length;
extern const unsigned char client_check[];
extern const unsigned client_check_length;

/* Sends bytes and receives the whole answer; returns its length. */
static inline int64_t guest_converse(int32_t connection, const unsigned char *bytes, unsigned length)
{
    char answer[4096];
    int64_t all = 0;
    CHECK_CODE(unikprof_connection_input(connection, bytes, length), (int64_t)length);
    for (int turn = 0; turn < 100; turn++) {
        int64_t given = unikprof_connection_output(connection, answer, sizeof answer);
        CHECK(given >= 0);
        all += given;
        unikprof_poll(time_ns);
    }
    return all;
}

#endif
