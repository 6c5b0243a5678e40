/* A guest that reports wrong stacks, registers and vCPUs: each must cause an error, or a tick that is counted as
 * what it was. Prints the resulting ticks by kind for each lie, and the agent's own counters. */
#include "guest.h"

#define EACH 20
/* In `handler_ends`: the handler claims to have interrupted itself, again and again. */
#define LEADS_BACK 10

static uint64_t elsewhere[8];

static uint32_t reported_vcpu;
static int handler_ends;
/* `elsewhere` is a coroutine's stack, whose first frame saves its resumer's frame pointer. */
static int has_coroutine;
static int32_t reported_known = 1;

static uint32_t lying_vcpu(void *context)
{
    (void)context;
    return reported_vcpu;
}

static int32_t lying_stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds)
{
    (void)guest_stack_bounds(context, sp, bounds);
    return reported_known;
}

/* A handler's or coroutine's frames are in `elsewhere`; the interrupted or resuming frames are on the other stack. */
static int32_t handler_stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds)
{
    if ((handler_ends || has_coroutine) && sp >= (uint64_t)elsewhere && sp < (uint64_t)(elsewhere + 8)) {
        bounds->start = (uint64_t)elsewhere;
        bounds->end = (uint64_t)(elsewhere + 8);
        return 1;
    }
    return lying_stack_bounds(context, sp, bounds);
}

static int32_t handler_continuation(void *context, uint64_t sp, uint64_t fp, struct unikprof_registers *registers)
{
    CHECK(context == stack && registers->pc == 0 && registers->lr == 0);
    if (has_coroutine) {
        return UNIKPROF_FRAME_RECORD;
    }
    if (!handler_ends || sp < (uint64_t)elsewhere || sp > (uint64_t)(elsewhere + 8)) {
        return 0;
    }
    CHECK(fp == 0);
    handler_ends++;
    *registers = guest_interrupted();
    if (handler_ends == LEADS_BACK) {
        registers->sp = (uint64_t)elsewhere;
        registers->fp = (uint64_t)(elsewhere + 4);
        handler_ends = LEADS_BACK - 1;
    }
    return 1;
}

/* The registers of a handler with one frame, whose entry has cleared the frame pointer. */
static void interrupt_handler(struct unikprof_registers *registers, int ends)
{
    handler_ends = ends;
    elsewhere[4] = 0;
    elsewhere[5] = CODE + 0x80;
    registers->sp = (uint64_t)elsewhere;
    registers->fp = (uint64_t)(elsewhere + 4);
}

/* The registers of a coroutine with one frame, resumed by the other stack's innermost function. */
static void resume_coroutine(struct unikprof_registers *registers, uint64_t frame)
{
    has_coroutine = 1;
    elsewhere[4] = frame;
    elsewhere[5] = CODE + 0x80;
    registers->sp = (uint64_t)elsewhere;
    registers->fp = (uint64_t)(elsewhere + 4);
}

static void print_account(const char *lie, int32_t client, unsigned recorded, unsigned broken, unsigned masked)
{
    unsigned char answer[4096];
    int64_t length = 0, given;
    CHECK(unikprof_connection_input(client, client_check, client_check_length) == client_check_length);
    do {
        unikprof_poll(time_ns);
        given = unikprof_connection_output(client, answer + length, sizeof answer - (size_t)length);
        CHECK(given >= 0);
        length += given;
    } while (given > 0);
    CHECK(length > 0);
    printf("%s; %u %u %u; ", lie, recorded, broken, masked);
    for (int64_t index = 0; index < length; index++) {
        printf("%02x", answer[index]);
    }
    printf("\n");
}

int main(void)
{
    struct unikprof_registers registers;
    unsigned char somewhere[sizeof registers + 8];
    int32_t client;
    uint64_t deadline_ns;

    ops.vcpu = lying_vcpu;
    ops.stack_bounds = handler_stack_bounds;
    ops.continuation = handler_continuation;
    CHECK_CODE(start(), UNIKPROF_OK);
    client = unikprof_connection_open();
    CHECK(guest_converse(client, client_start, client_start_length) > 16);
    deadline_ns = unikprof_deadline();

    /* For each tick, `untruth` is applied to valid registers and stacks. */
#define LIE(name, untruth, given, recorded, broken, masked)                    \
    do {                                                                       \
        for (int tick = 0; tick < EACH; tick++) {                              \
            registers = guest_interrupted();                                   \
            time_ns = deadline_ns;                                             \
            untruth;                                                           \
            unikprof_on_tick((const void *)(given));                           \
            reported_known = 1;                                                \
            reported_vcpu = 0;                                                 \
            deadline_ns = unikprof_deadline();                                 \
        }                                                                      \
        print_account(name, client, recorded, broken, masked);                 \
    } while (0)

    LIE("the truth", (void)0, &registers, EACH, 0, 0);

    LIE("no stack", reported_known = 0, &registers, EACH, EACH, 0);
    LIE("an empty stack", reported_bounds.end = reported_bounds.start, &registers, EACH, EACH, 0);
    LIE("a stack turned round", reported_bounds.start = UINT64_MAX, &registers, EACH, EACH, 0);
    LIE("a stack above", reported_bounds.start += 8, &registers, EACH, EACH, 0);
    LIE("another stack",
        (reported_bounds.start = (uint64_t)elsewhere, reported_bounds.end = (uint64_t)(elsewhere + 8)), &registers,
        EACH, EACH, 0);
    LIE("a stack that ends within a frame", reported_bounds.end = (uint64_t)(stack + 3), &registers, EACH, EACH, 0);
    LIE("a stack that ends within a word", reported_bounds.end -= 3, &registers, EACH, EACH, 0);
    /* Everything below the stack pointer is ignored, whatever the reported start. */
    LIE("a stack from 0 on", reported_bounds.start = 0, &registers, EACH, 0, 0);

    LIE("a frame pointer below", registers.fp = 8, &registers, EACH, EACH, 0);
    LIE("a frame pointer above", registers.fp = UINT64_MAX - 7, &registers, EACH, EACH, 0);
    LIE("a frame pointer that is not aligned", registers.fp += 1, &registers, EACH, EACH, 0);
    LIE("a frame that leads to itself", stack[2] = (uint64_t)&stack[2], &registers, EACH, EACH, 0);
    LIE("a frame that leads down", stack[4] = (uint64_t)stack, &registers, EACH, EACH, 0);
    LIE("a pc in no code", registers.pc = 1, &registers, EACH, 0, 0);

    bounds_asked = 0;
    LIE("a handler on a stack of its own", interrupt_handler(&registers, 1), &registers, EACH, 0, 0);
    CHECK(handler_ends == 2 && bounds_asked == EACH); /* the interrupted stack, once each */
    LIE("a handler that has interrupted itself", interrupt_handler(&registers, LEADS_BACK - 1), &registers, EACH,
        EACH, 0);
    handler_ends = 0;

    bounds_asked = 0;
    LIE("a coroutine", resume_coroutine(&registers, registers.fp), &registers, EACH, 0, 0);
    CHECK(bounds_asked == 2 * EACH); /* the resumer's stack, for the record and for the frames after it */
    LIE("a coroutine that was resumed by itself",
        (stack[2 * FRAMES - 2] = (uint64_t)(elsewhere + 4), resume_coroutine(&registers, registers.fp)), &registers,
        EACH, EACH, 0);
    LIE("a coroutine that was resumed by no frame", resume_coroutine(&registers, 8), &registers, EACH, EACH, 0);
    has_coroutine = 0;

    LIE("no registers", (void)0, NULL, 0, 0, EACH);
    LIE("registers that are not aligned", memcpy(somewhere + 3, &registers, sizeof registers), somewhere + 3, EACH,
        0, 0);

    LIE("a vCPU that is not sampled", reported_vcpu = UNIKPROF_NO_VCPU, &registers, 0, 0, 0);
    LIE("a vCPU that is not there", reported_vcpu = 1, &registers, 0, 0, 0);
    LIE("a vCPU far beyond", reported_vcpu = UNIKPROF_NO_VCPU - 1, &registers, 0, 0, 0);
    LIE("the truth again", (void)0, &registers, EACH, 0, 0);

    return passed();
}
