//! What the raw integers of the protocol mean.
//!
//! Everything here is a plain constant: a peer may send a value that this version does not know,
//! and it must survive being read, stored and shown.

/// How a conversation is protected: [`Preamble::security`](crate::preamble::Preamble::security).
pub mod security {
    /// Not at all: everything travels in the clear, and everybody may do everything.
    pub const OPEN: u8 = 0;
    /// By `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, see [`secure`](crate::secure).
    pub const NOISE: u8 = 1;
}

/// What a client may do: [`Welcome::role`](crate::message::Welcome::role).
pub mod role {
    /// Everything: the agent is open, and asks nobody for a key.
    pub const OPEN: u32 = 0;
    /// Look: hello, check and fetch.
    pub const VIEW: u32 = 1;
    /// Everything.
    pub const CONTROL: u32 = 2;
}

/// Message types. Requests lie below `0x4000`, a recording file's own messages below `0x8000`,
/// answers from there on.
pub mod message_type {
    /// [`Hello`](crate::message::Hello): who are you?
    pub const HELLO: u16 = 0x0001;
    /// [`Start`](crate::message::Start) a recording.
    pub const START: u16 = 0x0002;
    /// [`Stop`](crate::message::Stop) a recording.
    pub const STOP: u16 = 0x0003;
    /// [`Check`](crate::message::Check): what runs, and how full is it?
    pub const CHECK: u16 = 0x0004;
    /// [`Dump`](crate::message::Dump) a recording that goes on.
    pub const DUMP: u16 = 0x0005;
    /// [`Fetch`](crate::message::Fetch) an epoch, or the rest of one.
    pub const FETCH: u16 = 0x0006;
    /// [`Acknowledge`](crate::message::Acknowledge) an epoch: it is safe, forget it.
    pub const ACKNOWLEDGE: u16 = 0x0007;
    /// [`TableBegin`](crate::message::TableBegin): a caller table follows.
    pub const TABLE_BEGIN: u16 = 0x0008;
    /// [`TableRows`](crate::message::TableRows): a run of its rows. Not answered.
    pub const TABLE_ROWS: u16 = 0x0009;
    /// [`TableEnd`](crate::message::TableEnd): that was all of it.
    pub const TABLE_END: u16 = 0x000a;
    /// [`Handshake`](crate::message::Handshake): a client's first message under a key.
    pub const HANDSHAKE: u16 = 0x000b;
    /// [`Ring`](crate::message::Ring): the records of a vCPU's ring.
    pub const RING: u16 = 0x000c;
    /// [`Stacks`](crate::message::Stacks): the stacks that records name.
    pub const STACKS: u16 = 0x000d;
    /// [`EventNames`](crate::message::EventNames): the names that records name.
    pub const EVENT_NAMES: u16 = 0x000e;

    /// The first type that only recording files hold.
    pub const FILE_FIRST: u16 = 0x4000;

    /// [`Refusal`](crate::message::Refusal): no, and why. The same in all versions.
    pub const REFUSAL: u16 = 0x8000;
    /// [`Welcome`](crate::message::Welcome): the answer to a hello.
    pub const WELCOME: u16 = 0x8001;
    /// [`Mapping`](crate::message::Mapping): one stretch of code; they follow a welcome.
    pub const MAPPING: u16 = 0x8002;
    /// [`Status`](crate::message::Status): the answer to a check.
    pub const STATUS: u16 = 0x8003;
    /// [`Started`](crate::message::Started): the answer to a start.
    pub const STARTED: u16 = 0x8004;
    /// [`Pending`](crate::message::Pending): the epochs to fetch, after a stop or a dump.
    pub const PENDING: u16 = 0x8005;
    /// [`Epoch`](crate::message::Epoch): the head of an epoch.
    pub const EPOCH: u16 = 0x8006;
    /// [`VcpuEpoch`](crate::message::VcpuEpoch): one vCPU's share of an epoch.
    pub const VCPU_EPOCH: u16 = 0x8007;
    /// [`Histogram`](crate::message::Histogram): a distribution of one vCPU.
    pub const HISTOGRAM: u16 = 0x8008;
    /// [`Nodes`](crate::message::Nodes): a run of stack nodes.
    pub const NODES: u16 = 0x8009;
    /// [`VcpuEnd`](crate::message::VcpuEnd): one vCPU's share of an epoch was sent.
    pub const VCPU_END: u16 = 0x800a;
    /// [`Acknowledged`](crate::message::Acknowledged): the epoch is gone.
    pub const ACKNOWLEDGED: u16 = 0x800b;
    /// [`TableReady`](crate::message::TableReady): send the rows.
    pub const TABLE_READY: u16 = 0x800c;
    /// [`TableInstalled`](crate::message::TableInstalled): the table is in use.
    pub const TABLE_INSTALLED: u16 = 0x800d;
    /// [`HandshakeReply`](crate::message::HandshakeReply): the agent's; all that follows is sealed.
    pub const HANDSHAKE_REPLY: u16 = 0x800e;
    /// [`RecordingStatus`](crate::message::RecordingStatus): one recording; they follow a status.
    pub const RECORDING_STATUS: u16 = 0x800f;
    /// [`RingHead`](crate::message::RingHead): what a ring holds.
    pub const RING_HEAD: u16 = 0x8010;
    /// [`RingRun`](crate::message::RingRun): a run of its records.
    pub const RING_RUN: u16 = 0x8011;
    /// [`RingEnd`](crate::message::RingEnd): all that was there was sent.
    pub const RING_END: u16 = 0x8012;
    /// [`StacksEnd`](crate::message::StacksEnd): all stacks were sent.
    pub const STACKS_END: u16 = 0x8013;
    /// [`EventName`](crate::message::EventName): a name of the guest's events.
    pub const EVENT_NAME: u16 = 0x8014;
    /// [`EventNamesEnd`](crate::message::EventNamesEnd): all names were sent.
    pub const EVENT_NAMES_END: u16 = 0x8015;
    /// [`Counts`](crate::message::Counts): a run of counts.
    pub const COUNTS: u16 = 0x8016;
}

/// Why a request was refused: [`Refusal::code`](crate::message::Refusal::code).
pub mod refusal {
    /// No protocol version that both sides speak.
    pub const NO_COMMON_VERSION: u32 = 1;
    /// The frame or its body is malformed; the agent closes after it.
    pub const MALFORMED: u32 = 2;
    /// The agent does not know this request.
    pub const UNKNOWN_REQUEST: u32 = 3;
    /// The sampling period is outside the agent's limits.
    pub const BAD_PERIOD: u32 = 4;
    /// The depth is outside the agent's limits.
    pub const BAD_DEPTH: u32 = 5;
    /// The recording's name is empty, too long or not printable.
    pub const BAD_NAME: u32 = 6;
    /// The agent does not sample in this mode.
    pub const UNSUPPORTED_MODE: u32 = 7;
    /// A recording of this name runs already, or one that keeps a caller table from being sent.
    pub const ALREADY_RECORDING: u32 = 8;
    /// A finished recording of this name, or in the way, has not been fetched; the text names it.
    pub const UNFETCHED: u32 = 9;
    /// No such recording.
    pub const NO_RECORDING: u32 = 10;
    /// No such epoch: never made, or acknowledged already.
    pub const NO_EPOCH: u32 = 11;
    /// All sessions are taken.
    pub const BUSY: u32 = 12;
    /// The caller table is too large for the memory given to the agent; the text names the limit.
    pub const TABLE_TOO_LARGE: u32 = 13;
    /// The caller table is malformed, or another client has begun to send one.
    pub const BAD_TABLE: u32 = 14;
    /// The agent does not hold the caller table that the start asks for.
    pub const NO_TABLE: u32 = 15;
    /// The agent asks for a key, and the client has offered none.
    pub const KEY_NEEDED: u32 = 16;
    /// The handshake failed: the agent does not hold the client's key, or bytes were altered.
    pub const BAD_KEY: u32 = 17;
    /// The client's role does not allow the request.
    pub const NOT_ALLOWED: u32 = 18;
    /// The agent is open, and the client has begun a handshake.
    pub const NOT_KEYED: u32 = 19;
    /// As many recordings as the agent can hold are there already; the text names them.
    pub const TOO_MANY_RECORDINGS: u32 = 20;
    /// Several recordings are there, and the request names none; the text names them.
    pub const WHICH_RECORDING: u32 = 21;
    /// The agent was given no memory for a ring.
    pub const NO_RING: u32 = 22;
    /// Another client holds the lease on the recording; the text names it.
    pub const LEASED: u32 = 23;
    /// Some of an epoch's counts were given up while it was sent: fetch it again.
    pub const EPOCH_CHANGED: u32 = 24;
}

/// What is sampled: [`Start::mode`](crate::message::Start::mode).
pub mod mode {
    /// Running time: where the CPU is spent.
    pub const CPU: u32 = 0;
    /// Running and blocked time: as [`CPU`], and blocked time is counted to the stack that blocked,
    /// with [`frame_code::BLOCKED`](super::frame_code::BLOCKED) as its leaf.
    pub const WALL: u32 = 1;
    /// Blocked time alone, measured and not sampled: counts are nanoseconds.
    pub const OFF_CPU: u32 = 2;
}

/// [`Start::flags`](crate::message::Start::flags).
pub mod start_flag {
    /// Throw away a finished recording that nobody fetched: the one of the same name, or where there is
    /// no room for another one, any.
    pub const DISCARD: u32 = 1;
    /// Sample at fixed intervals: for comparison only, a load in step with them fools it.
    pub const FIXED_INTERVAL: u32 = 2;
    /// Look every frame up in the caller table, not the interrupted one alone. Needs a table.
    pub const UNWIND_TABLE: u32 = 4;
    /// Where memory runs short, keep the newest stacks: counts of the oldest that nobody fetched are added to
    /// [`Counters::aged`](crate::message::Counters::aged). Without it they are kept, and new stacks overflow.
    pub const KEEP_NEWEST: u32 = 8;
}

/// The state of a recording: [`RecordingStatus::state`](crate::message::RecordingStatus::state).
pub mod state {
    /// It was fetched, and is gone since the status was asked for.
    pub const IDLE: u32 = 0;
    /// A recording waits for its delay to pass.
    pub const DELAYED: u32 = 1;
    /// A recording runs.
    pub const RECORDING: u32 = 2;
    /// A recording has ended and waits to be fetched.
    pub const FINISHED: u32 = 3;
}

/// What an agent can do: bits of [`Welcome::capabilities`](crate::message::Welcome::capabilities).
pub mod capability {
    /// Running, runnable, blocked and offline time are told apart.
    pub const RUNSTATE: u64 = 1;
    /// The agent answers even while the guest is stuck in a loop.
    pub const REACHABLE_WHEN_BUSY: u64 = 2;
    /// The agent keeps what happened when, and the guest's own events: it answers
    /// [`Ring`](crate::message::Ring).
    pub const RING: u64 = 4;
}

/// Which distribution a [`Histogram`](crate::message::Histogram) is.
pub mod histogram {
    /// Cycles per sample, from the entry of `on_tick` to its return.
    pub const SAMPLE_CYCLES: u32 = 0;
    /// Nanoseconds of running time between a target and its delivery.
    pub const LATENESS_NS: u32 = 1;
}

/// Frame codes: how a frame of a stack travels in 32 bits.
///
/// A code at or above [`frame_code::FIRST_ADDRESS`] is an address: the mapping with the greatest
/// [`code_base`](crate::message::Mapping::code_base) not above it holds the address
/// `start + (code - code_base)`. Smaller codes stand for what is not an address.
pub mod frame_code {
    /// No frame. Never sent.
    pub const NONE: u32 = 0;
    /// The stack goes on towards its root, beyond the depth limit.
    pub const TRUNCATED: u32 = 1;
    /// The chain of frame pointers ended badly: the root-most callers are missing.
    pub const BROKEN: u32 = 2;
    /// The interrupted pc, or a return address, lies in no mapping: code that was loaded or generated later.
    pub const UNKNOWN_CODE: u32 = 3;
    /// The interrupted code was the agent's own.
    pub const AGENT: u32 = 4;
    /// The vCPU was blocked: the leaf of blocked time's stacks in a wall-clock recording.
    pub const BLOCKED: u32 = 5;
    /// The leaf of a sample that arrived late. The code below ran when it arrived, not when it was due: it unmasked
    /// events, or was the first to run after the host had stalled the guest.
    pub const LATE: u32 = 6;
    /// Samples whose stacks were given up, the oldest first, because memory ran short. Made by clients from
    /// [`Counters::aged`](crate::message::Counters::aged); an agent never sends it.
    pub const AGED: u32 = 7;
    /// The first code that is an address.
    pub const FIRST_ADDRESS: u32 = 16;
}
