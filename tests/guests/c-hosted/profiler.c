#define _GNU_SOURCE
#include "coroutine.h"
#include "profiler.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#include <unikprof.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id /* glibc before 2.37 */
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define MAX_MAPPINGS 16
#define ROWS 60000
/* About 65,000 records: a quarter of a minute of this guest. */
#define RING (1 << 20)

static timer_t timer;
static uint64_t stack_end;
static unsigned char memory[4 << 20];
static unsigned char caller_memory[10 * ROWS];
static unsigned char ring[RING];
static unsigned char live[1 << 20];
/* For traces of 100 functions. */
static unsigned char trace_memory[1 << 20];
static unsigned char trap_stack[64 << 10];
static int process_memory = -1;

static struct unikprof_mapping mappings[MAX_MAPPINGS];
static uint32_t mapping_count;
static char program[4096];

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static uint64_t read_clock(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* --- The platform functions that the agent calls --- */

static uint64_t now_ns(void *context)
{
    (void)context;
    return read_clock(CLOCK_MONOTONIC);
}

static uint64_t wall_clock_ns(void *context)
{
    (void)context;
    return read_clock(CLOCK_REALTIME);
}

static uint32_t vcpu(void *context)
{
    (void)context;
    return 0;
}

static uint64_t running_ns(void *context, uint32_t of)
{
    (void)context;
    (void)of;
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

static int32_t stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds)
{
    (void)context;
    if (coroutine_has(sp, bounds)) {
        return 1;
    }
    bounds->start = sp;
    bounds->end = stack_end;
    return sp < stack_end;
}

/* The coroutine's first frame saves its resumer's frame pointer. `sp` is at most the end of its stack. */
static int32_t continuation(void *context, uint64_t sp, uint64_t fp, struct unikprof_registers *registers)
{
    struct unikprof_range bounds;
    (void)context;
    (void)fp;
    (void)registers;
    return coroutine_has(sp - 8, &bounds) ? UNIKPROF_FRAME_RECORD : 0;
}

static int32_t code_bounds(void *context, uint64_t pc, struct unikprof_range *bounds)
{
    (void)context;
    /* Only the program itself, because libraries may be unloaded. */
    bounds->start = mappings[0].start;
    bounds->end = mappings[0].end;
    return pc >= bounds->start && pc < bounds->end;
}

/* --- The timer --- */

static void set_timer(uint64_t deadline_ns)
{
    struct itimerspec setting;
    memset(&setting, 0, sizeof setting);
    if (deadline_ns != UNIKPROF_NO_DEADLINE) {
        setting.it_value.tv_sec = (time_t)(deadline_ns / 1000000000);
        setting.it_value.tv_nsec = (long)(deadline_ns % 1000000000);
    }
    timer_settime(timer, TIMER_ABSTIME, &setting, NULL);
}

static void on_timer(int signal, siginfo_t *information, void *interrupted)
{
    const ucontext_t *context = interrupted;
    struct unikprof_registers registers = {
        .pc = (uint64_t)context->uc_mcontext.gregs[REG_RIP],
        .sp = (uint64_t)context->uc_mcontext.gregs[REG_RSP],
        .fp = (uint64_t)context->uc_mcontext.gregs[REG_RBP],
    };
    int kept = errno;
    (void)signal;
    (void)information;
    set_timer(unikprof_on_tick(&registers));
    errno = kept;
}

/* --- Traces: a breakpoint is the signal SIGTRAP --- */

/* The text is mapped read-only. The process' memory file writes to it all the same. */
static int32_t write_code(void *context, uint64_t address, const void *bytes, size_t length)
{
    (void)context;
    return pwrite(process_memory, bytes, length, (off_t)address) == (ssize_t)length;
}

static void on_trap(int number, siginfo_t *information, void *interrupted)
{
    static const int order[16] = {
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
        REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    };
    greg_t *registers = ((ucontext_t *)interrupted)->uc_mcontext.gregs;
    struct unikprof_trap_frame frame;
    int kept = errno;
    (void)information;
    for (int index = 0; index < 16; index++) {
        frame.registers[index] = (uint64_t)registers[order[index]];
    }
    frame.pc = (uint64_t)registers[REG_RIP];
    frame.flags = (uint64_t)registers[REG_EFL];
    if (unikprof_on_breakpoint(&frame)) {
        registers[REG_RSP] = (greg_t)frame.registers[4];
        registers[REG_RIP] = (greg_t)frame.pc;
    } else {
        /* Not the agent's: it ends the process, as without a handler. */
        signal(number, SIG_DFL);
        raise(number);
    }
    errno = kept;
}

/* The handler has a stack of its own, and is interrupted by no other. Each thread that runs traced code needs such a
 * stack, and must not block SIGTRAP. */
static int handle_traps(void)
{
    stack_t stack = { .ss_sp = trap_stack, .ss_size = sizeof trap_stack };
    struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigfillset(&action.sa_mask);
    process_memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    return process_memory >= 0 && sigaltstack(&stack, NULL) == 0 && sigaction(SIGTRAP, &action, NULL) == 0;
}

/* --- The executable mappings --- */

static void find_build_id(struct unikprof_mapping *mapping, const unsigned char *note,
                          const unsigned char *end)
{
    while (note + sizeof(ElfW(Nhdr)) <= end) {
        const ElfW(Nhdr) *head = (const void *)note;
        const unsigned char *name = note + sizeof *head;
        const unsigned char *description = name + ((head->n_namesz + 3) & ~3u);
        if (head->n_type == NT_GNU_BUILD_ID && head->n_namesz == 4 && memcmp(name, "GNU", 4) == 0) {
            mapping->build_id = description;
            mapping->build_id_length = head->n_descsz;
        }
        note = description + ((head->n_descsz + 3) & ~3u);
    }
}

static int add_mapping(struct dl_phdr_info *image, size_t size, void *context)
{
    struct unikprof_mapping found = { 0 };
    (void)size;
    (void)context;
    /* The program itself has no name here. */
    found.path = image->dlpi_name[0] != 0 ? image->dlpi_name : mapping_count == 0 ? program : NULL;
    for (int index = 0; index < image->dlpi_phnum; index++) {
        const ElfW(Phdr) *part = &image->dlpi_phdr[index];
        uint64_t start = image->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_NOTE) {
            find_build_id(&found, (const void *)start, (const void *)(start + part->p_memsz));
        } else if (part->p_type == PT_LOAD && (part->p_flags & PF_X) != 0) {
            found.start = start;
            found.end = start + part->p_memsz;
            found.file_offset = part->p_offset;
        }
    }
    if (found.end > found.start && mapping_count < MAX_MAPPINGS) {
        mappings[mapping_count++] = found;
    }
    return 0;
}

static int by_start(const void *left, const void *right)
{
    uint64_t one = ((const struct unikprof_mapping *)left)->start;
    uint64_t other = ((const struct unikprof_mapping *)right)->start;
    return (one > other) - (one < other);
}

/* --- The start --- */

void profiler_start(uint64_t end_of_stack)
{
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    struct sigaction action;
    struct sigevent event;
    int32_t code;

    stack_end = end_of_stack;
    program[length > 0 ? length : 0] = 0;
    dl_iterate_phdr(add_mapping, NULL);
    qsort(mappings, mapping_count, sizeof mappings[0], by_start);

    struct unikprof_config config = {
        .version = UNIKPROF_ABI_VERSION,
        .vcpus = 1,
        .access = UNIKPROF_ACCESS_OPEN,
        .cpu_share_permille = 250,
        .mapping_count = mapping_count,
        .mappings = mappings,
        .guest_name = "c-hosted",
        .platform_name = "hosted",
        .caller_memory = caller_memory,
        .caller_memory_length = sizeof caller_memory,
        .ring = ring,
        .ring_length = sizeof ring,
        .recordings = 2,
    };
    if (unikprof_live_bytes(1) != 0) {
        config.live_memory = live;
        config.live_memory_length = sizeof live;
    }
    struct unikprof_ops ops = {
        .now_ns = now_ns,
        .vcpu = vcpu,
        .running_ns = running_ns,
        .stack_bounds = stack_bounds,
        .wall_clock_ns = wall_clock_ns,
        .code_bounds = code_bounds,
        .continuation = continuation,
    };
    /* In an archive built with --trace. */
    if (unikprof_trace_bytes(1, 1) != 0 && handle_traps()) {
        config.trace_memory = trace_memory;
        config.trace_memory_length = sizeof trace_memory;
        ops.write_code = write_code;
    }
    code = unikprof_init(&config, &ops, memory, sizeof memory);
    if (code != UNIKPROF_OK) {
        fail("the agent does not start", unikprof_error_text(code));
    }

    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_timer;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    memset(&event, 0, sizeof event);
    /* Only this thread is sampled: the agent knows no other one's stack and running time. */
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = gettid();
    event.sigev_signo = SIGPROF;
    if (sigaction(SIGPROF, &action, NULL) != 0
        || timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) {
        fail("there is no timer", strerror(errno));
    }
}

void profiler_record(const char *name)
{
    struct unikprof_boot_recording recording = {
        .name = name,
        .period_ns = 1000000,
        .max_age_ns = 300000000000,
    };
    int64_t id = unikprof_start_at_boot(&recording);
    if (id < 0) {
        fail("nothing is recorded", unikprof_error_text((int32_t)id));
    }
    profiler_arm();
}

void profiler_arm(void)
{
    set_timer(unikprof_deadline());
}

uint64_t profiler_now_ns(void)
{
    return now_ns(NULL);
}
