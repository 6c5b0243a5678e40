/*
 * unikprof: a profiler inside a unikernel, for guests that are not written in Rust.
 *
 * Generated from the Rust source in agent/capi. README.md there says how to build the library, and shows a
 * complete guest. In short:
 *
 *   at the start      unikprof_init(&config, &ops, memory, length)
 *   timer's upcall    deadline = unikprof_on_tick(&registers); program the earlier of it and your own
 *   before blocking   unikprof_on_block(NULL); program your own deadline alone
 *   after blocking    deadline = unikprof_on_wake()
 *   in the loop       move bytes with unikprof_connection_*, then unikprof_poll(now_ns)
 *   after a restore   unikprof_resume()
 *   anywhere          unikprof_mark, unikprof_span_begin and _end, unikprof_counter: the guest's own events
 *   in a panic        unikprof_crash_dump(sink, context)
 *
 * struct unikprof_config holds the version of this header, and unikprof_init rejects any other version than
 * the library's. Fields that the guest does not set must be 0. All memory is the guest's: the library allocates
 * nothing, starts no thread, and calls no functions except those of struct unikprof_ops, memcpy, memmove, memset
 * and memcmp. Times are in ns, on one clock: now_ns.
 *
 * Calls return UNIKPROF_OK (0) or another number from 0 up, or an error code below 0, which
 * unikprof_error_text explains. Calls that return a deadline return a usable one even on error;
 * unikprof_take_error then returns the code.
 *
 * For x86-64 and aarch64.
 */

#ifndef UNIKPROF_H
#define UNIKPROF_H

#include <stddef.h>
#include <stdint.h>

// The version of this header, for version in struct unikprof_config. unikprof_init rejects a
// configuration of any version other than the library's own, which unikprof_abi_version returns.
#define UNIKPROF_ABI_VERSION 1

// Returned in place of a deadline if there is nothing to wait for. It is later than every other
// deadline, so the earlier of two deadlines is always the smaller number.
#define UNIKPROF_NO_DEADLINE UINT64_MAX

// vcpu in struct unikprof_ops returns this for a CPU that is not to be sampled.
#define UNIKPROF_NO_VCPU UINT32_MAX

// continuation in struct unikprof_ops returns this if the walk continues at the frame record
// that fp points to, on another stack.
#define UNIKPROF_FRAME_RECORD 2

// For access in struct unikprof_config: serve everybody who can reach the agent, without a key
// and unencrypted. Any client can then start recordings and read the names of what runs. There is
// no default, so that this is always an explicit choice.
#define UNIKPROF_ACCESS_OPEN 1

// For access in struct unikprof_config: serve only clients that hold one of keys, and
// encrypt everything. Requires random in struct unikprof_ops, and an archive that was built
// with --noise.
#define UNIKPROF_ACCESS_KEYS 2

// For role in struct unikprof_key: read-only requests.
#define UNIKPROF_ROLE_VIEW 1

// For role in struct unikprof_key: all requests but traces.
#define UNIKPROF_ROLE_CONTROL 2

// For role in struct unikprof_key: all requests, and traces, which write breakpoints into the
// guest's code.
#define UNIKPROF_ROLE_TRACE 3

// The maximum number of keys.
#define UNIKPROF_MAX_KEYS 8

// The maximum number of simultaneous recordings.
#define UNIKPROF_MAX_RECORDINGS 4

// For mode in struct unikprof_boot_recording: running time.
#define UNIKPROF_MODE_CPU 0

// For mode in struct unikprof_boot_recording: running and blocked time.
#define UNIKPROF_MODE_WALL 1

// For mode in struct unikprof_boot_recording: blocked time only, measured.
#define UNIKPROF_MODE_OFF_CPU 2

// The maximum length of an event name, in bytes without the terminating 0.
#define UNIKPROF_MAX_EVENT_NAME 48

// The maximum number of event names; their ids are smaller than this.
#define UNIKPROF_MAX_EVENT_NAMES 256

// For flags in struct unikprof_config: the guest calls unikprof_poll and moves its bytes
// even while its main loop is stuck, for example from an upcall, which must then have saved the
// vector registers. Clients show this.
#define UNIKPROF_REACHABLE_WHEN_BUSY 1

// The maximum number of clients that are served at a time.
#define UNIKPROF_SESSIONS 4

// The longest Ethernet frame that unikprof_frame_rx accepts and unikprof_frame_tx returns, in
// bytes without the frame check sequence.
#define UNIKPROF_MAX_FRAME 1514

// Success.
#define UNIKPROF_OK 0

// A required pointer is NULL.
#define UNIKPROF_E_NULL (-1)

// The configuration's version is not the library's.
#define UNIKPROF_E_VERSION (-2)

// The agent is not running: unikprof_init was not called, or has failed.
#define UNIKPROF_E_NOT_STARTED (-3)

// The agent is already running.
#define UNIKPROF_E_STARTED (-4)

// Another call is in progress: on another CPU, or further up the same stack.
#define UNIKPROF_E_BUSY (-5)

// The memory block is too short.
#define UNIKPROF_E_MEMORY (-6)

// The configuration does not set access, or sets keys for UNIKPROF_ACCESS_OPEN.
#define UNIKPROF_E_ACCESS (-7)

// The number of vCPUs is 0 or too large, or there are several and no kick.
#define UNIKPROF_E_VCPUS (-8)

// The mappings cannot be used.
#define UNIKPROF_E_MAPPINGS (-9)

// A text is too long, or not UTF-8.
#define UNIKPROF_E_TEXT (-10)

// A required function is NULL.
#define UNIKPROF_E_OPS (-11)

// All sessions are in use.
#define UNIKPROF_E_SESSIONS (-12)

// The connection id is unknown, or the connection was closed.
#define UNIKPROF_E_CONNECTION (-13)

// The conversation is over: close the connection.
#define UNIKPROF_E_OVER (-14)

// Called too late: a client may already have connected. Call it directly after unikprof_init.
#define UNIKPROF_E_TOO_LATE (-15)

// The caller table is damaged, or is not a caller table.
#define UNIKPROF_E_TABLE (-16)

// The caller table was made from another image.
#define UNIKPROF_E_OTHER_IMAGE (-17)

// The caller table does not fit caller_memory.
#define UNIKPROF_E_TABLE_ROOM (-18)

// A flag is set that the library does not know.
#define UNIKPROF_E_FLAGS (-19)

// The agent's network addresses cannot be used.
#define UNIKPROF_E_NETWORK (-20)

// The archive was built without this feature.
#define UNIKPROF_E_UNSUPPORTED (-21)

// A frame is empty or too long, or the buffer is too short for a frame.
#define UNIKPROF_E_FRAME (-22)

// The queue of frames is full; this frame was dropped.
#define UNIKPROF_E_FULL (-23)

// The agent has no network: network was NULL.
#define UNIKPROF_E_NO_NETWORK (-24)

// A key cannot be used, there are none, or there are too many.
#define UNIKPROF_E_KEYS (-25)

// Keys are set, but random returned nothing.
#define UNIKPROF_E_RANDOM (-26)

// The number of recordings is too large.
#define UNIKPROF_E_RECORDINGS (-27)

// A recording at boot has invalid settings, or there is no room for it.
#define UNIKPROF_E_RECORDING (-28)

// The block for the flight recorder is too short.
#define UNIKPROF_E_RING (-29)

// The agent has no flight recorder: ring was NULL.
#define UNIKPROF_E_NO_RING (-30)

// An event name is invalid, or no event name has this id.
#define UNIKPROF_E_EVENT_NAME (-31)

// All event names are in use.
#define UNIKPROF_E_EVENT_NAMES (-32)

// The block is too short for a crash dump.
#define UNIKPROF_E_DUMP_ROOM (-33)

// The block for live samples is too short.
#define UNIKPROF_E_LIVE (-34)

// The block for traces is too short, or there is no write_code.
#define UNIKPROF_E_TRACE (-35)

// One executable mapping of the guest, as the loader or linker placed it.
struct unikprof_mapping {
    // The first address of the code.
    uint64_t start;
    // The first address after the code.
    uint64_t end;
    // The offset of start in the image's file, in bytes.
    uint64_t file_offset;
    // The image's build-id (the description of its ELF note, usually 20 bytes), or NULL. With a
    // build-id, the client rejects a different image.
    const uint8_t *build_id;
    // The length of the build-id in bytes, at most 64.
    size_t build_id_length;
    // The image's path, or NULL. At most 4095 bytes of UTF-8.
    const char *path;
};

// The addresses of the agent's own TCP server. IPv4 over Ethernet.
struct unikprof_network {
    // The device's MAC address, unicast.
    uint8_t hardware_address[6];
    // The TCP port, not 0.
    uint16_t port;
    // The agent's IPv4 address, unicast: 10.0.0.5 is { 10, 0, 0, 5 }.
    uint8_t address[4];
    // The gateway's address, or all 0 for none.
    uint8_t gateway[4];
    // The length of the network prefix, 0 to 32.
    uint32_t prefix_length;
};

// A key that clients also hold, and the role that it grants.
struct unikprof_key {
    // UNIKPROF_ROLE_VIEW, UNIKPROF_ROLE_CONTROL or UNIKPROF_ROLE_TRACE.
    uint32_t role;
    // The contents of a key file as written by unikprof-client keygen: one line with
    // unikprof-key-1: and 64 digits; lines that begin with # are ignored. At most 1023 bytes.
    const char *text;
};

// The agent's configuration. unikprof_init copies all of it, except the blocks caller_memory,
// ring, live_memory and trace_memory.
struct unikprof_config {
    // UNIKPROF_ABI_VERSION.
    uint32_t version;
    // The number of vCPUs, 1 to 4096. The memory is divided evenly between them.
    uint32_t vcpus;
    // Who is served: UNIKPROF_ACCESS_OPEN or UNIKPROF_ACCESS_KEYS; 0 is refused.
    uint32_t access;
    // UNIKPROF_REACHABLE_WHEN_BUSY, or 0.
    uint32_t flags;
    // The maximum number of simultaneous recordings: 1 to UNIKPROF_MAX_RECORDINGS, or 0 for 1.
    // Each one after the first needs 16 bytes of the memory for every 64 bytes of stacks.
    uint32_t recordings;
    // The number of mappings, 1 to 64.
    uint32_t mapping_count;
    // The executable mappings, sorted by address. Code outside of them is shown as unknown.
    const struct unikprof_mapping *mappings;
    // The guest's name, or NULL. At most 255 bytes of UTF-8.
    const char *guest_name;
    // The guest's id, on Xen its UUID, or NULL. At most 255 bytes of UTF-8.
    const char *guest_id;
    // The platform's name, xen or hosted; NULL means xen.
    const char *platform_name;
    // A block for the caller table that clients send, or NULL to accept none. With the table the
    // agent finds the callers of leaf functions and of interrupted prologues, which a
    // frame-pointer walk skips. A row takes 10 bytes; a program of 2 MB has about 10,000 rows. The
    // block belongs to the agent, must not overlap its other memory, and needs no alignment.
    void *caller_memory;
    // The length of that block in bytes.
    size_t caller_memory_length;
    // The agent's own network addresses, for a guest that hands over Ethernet frames; NULL for a
    // guest that hands over the bytes of its own TCP connections. Requires an archive that was
    // built with --smoltcp.
    const struct unikprof_network *network;
    // The keys, for UNIKPROF_ACCESS_KEYS. They are copied into memory; the guest must erase its
    // own copies.
    const struct unikprof_key *keys;
    // The number of keys, 1 to UNIKPROF_MAX_KEYS. Several keys may have the same role, so that a
    // key can be replaced while the old one is still valid. 0 with UNIKPROF_ACCESS_OPEN.
    uint32_t key_count;
    // The share of one CPU that the agent's work for its clients may take, in thousandths: 1 to
    // 1000 (larger values count as 1000), or 0 for 100. Work beyond it is delayed; a part of the
    // share is reserved for each role. Sampling is not limited by it.
    uint32_t cpu_share_permille;
    // A block for the flight recorder, or NULL for none: then no samples are kept with their
    // times, and there are no events. The block belongs to the agent, must not overlap its other
    // memory, and needs no alignment. Requires an archive that was built with --ring.
    void *ring;
    // The length of that block in bytes; see unikprof_ring_bytes.
    size_t ring_length;
    // A block for samples of allocations that are still held, or NULL for none: then the agent
    // does not record what is held. The block belongs to the agent, must not overlap its other
    // memory, and needs no alignment. Requires an archive that was built with --heap.
    void *live_memory;
    // The length of that block in bytes; see unikprof_live_bytes.
    size_t live_memory_length;
    // A block for traces, or NULL for none: then nobody may trace functions. With it, clients with
    // a key of UNIKPROF_ROLE_TRACE, or any client of an open agent, may write breakpoints into
    // the guest's code. The block belongs to the agent, must not overlap its other memory, and
    // needs no alignment. Requires write_code, a breakpoint handler that calls
    // unikprof_on_breakpoint, and an archive that was built with --trace.
    void *trace_memory;
    // The length of that block in bytes; see unikprof_trace_bytes.
    size_t trace_memory_length;
    // The maximum number of stacks on which traced functions are open at a time: 1 to 255, or 0
    // for 16.
    uint32_t trace_stacks;
};

// A range of addresses.
struct unikprof_range {
    // The first address.
    uint64_t start;
    // The first address after the range.
    uint64_t end;
};

// How much time a vCPU has spent in each state, in ns since a fixed time, as in Xen's runstate.
struct unikprof_runstate {
    // Running.
    uint64_t running_ns;
    // Runnable, but the CPU was given to others: stolen time.
    uint64_t runnable_ns;
    // Blocked.
    uint64_t blocked_ns;
    // Offline.
    uint64_t offline_ns;
};

// The registers of interrupted code.
struct unikprof_registers {
    // The program counter: rip; on aarch64 ELR_EL1.
    uint64_t pc;
    // The stack pointer as the interrupted code had it: rsp; on aarch64 sp.
    uint64_t sp;
    // The frame pointer: rbp; on aarch64 x29.
    uint64_t fp;
    // The link register as the interrupted code had it: on aarch64 x30. Without it, samples in
    // leaf functions lack their direct caller. Never read on x86-64; set it to 0.
    uint64_t lr;
};

// A stack of the guest, for traces.
struct unikprof_call_stack {
    // A number below 2^63 that no other stack has meanwhile. It is free for another stack when no
    // traced call is open on this one.
    uint64_t id;
    // The first address after the stack at present.
    uint64_t end;
};

// Functions of the guest that the agent calls.
//
// Functions marked upcall are called inside unikprof_on_tick, unikprof_on_block,
// unikprof_on_wake, unikprof_deadline and unikprof_on_breakpoint, where the guest may have
// been interrupted anywhere. They must be bounded, must not lock or allocate, and must be compiled
// like the guest's own upcall code: the library uses no vector registers and does not save them.
// The others are called inside the calls of the loop (unikprof_poll, connections, frames). Each
// gets context as its first argument. They must not call back into the library: such a call
// returns UNIKPROF_E_BUSY or counts a lost sample.
struct unikprof_ops {
    // Passed to each function.
    void *context;
    // The monotonic clock in ns, with any origin. All deadlines are on this clock. If it steps back
    // by less than a second, the agent waits for it; if by more, the agent goes on from there.
    // Upcall. Required.
    uint64_t (*now_ns)(void *context);
    // The vCPU that this code runs on, counted from 0, or UNIKPROF_NO_VCPU. Upcall. Required.
    //
    // With several vCPUs, unikprof_on_alloc calls it for each allocation.
    uint32_t (*vcpu)(void *context);
    // How long a vCPU has run, in ns since a fixed time: stolen and blocked time do not advance
    // it, and it never goes back. On Xen: the runstate's RUNSTATE_running plus the time since
    // its last change. Upcall for the current vCPU; the loop's calls ask for the other ones too.
    // Required.
    uint64_t (*running_ns)(void *context, uint32_t vcpu);
    // The stack that contains sp: fill in start and end and return 1, or return 0 if sp is
    // in no known stack; the sample then holds its leaf only. Upcall. Required.
    //
    // The whole range from sp up must be mapped and readable while the upcall runs, because the
    // agent reads it. The agent checks that the range contains sp, and reads nothing below sp;
    // it cannot check end. With an end that is too high it reads memory that may not be
    // mapped. A chain of frames is complete if the saved frame pointer is 0 or if a frame ends at
    // the end of the stack.
    int32_t (*stack_bounds)(void *context, uint64_t sp, struct unikprof_range *bounds);
    // Makes another vCPU call unikprof_on_tick soon, so that it arms its own timer: a Xen vCPU
    // cannot set the timer of another one. Use an IPI event channel. NULL for a guest with one
    // vCPU, which calls unikprof_deadline after each poll instead.
    void (*kick)(void *context, uint32_t vcpu);
    // The time of day in ns since 1970-01-01 UTC, or 0 if it is not known. unikprof_crash_dump
    // calls it too, in whatever context that runs. May be NULL.
    uint64_t (*wall_clock_ns)(void *context);
    // How long a vCPU has been blocked, in ns since a fixed time. Upcall. May be NULL: then it is
    // that of runstate, or all time in which the vCPU did not run if that is not known.
    uint64_t (*blocked_ns)(void *context, uint32_t vcpu);
    // A vCPU's time in each state: fill in times and return 1, or return 0 if it is not known.
    // Upcall. May be NULL: then nothing is recorded in mode wall, because stolen time cannot be
    // told from blocked time.
    int32_t (*runstate)(void *context, uint32_t vcpu, struct unikprof_runstate *times);
    // The readable code that contains pc, usually the image's text: fill in start and end
    // and return 1, or return 0. The agent then reads instructions to find the callers of
    // interrupted prologues. Upcall. May be NULL.
    int32_t (*code_bounds)(void *context, uint64_t pc, struct unikprof_range *bounds);
    // 64 random bits: fill them in and return 1, or return 0 if there are none. Required for
    // UNIKPROF_ACCESS_KEYS: secrets are derived from them, so they must not be predictable.
    // Otherwise may be NULL.
    int32_t (*random)(void *context, uint64_t *bits);
    // Converts a time of now_ns to the clock of the guest's timer, where the two differ: after a
    // migration, now_ns continues while the hypervisor's clock starts again. Upcall. May be
    // NULL if they are the same.
    uint64_t (*timer_deadline_ns)(void *context, uint64_t monotonic_ns);
    // Called by unikprof_resume: the underlying clocks may have a new origin. From now on,
    // now_ns and the times of all vCPUs must continue from their last values. Upcall. May be
    // NULL.
    void (*resume)(void *context);
    // Writes a line of at most 300 bytes to the guest's log, for the guest's operator. It never
    // contains a secret. May be NULL.
    void (*log)(void *context, const char *line);
    // Where the walk continues at the end of a chain of frames: fill in registers and return 1,
    // return UNIKPROF_FRAME_RECORD, or return 0 if the stack ends there. Upcall. May be NULL.
    //
    // 1: the frames of interrupted code are on a different stack if the interrupt or exception
    // handler has a stack of its own. Without this function, a sample inside the handler lacks
    // them. Fill in the interrupted registers from the frame that the processor and the entry code
    // have saved; the walk continues at their pc, on the stack that stack_bounds returns for
    // their sp.
    //
    // UNIKPROF_FRAME_RECORD: the callers of coroutines and fibers are on the stack that resumed
    // them, and fp leads there if the first frame on the coroutine's stack saves the resumer's
    // frame pointer. The same holds for a C function on a stack of its own that OCaml 5 calls. The
    // walk continues on the stack that stack_bounds returns for fp, which may lie below. Do
    // not return it for a handler's stack: its frame pointers lead to the caller of the
    // interrupted function.
    //
    // sp identifies the stack: everything below it has been walked. fp is the frame pointer
    // that could not be followed: 0 if the entry code clears it, otherwise usually that of the
    // interrupted code. Entry code that stays on the interrupted stack must clear the frame
    // pointer before it calls the handler; otherwise the chain skips the interrupted function.
    int32_t (*continuation)(void *context,
                            uint64_t sp,
                            uint64_t fp,
                            struct unikprof_registers *registers);
    // Writes length bytes to the guest's code at address, for traces, and returns 1, or
    // returns 0 if it cannot. Other CPUs may execute the code meanwhile. If the text is mapped
    // read-only, clear CR0.WP with interrupts off, write, and set it again; a PV guest on Xen
    // cannot do that, and returns 0. unikprof_on_breakpoint and unikprof_crash_dump call it
    // too. May be NULL if there is no trace_memory.
    int32_t (*write_code)(void *context, uint64_t address, const void *bytes, size_t length);
    // The stack that contains sp, for traces, which pair entries and exits by the stack and the
    // distance from its end: fill in id and end and return 1, or return 0 if sp is in no
    // known stack; the call is then not counted. For guests that move stacks, or use one's memory
    // for another while calls are open, as fibres do: id stays the fibre's. Called in
    // breakpoints: a breakpoint in a function that it calls would be endless. Before a trace the
    // agent calls this with an sp on the stack that serves clients, and refuses to trace what
    // runs then; it must not call other functions for other stacks. Upcall. May be NULL: then
    // stack_bounds tells stacks apart by their ends.
    int32_t (*call_stack)(void *context, uint64_t sp, struct unikprof_call_stack *stack);
};

// A recording that begins when the guest starts, before any client connects. Clients find it by
// its name, like any other. With 0 in every field that may be 0, it samples running time at 97 Hz
// until a client stops it.
struct unikprof_boot_recording {
    // Its name, 1 to 64 bytes of UTF-8 without control characters.
    const char *name;
    // UNIKPROF_MODE_CPU, UNIKPROF_MODE_WALL or UNIKPROF_MODE_OFF_CPU.
    uint32_t mode;
    // The maximum number of frames kept of a stack, 1 to 128, or 0 for 128.
    uint32_t depth;
    // The mean time between two samples in ns of running time, 10,000 to 10,000,000,000, or 0 for
    // 97 Hz.
    uint64_t period_ns;
    // The length of the recording in ns, or 0 to record until a client stops it.
    uint64_t duration_ns;
    // The delay before the recording begins, in ns.
    uint64_t delay_ns;
    // How far back the samples of a dump need to reach, in ns; 0: no limit. The client's preset
    // default has 300 s.
    uint64_t max_age_ns;
    // The maximum number of bytes that the samples of a dump may take, the newest first; 0: no
    // limit. The client's preset default has 524,288.
    uint64_t max_bytes;
};

// The registers of code that a breakpoint has interrupted, for unikprof_on_breakpoint. For
// x86-64.
struct unikprof_trap_frame {
    // rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, and r8 to r15.
    uint64_t registers[16];
    // The program counter that the processor has saved: the address after the breakpoint.
    uint64_t pc;
    // rflags.
    uint64_t flags;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the version of the library, which is that of the header it was built with.
uint32_t unikprof_abi_version(void);

// Returns what a code means and how to fix it, in English. Never NULL.
const char *unikprof_error_text(int32_t code);

// Returns and clears the error of the last call that returns a deadline; UNIKPROF_OK if there was
// none. Such calls return a usable deadline even on error. May be called wherever
// unikprof_on_tick may.
int32_t unikprof_take_error(void);

// Returns the minimum length in bytes of memory for unikprof_init with this configuration, or
// 0 if the configuration cannot be used. More is better: each distinct stack takes about 100 bytes
// beyond the minimum.
size_t unikprof_memory_bytes(const struct unikprof_config *config);

// Starts the agent, for as long as the guest runs. It keeps all its state in memory, which has
// length bytes, belongs to the agent from then on, and needs no alignment. An image can have one
// agent.
//
// Returns UNIKPROF_OK or an error code. On error nothing has changed. Takes up to 40 KiB of stack.
int32_t unikprof_init(const struct unikprof_config *config,
                      const struct unikprof_ops *ops,
                      void *memory,
                      size_t length);

// Installs a caller table that is linked into the image, made by unikprof-client caller-table,
// for recordings that begin before a client has sent one. Requires caller_memory. Call it
// directly after unikprof_init: once a client may have connected, or a recording has begun at
// boot, it returns UNIKPROF_E_TOO_LATE.
//
// Returns the number of rows in the table, or an error code. The table is copied. Takes as much
// stack as unikprof_init.
int64_t unikprof_install_caller_table(const void *table, size_t length);

// Does the work that is due: begins and ends recordings, ends the sessions of silent clients, and
// processes frames if the agent has its own TCP. Call it from the guest's loop with the time
// now_ns, no later than the last call returned, and after all unikprof_connection_input and
// unikprof_connection_output: the returned time includes work that these have deferred. Pass
// frames to unikprof_frame_rx before it, and take them from unikprof_frame_tx after it.
//
// Returns when to call it again even if nothing arrives, on the clock of now_ns and not earlier
// than now_ns, or UNIKPROF_NO_DEADLINE if there is nothing to do until a client sends something.
// If another call is in progress, on another CPU or further up the same stack, it does nothing,
// returns a time one millisecond later, and unikprof_take_error returns UNIKPROF_E_BUSY. The
// work is bounded, and takes up to 16 KiB of stack.
uint64_t unikprof_poll(uint64_t now_ns);

// A client has connected over the guest's own TCP stack. Returns the connection's id, 0 or above,
// or an error code. On UNIKPROF_E_SESSIONS, send unikprof_busy_answer and close the connection.
// If all sessions are in use, a new connection may replace one whose client has not proved that it
// holds a key: for that one, unikprof_connection_output returns UNIKPROF_E_OVER.
int32_t unikprof_connection_open(void);

// Passes in bytes that a client has sent. Returns how many were accepted, or an error code. Keep
// the others in the TCP stack, and offer them again in the next turn of the loop. Until then,
// bytes of this client should not wake the guest: the client does not read its answers, or waits
// for its part of the CPU share.
int64_t unikprof_connection_input(int32_t connection, const void *bytes, size_t length);

// Copies out bytes to be sent to a client, at most length. Returns the number of bytes, 0 if
// there are none now, or an error code; UNIKPROF_E_OVER: everything was sent, or the session was
// ended; close the connection. In each turn of the loop, alternate with
// unikprof_connection_input until neither moves a byte, then call unikprof_poll. All bytes
// that it returns must be sent.
int64_t unikprof_connection_output(int32_t connection, void *buffer, size_t length);

// Ends a conversation whose connection is closed or about to be closed. Recordings that the client
// has started continue. Returns UNIKPROF_OK or an error code.
int32_t unikprof_connection_close(int32_t connection);

// Writes the message to send to a client for which there is no session, before its connection is
// closed. Returns its length, or an error code. A buffer of 128 bytes is always large enough.
int64_t unikprof_busy_answer(void *buffer, size_t length);

// The guest's device has received an Ethernet frame. The frame is copied, and the next
// unikprof_poll processes it; up to 16 frames are queued. Call it from the loop, not from an
// upcall. Returns UNIKPROF_OK or an error code; UNIKPROF_E_FULL: the frame was dropped, and TCP
// will send it again.
int32_t unikprof_frame_rx(const void *frame, size_t length);

// Copies out the next frame for the guest's device to send; length must be at least
// UNIKPROF_MAX_FRAME. Returns the frame's length, 0 if there is none now, or an error code. Call
// it after each unikprof_poll until it returns 0. If it returned frames, poll again: there may
// be more.
int64_t unikprof_frame_tx(void *buffer, size_t length);

// Begins a recording before any client connects. Call it after unikprof_init, and after
// unikprof_install_caller_table if there is a table, but before any client may have connected.
// Each recording takes one of the configuration's recordings. Afterwards, arm the timer of this
// vCPU (unikprof_deadline); the other vCPUs are kicked.
//
// Returns the recording's id, above 0, or an error code; UNIKPROF_E_RECORDING: the reason was
// passed to log, and the agent runs without the recording.
int64_t unikprof_start_at_boot(const struct unikprof_boot_recording *recording);

// Handles the timer's upcall, on the vCPU that received it. registers are those of the
// interrupted code, or NULL if no code was interrupted (an upcall that was handled when events
// were unmasked): a due tick is then counted as masked.
//
// Returns the next deadline of this vCPU in ns, on the clock of now_ns: program the timer for
// it, or for the guest's own deadline if that is earlier. It may have passed: then the timer must
// fire at once. The first ticks of a recording return such a deadline, to measure what a delivery
// costs. Returns UNIKPROF_NO_DEADLINE if there is nothing to wait for, or before unikprof_init.
//
// May be called at any time, on any stack, however it is aligned, nested, and on several vCPUs at
// once. It uses no vector or floating-point registers, and calls no functions except those of
// struct unikprof_ops: an upcall that has not saved these registers may call it. The same holds
// for all calls that may be made wherever this one may.
uint64_t unikprof_on_tick(const struct unikprof_registers *registers);

// The guest is about to block on this vCPU, with upcalls masked. Until unikprof_on_wake the
// sampler has no deadline there: program the guest's own deadline only, so that an idle guest
// stays asleep. registers are those of the blocking code, or NULL for the caller's: a recording
// of blocked time counts the time to their stack.
//
// Returns UNIKPROF_OK or an error code. May be called wherever unikprof_on_tick may.
int32_t unikprof_on_block(const struct unikprof_registers *registers);

// The guest woke on this vCPU. Returns the next deadline like unikprof_on_tick.
uint64_t unikprof_on_wake(void);

// Returns the next deadline of this vCPU like unikprof_on_tick. A guest without kick calls it
// after each unikprof_poll and unikprof_connection_output, since a recording may have begun,
// and programs its timer.
uint64_t unikprof_deadline(void);

// The guest was restored or has migrated, and its event channels and clocks work again. Recordings
// continue and note the gap. Call it on one vCPU, before its timer is armed; the other vCPUs are
// kicked. Returns the next deadline like unikprof_on_tick.
uint64_t unikprof_resume(void);

// Returns the length in bytes of a block for the flight recorder with records records per vCPU,
// at any alignment. A record takes 16 bytes. A tick, a mark or a counter takes one record, a span
// takes two; the minimum is 64. The oldest records are dropped first. Returns 0 in an archive that
// was built without --ring.
size_t unikprof_ring_bytes(uint32_t vcpus, size_t records);

// Returns the id of an event name, 0 or above, or an error code. text has 1 to
// UNIKPROF_MAX_EVENT_NAME bytes of UTF-8 without control characters, and is copied. The same text
// always has the same id, and names are never removed: call this once for each name, at the start.
// May be called wherever unikprof_on_tick may.
int32_t unikprof_event_name(const char *text);

// Records that an event happened now on this vCPU, with a value of the guest's choice. If vcpu
// of struct unikprof_ops returns none, the event is counted as lost.
//
// Returns UNIKPROF_OK or an error code. May be called wherever unikprof_on_tick may, also by an
// upcall that interrupts another event.
int32_t unikprof_mark(int32_t name, uint64_t value);

// Records the value that a counter has from now on. Otherwise like unikprof_mark.
int32_t unikprof_counter(int32_t name, int64_t value);

// Begins a nested span: it must end on this vCPU before the spans around it do. Samples in its
// time belong to it. One that ends otherwise is shown as an asynchronous span.
//
// Returns the span's id for unikprof_span_end, or 0 if nothing was recorded; on error,
// unikprof_take_error returns the code. May be called wherever unikprof_mark may.
uint64_t unikprof_span_begin(int32_t name);

// Begins an asynchronous span: one that waits while other spans' code runs on the vCPU, such as a
// request that an event loop serves. It may overlap others, and end in another context and on
// another vCPU. No sample belongs to it by time alone. Otherwise like unikprof_span_begin.
uint64_t unikprof_async_span_begin(int32_t name);

// Ends a span: span is what unikprof_span_begin or unikprof_async_span_begin returned for the
// same name; 0 is ignored. Otherwise like unikprof_mark.
int32_t unikprof_span_end(int32_t name, uint64_t span);

// Records that a span is the one with this id of a distributed trace, such as one of OpenTelemetry:
// trace_id points to 16 bytes, span_id to 8. Clients give the ids to the span's samples. Call it
// once, after the span has begun; a trace id of zeros is ignored. Otherwise like unikprof_mark.
int32_t unikprof_span_trace(uint64_t span,
                            const uint8_t *trace_id,
                            const uint8_t *span_id);

// Says that the code that runs on this vCPU from now on works for this asynchronous span: ticks and
// waits until unikprof_span_leave are its own. Stores one word. Call it around each stretch of
// code that runs for a span, such as a callback of an event loop. Code that gives up the vCPU to
// another thread leaves before.
//
// Returns what unikprof_span_leave must be given: the span that was entered before, 0 if none.
// May be called wherever unikprof_mark may.
uint64_t unikprof_span_enter(uint64_t span);

// Ends what unikprof_span_enter began, which returned before.
void unikprof_span_leave(uint64_t before);

// Writes everything that the agent has recorded as a recording file, which unikprof-client
// report reads. sink is called with context for one piece after the other. Nothing is
// changed, and the agent continues if the guest does.
//
// Intended for panic handlers: it may be called on any vCPU, in any context and on any stack,
// however it is aligned, even if a tick was interrupted. Takes 6 KiB of stack in addition to what
// sink and the guest's memory functions need. Returns UNIKPROF_OK or an error code.
//
// It uses no vector or floating-point registers itself. Unlike the calls for upcalls, it calls
// the guest's memcpy, memmove, memset and memcmp. Where these use vector registers, a handler that
// reports these registers, or continues the interrupted code, must save them before.
int32_t unikprof_crash_dump(void (*sink)(void *context, const void *bytes, size_t length),
                            void *context);

// Writes the same file into block, after a header by which it can be found: by dom0 in the
// guest's memory, or after a reboot in memory that survives it. If the block is too short, the
// newest records are kept, and the file says so. May be called wherever unikprof_crash_dump may,
// and uses the same registers and stack.
//
// Returns the number of bytes used, or an error code; on error the block holds no header.
int64_t unikprof_crash_dump_into(void *block, size_t length);

// Converts a block of unikprof_crash_dump_into to lines of text, for an output that carries
// nothing else: the guest's console. Each line is passed to sink with context, ends with 0,
// has at most 77 characters and no newline. Other lines may come between; unikprof-client
// recover finds the right ones in the console's log.
//
// Returns UNIKPROF_OK or an error code. Does not need a running agent. May be called wherever
// unikprof_crash_dump may, and uses the same registers and stack.
int32_t unikprof_crash_lines(const void *block,
                             size_t length,
                             void (*sink)(void *context, const char *line),
                             void *context);

// Returns the length in bytes of a block for live_memory with room for samples sampled
// allocations, at any alignment. A sample takes 34 bytes. About three quarters of them have room
// before some are dropped and counted. Returns 0 in an archive that was built without --heap.
size_t unikprof_live_bytes(size_t samples);

// The guest's allocator has returned pointer for size bytes. The stack of a sampled allocation
// begins at the caller of this function.
//
// Does nothing for NULL, before unikprof_init, on a CPU that is not sampled, and in an archive
// that was built without --heap; any other pointer and size are allowed. May be called wherever
// unikprof_on_tick may, also by an upcall that interrupts another allocation.
void unikprof_on_alloc(const void *pointer, size_t size);

// The guest has allocated size bytes, and a sampler of its own has drawn them: that of a
// language's runtime, which draws one byte in interval at random. Each recording draws again for
// its own interval, which must be at least eight times as great: otherwise it lacks allocations
// that it would always have kept.
//
// key stands for the address, which the runtime may change, until unikprof_on_free(key). No
// allocation may have it as its address: an odd number, cast to a pointer, is the address of none
// that an allocator returns. Does nothing for a size or an interval of 0; otherwise like
// unikprof_on_alloc.
void unikprof_on_sampled_alloc(const void *key, size_t size, size_t interval);

// The guest is about to free pointer. Call it before another CPU can allocate the same address.
// Does nothing for NULL, for a pointer that was not sampled, and for one that was never allocated.
// Otherwise like unikprof_on_alloc.
void unikprof_on_free(const void *pointer);

// The guest's allocator has moved old to new, which has size bytes: old is freed and new
// allocated. If new is NULL, a size of 0 means that old was freed, and any other size that
// nothing has changed. With several CPUs call it before another one can allocate old: inside the
// allocator's lock. Otherwise like unikprof_on_alloc.
void unikprof_on_realloc(const void *old, const void *new_, size_t size);

// Records the state of one of the guest's arenas, such as a heap or a pool: the bytes in use and
// its size. They become the counters NAME.used and NAME.size in the flight recorder, so it
// requires an archive that was built with --heap and --ring. name has 1 to 43 bytes of UTF-8
// without control characters. Call it about once a second.
//
// Returns UNIKPROF_OK or an error code. May be called wherever unikprof_on_tick may.
int32_t unikprof_arena(const char *name, uint64_t used, uint64_t size);

// Returns the length in bytes of a block for trace_memory, at any alignment, for tracing
// functions functions at a time, at most 1000, with calls open on stacks stacks, at most 255.
// Returns 0 in an archive that was built without --trace.
size_t unikprof_trace_bytes(size_t functions, size_t stacks);

// Handles the exception #BP (vector 3). Call it with interrupts off, on a stack of its own (an IST
// entry), or on the interrupted stack if all code of the guest is compiled without a red zone.
// frame holds all registers of the interrupted code.
//
// Returns 1 if the breakpoint was the agent's: then continue with the registers in frame, of
// which the program counter and the stack pointer may have changed. Returns 0 if it was not,
// before unikprof_init, and in an archive that was built without --trace. May be called
// wherever unikprof_on_tick may.
int32_t unikprof_on_breakpoint(struct unikprof_trap_frame *frame);

// Returns the address that pc stands for. The agent executes copies of some instructions
// elsewhere; a fault handler that looks at the instruction, or prints its address, passes the
// address of the fault. Any address that is not that of a copy is returned unchanged. May be
// called wherever unikprof_on_tick may.
uint64_t unikprof_original_pc(uint64_t pc);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNIKPROF_H */
