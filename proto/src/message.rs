//! The bodies of the frames. Requests first, then the answers.
//!
//! Times are nanoseconds of the guest's monotonic clock unless a name says otherwise; their origin
//! is the guest's own (its boot, as a rule) and they are comparable only within one guest's life.
//! Text is UTF-8; limits are in bytes.

mod counters;
mod histogram;
mod peers;
mod snapshot;

use serde::{Deserialize, Serialize};

use crate::frame::Message;

pub use counters::{Counter, Counters};
pub use histogram::{BUCKETS, bucket, bucket_floor};
pub use peers::Peers;
pub use snapshot::{Overhead, Runstate, Snapshot};

/// The longest name of a recording.
pub const MAX_NAME: usize = 64;
/// The longest name and version of a client; longer ones are truncated at the end.
pub const MAX_CLIENT: usize = 64;
/// Within this time a client confirms a start by any further request, or the agent ends the
/// recording.
pub const CONFIRM_WITHIN_NS: u64 = 30_000_000_000;
/// The longest text of a refusal.
pub const MAX_TEXT: usize = 256;
/// The longest path of a mapping, guest name or guest id; longer ones are truncated at the
/// beginning.
pub const MAX_PATH: usize = 256;
/// The longest build-id.
pub const MAX_BUILD_ID: usize = 64;
/// The shortest mean sampling period that an agent accepts, in ns: 100 kHz.
pub const MIN_PERIOD_NS: u64 = 10_000;
/// The longest mean sampling period that an agent accepts, in ns: 0.1 Hz.
pub const MAX_PERIOD_NS: u64 = 10_000_000_000;
/// The smallest mean sampling interval of the heap modes.
pub const MIN_INTERVAL_BYTES: u64 = 64;
/// The largest mean sampling interval of the heap modes.
pub const MAX_INTERVAL_BYTES: u64 = 1 << 40;

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? = $kind:ident $code:literal {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {
        /// The type of each message.
        pub(crate) mod types {$(
            #[doc = concat!(
                "The type of [`", stringify!($name), "`](crate::message::", stringify!($name), ")."
            )]
            pub const $kind: u16 = $code;
        )*}
        $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }
        messages!(@impl $name $(<$life>)?, $code);
    )*};
    (@impl $name:ident<$life:lifetime>, $code:literal) => {
        impl<$life> Message<$life> for $name<$life> {
            const TYPE: u16 = $code;
        }
    };
    (@impl $name:ident, $code:literal) => {
        impl Message<'_> for $name {
            const TYPE: u16 = $code;
        }
    };
}

messages! {
    /// Requests a description of the agent. Answered by [`Welcome`] and its [`Mapping`]s.
    Hello<'a> = HELLO 0x0001 {
        /// The client's name and version, for the guest's log and for other clients, at most
        /// [`MAX_CLIENT`] bytes.
        #[serde(borrow)]
        client: &'a str,
        /// A random number chosen by this client process, the same on each of its connections.
        /// Leases on recordings belong to it, so that a client keeps its lease when its connection
        /// is lost. 0: this client takes no lease.
        client_id: u64,
    }

    /// Starts a recording. Answered by [`Started`].
    Start<'a> = START 0x0002 {
        /// The recording's name, 1 to [`MAX_NAME`] bytes, printable.
        #[serde(borrow)]
        name: &'a str,
        /// The mean sampling period in ns of running time; 0 in the heap modes.
        period_ns: u64,
        /// The sampled kind of time or memory; see [`code::mode`](crate::code::mode).
        mode: u32,
        /// The maximum number of frames kept of a stack; simultaneous recordings keep as many as
        /// the deepest of them.
        depth: u32,
        /// The length of the recording in ns; 0 = until stopped.
        duration_ns: u64,
        /// The delay before the recording begins, in ns.
        delay_ns: u64,
        /// See [`code::start_flag`](crate::code::start_flag).
        flags: u32,
        /// The [checksum](crate::caller_table::table_checksum) of the caller table for looking up
        /// callers; `None` for none.
        caller_table: Option<u32>,
        /// The time before a dump that its ring records need to cover, in ns; 0 = no limit. Used by
        /// clients, which find it in [`RecordingStatus`].
        max_age_ns: u64,
        /// The maximum number of bytes of ring records in a dump, the newest first; 0 = no limit.
        /// Used by clients.
        max_bytes: u64,
        /// In the heap modes, the mean number of bytes between two sampled ones,
        /// [`MIN_INTERVAL_BYTES`] to [`MAX_INTERVAL_BYTES`], and `period_ns` is 0. 0 in the other
        /// modes.
        interval_bytes: u64,
    }

    /// Ends a recording and takes the lease on it. Repeats the answer for one that has ended
    /// already. Answered by [`Pending`].
    Stop = STOP 0x0003 {
        /// The recording's id, or 0 for the only one.
        recording: u64,
    }

    /// Requests the recorder's state. Answered by [`Status`] and its [`RecordingStatus`]es.
    Check = CHECK 0x0004 {}

    /// Turns the counts so far into an epoch, unless an epoch waits to be fetched, and takes the
    /// lease on the recording, which continues. Answered by [`Pending`].
    Dump = DUMP 0x0005 {
        /// The recording's id, or 0 for the only one.
        recording: u64,
    }

    /// Requests one vCPU's part of a waiting epoch. Answered by [`Epoch`], [`VcpuEpoch`], its
    /// [`Histogram`]s, the [`Nodes`] that the client does not have, the nonzero [`Counts`], the
    /// [`LiveSamples`] of a recording of what is still held, and [`VcpuEnd`]. Needs no lease.
    /// Several requests may be sent without waiting for their answers.
    Fetch = FETCH 0x0006 {
        /// The epoch's id.
        epoch: u64,
        /// The vCPU.
        vcpu: u32,
        /// The client has all nodes of this vCPU up to this number, from this instance of the
        /// agent; 0 for none.
        known: u64,
        /// The client has the counts up to this number, from an interrupted answer; 0 for none.
        counted: u64,
    }

    /// Confirms that the client has stored an epoch. The client must hold the lease on its
    /// recording. Answered by [`Acknowledged`].
    Acknowledge = ACKNOWLEDGE 0x0007 {
        /// The epoch's id.
        epoch: u64,
    }

    /// Announces a part of a caller table. If an upload of this part has begun already, by this
    /// client or by another one that has lost its connection, it continues where it stopped; any
    /// other upload is cancelled. While nothing is recorded, the part replaces the agent's table if
    /// it overlaps that or does not fit beside it. While something is recorded, a part can only be
    /// added. Answered by [`TableReady`].
    TableBegin = TABLE_BEGIN 0x0008 {
        /// The first code of the part.
        first: u32,
        /// The first code after the part.
        end: u32,
        /// The number of its rows.
        rows: u32,
        /// The [checksum](crate::caller_table::checksum) of its rows.
        checksum: u32,
    }

    /// A run of rows; see [`caller_table`](crate::caller_table) for the encoding. Has no answer:
    /// errors are reported after [`TableEnd`].
    TableRows<'a> = TABLE_ROWS 0x0009 {
        /// The id of the upload, from [`TableReady`].
        upload: u64,
        /// The index of the first row.
        first: u32,
        /// The number of rows.
        count: u32,
        /// The rows.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// All rows of the part were sent. Answered by [`TableInstalled`].
    TableEnd = TABLE_END 0x000a {
        /// The id of the upload.
        upload: u64,
    }

    /// Requests the records of a vCPU's ring. Answered by [`RingHead`], [`RingRun`]s and
    /// [`RingEnd`].
    Ring = RING 0x000c {
        /// The vCPU.
        vcpu: u32,
        /// The first position wanted; evicted positions are skipped.
        position: u64,
        /// Records before this time are skipped; monotonic clock in ns.
        since_ns: u64,
    }

    /// Requests the stack nodes of a vCPU that the client does not have. Answered by [`Nodes`] and
    /// [`StacksEnd`].
    Stacks = STACKS 0x000d {
        /// The vCPU.
        vcpu: u32,
        /// The client has all nodes of this vCPU up to this number, from this instance of the
        /// agent; 0 for none.
        known: u64,
    }

    /// Requests the names of the guest's events. Answered by [`EventName`]s and [`EventNamesEnd`].
    EventNames = EVENT_NAMES 0x000e {
        /// The first id wanted.
        first: u32,
    }

    /// Requests a snapshot of one vCPU: its registers and its stack. No recording is needed. The
    /// agent interrupts the vCPU and answers without waiting for it, so the client repeats the
    /// request until the snapshot is new enough. Answered by [`VcpuSnapshot`].
    TakeSnapshot = TAKE_SNAPSHOT 0x000f {
        /// The vCPU.
        vcpu: u32,
        /// The time from which on the last snapshot is new enough: then the agent returns it and
        /// does not interrupt the vCPU. [`u64::MAX`]: always take a new one.
        since_ns: u64,
    }

    /// Begins a trace: functions and their probes follow, and nothing is traced yet. A trace that
    /// this client began before is ended. Requires the role [`TRACE`](crate::code::role::TRACE) or
    /// an open agent. Answered by [`TraceReady`].
    TraceBegin = TRACE_BEGIN 0x0010 {
        /// The number of its functions, 1 to [`MAX_FUNCTIONS`](crate::trace::MAX_FUNCTIONS).
        functions: u32,
        /// The number of its probes.
        probes: u32,
        /// See [`code::trace_flag`](crate::code::trace_flag).
        flags: u32,
        /// The share of one CPU that the trace may cost, in thousandths: the agent removes the
        /// probes of the functions that are called most until it costs less. 0: no limit.
        max_cost_permille: u32,
        /// Keep only calls of root functions that took so long, in ns, and what they called; 0:
        /// keep all calls. See [`function_flag::ROOT`](crate::trace::function_flag::ROOT).
        slow_ns: u64,
    }

    /// Functions of a trace, in the order of their indices. Has no answer: errors are reported
    /// after [`TraceArm`].
    TraceFunctions<'a> = TRACE_FUNCTIONS 0x0011 {
        /// The trace's id, from [`TraceReady`].
        trace: u64,
        /// The index of the first one.
        first: u32,
        /// The number of functions in `payload`.
        count: u32,
        /// See [`trace`](mod@crate::trace).
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// Probes of a trace; their functions were sent before. Has no answer: errors are reported
    /// after [`TraceArm`].
    TraceProbes<'a> = TRACE_PROBES 0x0012 {
        /// The trace's id.
        trace: u64,
        /// The index of the first one.
        first: u32,
        /// The number of probes in `payload`.
        count: u32,
        /// See [`trace`](mod@crate::trace).
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// All functions and probes were sent: begin to trace. The agent compares each instruction with
    /// its memory before it writes a breakpoint there. Answered by [`TraceArmed`] and its
    /// [`TraceRefused`]s. Repeats the answer for a trace that is armed already.
    TraceArm = TRACE_ARM 0x0013 {
        /// The trace's id.
        trace: u64,
    }

    /// Requests what was counted so far. It is not cleared. Answered by [`TraceState`],
    /// [`TraceTotals`], [`TraceCallers`] and [`TraceEnd`]. The calls themselves are in the
    /// [rings](crate::ring), from [`kind::ENTER`](crate::ring::kind::ENTER) and
    /// [`kind::LEAVE`](crate::ring::kind::LEAVE) on.
    ///
    /// A trace ends by itself [`TraceReady::patience_ns`] after the last request about it.
    TraceFetch = TRACE_FETCH 0x0014 {
        /// The trace's id.
        trace: u64,
    }

    /// Ends a trace: removes its probes. What was counted can be fetched until another trace
    /// begins. Answered by [`TraceState`].
    TraceStop = TRACE_STOP 0x0015 {
        /// The trace's id.
        trace: u64,
    }

    /// A client's first message with a key: `-> psk, e` of the handshake. It is sent directly after
    /// the client's preamble. Answered by [`HandshakeReply`]; see [`secure`](crate::secure).
    Handshake = HANDSHAKE 0x000b {
        /// The key's id; see [`secure::KEY_ID`](crate::secure::KEY_ID).
        key: [u8; crate::secure::KEY_ID],
        /// The ephemeral public key.
        ephemeral: [u8; 32],
        /// The tag of the empty payload.
        tag: [u8; 16],
    }

    /// A request was refused. Its structure is the same in all versions.
    Refusal<'a> = REFUSAL 0x8000 {
        /// The reason; see [`code::refusal`](crate::code::refusal).
        code: u32,
        /// The type of the refused request; 0 if there was none.
        request: u16,
        /// For people: expected, found, and what to do.
        #[serde(borrow)]
        text: &'a str,
    }

    /// A description of the agent, followed by `mappings` [`Mapping`]s.
    Welcome<'a> = WELCOME 0x8001 {
        /// The agent's version.
        #[serde(borrow)]
        agent_version: &'a str,
        /// The instruction set, by its ELF name in lower case: `x86_64`.
        architecture: &'a str,
        /// The platform: `xen` or `hosted`.
        platform: &'a str,
        /// The guest's name, if known.
        guest_name: Option<&'a str>,
        /// The guest's id (on Xen its UUID), if known.
        guest_id: Option<&'a str>,
        /// The number of vCPUs.
        vcpus: u32,
        /// The number of mappings that follow.
        mappings: u32,
        /// The monotonic clock now.
        monotonic_ns: u64,
        /// The current time in ns since 1970-01-01 UTC, if known.
        wall_clock_ns: Option<u64>,
        /// See [`code::capability`](crate::code::capability).
        capabilities: u64,
        /// The shortest period accepted, in ns.
        min_period_ns: u64,
        /// The longest period accepted, in ns.
        max_period_ns: u64,
        /// The greatest depth accepted.
        max_depth: u32,
        /// The longest request body accepted, in bytes.
        max_request: u32,
        /// The memory given to the agent, in bytes.
        memory_bytes: u64,
        /// The number of segments of each vCPU's stack nodes.
        segments: u32,
        /// The number of stack nodes in a segment. See [`nodes`](crate::nodes) for the numbers of
        /// nodes.
        segment_nodes: u32,
        /// The number of caller table rows that there is room for; 0: the agent accepts no table.
        caller_rows: u32,
        /// The checksum of the agent's caller table.
        caller_table: Option<u32>,
        /// This client's permissions; see [`code::role`](crate::code::role).
        role: u32,
        /// The agent's instance id: random, never 0, renewed when the guest resumes after a
        /// suspension. Recordings, epochs and stacks are identified by their numbers only within
        /// one instance.
        instance: u64,
    }

    /// One executable mapping of the guest. A recording's codes refer to the mappings in force when
    /// it was started.
    Mapping<'a> = MAPPING 0x8002 {
        /// The first address.
        start: u64,
        /// The address after the last.
        end: u64,
        /// The offset of `start` in the file.
        file_offset: u64,
        /// The code of `start`; see [`code::frame_code`](crate::code::frame_code).
        code_base: u32,
        /// The build-id of the image; empty if it has none.
        #[serde(borrow)]
        build_id: &'a [u8],
        /// The image's path in the guest; may be empty.
        path: &'a str,
    }

    /// The recorder's state, followed by `recordings` [`RecordingStatus`]es.
    Status = STATUS 0x8003 {
        /// The number of recordings.
        recordings: u32,
        /// The maximum number of simultaneous recordings.
        max_recordings: u32,
        /// The monotonic clock now.
        now_ns: u64,
        /// Stack nodes in use, all vCPUs.
        nodes_used: u64,
        /// Capacity in stack nodes, all vCPUs.
        nodes_capacity: u64,
        /// The capacity of each vCPU's ring in records; 0: there is no ring.
        ring_capacity: u64,
        /// Open sessions, this one included.
        sessions: u32,
        /// Connections that were refused or closed by the agent.
        peers: Peers,
        /// When the agent began to serve clients, on the monotonic clock in ns.
        server_since_ns: u64,
        /// The time that the agent has run for its own network work since then, in ns.
        server_ns: u64,
        /// The longest single piece of that work by the clock, in ns.
        server_longest_ns: u64,
        /// The share of one CPU that this work may take over time, in thousandths.
        server_share_permille: u32,
        /// The time that clients have waited since then because their part of that share was used
        /// up, in ns: the sum over the roles.
        server_deferred_ns: u64,
        /// Samples in the table of live allocations, of all recordings.
        live_used: u64,
        /// Its capacity in samples; 0: there is no such table.
        live_capacity: u64,
    }

    /// One recording.
    RecordingStatus<'a> = RECORDING_STATUS 0x800f {
        /// Its id.
        recording: u64,
        /// The recording's bit in ring samples.
        ring_bit: u32,
        /// Its name.
        #[serde(borrow)]
        name: &'a str,
        /// See [`code::state`](crate::code::state).
        state: u32,
        /// Its mode; see [`code::mode`](crate::code::mode).
        mode: u32,
        /// Its mean sampling period in ns; 0 in the heap modes.
        period_ns: u64,
        /// Its mean sampling interval in bytes; 0 except in the heap modes.
        interval_bytes: u64,
        /// Its depth limit in frames.
        depth: u32,
        /// Its flags; see [`code::start_flag`](crate::code::start_flag).
        flags: u32,
        /// When sampling began, or will begin.
        started_ns: u64,
        /// The requested duration in ns; 0 = until stopped.
        duration_ns: u64,
        /// As requested by its [`Start`].
        max_age_ns: u64,
        /// As requested by its [`Start`].
        max_bytes: u64,
        /// The counters of all vCPUs since the recording began.
        counters: Counters,
        /// Its cost since its current epoch began.
        overhead: Overhead,
        /// The time for which the ring holds samples at the present rate, in ns: the minimum over
        /// all vCPUs. `None` if there is no ring, or if nothing is written to it.
        samples_window_ns: Option<u64>,
        /// The time for which the memory holds stacks at the present rate of new ones, in ns: the
        /// minimum over all vCPUs. `None` if there are no new stacks.
        stacks_window_ns: Option<u64>,
        /// Whether the memory of its oldest stacks cannot be freed until its counts there have been
        /// fetched.
        wants_fetch: bool,
        /// The name and version of the client that holds the lease on it.
        holder: Option<&'a str>,
        /// When that client took it, on the monotonic clock in ns.
        held_since_ns: u64,
        /// The first epoch waiting to be fetched.
        first_epoch: u64,
        /// The number of waiting epochs.
        epochs: u32,
    }

    /// A recording was started.
    Started = STARTED 0x8004 {
        /// Its id, unique in this guest's life.
        recording: u64,
        /// When sampling begins.
        started_ns: u64,
    }

    /// The epochs waiting to be fetched.
    Pending = PENDING 0x8005 {
        /// The recording they belong to.
        recording: u64,
        /// The first epoch.
        first_epoch: u64,
        /// The number of epochs; their ids are consecutive.
        epochs: u32,
        /// Whether they contain the counts up to this request. If not, an older epoch was still
        /// waiting: fetch and acknowledge it, then repeat the request.
        complete: bool,
    }

    /// The head of an epoch.
    Epoch<'a> = EPOCH 0x8006 {
        /// Its id, unique in this guest's life.
        epoch: u64,
        /// Its recording.
        recording: u64,
        /// The recording's bit in ring samples.
        ring_bit: u32,
        /// The recording's name.
        #[serde(borrow)]
        name: &'a str,
        /// See [`code::mode`](crate::code::mode).
        mode: u32,
        /// See [`code::start_flag`](crate::code::start_flag).
        flags: u32,
        /// The mean sampling period in ns of running time; 0 in the heap modes.
        period_ns: u64,
        /// The mean sampling interval in bytes; 0 except in the heap modes.
        interval_bytes: u64,
        /// The maximum number of frames kept of a stack.
        depth: u32,
        /// A sample counts as late from this running time after its target, in ns. If there are
        /// several recordings, the one with the shortest period determines it for all.
        late_threshold_ns: u64,
        /// When the recording began.
        recording_started_ns: u64,
        /// When this epoch began.
        started_ns: u64,
        /// When this epoch ended.
        ended_ns: u64,
        /// Nanoseconds since 1970-01-01 UTC at its end, if known.
        ended_wall_clock_ns: Option<u64>,
        /// The number of suspensions of the guest during the recording so far.
        gaps: u32,
        /// The time that the agent ran for its own network work within the epoch, in ns.
        server_ns: u64,
        /// The number of vCPUs that follow. 0 in a crash dump: it only describes the recording,
        /// whose samples are in the rings.
        vcpus: u32,
        /// The checksum of the caller table used for looking up callers, as it was when the
        /// recording started; parts added later are used too. `None` if no table was used.
        caller_table: Option<u32>,
    }

    /// One vCPU's part of an epoch: its state at the start and at the end.
    VcpuEpoch = VCPU_EPOCH 0x8007 {
        /// Its epoch.
        epoch: u64,
        /// The vCPU.
        vcpu: u32,
        /// At the start.
        start: Snapshot,
        /// At the end.
        end: Snapshot,
    }

    /// A distribution over one vCPU's part of an epoch, as pairs of varints (bucket, count).
    Histogram<'a> = HISTOGRAM 0x8008 {
        /// Its epoch.
        epoch: u64,
        /// The vCPU.
        vcpu: u32,
        /// See [`code::histogram`](crate::code::histogram).
        kind: u32,
        /// The greatest value seen.
        max: u64,
        /// The pairs; bucket limits are those of [`bucket_floor`].
        #[serde(borrow)]
        buckets: &'a [u8],
    }

    /// A run of stack nodes with consecutive numbers, all in one segment; see
    /// [`nodes`](crate::nodes) for the encoding.
    Nodes<'a> = NODES 0x8009 {
        /// Their vCPU.
        vcpu: u32,
        /// The number of the first.
        first: u64,
        /// The number of nodes.
        count: u32,
        /// The nodes.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// A run of nonzero counts; see [`counts`](crate::counts) for the encoding.
    Counts<'a> = COUNTS 0x8016 {
        /// Their epoch.
        epoch: u64,
        /// Their vCPU.
        vcpu: u32,
        /// The number from which the first distance is counted.
        after: u64,
        /// The number of counts.
        count: u32,
        /// The counts.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// The end of one vCPU's part of an epoch.
    VcpuEnd = VCPU_END 0x800a {
        /// The epoch.
        epoch: u64,
        /// The vCPU.
        vcpu: u32,
        /// The client has all nodes of the vCPU up to this number now.
        known: u64,
        /// The sum of all its counts, including those not requested. It equals `recorded + blocked`
        /// of its counters. In mode [`LIVE`](crate::code::mode::LIVE), whose counts are zero, the
        /// number of its [`LiveSamples`] in this answer.
        samples: u64,
    }

    /// Sampled allocations that were made during the recording, before the epoch's end, and that
    /// are still held while this answer is sent; see [`live`](crate::live) for the encoding. They
    /// are sent in no particular order. The leaf of a stack may be a
    /// [size](crate::code::frame_code::size), which clients ignore: the sample has its size.
    LiveSamples<'a> = LIVE_SAMPLES 0x8018 {
        /// Their epoch.
        epoch: u64,
        /// The vCPU that allocated them.
        vcpu: u32,
        /// The time from which each sample's birth is counted, in ns.
        base_ns: u64,
        /// The number of samples.
        count: u32,
        /// The samples.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// An epoch was cleared.
    Acknowledged = ACKNOWLEDGED 0x800b {
        /// The epoch's id.
        epoch: u64,
    }

    /// The rows of a part can be sent.
    TableReady = TABLE_READY 0x800c {
        /// The id of the upload.
        upload: u64,
        /// The number of its rows that the agent has: send the others. If that is all of them, the
        /// part is installed: send only the end.
        rows: u32,
    }

    /// A part is installed.
    TableInstalled = TABLE_INSTALLED 0x800d {
        /// The number of its rows.
        rows: u32,
        /// The [checksum](crate::caller_table::table_checksum) of the table that contains it, which
        /// the next recording may use.
        caller_table: u32,
    }

    /// The agent's message with a key: `<- e, ee` of the handshake. Everything after it, in both
    /// directions, is sent in [records](crate::secure).
    HandshakeReply = HANDSHAKE_REPLY 0x800e {
        /// The ephemeral public key.
        ephemeral: [u8; 32],
        /// The payload: the agent's preamble, encrypted.
        preamble: [u8; crate::preamble::LENGTH],
        /// The payload's tag.
        tag: [u8; 16],
    }

    /// The state of a vCPU's ring.
    RingHead = RING_HEAD 0x8010 {
        /// The vCPU.
        vcpu: u32,
        /// Its capacity in records.
        capacity: u64,
        /// The position of the oldest record that it holds: the number of records evicted since the
        /// agent started.
        oldest: u64,
        /// The position after the newest.
        next: u64,
        /// The monotonic clock now.
        now_ns: u64,
        /// The current time in ns since 1970-01-01 UTC, if known.
        wall_clock_ns: Option<u64>,
    }

    /// A run of records; see [`ring`](crate::ring) for the encoding.
    RingRun<'a> = RING_RUN 0x8011 {
        /// Their vCPU.
        vcpu: u32,
        /// The position of the first record. Positions between the end of the previous run and this
        /// one were evicted in the meantime, or are before the requested time.
        first: u64,
        /// The number of records.
        count: u32,
        /// The time from which the first record's time is counted.
        base_ns: u64,
        /// The records.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// All records up to this position were sent.
    RingEnd = RING_END 0x8012 {
        /// The vCPU.
        vcpu: u32,
        /// The position to continue from.
        next: u64,
        /// Records that were lost since the agent started because they were overwritten while being
        /// written.
        lost: u64,
        /// From this time on, no requested record is missing, except at positions that the runs
        /// skip. This is the requested time, or a later one if older records had been evicted; 0 =
        /// nothing was evicted since the agent started.
        whole_since_ns: u64,
    }

    /// The end of the stacks.
    StacksEnd = STACKS_END 0x8013 {
        /// The vCPU.
        vcpu: u32,
        /// The number of the oldest node that the agent held at this time. Older ones that the
        /// client does not have were discarded.
        oldest: u64,
        /// The client has all nodes of the vCPU up to this number now.
        known: u64,
    }

    /// The name of a guest event.
    EventName<'a> = EVENT_NAME 0x8014 {
        /// Its id.
        id: u32,
        /// The name, at most [`MAX_EVENT_NAME`](crate::ring::MAX_EVENT_NAME) bytes.
        #[serde(borrow)]
        name: &'a str,
    }

    /// The last snapshot of one vCPU.
    VcpuSnapshot<'a> = VCPU_SNAPSHOT 0x8017 {
        /// The vCPU.
        vcpu: u32,
        /// The vCPU's clocks and times now, without counters: `running_ns` does not advance while
        /// it is not running.
        now: Snapshot,
        /// The snapshot as little-endian u64: when it was taken; when the vCPU blocked, 0 if it was
        /// running; the program counter, the stack pointer, the frame pointer and the link register
        /// (on x86-64 `rip`, `rsp`, `rbp` and 0; on aarch64 `pc`, `sp`, `x29` and `x30`); and the
        /// stack's [frame codes](crate::code::frame_code), leaf first.
        ///
        /// Empty if there is no snapshot, or if the next one is requested and not taken yet.
        #[serde(borrow)]
        state: &'a [u8],
    }

    /// A trace may be sent.
    TraceReady = TRACE_READY 0x8019 {
        /// The trace's id, unique in this guest's life.
        trace: u64,
        /// Its number in ring records: the lowest 16 bits of its id.
        number: u32,
        /// The cost of one probe on this machine, in cycles of the [`Snapshot`]'s counter: measured
        /// by the agent on a function of its own. 0 if it is not known.
        probe_cycles: u64,
        /// The trace ends after so much time without a request about it, in ns.
        patience_ns: u64,
    }

    /// A trace was begun, followed by `refused` [`TraceRefused`]s.
    TraceArmed = TRACE_ARMED 0x801a {
        /// The trace's id.
        trace: u64,
        /// When it began.
        started_ns: u64,
        /// The number of probes that were set.
        probes: u32,
        /// The number of functions that are not traced.
        refused: u32,
    }

    /// A function that is not traced. None of its probes was set.
    TraceRefused = TRACE_REFUSED 0x801b {
        /// The function's index.
        function: u32,
        /// The reason; see [`code::trace_refusal`](crate::code::trace_refusal).
        reason: u32,
        /// The code of the probe that it is about; 0 if it is about none.
        code: u32,
    }

    /// The state of a trace. Counts are of all vCPUs, since it began.
    TraceState = TRACE_STATE 0x801c {
        /// The trace's id.
        trace: u64,
        /// See [`code::trace_state`](crate::code::trace_state).
        state: u32,
        /// When it began.
        started_ns: u64,
        /// When it ended, or now.
        ended_ns: u64,
        /// Probes that are set now.
        probes: u32,
        /// Breakpoints that were handled.
        traps: u64,
        /// Breakpoints that counted nothing, because probes were being removed, or theirs was
        /// removed already.
        stale: u64,
        /// Breakpoints on a vCPU, thread or stack that the agent does not know: their instructions
        /// ran, and nothing was counted.
        unplaced: u64,
        /// Entries that found the stack of open calls full, or no room for another stack: not
        /// measured.
        too_deep: u64,
        /// Exits of another function than the innermost open call.
        mismatched: u64,
        /// Calls in slow traces whose inner calls did not all fit in the memory.
        truncated: u64,
        /// Callers that did not fit in the memory.
        callers_lost: u64,
        /// The processor's cycles from the entry of the handler to its end.
        cycles: u64,
        /// The estimated cost, in thousandths of one CPU, over the last tenth of a second with
        /// breakpoints, or of the whole trace when it has ended: of the handler, and of the
        /// exceptions themselves at the measured cost.
        cost_permille: u32,
    }

    /// Totals of functions.
    TraceTotals<'a> = TRACE_TOTALS 0x801d {
        /// The trace's id.
        trace: u64,
        /// The number of functions in `payload`.
        count: u32,
        /// See [`FunctionTotals`](crate::trace::FunctionTotals).
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// Callers of functions.
    TraceCallers<'a> = TRACE_CALLERS 0x801e {
        /// The trace's id.
        trace: u64,
        /// The number of callers in `payload`.
        count: u32,
        /// See [`Caller`](crate::trace::Caller).
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// The end of what was counted.
    TraceEnd = TRACE_END 0x801f {
        /// The trace's id.
        trace: u64,
        /// The number of functions whose totals were sent.
        functions: u32,
        /// The number of callers that were sent.
        callers: u32,
    }

    /// The end of the names.
    EventNamesEnd = EVENT_NAMES_END 0x8015 {
        /// The number of names.
        names: u32,
        /// Names rejected since the agent started: too long, empty, or too many.
        refused: u64,
    }
}

impl<'m> Start<'m> {
    /// A request for running time at random intervals, stacks of at most 128 frames, from now until
    /// it is stopped, without limits and without a caller table.
    pub const fn running_time(name: &'m str, period_ns: u64) -> Self {
        Self {
            name,
            period_ns,
            mode: crate::code::mode::CPU,
            depth: 128,
            duration_ns: 0,
            delay_ns: 0,
            flags: 0,
            caller_table: None,
            max_age_ns: 0,
            max_bytes: 0,
            interval_bytes: 0,
        }
    }

    /// A request for allocations (mode [`ALLOC`](crate::code::mode::ALLOC)) or for what is still
    /// held (mode [`LIVE`](crate::code::mode::LIVE)), with this mean sampling interval, and
    /// otherwise as [`running_time`](Self::running_time).
    pub const fn heap(name: &'m str, mode: u32, interval_bytes: u64) -> Self {
        Self { mode, interval_bytes, ..Self::running_time(name, 0) }
    }
}
