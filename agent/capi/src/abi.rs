//! Structures and constants of the C ABI. No behaviour here.
//!
//! Any change to them increments [`UNIKPROF_ABI_VERSION`], which `unikprof_init` checks. Fields
//! that the guest does not set must be 0.

use core::ffi::{c_char, c_void};

/// The version of this header, for `version` in `struct unikprof_config`. `unikprof_init` rejects a
/// configuration of any version other than the library's own, which `unikprof_abi_version` returns.
pub const UNIKPROF_ABI_VERSION: u32 = 1;

/// Returned in place of a deadline if there is nothing to wait for. It is later than every other
/// deadline, so the earlier of two deadlines is always the smaller number.
pub const UNIKPROF_NO_DEADLINE: u64 = u64::MAX;

/// `vcpu` in `struct unikprof_ops` returns this for a CPU that is not to be sampled.
pub const UNIKPROF_NO_VCPU: u32 = u32::MAX;

/// `continuation` in `struct unikprof_ops` returns this if the walk continues at the frame record
/// that `fp` points to, on another stack.
pub const UNIKPROF_FRAME_RECORD: i32 = 2;

/// For `access` in `struct unikprof_config`: serve everybody who can reach the agent, without a key
/// and unencrypted. Any client can then start recordings and read the names of what runs. There is
/// no default, so that this is always an explicit choice.
pub const UNIKPROF_ACCESS_OPEN: u32 = 1;

/// For `access` in `struct unikprof_config`: serve only clients that hold one of `keys`, and
/// encrypt everything. Requires `random` in `struct unikprof_ops`, and an archive that was built
/// with `--noise`.
pub const UNIKPROF_ACCESS_KEYS: u32 = 2;

/// For `role` in `struct unikprof_key`: read-only requests.
pub const UNIKPROF_ROLE_VIEW: u32 = 1;

/// For `role` in `struct unikprof_key`: all requests but traces.
pub const UNIKPROF_ROLE_CONTROL: u32 = 2;

/// For `role` in `struct unikprof_key`: all requests, and traces, which write breakpoints into the
/// guest's code.
pub const UNIKPROF_ROLE_TRACE: u32 = 3;

/// The maximum number of keys.
pub const UNIKPROF_MAX_KEYS: u32 = 8;

/// The maximum number of simultaneous recordings.
pub const UNIKPROF_MAX_RECORDINGS: u32 = 4;

/// For `mode` in `struct unikprof_boot_recording`: running time.
pub const UNIKPROF_MODE_CPU: u32 = 0;

/// For `mode` in `struct unikprof_boot_recording`: running and blocked time.
pub const UNIKPROF_MODE_WALL: u32 = 1;

/// For `mode` in `struct unikprof_boot_recording`: blocked time only, measured.
pub const UNIKPROF_MODE_OFF_CPU: u32 = 2;

/// The maximum length of an event name, in bytes without the terminating 0.
pub const UNIKPROF_MAX_EVENT_NAME: u32 = 48;

/// The maximum number of event names; their ids are smaller than this.
pub const UNIKPROF_MAX_EVENT_NAMES: u32 = 256;

/// For `flags` in `struct unikprof_config`: the guest calls `unikprof_poll` and moves its bytes
/// even while its main loop is stuck, for example from an upcall, which must then have saved the
/// vector registers. Clients show this.
pub const UNIKPROF_REACHABLE_WHEN_BUSY: u32 = 1;

/// The maximum number of clients that are served at a time.
pub const UNIKPROF_SESSIONS: u32 = 4;

/// The longest Ethernet frame that `unikprof_frame_rx` accepts and `unikprof_frame_tx` returns, in
/// bytes without the frame check sequence.
pub const UNIKPROF_MAX_FRAME: u32 = 1514;

/// The registers of interrupted code.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// The program counter: `rip`; on aarch64 `ELR_EL1`.
    pub pc: u64,
    /// The stack pointer as the interrupted code had it: `rsp`; on aarch64 `sp`.
    pub sp: u64,
    /// The frame pointer: `rbp`; on aarch64 `x29`.
    pub fp: u64,
    /// The link register as the interrupted code had it: on aarch64 `x30`. Without it, samples in
    /// leaf functions lack their direct caller. Never read on x86-64; set it to 0.
    pub lr: u64,
}

/// A range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The first address after the range.
    pub end: u64,
}

/// A stack of the guest, for traces.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CallStack {
    /// A number below 2^63 that no other stack has meanwhile. It is free for another stack when no
    /// traced call is open on this one.
    pub id: u64,
    /// The first address after the stack at present.
    pub end: u64,
}

/// How much time a vCPU has spent in each state, in ns since a fixed time, as in Xen's runstate.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Runstate {
    /// Running.
    pub running_ns: u64,
    /// Runnable, but the CPU was given to others: stolen time.
    pub runnable_ns: u64,
    /// Blocked.
    pub blocked_ns: u64,
    /// Offline.
    pub offline_ns: u64,
}

/// The registers of code that a breakpoint has interrupted, for `unikprof_on_breakpoint`. For
/// x86-64.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrapFrame {
    /// rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, and r8 to r15.
    pub registers: [u64; 16],
    /// The program counter that the processor has saved: the address after the breakpoint.
    pub pc: u64,
    /// rflags.
    pub flags: u64,
}

/// One executable mapping of the guest, as the loader or linker placed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// The first address of the code.
    pub start: u64,
    /// The first address after the code.
    pub end: u64,
    /// The offset of `start` in the image's file, in bytes.
    pub file_offset: u64,
    /// The image's build-id (the description of its ELF note, usually 20 bytes), or NULL. With a
    /// build-id, the client rejects a different image.
    pub build_id: *const u8,
    /// The length of the build-id in bytes, at most 64.
    pub build_id_length: usize,
    /// The image's path, or NULL. At most 4095 bytes of UTF-8.
    pub path: *const c_char,
}

/// The agent's configuration. `unikprof_init` copies all of it, except the blocks `caller_memory`,
/// `ring`, `live_memory` and `trace_memory`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `UNIKPROF_ABI_VERSION`.
    pub version: u32,
    /// The number of vCPUs, 1 to 4096. The memory is divided evenly between them.
    pub vcpus: u32,
    /// Who is served: `UNIKPROF_ACCESS_OPEN` or `UNIKPROF_ACCESS_KEYS`; 0 is refused.
    pub access: u32,
    /// `UNIKPROF_REACHABLE_WHEN_BUSY`, or 0.
    pub flags: u32,
    /// The maximum number of simultaneous recordings: 1 to `UNIKPROF_MAX_RECORDINGS`, or 0 for 1.
    /// Each one after the first needs 16 bytes of the memory for every 64 bytes of stacks.
    pub recordings: u32,
    /// The number of mappings, 1 to 64.
    pub mapping_count: u32,
    /// The executable mappings, sorted by address. Code outside of them is shown as unknown.
    pub mappings: *const Mapping,
    /// The guest's name, or NULL. At most 255 bytes of UTF-8.
    pub guest_name: *const c_char,
    /// The guest's id, on Xen its UUID, or NULL. At most 255 bytes of UTF-8.
    pub guest_id: *const c_char,
    /// The platform's name, `xen` or `hosted`; NULL means `xen`.
    pub platform_name: *const c_char,
    /// A block for the caller table that clients send, or NULL to accept none. With the table the
    /// agent finds the callers of leaf functions and of interrupted prologues, which a
    /// frame-pointer walk skips. A row takes 10 bytes; a program of 2 MB has about 10,000 rows. The
    /// block belongs to the agent, must not overlap its other memory, and needs no alignment.
    pub caller_memory: *mut c_void,
    /// The length of that block in bytes.
    pub caller_memory_length: usize,
    /// The agent's own network addresses, for a guest that hands over Ethernet frames; NULL for a
    /// guest that hands over the bytes of its own TCP connections. Requires an archive that was
    /// built with `--smoltcp`.
    pub network: *const Network,
    /// The keys, for `UNIKPROF_ACCESS_KEYS`. They are copied into `memory`; the guest must erase its
    /// own copies.
    pub keys: *const Key,
    /// The number of keys, 1 to `UNIKPROF_MAX_KEYS`. Several keys may have the same role, so that a
    /// key can be replaced while the old one is still valid. 0 with `UNIKPROF_ACCESS_OPEN`.
    pub key_count: u32,
    /// The share of one CPU that the agent's work for its clients may take, in thousandths: 1 to
    /// 1000 (larger values count as 1000), or 0 for 100. Work beyond it is delayed; a part of the
    /// share is reserved for each role. Sampling is not limited by it.
    pub cpu_share_permille: u32,
    /// A block for the flight recorder, or NULL for none: then no samples are kept with their
    /// times, and there are no events. The block belongs to the agent, must not overlap its other
    /// memory, and needs no alignment. Requires an archive that was built with `--ring`.
    pub ring: *mut c_void,
    /// The length of that block in bytes; see `unikprof_ring_bytes`.
    pub ring_length: usize,
    /// A block for samples of allocations that are still held, or NULL for none: then the agent
    /// does not record what is held. The block belongs to the agent, must not overlap its other
    /// memory, and needs no alignment. Requires an archive that was built with `--heap`.
    pub live_memory: *mut c_void,
    /// The length of that block in bytes; see `unikprof_live_bytes`.
    pub live_memory_length: usize,
    /// A block for traces, or NULL for none: then nobody may trace functions. With it, clients with
    /// a key of `UNIKPROF_ROLE_TRACE`, or any client of an open agent, may write breakpoints into
    /// the guest's code. The block belongs to the agent, must not overlap its other memory, and
    /// needs no alignment. Requires `write_code`, a breakpoint handler that calls
    /// `unikprof_on_breakpoint`, and an archive that was built with `--trace`.
    pub trace_memory: *mut c_void,
    /// The length of that block in bytes; see `unikprof_trace_bytes`.
    pub trace_memory_length: usize,
    /// The maximum number of stacks on which traced functions are open at a time: 1 to 255, or 0
    /// for 16.
    pub trace_stacks: u32,
}

/// A recording that begins when the guest starts, before any client connects. Clients find it by
/// its name, like any other. With 0 in every field that may be 0, it samples running time at 97 Hz
/// until a client stops it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootRecording {
    /// Its name, 1 to 64 bytes of UTF-8 without control characters.
    pub name: *const c_char,
    /// `UNIKPROF_MODE_CPU`, `UNIKPROF_MODE_WALL` or `UNIKPROF_MODE_OFF_CPU`.
    pub mode: u32,
    /// The maximum number of frames kept of a stack, 1 to 128, or 0 for 128.
    pub depth: u32,
    /// The mean time between two samples in ns of running time, 10,000 to 10,000,000,000, or 0 for
    /// 97 Hz.
    pub period_ns: u64,
    /// The length of the recording in ns, or 0 to record until a client stops it.
    pub duration_ns: u64,
    /// The delay before the recording begins, in ns.
    pub delay_ns: u64,
    /// How far back the samples of a dump need to reach, in ns; 0: no limit. The client's preset
    /// `default` has 300 s.
    pub max_age_ns: u64,
    /// The maximum number of bytes that the samples of a dump may take, the newest first; 0: no
    /// limit. The client's preset `default` has 524,288.
    pub max_bytes: u64,
}

/// A key that clients also hold, and the role that it grants.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    /// `UNIKPROF_ROLE_VIEW`, `UNIKPROF_ROLE_CONTROL` or `UNIKPROF_ROLE_TRACE`.
    pub role: u32,
    /// The contents of a key file as written by `unikprof-client keygen`: one line with
    /// `unikprof-key-1:` and 64 digits; lines that begin with `#` are ignored. At most 1023 bytes.
    pub text: *const c_char,
}

/// The addresses of the agent's own TCP server. IPv4 over Ethernet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The device's MAC address, unicast.
    pub hardware_address: [u8; 6],
    /// The TCP port, not 0.
    pub port: u16,
    /// The agent's IPv4 address, unicast: 10.0.0.5 is { 10, 0, 0, 5 }.
    pub address: [u8; 4],
    /// The gateway's address, or all 0 for none.
    pub gateway: [u8; 4],
    /// The length of the network prefix, 0 to 32.
    pub prefix_length: u32,
}

/// Functions of the guest that the agent calls.
///
/// Functions marked *upcall* are called inside `unikprof_on_tick`, `unikprof_on_block`,
/// `unikprof_on_wake`, `unikprof_deadline` and `unikprof_on_breakpoint`, where the guest may have
/// been interrupted anywhere. They must be bounded, must not lock or allocate, and must be compiled
/// like the guest's own upcall code: the library uses no vector registers and does not save them.
/// The others are called inside the calls of the loop (`unikprof_poll`, connections, frames). Each
/// gets `context` as its first argument. They must not call back into the library: such a call
/// returns `UNIKPROF_E_BUSY` or counts a lost sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ops {
    /// Passed to each function.
    pub context: *mut c_void,
    /// The monotonic clock in ns, with any origin. All deadlines are on this clock. If it steps back
    /// by less than a second, the agent waits for it; if by more, the agent goes on from there.
    /// *Upcall.* Required.
    pub now_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// The vCPU that this code runs on, counted from 0, or `UNIKPROF_NO_VCPU`. *Upcall.* Required.
    ///
    /// With several vCPUs, `unikprof_on_alloc` calls it for each allocation.
    pub vcpu: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// How long a vCPU has run, in ns since a fixed time: stolen and blocked time do not advance
    /// it, and it never goes back. On Xen: the runstate's `RUNSTATE_running` plus the time since
    /// its last change. *Upcall* for the current vCPU; the loop's calls ask for the other ones too.
    /// Required.
    pub running_ns: Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32) -> u64>,
    /// The stack that contains `sp`: fill in `start` and `end` and return 1, or return 0 if `sp` is
    /// in no known stack; the sample then holds its leaf only. *Upcall.* Required.
    ///
    /// The whole range from `sp` up must be mapped and readable while the upcall runs, because the
    /// agent reads it. The agent checks that the range contains `sp`, and reads nothing below `sp`;
    /// it cannot check `end`. With an `end` that is too high it reads memory that may not be
    /// mapped. A chain of frames is complete if the saved frame pointer is 0 or if a frame ends at
    /// the end of the stack.
    pub stack_bounds:
        Option<unsafe extern "C" fn(context: *mut c_void, sp: u64, bounds: *mut Range) -> i32>,
    /// Makes another vCPU call `unikprof_on_tick` soon, so that it arms its own timer: a Xen vCPU
    /// cannot set the timer of another one. Use an IPI event channel. NULL for a guest with one
    /// vCPU, which calls `unikprof_deadline` after each poll instead.
    pub kick: Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32)>,
    /// The time of day in ns since 1970-01-01 UTC, or 0 if it is not known. `unikprof_crash_dump`
    /// calls it too, in whatever context that runs. May be NULL.
    pub wall_clock_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// How long a vCPU has been blocked, in ns since a fixed time. *Upcall.* May be NULL: then it is
    /// that of `runstate`, or all time in which the vCPU did not run if that is not known.
    pub blocked_ns: Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32) -> u64>,
    /// A vCPU's time in each state: fill in `times` and return 1, or return 0 if it is not known.
    /// *Upcall.* May be NULL: then nothing is recorded in mode wall, because stolen time cannot be
    /// told from blocked time.
    pub runstate:
        Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32, times: *mut Runstate) -> i32>,
    /// The readable code that contains `pc`, usually the image's text: fill in `start` and `end`
    /// and return 1, or return 0. The agent then reads instructions to find the callers of
    /// interrupted prologues. *Upcall.* May be NULL.
    pub code_bounds:
        Option<unsafe extern "C" fn(context: *mut c_void, pc: u64, bounds: *mut Range) -> i32>,
    /// 64 random bits: fill them in and return 1, or return 0 if there are none. Required for
    /// `UNIKPROF_ACCESS_KEYS`: secrets are derived from them, so they must not be predictable.
    /// Otherwise may be NULL.
    pub random: Option<unsafe extern "C" fn(context: *mut c_void, bits: *mut u64) -> i32>,
    /// Converts a time of `now_ns` to the clock of the guest's timer, where the two differ: after a
    /// migration, `now_ns` continues while the hypervisor's clock starts again. *Upcall.* May be
    /// NULL if they are the same.
    pub timer_deadline_ns:
        Option<unsafe extern "C" fn(context: *mut c_void, monotonic_ns: u64) -> u64>,
    /// Called by `unikprof_resume`: the underlying clocks may have a new origin. From now on,
    /// `now_ns` and the times of all vCPUs must continue from their last values. *Upcall.* May be
    /// NULL.
    pub resume: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// Writes a line of at most 300 bytes to the guest's log, for the guest's operator. It never
    /// contains a secret. May be NULL.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, line: *const c_char)>,
    /// Where the walk continues at the end of a chain of frames: fill in `registers` and return 1,
    /// return `UNIKPROF_FRAME_RECORD`, or return 0 if the stack ends there. *Upcall.* May be NULL.
    ///
    /// 1: the frames of interrupted code are on a different stack if the interrupt or exception
    /// handler has a stack of its own. Without this function, a sample inside the handler lacks
    /// them. Fill in the interrupted registers from the frame that the processor and the entry code
    /// have saved; the walk continues at their `pc`, on the stack that `stack_bounds` returns for
    /// their `sp`.
    ///
    /// `UNIKPROF_FRAME_RECORD`: the callers of coroutines and fibers are on the stack that resumed
    /// them, and `fp` leads there if the first frame on the coroutine's stack saves the resumer's
    /// frame pointer. The same holds for a C function on a stack of its own that OCaml 5 calls. The
    /// walk continues on the stack that `stack_bounds` returns for `fp`, which may lie below. Do
    /// not return it for a handler's stack: its frame pointers lead to the caller of the
    /// interrupted function.
    ///
    /// `sp` identifies the stack: everything below it has been walked. `fp` is the frame pointer
    /// that could not be followed: 0 if the entry code clears it, otherwise usually that of the
    /// interrupted code. Entry code that stays on the interrupted stack must clear the frame
    /// pointer before it calls the handler; otherwise the chain skips the interrupted function.
    pub continuation: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            sp: u64,
            fp: u64,
            registers: *mut Registers,
        ) -> i32,
    >,
    /// Writes `length` bytes to the guest's code at `address`, for traces, and returns 1, or
    /// returns 0 if it cannot. Other CPUs may execute the code meanwhile. If the text is mapped
    /// read-only, clear `CR0.WP` with interrupts off, write, and set it again; a PV guest on Xen
    /// cannot do that, and returns 0. `unikprof_on_breakpoint` and `unikprof_crash_dump` call it
    /// too. May be NULL if there is no `trace_memory`.
    pub write_code: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            address: u64,
            bytes: *const c_void,
            length: usize,
        ) -> i32,
    >,
    /// The stack that contains `sp`, for traces, which pair entries and exits by the stack and the
    /// distance from its end: fill in `id` and `end` and return 1, or return 0 if `sp` is in no
    /// known stack; the call is then not counted. For guests that move stacks, or use one's memory
    /// for another while calls are open, as fibres do: `id` stays the fibre's. Called in
    /// breakpoints: a breakpoint in a function that it calls would be endless. Before a trace the
    /// agent calls this with an `sp` on the stack that serves clients, and refuses to trace what
    /// runs then; it must not call other functions for other stacks. *Upcall.* May be NULL: then
    /// `stack_bounds` tells stacks apart by their ends.
    pub call_stack:
        Option<unsafe extern "C" fn(context: *mut c_void, sp: u64, stack: *mut CallStack) -> i32>,
}

const _: () = {
    assert!(size_of::<Registers>() == 32);
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<CallStack>() == 16);
    assert!(size_of::<Runstate>() == 32);
    assert!(size_of::<Mapping>() == 48);
    assert!(size_of::<TrapFrame>() == 144);
    assert!(size_of::<Config>() == 152);
    assert!(size_of::<BootRecording>() == 56);
    assert!(size_of::<Network>() == 20);
    assert!(size_of::<Key>() == 16);
    assert!(size_of::<Ops>() == 136);
};
