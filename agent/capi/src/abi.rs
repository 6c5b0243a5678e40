//! Structures and constants that C sees. No behaviour here.
//!
//! Any change to them raises [`UNIKPROF_ABI_VERSION`], which `unikprof_init` checks. Fields that are not
//! set are 0.

use core::ffi::{c_char, c_void};

/// The version of this header, in `version` of `struct unikprof_config`. `unikprof_init` refuses a
/// configuration of any version but the library's own, which `unikprof_abi_version` returns.
pub const UNIKPROF_ABI_VERSION: u32 = 1;

/// In the place of a deadline: there is nothing to wait for. It is later than every other, so that the
/// earlier of two deadlines is always the smaller number.
pub const UNIKPROF_NO_DEADLINE: u64 = u64::MAX;

/// What `vcpu` in `struct unikprof_ops` answers for a CPU that is not to be sampled.
pub const UNIKPROF_NO_VCPU: u32 = u32::MAX;

/// In `access` of `struct unikprof_config`: everybody who can reach the agent is served, without a key
/// and in plain text. Whoever connects may record, and read the names of what runs. It must be said:
/// there is no default.
pub const UNIKPROF_ACCESS_OPEN: u32 = 1;

/// In `access` of `struct unikprof_config`: those who hold one of `keys` are served, and everything is
/// encrypted. Takes `random` of `struct unikprof_ops`, and an archive that was built with `--noise`.
pub const UNIKPROF_ACCESS_KEYS: u32 = 2;

/// In `role` of `struct unikprof_key`: to look, and no more.
pub const UNIKPROF_ROLE_VIEW: u32 = 1;

/// In `role` of `struct unikprof_key`: everything.
pub const UNIKPROF_ROLE_CONTROL: u32 = 2;

/// How many keys there may be.
pub const UNIKPROF_MAX_KEYS: u32 = 8;

/// How many recordings there can be at a time.
pub const UNIKPROF_MAX_RECORDINGS: u32 = 4;

/// In `mode` of `struct unikprof_boot_recording`: running time.
pub const UNIKPROF_MODE_CPU: u32 = 0;

/// In `mode` of `struct unikprof_boot_recording`: running and blocked time.
pub const UNIKPROF_MODE_WALL: u32 = 1;

/// In `mode` of `struct unikprof_boot_recording`: blocked time alone, measured.
pub const UNIKPROF_MODE_OFF_CPU: u32 = 2;

/// The longest name of events, in bytes, without its end.
pub const UNIKPROF_MAX_EVENT_NAME: u32 = 48;

/// How many names of events there can be; their numbers are smaller.
pub const UNIKPROF_MAX_EVENT_NAMES: u32 = 256;

/// In `flags` of `struct unikprof_config`: the guest calls `unikprof_poll` and moves its bytes also while
/// its main loop is stuck, from its upcall for instance. Clients are told.
pub const UNIKPROF_REACHABLE_WHEN_BUSY: u32 = 1;

/// How many clients are served at a time.
pub const UNIKPROF_SESSIONS: u32 = 4;

/// The longest frame that `unikprof_frame_rx` takes and `unikprof_frame_tx` gives, in bytes: of Ethernet,
/// without its checksum.
pub const UNIKPROF_MAX_FRAME: u32 = 1514;

/// The registers of interrupted code.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// The program counter: `rip`.
    pub pc: u64,
    /// The stack pointer, as it was in the interrupted code: `rsp`.
    pub sp: u64,
    /// The frame pointer: `rbp`.
    pub fp: u64,
    /// The link register of architectures that have one (aarch64: `x30`). On x86-64 0, and never read.
    pub lr: u64,
}

/// A range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
}

/// How a vCPU has spent its time, in ns since a fixed moment, as Xen's runstate tells it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Runstate {
    /// It ran.
    pub running_ns: u64,
    /// It could have run, and others did: stolen time.
    pub runnable_ns: u64,
    /// It waited.
    pub blocked_ns: u64,
    /// It was not there.
    pub offline_ns: u64,
}

/// One executable mapping of the guest, as the loader or linker placed it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// The first address of the code.
    pub start: u64,
    /// The address after the last.
    pub end: u64,
    /// Where `start` lies in the image's file, in bytes.
    pub file_offset: u64,
    /// The image's build-id (the description of its note, 20 bytes as a rule), or NULL. With it the client
    /// refuses an image that is another.
    pub build_id: *const u8,
    /// Bytes of the build-id, at most 64.
    pub build_id_length: usize,
    /// The image's path, or NULL. At most 4095 bytes of UTF-8.
    pub path: *const c_char,
}

/// What the agent is told about its guest at the start. All of it is copied: nothing needs to stay
/// where it is but `caller_memory` and `ring`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// `UNIKPROF_ABI_VERSION`.
    pub version: u32,
    /// How many vCPUs there are, 1 to 4096. The memory is divided evenly between them.
    pub vcpus: u32,
    /// Who is served: `UNIKPROF_ACCESS_OPEN` or `UNIKPROF_ACCESS_KEYS`; 0 is refused.
    pub access: u32,
    /// `UNIKPROF_REACHABLE_WHEN_BUSY`, or 0.
    pub flags: u32,
    /// How many recordings there can be at a time, 0 (taken as 1) to `UNIKPROF_MAX_RECORDINGS`. Each after the
    /// first takes 16 bytes of the memory for every 64 bytes of stacks.
    pub recordings: u32,
    /// How many mappings there are, 1 to 64.
    pub mapping_count: u32,
    /// The executable mappings, sorted by address. Code outside of them is shown as unknown.
    pub mappings: *const Mapping,
    /// The guest's name, or NULL. At most 255 bytes of UTF-8.
    pub guest_name: *const c_char,
    /// The guest's id, on Xen its UUID, or NULL. At most 255 bytes of UTF-8.
    pub guest_id: *const c_char,
    /// What the guest runs on, `xen` or `hosted`; NULL is taken as `xen`.
    pub platform_name: *const c_char,
    /// A block for the caller table that clients send, or NULL: then the agent takes none. It finds the
    /// callers of leaf functions and prologues, which a walk of frame pointers skips. 10 bytes for a row;
    /// a program of 2 MB has about 10,000. It belongs to the agent until `unikprof_stop` and must not
    /// overlap its other memory; any alignment will do.
    pub caller_memory: *mut c_void,
    /// Bytes of that block.
    pub caller_memory_length: usize,
    /// The agent's own place in the network, for a guest that hands frames over; NULL for one that has
    /// connections of its own. Only in an archive that was built with `--smoltcp`.
    pub network: *const Network,
    /// The keys of those who are served, with `UNIKPROF_ACCESS_KEYS`. They are copied into `memory`, and
    /// erased by `unikprof_stop`; the guest's own copies are the guest's to erase.
    pub keys: *const Key,
    /// How many there are, 1 to `UNIKPROF_MAX_KEYS`; several may have one role, so that keys can be changed
    /// while both the old and the new are good. 0 with `UNIKPROF_ACCESS_OPEN`.
    pub key_count: u32,
    /// The share of a CPU, in thousandths, that the agent's work for its clients may take: 1 to 1000, more is taken as
    /// 1000, and 0 as 100. Work beyond it waits; a part of it is kept for each role. It does not limit sampling.
    pub cpu_share_permille: u32,
    /// A block for the flight recorder, or NULL: then nothing is kept of what happened when, and there are no
    /// events. It belongs to the agent until `unikprof_stop` and must not overlap its other memory; any alignment
    /// will do. Only in an archive that was built with `--ring`.
    pub ring: *mut c_void,
    /// Bytes of that block; `unikprof_ring_bytes` tells how many.
    pub ring_length: usize,
}

/// A recording that begins with the guest, before any client has come. Clients find it by its name, as any
/// other. With 0 for all that may be 0 it samples running time at 97 Hz, for as long as the guest
/// runs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BootRecording {
    /// Its name, 1 to 64 bytes of UTF-8 without control characters.
    pub name: *const c_char,
    /// `UNIKPROF_MODE_CPU`, `UNIKPROF_MODE_WALL` or `UNIKPROF_MODE_OFF_CPU`.
    pub mode: u32,
    /// The most frames kept of one stack, at most 128; 0: 128.
    pub depth: u32,
    /// The mean time between two samples in ns of running time, 10,000 to 10,000,000,000; 0: 97 in a second.
    pub period_ns: u64,
    /// How long to record, in ns; 0: until a client stops it.
    pub duration_ns: u64,
    /// How long to wait before, in ns.
    pub delay_ns: u64,
    /// How far back the samples of a dump need to go, in ns; 0: as far as there are any. The client's preset
    /// `default` has 300 s.
    pub max_age_ns: u64,
    /// How many bytes the samples of a dump may take, the newest first; 0: all there are. The client's preset
    /// `default` has 524,288.
    pub max_bytes: u64,
}

/// A key that clients hold too, and what it allows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key {
    /// `UNIKPROF_ROLE_VIEW` or `UNIKPROF_ROLE_CONTROL`.
    pub role: u32,
    /// The key as `unikprof-client keygen` writes it: a line `unikprof-key-1:` and 64 digits; lines
    /// that begin with `#` are passed over. At most 1023 bytes.
    pub text: *const c_char,
}

/// Where the agent's own TCP is in the network. IPv4 over Ethernet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The device's address, unicast.
    pub hardware_address: [u8; 6],
    /// The port that clients connect to, not 0.
    pub port: u16,
    /// The agent's IPv4 address, unicast: 10.0.0.5 is { 10, 0, 0, 5 }.
    pub address: [u8; 4],
    /// The gateway's address; all 0 for none.
    pub gateway: [u8; 4],
    /// The length of the network's prefix, 0 to 32.
    pub prefix_length: u32,
}

/// What the agent asks of the guest.
///
/// Functions marked *upcall* are called inside `unikprof_on_tick`, `unikprof_on_block`, `unikprof_on_wake`
/// and `unikprof_deadline`, where the guest may have been interrupted anywhere. They must be bounded, must
/// not lock or allocate, and must be compiled as the guest's own upcall code is: the library uses no SSE
/// state, and does not save it for them. The others are called by the loop's calls (`unikprof_poll`,
/// connections, frames). All get `context` as their first argument. None may call back into the library
/// to any end: calls from inside are answered with `UNIKPROF_E_BUSY` or count a lost sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Ops {
    /// Passed to all of them.
    pub context: *mut c_void,
    /// The monotonic clock in ns; its origin is the guest's own, and it is the clock of all deadlines.
    /// *Upcall.* Required.
    pub now_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// The vCPU that this code runs on, counted from 0, or `UNIKPROF_NO_VCPU`. *Upcall.* Required.
    pub vcpu: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    /// How long a vCPU has run, in ns since a fixed moment: neither stolen nor blocked time advances it,
    /// and it never goes back. On Xen the runstate's `RUNSTATE_running`, with the time since its last change.
    /// *Upcall*, for the vCPU that it runs on; the loop asks for the others. Required.
    pub running_ns: Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32) -> u64>,
    /// The stack that a stack pointer lies on: fill in `start` and `end` and answer 1, or answer 0 where it
    /// lies on none that is known; such a sample holds its leaf alone. *Upcall.* Required.
    ///
    /// All of the range from `sp` up must be mapped and readable while the upcall runs: the agent reads
    /// it. The agent checks that the range holds `sp`, and reads nothing below that; it cannot check `end`.
    /// An end that is too high makes it read memory that may not be there. A chain of frames has reached
    /// its root where the saved frame pointer is 0 or a frame ends where the stack does.
    pub stack_bounds:
        Option<unsafe extern "C" fn(context: *mut c_void, sp: u64, bounds: *mut Range) -> i32>,
    /// Makes another vCPU call `unikprof_on_tick` soon, so that it arms its timer: a Xen vCPU cannot set
    /// the timer of another. An IPI event channel does it. NULL for a guest with one vCPU, which asks
    /// `unikprof_deadline` after each poll instead.
    pub kick: Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32)>,
    /// The time of day in ns since 1970-01-01 UTC, 0 where it is not known. `unikprof_crash_dump` asks for it
    /// too, wherever that was called. May be NULL.
    pub wall_clock_ns: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
    /// How long a vCPU has been blocked, in ns since a fixed moment. *Upcall.* May be NULL: then all time
    /// counts as blocked in which it did not run.
    pub blocked_ns: Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32) -> u64>,
    /// Where a vCPU's time has gone: fill it in and answer 1, or answer 0. May be NULL.
    pub runstate:
        Option<unsafe extern "C" fn(context: *mut c_void, vcpu: u32, times: *mut Runstate) -> i32>,
    /// The code around a pc whose bytes can be read, the image's text as a rule: fill in `start` and `end`
    /// and answer 1, or answer 0. With it the callers of prologues are right. *Upcall.* May be NULL.
    pub code_bounds:
        Option<unsafe extern "C" fn(context: *mut c_void, pc: u64, bounds: *mut Range) -> i32>,
    /// 64 random bits: fill them in and answer 1, or answer 0. May be NULL, but not with
    /// `UNIKPROF_ACCESS_KEYS`: secrets are drawn from it, so nobody else may be able to guess them.
    pub random: Option<unsafe extern "C" fn(context: *mut c_void, bits: *mut u64) -> i32>,
    /// A moment of `now_ns` as the guest's timer is programmed with it, where the two differ: after a
    /// migration, where `now_ns` goes on and the hypervisor's clock begins anew. *Upcall.* May be NULL:
    /// then they are the same.
    pub timer_deadline_ns:
        Option<unsafe extern "C" fn(context: *mut c_void, monotonic_ns: u64) -> u64>,
    /// The clocks below may have another origin: `unikprof_resume` was called. From here on `now_ns` and
    /// the times of all vCPUs go on where they stood. *Upcall.* May be NULL.
    pub resume: Option<unsafe extern "C" fn(context: *mut c_void)>,
    /// A line for the guest's log, of at most 300 bytes: what its owner should know, and never a secret. May
    /// be NULL.
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, line: *const c_char)>,
    /// Where a walk goes on that has reached the end of a chain of frames: fill in `registers` and return 1, or
    /// return 0 if that is the end. *Upcall.* May be NULL.
    ///
    /// An interrupt or exception handler that runs on a stack of its own has the interrupted code's frames on
    /// another stack. Without this function a sample inside the handler lacks them. Fill in the interrupted
    /// registers from the frame that the processor and the entry code have saved; the walk goes on at their
    /// `pc`, on the stack that `stack_bounds` tells for their `sp`. The same serves fibers, whose callers lie on the
    /// stack that they were started from.
    ///
    /// Everything below `sp` has been passed, and `sp` tells which stack it was. `fp` is the frame pointer that
    /// could not be followed: 0 if the entry code clears it, otherwise mostly that of the interrupted code. An
    /// entry code that stays on the interrupted stack must clear the frame pointer before it calls the handler,
    /// since the chain would otherwise lead past the interrupted function.
    pub continuation: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            sp: u64,
            fp: u64,
            registers: *mut Registers,
        ) -> i32,
    >,
}

const _: () = {
    assert!(size_of::<Registers>() == 32);
    assert!(size_of::<Range>() == 16);
    assert!(size_of::<Runstate>() == 32);
    assert!(size_of::<Mapping>() == 48);
    assert!(size_of::<Config>() == 112);
    assert!(size_of::<BootRecording>() == 56);
    assert!(size_of::<Network>() == 20);
    assert!(size_of::<Key>() == 16);
    assert!(size_of::<Ops>() == 120);
};
