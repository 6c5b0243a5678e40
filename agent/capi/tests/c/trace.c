/* A guest that allows tracing: it handles breakpoints by a signal, and writes code through its memory file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include "guest.h"

#define CALLS 1000
#define MOVES 10
#define DISTANCE 4096

extern const unsigned char client_trace[];
extern const unsigned client_trace_length;
extern const unsigned char client_trace_fetch[];
extern const unsigned client_trace_fetch_length;

/* The traced function, at the start of the only mapping: the number plus one. c_guests.rs has its bytes. */
__asm__(".text; .balign 16; .globl traced; .type traced,@function\n"
        "traced: push %rbx; mov %rdi, %rbx; lea 1(%rbx), %rax; pop %rbx; ret\n"
        ".size traced, .-traced\n"
        /* The next one moves to other memory inside of its call, as a fibre's stack does that grows. */
        ".balign 16; .type moves,@function\n"
        "moves: mov (%rsp), %rax; lea (%rsp, %rdi), %rsp; mov %rax, (%rsp); ret\n"
        ".size moves, .-moves\n"
        ".globl move; .type move,@function\n"
        "move: push %rbx; mov %rsp, %rbx; call moves; mov %rbx, %rsp; pop %rbx; ret\n"
        ".size move, .-move\n");
uint64_t traced(uint64_t number);
void move(int64_t distance);

static unsigned char trace_memory[2 << 20];
static int process_memory;
static int breakpoints;

static int32_t guest_write_code(void *context, uint64_t address, const void *bytes, size_t length)
{
    CHECK(context == stack);
    return pwrite(process_memory, bytes, length, (off_t)address) == (ssize_t)length;
}

static uint64_t before_moves;

static int32_t guest_call_stack(void *context, uint64_t sp, struct unikprof_call_stack *fibre)
{
    CHECK(context == stack);
    fibre->id = 1;
    fibre->end = reported_bounds.end - (sp < before_moves ? DISTANCE : 0);
    return 1;
}

static const int general[16] = {
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

static void on_trap(int number, siginfo_t *information, void *interrupted)
{
    greg_t *registers = ((ucontext_t *)interrupted)->uc_mcontext.gregs;
    struct unikprof_trap_frame frame;
    (void)number;
    (void)information;
    for (int index = 0; index < 16; index++) {
        frame.registers[index] = (uint64_t)registers[general[index]];
    }
    frame.pc = (uint64_t)registers[REG_RIP];
    frame.flags = (uint64_t)registers[REG_EFL];
    CHECK_CODE(unikprof_on_breakpoint(&frame), 1);
    registers[REG_RSP] = (greg_t)frame.registers[4];
    registers[REG_RIP] = (greg_t)frame.pc;
    breakpoints++;
}

static void answer(int32_t connection, const unsigned char *bytes, unsigned length)
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
    printf("answer; ");
    for (int64_t index = 0; index < used; index++) {
        printf("%02x", all[index]);
    }
    puts("");
}

int main(void)
{
    struct unikprof_trap_frame strange = { .pc = 1 };
    struct sigaction action;
    unsigned char original[32];
    volatile uint64_t here = 0;
    int32_t client;

    (void)guest_interrupted();
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_trap;
    action.sa_flags = SA_SIGINFO;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    process_memory = open("/proc/self/mem", O_RDWR);
    CHECK(process_memory >= 0);
    memcpy(original, (const void *)(uintptr_t)traced, sizeof original);

    CHECK(unikprof_on_breakpoint(&strange) == 0 && strange.pc == 1);
    CHECK(unikprof_original_pc(77) == 77);
    mapping.start = (uint64_t)(uintptr_t)traced;
    mapping.end = mapping.start + 64;
    reported_bounds.start = (uint64_t)(uintptr_t)&here - 65536;
    reported_bounds.end = (uint64_t)(uintptr_t)__builtin_frame_address(0) + 16;
    CHECK(unikprof_trace_bytes(100, 16) < sizeof trace_memory);
    config.trace_memory = trace_memory;
    config.trace_memory_length = sizeof trace_memory;
    /* Without a way to write code there is no tracing, and the guest says so at its start. */
    CHECK_CODE(start(), UNIKPROF_E_TRACE);
    ops.write_code = guest_write_code;
    ops.call_stack = guest_call_stack;
    before_moves = (uint64_t)(uintptr_t)&here - DISTANCE / 2;
    config.trace_memory_length = 1000;
    CHECK_CODE(start(), UNIKPROF_E_TRACE);
    config.trace_memory_length = sizeof trace_memory;
    CHECK_CODE(start(), UNIKPROF_OK);
    CHECK(unikprof_on_breakpoint(&strange) == 0 && strange.pc == 1);
    CHECK(unikprof_on_breakpoint(NULL) == 0);

    client = unikprof_connection_open();
    answer(client, client_trace, client_trace_length);
    CHECK(*(const volatile unsigned char *)(uintptr_t)traced == 0xcc);
    breakpoints = 0;
    for (uint64_t number = 0; number < CALLS; number++) {
        time_ns += 10;
        here = number;
        CHECK(traced(here) == number + 1);
    }
    CHECK(breakpoints == 2 * CALLS);
    for (int number = 0; number < MOVES; number++) {
        move(-DISTANCE);
    }
    CHECK(breakpoints == 2 * (CALLS + MOVES));
    answer(client, client_trace_fetch, client_trace_fetch_length);
    CHECK(unikprof_original_pc((uint64_t)(uintptr_t)traced) == (uint64_t)(uintptr_t)traced);
    /* A trace whose client is gone ends. */
    CHECK_CODE(unikprof_connection_close(client), UNIKPROF_OK);
    time_ns += 30000000000;
    for (int turn = 0; turn < 10; turn++) {
        unikprof_poll(time_ns);
    }
    CHECK(memcmp(original, (const void *)(uintptr_t)traced, sizeof original) == 0);
    return passed();
}
