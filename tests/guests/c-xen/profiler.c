/* The kernel's connection to the agent, except for its calls: on_tick in timer.c, on_block and on_wake in
 * threads.c, on_alloc, on_realloc and on_free in heap.c, on_breakpoint in interrupts.c, and the start in kernel.c.
 *
 * Its clients are connected by network frames, not by byte streams: a kernel under development has a network
 * device long before it has TCP, and with `--smoltcp` the archive contains TCP. The hosted guest
 * (tests/guests/c-hosted), which has sockets, shows how to pass bytes. */
#include "profiler.h"

#include <string.h>
#include <unikprof.h>

#include "clock.h"
#include "command_line.h"
#include "console.h"
#include "events.h"
#include "netfront.h"
#include "threads.h"
#include "xenstore.h"

#define PORT 7777
/* Rows of the client's caller table, which finds the callers of leaf functions; 10 bytes per row. */
#define CALLER_ROWS 2000
/* Frames received between two polls, and rounds of that before other threads run. */
#define FRAMES 8
#define ROUNDS 32
#define BUILD_ID_LENGTH 20
/* A key file has one line of 79 characters. */
#define KEY_ROOM 128
#define ROLES 3

_Static_assert(NO_DEADLINE == UNIKPROF_NO_DEADLINE, "deadlines are handed on as they are");
_Static_assert(FRAME_SIZE == UNIKPROF_MAX_FRAME, "frames are handed on as they are");

/* link.ld */
extern const uint8_t image_start[], text_end[];
extern const struct {
    uint32_t name_length, length, type;
    char name[4];
    uint8_t build_id[BUILD_ID_LENGTH];
} build_id_note;

/* For stacks: about 100 bytes each. */
static uint8_t memory[1 << 20];
static uint8_t caller_memory[10 * CALLER_ROWS];

#ifdef CALLER_TABLE_BYTES
/* Filled after the kernel was linked: docs/guide/c.md. */
__attribute__((section(".unikprof.callers"))) static const uint8_t caller_table[CALLER_TABLE_BYTES] = { 0 };
#endif

#ifdef PROFILER_RING
/* For the newest samples with their times. */
static uint8_t ring[256 << 10];
#endif

#ifdef PROFILER_HEAP
/* For 4,000 samples of memory that is still held: unikprof_live_bytes. */
static uint8_t live[34 * 4000];
#endif

#ifdef PROFILER_TRACE
/* For traces of 100 functions on the threads' stacks: unikprof_trace_bytes. */
#define TRACE_FUNCTIONS 100
#define TRACE_STACKS 8
static uint8_t trace_memory[512 << 10];
#endif

/* --- The platform functions that the agent calls; upcalls also call those marked (upcall) --- */

/* (upcall) */
static uint64_t now_ns(void *context)
{
    (void)context;
    return clock_now_ns();
}

/* (upcall) */
static uint32_t vcpu(void *context)
{
    (void)context;
    return 0;
}

/* (upcall) */
static uint64_t running_ns(void *context, uint32_t of)
{
    (void)context;
    (void)of;
    return clock_runstate_ns(RUNSTATE_RUNNING);
}

/* (upcall) */
static uint64_t blocked_ns(void *context, uint32_t of)
{
    (void)context;
    (void)of;
    return clock_runstate_ns(RUNSTATE_BLOCKED);
}

/* (upcall) By masking the stack pointer: see threads.h. */
static int32_t stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds)
{
    (void)context;
    return thread_stack_of(sp, &bounds->start, &bounds->end);
}

/* (upcall) The agent reads the bytes around a pc to recognise a prologue. */
static int32_t code_bounds(void *context, uint64_t pc, struct unikprof_range *bounds)
{
    (void)context;
    bounds->start = (uint64_t)image_start;
    bounds->end = (uint64_t)text_end;
    return pc >= bounds->start && pc < bounds->end;
}

static uint64_t wall_clock_ns(void *context)
{
    (void)context;
    return clock_wall_ns();
}

static int32_t runstate(void *context, uint32_t of, struct unikprof_runstate *times)
{
    (void)context;
    (void)of;
    times->running_ns = clock_runstate_ns(RUNSTATE_RUNNING);
    times->runnable_ns = clock_runstate_ns(RUNSTATE_RUNNABLE);
    times->blocked_ns = clock_runstate_ns(RUNSTATE_BLOCKED);
    times->offline_ns = clock_runstate_ns(RUNSTATE_OFFLINE);
    return 1;
}

#ifdef PROFILER_TRACE
/* Writes breakpoints. This kernel's text is writable; CR0.WP is cleared as in one whose text is not. */
static int32_t write_code(void *context, uint64_t address, const void *bytes, size_t length)
{
    const uint64_t write_protect = 1 << 16;
    uint64_t flags, cr0;
    (void)context;
    __asm__ volatile("pushfq; pop %0; cli; mov %%cr0, %1" : "=r"(flags), "=r"(cr0) : : "memory");
    __asm__ volatile("mov %0, %%cr0" : : "r"(cr0 & ~write_protect) : "memory");
    memcpy((void *)address, bytes, length);
    __asm__ volatile("mov %0, %%cr0; push %1; popfq" : : "r"(cr0), "r"(flags) : "memory", "cc");
    return 1;
}
#endif

#ifdef PROFILER_KEYS
static bool has_rdrand(void)
{
    uint32_t eax = 1, ebx, ecx = 0, edx;
    __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    return ecx >> 30 & 1;
}

/* Without random bits nobody is served: unikprof_init returns UNIKPROF_E_RANDOM. */
static int32_t random_bits(void *context, uint64_t *bits)
{
    uint8_t is_done = 0;
    (void)context;
    if (has_rdrand()) {
        __asm__ volatile("rdrand %0; setc %1" : "=r"(*bits), "=qm"(is_done) : : "cc");
    }
    return is_done;
}

/* Reads the keys that whoever created the guest has put into its part of xenstore; returns how many. */
static uint32_t read_keys(struct unikprof_key keys[ROLES], char texts[ROLES][KEY_ROOM])
{
    static const struct {
        const char *node;
        uint32_t role;
    } roles[ROLES] = {
        { "view", UNIKPROF_ROLE_VIEW },
        { "control", UNIKPROF_ROLE_CONTROL },
        { "trace", UNIKPROF_ROLE_TRACE },
    };
    uint32_t count = 0;
    for (unsigned i = 0; i < ROLES; i++) {
        if (xenstore_read("data/unikprof", roles[i].node, texts[count], KEY_ROOM)) {
            keys[count] = (struct unikprof_key) { .role = roles[i].role, .text = texts[count] };
            count++;
        }
    }
    return count;
}
#endif

/* --- The agent's calls --- */

uint64_t profiler_on_tick(const struct interrupt_frame *frame)
{
    struct unikprof_registers registers = { 0 };
    if (frame == NULL) {
        return unikprof_on_tick(NULL);
    }
    registers.pc = frame->rip;
    registers.sp = frame->rsp;
    registers.fp = frame->rbp;
    return unikprof_on_tick(&registers);
}

bool profiler_on_breakpoint(struct unikprof_trap_frame *frame)
{
    return unikprof_on_breakpoint(frame) != 0;
}

uint64_t profiler_original_pc(uint64_t pc)
{
    return unikprof_original_pc(pc);
}

void profiler_on_block(void)
{
    /* No registers: the caller is the code that blocks. An error would mean that there is no agent. */
    unikprof_on_block(NULL);
}

uint64_t profiler_on_wake(void)
{
    return unikprof_on_wake();
}

void profiler_count_rounds(unsigned rounds)
{
#ifdef PROFILER_RING
    static int32_t name;
    if (name == 0) {
        name = unikprof_event_name("rounds");
    }
    unikprof_counter(name, rounds);
#else
    (void)rounds;
#endif
}

/* --- Its clients --- */

/* Moves frames and polls as far as possible; returns when to call it again without frames. */
static uint64_t serve_now(void)
{
    static uint8_t frame[FRAME_SIZE];
    uint64_t again_ns = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t received, moved = 0;
        int64_t length;
        while (moved < FRAMES && (received = netfront_receive(frame)) > 0) {
            /* A frame without room is lost, as on any network. */
            unikprof_frame_rx(frame, received);
            moved++;
        }
        again_ns = unikprof_poll(clock_now_ns());
        while (netfront_has_room() && (length = unikprof_frame_tx(frame, sizeof frame)) > 0) {
            netfront_send(frame, (size_t)length);
            moved++;
        }
        /* The poll may have begun a recording. */
        timer_set_sampler(unikprof_deadline());
        if (moved == 0) {
            return again_ns;
        }
    }
    netfront_event = true;
    return again_ns;
}

void profiler_serve(void)
{
    for (;;) {
        thread_wait(&netfront_event, serve_now());
    }
}

/* --- The start --- */

void profiler_start(void)
{
    char name[64], uuid[64];
    uint32_t ignored;
    struct unikprof_mapping text = {
        .start = (uint64_t)image_start,
        .end = (uint64_t)text_end,
        .file_offset = 0, /* link.ld: the image begins with the file's headers */
        .build_id = build_id_note.build_id,
        .build_id_length = build_id_note.length,
        .path = "c-xen",
    };
    struct unikprof_network network = {
        .port = PORT,
    };
    struct unikprof_config config = {
        .version = UNIKPROF_ABI_VERSION,
        .vcpus = 1,
        .access = UNIKPROF_ACCESS_OPEN,
        .mappings = &text,
        .mapping_count = 1,
        .caller_memory = caller_memory,
        .caller_memory_length = sizeof caller_memory,
        .network = &network,
    };
    struct unikprof_ops ops = {
        .now_ns = now_ns,
        .vcpu = vcpu,
        .running_ns = running_ns,
        .stack_bounds = stack_bounds,
        .wall_clock_ns = wall_clock_ns,
        .blocked_ns = blocked_ns,
        .runstate = runstate,
        .code_bounds = code_bounds,
    };
    int32_t code;
#ifdef PROFILER_KEYS
    struct unikprof_key keys[ROLES];
    char texts[ROLES][KEY_ROOM];
    config.access = UNIKPROF_ACCESS_KEYS;
    config.keys = keys;
    config.key_count = read_keys(keys, texts);
    ops.random = random_bits;
#endif
#ifdef PROFILER_RING
    config.ring = ring;
    config.ring_length = sizeof ring;
    config.recordings = 3;
#endif
#ifdef PROFILER_TRACE
    if (unikprof_trace_bytes(TRACE_FUNCTIONS, TRACE_STACKS) > sizeof trace_memory) {
        panic("the memory for traces is too short");
    }
    config.trace_memory = trace_memory;
    config.trace_memory_length = sizeof trace_memory;
    config.trace_stacks = TRACE_STACKS;
    ops.write_code = write_code;
    interrupts_handle_breakpoints();
#endif
#ifdef PROFILER_HEAP
    config.live_memory = live;
    config.live_memory_length = sizeof live;
#endif

    if (build_id_note.length > BUILD_ID_LENGTH) {
        panic("the build-id is longer than its place");
    }
    if (xenstore_read(NULL, "name", name, sizeof name)) {
        config.guest_name = name;
    }
    /* "/vm/UUID" */
    if (xenstore_read(NULL, "vm", uuid, sizeof uuid) && memcmp(uuid, "/vm/", 4) == 0) {
        config.guest_id = uuid + 4;
    }
    memcpy(network.hardware_address, netfront_hardware_address(), sizeof network.hardware_address);
    if (!command_line_address("ip", network.address, &network.prefix_length)) {
        panic("no ip=ADDRESS/PREFIX on the command line");
    }
    command_line_address("gateway", network.gateway, &ignored);

    code = unikprof_init(&config, &ops, memory, sizeof memory);
#ifdef PROFILER_KEYS
    /* The agent has its own copy. */
    memset(texts, 0, sizeof texts);
    __asm__ volatile("" : : "m"(texts));
#endif
    if (code != UNIKPROF_OK) {
        say("c-xen: no profiler on port 7777: ");
        say(unikprof_error_text(code));
        say("\n");
        return;
    }
#ifdef CALLER_TABLE_BYTES
    int64_t rows = unikprof_install_caller_table(caller_table, sizeof caller_table);
    if (rows < 0) {
        say("c-xen: no caller table: ");
        say(unikprof_error_text((int32_t)rows));
        say("\n");
    }
#endif
#ifdef PROFILER_RING
    static const struct unikprof_boot_recording always_on = { .name = "always-on" };
    if (unikprof_start_at_boot(&always_on) < 0) {
        say("c-xen: no recording from boot\n");
    }
#endif
    say("c-xen: profiler on port 7777\n");
}

/* --- The guest's end --- */

#ifdef PROFILER_RING
/* Once nobody reads the console, the other lines are dropped without a wait. */
static void print_line(void *context, const char *line)
{
    bool *is_read = context;
    *is_read = *is_read && console_write(line) && console_write("\r\n");
}
#endif

void profiler_crash(void)
{
#ifdef PROFILER_RING
    static uint8_t block[32 << 10];
    int64_t length = unikprof_crash_dump_into(block, sizeof block);
    bool is_read = true;
    if (length > 0) {
        unikprof_crash_lines(block, (size_t)length, print_line, &is_read);
        print_line(&is_read, "c-xen: the dump ends here");
        console_flush();
    }
#endif
}
