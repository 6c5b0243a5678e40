/*
 * unikprof: the profiler inside a unikernel, for guests that are not written in Rust.
 *
 * Made from the Rust source in agent/capi; README.md there says how the library is built, and shows a
 * guest whole. In short:
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
 * struct unikprof_config holds the version of this header, and unikprof_init refuses any other than the
 * library's own. Fields that are not set must be 0. Memory is the guest's: the library allocates nothing,
 * starts no thread, and calls no function but those of struct unikprof_ops, memcpy, memmove, memset and
 * memcmp. Times are in ns, of the one clock now_ns.
 *
 * Calls answer UNIKPROF_OK (0), a number from 0 up, or a code below 0; unikprof_error_text says what it
 * means. Calls that answer a deadline answer one that can be used whatever was wrong, and
 * unikprof_take_error tells the code.
 *
 * For x86-64.
 */

#ifndef UNIKPROF_H
#define UNIKPROF_H

#include <stddef.h>
#include <stdint.h>

// The version of this header, in version of struct unikprof_config. unikprof_init refuses a
// configuration of any version but the library's own, which unikprof_abi_version returns.
#define UNIKPROF_ABI_VERSION 1

// In the place of a deadline: there is nothing to wait for. It is later than every other, so that the
// earlier of two deadlines is always the smaller number.
#define UNIKPROF_NO_DEADLINE UINT64_MAX

// What vcpu in struct unikprof_ops answers for a CPU that is not to be sampled.
#define UNIKPROF_NO_VCPU UINT32_MAX

// In access of struct unikprof_config: everybody who can reach the agent is served, without a key
// and in plain text. Whoever connects may record, and read the names of what runs. It must be said:
// there is no default.
#define UNIKPROF_ACCESS_OPEN 1

// In access of struct unikprof_config: those who hold one of keys are served, and everything is
// encrypted. Takes random of struct unikprof_ops, and an archive that was built with --noise.
#define UNIKPROF_ACCESS_KEYS 2

// In role of struct unikprof_key: to look, and no more.
#define UNIKPROF_ROLE_VIEW 1

// In role of struct unikprof_key: everything.
#define UNIKPROF_ROLE_CONTROL 2

// How many keys there may be.
#define UNIKPROF_MAX_KEYS 8

// How many recordings there can be at a time.
#define UNIKPROF_MAX_RECORDINGS 4

// In mode of struct unikprof_boot_recording: running time.
#define UNIKPROF_MODE_CPU 0

// In mode of struct unikprof_boot_recording: running and blocked time.
#define UNIKPROF_MODE_WALL 1

// In mode of struct unikprof_boot_recording: blocked time alone, measured.
#define UNIKPROF_MODE_OFF_CPU 2

// The longest name of events, in bytes, without its end.
#define UNIKPROF_MAX_EVENT_NAME 48

// How many names of events there can be; their numbers are smaller.
#define UNIKPROF_MAX_EVENT_NAMES 256

// In flags of struct unikprof_config: the guest calls unikprof_poll and moves its bytes also while
// its main loop is stuck, from its upcall for instance. Clients are told.
#define UNIKPROF_REACHABLE_WHEN_BUSY 1

// How many clients are served at a time.
#define UNIKPROF_SESSIONS 4

// The longest frame that unikprof_frame_rx takes and unikprof_frame_tx gives, in bytes: of Ethernet,
// without its checksum.
#define UNIKPROF_MAX_FRAME 1514

// Done.
#define UNIKPROF_OK 0

// A pointer is NULL that must not be.
#define UNIKPROF_E_NULL (-1)

// The configuration's version is not the library's.
#define UNIKPROF_E_VERSION (-2)

// There is no agent: unikprof_init was not called, has failed, or unikprof_stop was called since.
#define UNIKPROF_E_NOT_STARTED (-3)

// There is an agent already.
#define UNIKPROF_E_STARTED (-4)

// Another call is under way: on another CPU, or below this one on the same stack.
#define UNIKPROF_E_BUSY (-5)

// The memory block is too short.
#define UNIKPROF_E_MEMORY (-6)

// The configuration does not say whom to serve.
#define UNIKPROF_E_ACCESS (-7)

// The number of vCPUs is 0 or too large, or there are several and no kick.
#define UNIKPROF_E_VCPUS (-8)

// The mappings cannot be used.
#define UNIKPROF_E_MAPPINGS (-9)

// A text is too long, or not UTF-8.
#define UNIKPROF_E_TEXT (-10)

// A function is NULL that is required.
#define UNIKPROF_E_OPS (-11)

// All sessions are taken.
#define UNIKPROF_E_SESSIONS (-12)

// There is no such connection, or it was closed.
#define UNIKPROF_E_CONNECTION (-13)

// The conversation is over: close the connection.
#define UNIKPROF_E_OVER (-14)

// A client may have come already: the call belongs right behind unikprof_init.
#define UNIKPROF_E_TOO_LATE (-15)

// The caller table is damaged, or none.
#define UNIKPROF_E_TABLE (-16)

// The caller table was made from another image.
#define UNIKPROF_E_OTHER_IMAGE (-17)

// The caller table does not fit caller_memory.
#define UNIKPROF_E_TABLE_ROOM (-18)

// A flag is set that the library does not know.
#define UNIKPROF_E_FLAGS (-19)

// The agent's place in the network cannot be used.
#define UNIKPROF_E_NETWORK (-20)

// The archive was built without it.
#define UNIKPROF_E_UNSUPPORTED (-21)

// A frame is empty or too long, or the buffer too short for one.
#define UNIKPROF_E_FRAME (-22)

// The queue of frames is full: this one was dropped.
#define UNIKPROF_E_FULL (-23)

// The agent has no network: network was NULL.
#define UNIKPROF_E_NO_NETWORK (-24)

// A key cannot be used, there is none, or there are too many.
#define UNIKPROF_E_KEYS (-25)

// There are keys, and random has no answer.
#define UNIKPROF_E_RANDOM (-26)

// The number of recordings is too large.
#define UNIKPROF_E_RECORDINGS (-27)

// A recording at boot cannot be as it was asked for, or there is no room for it.
#define UNIKPROF_E_RECORDING (-28)

// The block for the flight recorder is too short.
#define UNIKPROF_E_RING (-29)

// The agent has no flight recorder: ring was NULL.
#define UNIKPROF_E_NO_RING (-30)

// A name of events cannot be used, or is none.
#define UNIKPROF_E_EVENT_NAME (-31)

// There are as many names of events as there can be.
#define UNIKPROF_E_EVENT_NAMES (-32)

// The block is too short for a crash dump.
#define UNIKPROF_E_DUMP_ROOM (-33)

// One executable mapping of the guest, as the loader or linker placed it.
struct unikprof_mapping {
    // The first address of the code.
    uint64_t start;
    // The address after the last.
    uint64_t end;
    // Where start lies in the image's file, in bytes.
    uint64_t file_offset;
    // The image's build-id (the description of its note, 20 bytes as a rule), or NULL. With it the client
    // refuses an image that is another.
    const uint8_t *build_id;
    // Bytes of the build-id, at most 64.
    size_t build_id_length;
    // The image's path, or NULL. At most 4095 bytes of UTF-8.
    const char *path;
};

// Where the agent's own TCP is in the network. IPv4 over Ethernet.
struct unikprof_network {
    // The device's address, unicast.
    uint8_t hardware_address[6];
    // The port that clients connect to, not 0.
    uint16_t port;
    // The agent's IPv4 address, unicast: 10.0.0.5 is { 10, 0, 0, 5 }.
    uint8_t address[4];
    // The gateway's address; all 0 for none.
    uint8_t gateway[4];
    // The length of the network's prefix, 0 to 32.
    uint32_t prefix_length;
};

// A key that clients hold too, and what it allows.
struct unikprof_key {
    // UNIKPROF_ROLE_VIEW or UNIKPROF_ROLE_CONTROL.
    uint32_t role;
    // The key as unikprof-client keygen writes it: a line unikprof-key-1: and 64 digits; lines
    // that begin with # are passed over. At most 1023 bytes.
    const char *text;
};

// What the agent is told about its guest at the start. All of it is copied: nothing needs to stay
// where it is but caller_memory and ring.
struct unikprof_config {
    // UNIKPROF_ABI_VERSION.
    uint32_t version;
    // How many vCPUs there are, 1 to 4096. The memory is divided evenly between them.
    uint32_t vcpus;
    // Who is served: UNIKPROF_ACCESS_OPEN or UNIKPROF_ACCESS_KEYS; 0 is refused.
    uint32_t access;
    // UNIKPROF_REACHABLE_WHEN_BUSY, or 0.
    uint32_t flags;
    // How many recordings there can be at a time, 0 (taken as 1) to UNIKPROF_MAX_RECORDINGS. Each after the
    // first takes 16 bytes of the memory for every 64 bytes of stacks.
    uint32_t recordings;
    // How many mappings there are, 1 to 64.
    uint32_t mapping_count;
    // The executable mappings, sorted by address. Code outside of them is shown as unknown.
    const struct unikprof_mapping *mappings;
    // The guest's name, or NULL. At most 255 bytes of UTF-8.
    const char *guest_name;
    // The guest's id, on Xen its UUID, or NULL. At most 255 bytes of UTF-8.
    const char *guest_id;
    // What the guest runs on, xen or hosted; NULL is taken as xen.
    const char *platform_name;
    // A block for the caller table that clients send, or NULL: then the agent takes none. It finds the
    // callers of leaf functions and prologues, which a walk of frame pointers skips. 10 bytes for a row;
    // a program of 2 MB has about 10,000. It belongs to the agent until unikprof_stop and must not
    // overlap its other memory; any alignment will do.
    void *caller_memory;
    // Bytes of that block.
    size_t caller_memory_length;
    // The agent's own place in the network, for a guest that hands frames over; NULL for one that has
    // connections of its own. Only in an archive that was built with --smoltcp.
    const struct unikprof_network *network;
    // The keys of those who are served, with UNIKPROF_ACCESS_KEYS. They are copied into memory, and
    // erased by unikprof_stop; the guest's own copies are the guest's to erase.
    const struct unikprof_key *keys;
    // How many there are, 1 to UNIKPROF_MAX_KEYS; several may have one role, so that keys can be changed
    // while both the old and the new are good. 0 with UNIKPROF_ACCESS_OPEN.
    uint32_t key_count;
    // The share of a CPU, in thousandths, that the agent's work for its clients may take: 1 to 1000, more is taken as
    // 1000, and 0 as 100. Work beyond it waits; a part of it is kept for each role. It does not limit sampling.
    uint32_t cpu_share_permille;
    // A block for the flight recorder, or NULL: then nothing is kept of what happened when, and there are no
    // events. It belongs to the agent until unikprof_stop and must not overlap its other memory; any alignment
    // will do. Only in an archive that was built with --ring.
    void *ring;
    // Bytes of that block; unikprof_ring_bytes tells how many.
    size_t ring_length;
};

// A range of addresses.
struct unikprof_range {
    // The first address.
    uint64_t start;
    // The address after the last.
    uint64_t end;
};

// How a vCPU has spent its time, in ns since a fixed moment, as Xen's runstate tells it.
struct unikprof_runstate {
    // It ran.
    uint64_t running_ns;
    // It could have run, and others did: stolen time.
    uint64_t runnable_ns;
    // It waited.
    uint64_t blocked_ns;
    // It was not there.
    uint64_t offline_ns;
};

// The registers of interrupted code.
struct unikprof_registers {
    // The program counter: rip.
    uint64_t pc;
    // The stack pointer, as it was in the interrupted code: rsp.
    uint64_t sp;
    // The frame pointer: rbp.
    uint64_t fp;
    // The link register of architectures that have one (aarch64: x30). On x86-64 0, and never read.
    uint64_t lr;
};

// What the agent asks of the guest.
//
// Functions marked upcall are called inside unikprof_on_tick, unikprof_on_block, unikprof_on_wake
// and unikprof_deadline, where the guest may have been interrupted anywhere. They must be bounded, must
// not lock or allocate, and must be compiled as the guest's own upcall code is: the library uses no SSE
// state, and does not save it for them. The others are called by the loop's calls (unikprof_poll,
// connections, frames). All get context as their first argument. None may call back into the library
// to any end: calls from inside are answered with UNIKPROF_E_BUSY or count a lost sample.
struct unikprof_ops {
    // Passed to all of them.
    void *context;
    // The monotonic clock in ns; its origin is the guest's own, and it is the clock of all deadlines.
    // Upcall. Required.
    uint64_t (*now_ns)(void *context);
    // The vCPU that this code runs on, counted from 0, or UNIKPROF_NO_VCPU. Upcall. Required.
    uint32_t (*vcpu)(void *context);
    // How long a vCPU has run, in ns since a fixed moment: neither stolen nor blocked time advances it,
    // and it never goes back. On Xen the runstate's RUNSTATE_running, with the time since its last change.
    // Upcall, for the vCPU that it runs on; the loop asks for the others. Required.
    uint64_t (*running_ns)(void *context, uint32_t vcpu);
    // The stack that a stack pointer lies on: fill in start and end and answer 1, or answer 0 where it
    // lies on none that is known; such a sample holds its leaf alone. Upcall. Required.
    //
    // All of the range from sp up must be mapped and readable while the upcall runs: the agent reads
    // it. The agent checks that the range holds sp, and reads nothing below that; it cannot check end.
    // An end that is too high makes it read memory that may not be there. A chain of frames has reached
    // its root where the saved frame pointer is 0 or a frame ends where the stack does.
    int32_t (*stack_bounds)(void *context, uint64_t sp, struct unikprof_range *bounds);
    // Makes another vCPU call unikprof_on_tick soon, so that it arms its timer: a Xen vCPU cannot set
    // the timer of another. An IPI event channel does it. NULL for a guest with one vCPU, which asks
    // unikprof_deadline after each poll instead.
    void (*kick)(void *context, uint32_t vcpu);
    // The time of day in ns since 1970-01-01 UTC, 0 where it is not known. unikprof_crash_dump asks for it
    // too, wherever that was called. May be NULL.
    uint64_t (*wall_clock_ns)(void *context);
    // How long a vCPU has been blocked, in ns since a fixed moment. Upcall. May be NULL: then all time
    // counts as blocked in which it did not run.
    uint64_t (*blocked_ns)(void *context, uint32_t vcpu);
    // Where a vCPU's time has gone: fill it in and answer 1, or answer 0. May be NULL.
    int32_t (*runstate)(void *context, uint32_t vcpu, struct unikprof_runstate *times);
    // The code around a pc whose bytes can be read, the image's text as a rule: fill in start and end
    // and answer 1, or answer 0. With it the callers of prologues are right. Upcall. May be NULL.
    int32_t (*code_bounds)(void *context, uint64_t pc, struct unikprof_range *bounds);
    // 64 random bits: fill them in and answer 1, or answer 0. May be NULL, but not with
    // UNIKPROF_ACCESS_KEYS: secrets are drawn from it, so nobody else may be able to guess them.
    int32_t (*random)(void *context, uint64_t *bits);
    // A moment of now_ns as the guest's timer is programmed with it, where the two differ: after a
    // migration, where now_ns goes on and the hypervisor's clock begins anew. Upcall. May be NULL:
    // then they are the same.
    uint64_t (*timer_deadline_ns)(void *context, uint64_t monotonic_ns);
    // The clocks below may have another origin: unikprof_resume was called. From here on now_ns and
    // the times of all vCPUs go on where they stood. Upcall. May be NULL.
    void (*resume)(void *context);
    // A line for the guest's log, of at most 300 bytes: what its owner should know, and never a secret. May
    // be NULL.
    void (*log)(void *context, const char *line);
    // Where a walk goes on that has reached the end of a chain of frames: fill in registers and return 1, or
    // return 0 if that is the end. Upcall. May be NULL.
    //
    // An interrupt or exception handler that runs on a stack of its own has the interrupted code's frames on
    // another stack. Without this function a sample inside the handler lacks them. Fill in the interrupted
    // registers from the frame that the processor and the entry code have saved; the walk goes on at their
    // pc, on the stack that stack_bounds tells for their sp. The same serves fibers, whose callers lie on the
    // stack that they were started from.
    //
    // Everything below sp has been passed, and sp tells which stack it was. fp is the frame pointer that
    // could not be followed: 0 if the entry code clears it, otherwise mostly that of the interrupted code. An
    // entry code that stays on the interrupted stack must clear the frame pointer before it calls the handler,
    // since the chain would otherwise lead past the interrupted function.
    int32_t (*continuation)(void *context,
                            uint64_t sp,
                            uint64_t fp,
                            struct unikprof_registers *registers);
};

// A recording that begins with the guest, before any client has come. Clients find it by its name, as any
// other. With 0 for all that may be 0 it samples running time at 97 Hz, for as long as the guest
// runs.
struct unikprof_boot_recording {
    // Its name, 1 to 64 bytes of UTF-8 without control characters.
    const char *name;
    // UNIKPROF_MODE_CPU, UNIKPROF_MODE_WALL or UNIKPROF_MODE_OFF_CPU.
    uint32_t mode;
    // The most frames kept of one stack, at most 128; 0: 128.
    uint32_t depth;
    // The mean time between two samples in ns of running time, 10,000 to 10,000,000,000; 0: 97 in a second.
    uint64_t period_ns;
    // How long to record, in ns; 0: until a client stops it.
    uint64_t duration_ns;
    // How long to wait before, in ns.
    uint64_t delay_ns;
    // How far back the samples of a dump need to go, in ns; 0: as far as there are any. The client's preset
    // default has 300 s.
    uint64_t max_age_ns;
    // How many bytes the samples of a dump may take, the newest first; 0: all there are. The client's preset
    // default has 524,288.
    uint64_t max_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library: that of the header it was built with.
uint32_t unikprof_abi_version(void);

// What a code means and what to do about it, in English. Never NULL.
const char *unikprof_error_text(int32_t code);

// What was wrong with the last call that answers a deadline, UNIKPROF_OK where nothing was; it is
// forgotten by being asked for. Such calls answer a deadline that can be used all the same.
int32_t unikprof_take_error(void);

// The least memory that unikprof_init takes for this configuration, in bytes; 0 where it cannot be
// used. More is better: of what is beyond, a distinct stack takes about 100 bytes.
size_t unikprof_memory_bytes(const struct unikprof_config *config);

// Starts the agent. It keeps all it ever needs in memory, which has length bytes, belongs to the
// agent until unikprof_stop, and may be aligned in any way. An image can have one agent.
//
// Answers UNIKPROF_OK, or a code, and then nothing has changed. Takes up to 40 KiB of stack.
int32_t unikprof_init(const struct unikprof_config *config,
                      const struct unikprof_ops *ops,
                      void *memory,
                      size_t length);

// Installs a caller table that is linked into the image, as unikprof-client caller-table makes it, for
// recordings that begin before a client has sent one. caller_memory must have been given. Call it right
// behind unikprof_init: once clients are served, or a recording has begun at boot, it is too late.
//
// Answers the rows of the table, or a code. The table is copied. Takes as much stack as unikprof_init.
int64_t unikprof_install_caller_table(const void *table,
                                      size_t length);

// Does what time has come for: recordings begin and end, silent clients are given up. Call it from the
// guest's loop, with its time now_ns, at the latest when the last answer says, and behind all
// unikprof_connection_input and unikprof_connection_output: what these leave to be done later is part
// of the answer. Frames are given by unikprof_frame_rx before it, and taken by unikprof_frame_tx behind it.
//
// Answers when to call it again though nothing comes, on the clock of now_ns and not before it;
// UNIKPROF_NO_DEADLINE: only a client can change anything. Where another call is under way, on another
// CPU or below this one, it does nothing and answers one millisecond later; unikprof_take_error then
// says so. The work is bounded, and takes up to 16 KiB of stack.
uint64_t unikprof_poll(uint64_t now_ns);

// A client has connected, over the guest's own TCP stack. Answers the connection's id, 0 or above, or a
// code; UNIKPROF_E_SESSIONS: send unikprof_busy_answer and close. Where all sessions are taken, one whose
// client has not shown who it is may make room: unikprof_connection_output answers UNIKPROF_E_OVER there.
int32_t unikprof_connection_open(void);

// Takes bytes that a client has sent. Answers how many it took, or a code. Leave the rest in the TCP stack,
// and offer it again in the next turn of the loop; until then no bytes of this client should wake the guest: it
// does not take its answers, or waits for its part of the CPU share.
int64_t unikprof_connection_input(int32_t connection,
                                  const void *bytes,
                                  size_t length);

// Gives bytes that a client is to be sent, at most length. Answers how many there are, 0: none for now,
// or a code; UNIKPROF_E_OVER: all was sent, or the client was given up, and the connection is to be
// closed. In each turn of the loop, alternate with unikprof_connection_input until neither moves a byte, then
// call unikprof_poll; what was given must be sent.
int64_t unikprof_connection_output(int32_t connection,
                                   void *buffer,
                                   size_t length);

// Ends a conversation whose connection is gone or is to be closed. What the client had started goes on.
// Answers UNIKPROF_OK or a code.
int32_t unikprof_connection_close(int32_t connection);

// What to send on a connection for which there is no session, before it is closed. Answers its length, or
// a code; 128 bytes are room enough.
int64_t unikprof_busy_answer(void *buffer,
                             size_t length);

// The guest's device has received a frame of Ethernet. It is copied and looked at by the next
// unikprof_poll; 16 wait at the most. From the loop, not from an upcall. Answers UNIKPROF_OK or a code;
// UNIKPROF_E_FULL: it was dropped, as a network may.
int32_t unikprof_frame_rx(const void *frame,
                          size_t length);

// Gives the next frame that the guest's device is to send; length is at least UNIKPROF_MAX_FRAME. Answers
// the frame's length, 0: none for now, or a code. Ask behind each unikprof_poll until it answers 0, and
// poll again where it gave frames: there may be more.
int64_t unikprof_frame_tx(void *buffer,
                          size_t length);

// Ends the agent; its memory is the guest's again. A recording that was not downloaded is gone, and its
// clients notice by the end of their connections, which the guest closes. Returns UNIKPROF_OK or a code:
// UNIKPROF_E_BUSY while another call is under way or an upcall comes, and then nothing has changed; call it
// again.
int32_t unikprof_stop(void);

// Begins a recording before any client has come. Call it behind unikprof_init, and behind
// unikprof_install_caller_table where there is a table; once clients are served it is too late. Each further
// one takes another of the configuration's recordings. Arm the timer of this vCPU behind it
// (unikprof_deadline); the others are kicked.
//
// Answers the recording's id, above 0, or a code; UNIKPROF_E_RECORDING: log was told why, and the agent
// serves without it.
int64_t unikprof_start_at_boot(const struct unikprof_boot_recording *recording);

// The timer's upcall, on the vCPU that it was delivered to. registers are those of the interrupted
// code, NULL where there are none (an upcall that was forced when events were unmasked): then a tick
// that is due is counted as masked.
//
// Answers the next deadline of this vCPU in ns, on the clock of now_ns: program the timer for it, or
// for the guest's own where that is earlier. UNIKPROF_NO_DEADLINE: nothing to wait for, also before
// unikprof_init. May be called at any time, on any stack, nested, and on several vCPUs at once.
uint64_t unikprof_on_tick(const struct unikprof_registers *registers);

// The guest is about to block on this vCPU, with its upcalls held back. Until unikprof_on_wake the
// sampler has no deadline there: program the guest's own alone, so that an idle guest stays asleep.
// registers are those of the code that blocks, NULL for the caller's own: a recording of blocked time
// counts it to their stack.
//
// Answers UNIKPROF_OK or a code. May be called where unikprof_on_tick may.
int32_t unikprof_on_block(const struct unikprof_registers *registers);

// The guest woke on this vCPU. Answers the next deadline as unikprof_on_tick does.
uint64_t unikprof_on_wake(void);

// The next deadline of this vCPU, as unikprof_on_tick answers it: a guest without kick programs it
// after each unikprof_poll and unikprof_connection_output, since a recording may have begun.
uint64_t unikprof_deadline(void);

// The guest was restored from a save or has migrated, and its event channels and clocks work again. A
// recording goes on and notes the gap. Call it on one vCPU before its timer is armed; the others are
// kicked. Answers the next deadline as unikprof_on_tick does.
uint64_t unikprof_resume(void);

// How long the block for the flight recorder should be, in bytes: for so many vCPUs, each with room for
// records records, wherever it is aligned. A record takes 16 bytes; a tick is one, a mark or a counter is one,
// a span is two, and 64 is the least. The oldest are dropped first. 0 in an archive that was built
// without --ring.
size_t unikprof_ring_bytes(uint32_t vcpus,
                           size_t records);

// The name of events with this text, 1 to UNIKPROF_MAX_EVENT_NAME bytes of UTF-8 without control
// characters. The same text has the same name, none is ever forgotten, and the text is copied. Ask once for each,
// at the start.
//
// Answers its number, 0 or above, or a code. May be called where unikprof_on_tick may.
int32_t unikprof_event_name(const char *text);

// Something happened, now and on this vCPU; value is the guest's own. Where vcpu of struct unikprof_ops
// knows none, it is counted as lost.
//
// Answers UNIKPROF_OK or a code. May be called where unikprof_on_tick may, also by an upcall that interrupts
// another event.
int32_t unikprof_mark(int32_t name,
                      uint64_t value);

// A counter has a value, from now on. Else as unikprof_mark.
int32_t unikprof_counter(int32_t name, int64_t value);

// Something begins that takes time. Spans may overlap, and may end in another context and on another vCPU.
//
// Answers what unikprof_span_end is to be given; 0 where nothing was kept, and where the call was wrong
// unikprof_take_error tells the code. May be called where unikprof_mark may.
uint64_t unikprof_span_begin(int32_t name);

// What unikprof_span_begin has answered ends, under the same name; 0 is passed over. Else as
// unikprof_mark.
int32_t unikprof_span_end(int32_t name, uint64_t span);

// Hands out all that the agent knows as a recording file, which unikprof-client report reads: its pieces to
// sink, one after the other, with context. Nothing is changed, and the agent goes on if its guest does.
//
// For a panic handler: callable on any vCPU and whatever was interrupted, also a tick. It takes 6 KiB of stack
// beside what sink does. Answers UNIKPROF_OK or a code.
int32_t unikprof_crash_dump(void (*sink)(void *context, const void *bytes, size_t length),
                            void *context);

// Leaves the same in block, behind a head by which it is found: by dom0 in the guest's memory, or by the
// guest's next life in memory that survives. Where the block is too short the newest records are kept, and the
// file says so.
//
// Answers the bytes in use, or a code; the block then holds no head.
int64_t unikprof_crash_dump_into(void *block,
                                 size_t length);

// Hands out a block of unikprof_crash_dump_into as lines of text, for a way out that carries nothing else: the
// guest's console. Each goes to sink with context, ends with 0, has at most 77 characters and no newline. Other lines
// may come between; unikprof-client recover finds them in the console's log.
//
// Answers UNIKPROF_OK or a code. There need not be an agent; it may be called where unikprof_crash_dump may.
int32_t unikprof_crash_lines(const void *block,
                             size_t length,
                             void (*sink)(void *context, const char *line),
                             void *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* UNIKPROF_H */
