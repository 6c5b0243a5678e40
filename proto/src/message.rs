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

use crate::code::message_type as types;
use crate::frame::Message;

pub use counters::{Counter, Counters};
pub use histogram::{BUCKETS, bucket, bucket_floor};
pub use peers::Peers;
pub use snapshot::{Runstate, Snapshot};

/// The longest name of a recording.
pub const MAX_NAME: usize = 64;
/// The longest name and version of a client; a longer one loses its end.
pub const MAX_CLIENT: usize = 64;
/// The longest text of a refusal.
pub const MAX_TEXT: usize = 256;
/// The longest path of a mapping, guest name or guest id; longer ones lose their beginning.
pub const MAX_PATH: usize = 256;
/// The longest build-id.
pub const MAX_BUILD_ID: usize = 64;

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident $(<$life:lifetime>)? = $kind:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name $(<$life>)? {
            $($(#[$field_meta])* pub $field: $type,)*
        }
        messages!(@impl $name $(<$life>)?, types::$kind);
    )*};
    (@impl $name:ident<$life:lifetime>, $kind:expr) => {
        impl<$life> Message<$life> for $name<$life> {
            const TYPE: u16 = $kind;
        }
    };
    (@impl $name:ident, $kind:expr) => {
        impl Message<'_> for $name {
            const TYPE: u16 = $kind;
        }
    };
}

messages! {
    /// Asks who the agent is. Answered by [`Welcome`] and its [`Mapping`]s.
    Hello<'a> = HELLO {
        /// The client's name and version, for the guest's log and for other clients, at most
        /// [`MAX_CLIENT`] bytes.
        #[serde(borrow)]
        client: &'a str,
        /// A random number that this client process chose, the same on each of its connections. A lease on a
        /// recording belongs to it, so that a client keeps its lease over a lost connection. 0: this client takes no
        /// lease.
        client_id: u64,
    }

    /// Starts a recording. Answered by [`Started`].
    Start<'a> = START {
        /// The recording's name, 1 to [`MAX_NAME`] bytes, printable.
        #[serde(borrow)]
        name: &'a str,
        /// The mean sampling period in ns of running time.
        period_ns: u64,
        /// What is sampled; see [`code::mode`](crate::code::mode).
        mode: u32,
        /// The most frames kept of one stack; recordings that run together keep as many as the deepest.
        depth: u32,
        /// How long to record, in ns; 0 = until stopped.
        duration_ns: u64,
        /// How long to wait before recording, in ns.
        delay_ns: u64,
        /// See [`code::start_flag`](crate::code::start_flag).
        flags: u32,
        /// The [checksum](crate::caller_table::table_checksum) of the caller table to look callers up in;
        /// `None`: none.
        caller_table: Option<u32>,
        /// How far back a dump's records of the ring need to go, in ns; 0 = as far as there are any. For
        /// the client, which finds it in [`RecordingStatus`].
        max_age_ns: u64,
        /// How many bytes of records a dump needs to hold, the newest; 0 = all. For the client.
        max_bytes: u64,
    }

    /// Ends a recording and takes the lease on it. For one that has ended already the answer is repeated. Answered by
    /// [`Pending`].
    Stop = STOP {
        /// The recording's id, or 0 for whichever there is, if there is but one.
        recording: u64,
    }

    /// Asks for the recorder's state. Answered by [`Status`] and its [`RecordingStatus`]es.
    Check = CHECK {}

    /// Turns the counts so far into an epoch, if none waits to be fetched, and takes the lease on the recording,
    /// which goes on. Answered by [`Pending`].
    Dump = DUMP {
        /// The recording's id, or 0 for whichever there is, if there is but one.
        recording: u64,
    }

    /// Asks for one vCPU's share of an epoch that waits. Answered by [`Epoch`], [`VcpuEpoch`], its [`Histogram`]s,
    /// the [`Nodes`] that the client lacks, the [`Counts`] that are not zero, and [`VcpuEnd`]. Needs no lease. Several
    /// requests may be sent without waiting for their answers.
    Fetch = FETCH {
        /// Which epoch.
        epoch: u64,
        /// Which vCPU.
        vcpu: u32,
        /// The client has all nodes of this vCPU up to this number, from this instance of the agent; 0: none.
        known: u64,
        /// The client has the counts up to this number, from an answer that broke off; 0: none.
        counted: u64,
    }

    /// Says that an epoch is safe with the client, which must hold the lease on its recording. Answered by
    /// [`Acknowledged`].
    Acknowledge = ACKNOWLEDGE {
        /// Which epoch.
        epoch: u64,
    }

    /// Announces a part of a caller table. If it is being sent already, by this client or another that has lost its
    /// connection, the upload goes on where it stopped; any other upload is given up. While nothing is recorded, the
    /// table that the agent holds is replaced if the part overlaps it or does not fit beside it. While something is
    /// recorded, a part can only be added. Answered by [`TableReady`].
    TableBegin = TABLE_BEGIN {
        /// The first code of the part.
        first: u32,
        /// The code behind its last.
        end: u32,
        /// How many rows it has.
        rows: u32,
        /// The [checksum](crate::caller_table::checksum) of its rows.
        checksum: u32,
    }

    /// A run of rows; see [`caller_table`](crate::caller_table) for the encoding. Not answered: what
    /// is wrong with it is told at the end.
    TableRows<'a> = TABLE_ROWS {
        /// Which upload, from [`TableReady`].
        upload: u64,
        /// The index of the first row.
        first: u32,
        /// How many.
        count: u32,
        /// The rows.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// All rows of the part were sent. Answered by [`TableInstalled`].
    TableEnd = TABLE_END {
        /// Which upload.
        upload: u64,
    }

    /// Asks for the records of a vCPU's ring. Answered by [`RingHead`], [`RingRun`]s and [`RingEnd`].
    Ring = RING {
        /// The vCPU.
        vcpu: u32,
        /// From which position on; what was evicted is passed over.
        position: u64,
        /// Records before this moment are passed over, on the monotonic clock in ns.
        since_ns: u64,
    }

    /// Asks for the stack nodes of a vCPU that the client lacks. Answered by [`Nodes`] and [`StacksEnd`].
    Stacks = STACKS {
        /// The vCPU.
        vcpu: u32,
        /// The client has all nodes of this vCPU up to this number, from this instance of the agent; 0: none.
        known: u64,
    }

    /// Asks for the names of the guest's events. Answered by [`EventName`]s and [`EventNamesEnd`].
    EventNames = EVENT_NAMES {
        /// The first id wanted.
        first: u32,
    }

    /// A client's first message under a key: `-> psk, e` of the handshake. It follows the client's preamble at
    /// once. Answered by [`HandshakeReply`]; see [`secure`](crate::secure).
    Handshake = HANDSHAKE {
        /// Which key; see [`secure::KEY_ID`](crate::secure::KEY_ID).
        key: [u8; crate::secure::KEY_ID],
        /// The ephemeral public key.
        ephemeral: [u8; 32],
        /// The tag of the empty payload.
        tag: [u8; 16],
    }

    /// A request was refused. Its structure is the same in all versions.
    Refusal<'a> = REFUSAL {
        /// Why; see [`code::refusal`](crate::code::refusal).
        code: u32,
        /// The type of the refused request; 0 where it was none.
        request: u16,
        /// For people: what was expected, what was found, what to do.
        #[serde(borrow)]
        text: &'a str,
    }

    /// Who the agent is. As many [`Mapping`]s follow as it says.
    Welcome<'a> = WELCOME {
        /// The agent's version.
        #[serde(borrow)]
        agent_version: &'a str,
        /// The instruction set, as ELF names it in lower case: `x86_64`.
        architecture: &'a str,
        /// What the agent runs on: `xen` or `hosted`.
        platform: &'a str,
        /// The guest's name, where known.
        guest_name: Option<&'a str>,
        /// The guest's id (on Xen its UUID), where known.
        guest_id: Option<&'a str>,
        /// How many vCPUs have a slot.
        vcpus: u32,
        /// How many mappings follow.
        mappings: u32,
        /// The monotonic clock now.
        monotonic_ns: u64,
        /// Nanoseconds since 1970-01-01 UTC now, where the guest knows.
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
        /// How many segments each vCPU's stack nodes are divided into.
        segments: u32,
        /// How many stack nodes a segment has room for. See [`nodes`](crate::nodes) for the numbers of nodes.
        segment_nodes: u32,
        /// How many rows of a caller table there is room for; 0: the agent takes none.
        caller_rows: u32,
        /// The checksum of the caller table that it holds.
        caller_table: Option<u32>,
        /// What this client may do; see [`code::role`](crate::code::role).
        role: u32,
        /// The agent's instance id: random, never 0, renewed when the guest resumes after a suspension. Recordings,
        /// epochs and stacks are identified by their numbers only within one instance.
        instance: u64,
    }

    /// One executable mapping of the guest. A recording's codes refer to the mappings in force when
    /// it was started.
    Mapping<'a> = MAPPING {
        /// The first address.
        start: u64,
        /// The address after the last.
        end: u64,
        /// Where `start` lies in the file.
        file_offset: u64,
        /// The code of `start`; see [`code::frame_code`](crate::code::frame_code).
        code_base: u32,
        /// The build-id of the image; empty where it has none.
        #[serde(borrow)]
        build_id: &'a [u8],
        /// The image's path in the guest; may be empty.
        path: &'a str,
    }

    /// What the recorder does. As many [`RecordingStatus`]es follow as it says.
    Status = STATUS {
        /// How many recordings there are.
        recordings: u32,
        /// How many there can be at a time.
        max_recordings: u32,
        /// The monotonic clock now.
        now_ns: u64,
        /// Stack nodes in use, all vCPUs.
        nodes_used: u64,
        /// Stack nodes there is room for, all vCPUs.
        nodes_capacity: u64,
        /// Records that each vCPU's ring has room for; 0: there is no ring.
        ring_capacity: u64,
        /// Open sessions, this one included.
        sessions: u32,
        /// What came of connections that were refused or cut.
        peers: Peers,
        /// Since when the agent has served, on the monotonic clock in ns.
        server_since_ns: u64,
        /// Time the agent spent on its own network work since then, in ns.
        server_ns: u64,
        /// The longest single piece of that work, in ns.
        server_longest_ns: u64,
        /// How much of a CPU that work may take over time, in thousandths.
        server_share_permille: u32,
        /// How long clients have waited since then because their part of that share was used up, in ns:
        /// the sum over the roles.
        server_deferred_ns: u64,
    }

    /// One recording.
    RecordingStatus<'a> = RECORDING_STATUS {
        /// Its id.
        recording: u64,
        /// Which bit it has in the ring's samples.
        ring_bit: u32,
        /// Its name.
        #[serde(borrow)]
        name: &'a str,
        /// See [`code::state`](crate::code::state).
        state: u32,
        /// Its mode; see [`code::mode`](crate::code::mode).
        mode: u32,
        /// Its mean sampling period in ns.
        period_ns: u64,
        /// Its depth limit in frames.
        depth: u32,
        /// Its flags; see [`code::start_flag`](crate::code::start_flag).
        flags: u32,
        /// When sampling began, or will begin.
        started_ns: u64,
        /// Asked duration in ns; 0 = until stopped.
        duration_ns: u64,
        /// As asked for at its start.
        max_age_ns: u64,
        /// As asked for at its start.
        max_bytes: u64,
        /// The counters of all vCPUs since the recording began.
        counters: Counters,
        /// For how long the ring holds its samples at the present rate, in ns; `None`: there is no ring, or nothing is
        /// written into it. The least of all vCPUs.
        samples_window_ns: Option<u64>,
        /// For how long the memory holds its stacks at the present rate of new ones, in ns; `None`: no new stacks
        /// come. The least of all vCPUs.
        stacks_window_ns: Option<u64>,
        /// The name and version of the client that holds the lease on it.
        holder: Option<&'a str>,
        /// Since when that client has held it, on the monotonic clock in ns.
        held_since_ns: u64,
        /// The first epoch that waits to be fetched.
        first_epoch: u64,
        /// How many epochs wait.
        epochs: u32,
    }

    /// A recording was started.
    Started = STARTED {
        /// Its id, unique in this guest's life.
        recording: u64,
        /// When sampling begins.
        started_ns: u64,
    }

    /// Which epochs wait to be fetched.
    Pending = PENDING {
        /// The recording they belong to.
        recording: u64,
        /// The first epoch.
        first_epoch: u64,
        /// How many, with consecutive ids.
        epochs: u32,
        /// Whether the counts up to this request are in them. If not, an older epoch was still
        /// waiting: fetch and acknowledge it, then ask again.
        complete: bool,
    }

    /// The head of an epoch.
    Epoch<'a> = EPOCH {
        /// Its id, unique in this guest's life.
        epoch: u64,
        /// Its recording.
        recording: u64,
        /// Which bit it has in the ring's samples.
        ring_bit: u32,
        /// The recording's name.
        #[serde(borrow)]
        name: &'a str,
        /// See [`code::mode`](crate::code::mode).
        mode: u32,
        /// See [`code::start_flag`](crate::code::start_flag).
        flags: u32,
        /// The mean sampling period in ns of running time.
        period_ns: u64,
        /// The most frames kept of one stack.
        depth: u32,
        /// Running time past a target from which a sample counts as late, in ns. Where several recordings
        /// run, the one of the shortest period says so for all.
        late_threshold_ns: u64,
        /// When the recording began.
        recording_started_ns: u64,
        /// When this epoch began.
        started_ns: u64,
        /// When this epoch ended.
        ended_ns: u64,
        /// Nanoseconds since 1970-01-01 UTC at its end, where the guest knows.
        ended_wall_clock_ns: Option<u64>,
        /// How often the guest was suspended and resumed during the recording so far.
        gaps: u32,
        /// Time of the agent's own network work within the epoch, in ns.
        server_ns: u64,
        /// How many vCPUs follow. 0 in the file that a crash leaves: this tells who the recording is, and its
        /// samples are in the rings.
        vcpus: u32,
        /// The checksum of the caller table that callers were looked up in, as it was when the recording started;
        /// parts that were added since are looked up too. `None`: none was used.
        caller_table: Option<u32>,
    }

    /// One vCPU's share of an epoch: what was so at its start and at its end.
    VcpuEpoch = VCPU_EPOCH {
        /// Its epoch.
        epoch: u64,
        /// The vCPU.
        vcpu: u32,
        /// At the start.
        start: Snapshot,
        /// At the end.
        end: Snapshot,
    }

    /// A distribution over one vCPU's share of an epoch, as pairs of varints (bucket, count).
    Histogram<'a> = HISTOGRAM {
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

    /// A run of stack nodes with consecutive numbers; see [`nodes`](crate::nodes) for the encoding. A run lies within
    /// one segment.
    Nodes<'a> = NODES {
        /// Their vCPU.
        vcpu: u32,
        /// The number of the first.
        first: u64,
        /// How many.
        count: u32,
        /// The nodes.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// A run of counts that are not zero; see [`counts`](crate::counts) for the encoding.
    Counts<'a> = COUNTS {
        /// Their epoch.
        epoch: u64,
        /// Their vCPU.
        vcpu: u32,
        /// The number that the first one's distance is counted from.
        after: u64,
        /// How many.
        count: u32,
        /// The counts.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// One vCPU's share of an epoch was sent.
    VcpuEnd = VCPU_END {
        /// The epoch.
        epoch: u64,
        /// The vCPU.
        vcpu: u32,
        /// The client has all nodes of the vCPU up to this number now.
        known: u64,
        /// The sum of all its counts, also of those not asked for. It equals `recorded + blocked` of its counters.
        samples: u64,
    }

    /// An epoch was cleared.
    Acknowledged = ACKNOWLEDGED {
        /// Which.
        epoch: u64,
    }

    /// The rows of a part may be sent.
    TableReady = TABLE_READY {
        /// The upload's id, for what follows.
        upload: u64,
        /// How many of its rows the agent has: send those behind them. All, if the part is installed: then nothing
        /// follows but the end.
        rows: u32,
    }

    /// A part is installed.
    TableInstalled = TABLE_INSTALLED {
        /// How many rows it has.
        rows: u32,
        /// The [checksum](crate::caller_table::table_checksum) of the table that it belongs to, which the next
        /// recording may use.
        caller_table: u32,
    }

    /// The agent's message under a key: `<- e, ee` of the handshake. All that follows, in both
    /// directions, are [records](crate::secure).
    HandshakeReply = HANDSHAKE_REPLY {
        /// The ephemeral public key.
        ephemeral: [u8; 32],
        /// The payload: the agent's preamble, sealed.
        preamble: [u8; crate::preamble::LENGTH],
        /// The payload's tag.
        tag: [u8; 16],
    }

    /// What a vCPU's ring holds.
    RingHead = RING_HEAD {
        /// The vCPU.
        vcpu: u32,
        /// How many records it has room for.
        capacity: u64,
        /// The position of the oldest that it holds: so many were evicted since the agent started.
        oldest: u64,
        /// The position after the newest.
        next: u64,
        /// The monotonic clock now.
        now_ns: u64,
        /// Nanoseconds since 1970-01-01 UTC now, where the guest knows.
        wall_clock_ns: Option<u64>,
    }

    /// A run of records; see [`ring`](crate::ring) for the encoding.
    RingRun<'a> = RING_RUN {
        /// Their vCPU.
        vcpu: u32,
        /// The position of the first. Where it is not where the run before ended, those between were
        /// evicted meanwhile, or lie before the moment asked for.
        first: u64,
        /// How many.
        count: u32,
        /// What the first time is told from.
        base_ns: u64,
        /// The records.
        #[serde(borrow)]
        payload: &'a [u8],
    }

    /// All records up to this position were sent.
    RingEnd = RING_END {
        /// The vCPU.
        vcpu: u32,
        /// Where to go on.
        next: u64,
        /// Records that were given up because they were overwritten while they were written, since the
        /// agent started.
        lost: u64,
        /// From when on no record is missing of those that were asked for, but for positions that the runs pass
        /// over: the moment asked for, or a later one where older records had been dropped; 0 = nothing
        /// was dropped since the agent started.
        whole_since_ns: u64,
    }

    /// All stacks were sent.
    StacksEnd = STACKS_END {
        /// The vCPU.
        vcpu: u32,
        /// The number of the first node that the agent held at that moment. Older ones that the client does not have
        /// were given up.
        oldest: u64,
        /// The client has all nodes of the vCPU up to this number now.
        known: u64,
    }

    /// A name of the guest's events.
    EventName<'a> = EVENT_NAME {
        /// Its id.
        id: u32,
        /// The name, at most [`MAX_EVENT_NAME`](crate::ring::MAX_EVENT_NAME) bytes.
        #[serde(borrow)]
        name: &'a str,
    }

    /// All names were sent.
    EventNamesEnd = EVENT_NAMES_END {
        /// How many there are.
        names: u32,
        /// Names refused since the agent started: too long, empty, or too many.
        refused: u64,
    }
}

impl<'m> Start<'m> {
    /// Running time at random intervals, stacks of at most 128 frames, from now until it is stopped, with no bounds
    /// and no caller table asked for.
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
        }
    }
}
