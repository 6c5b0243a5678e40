//! The agent's recordings, as plain data that outlives the service. The
//! [recorder](crate::record::recorder) works on it for the service that has claimed it.

use crate::agent::head::Settings;
use crate::count::recording::MAX_RECORDINGS;
use crate::ground::text::Name;
#[cfg(feature = "trace")]
use crate::trace::Tracer;

/// All recordings. Each has the same index here and in every slot.
#[derive(Debug)]
pub(crate) struct Recordings {
    pub(crate) recordings: [Recording; MAX_RECORDINGS],
    /// The id of the last recording that was started.
    pub(crate) last: u64,
    /// The time until which table segments that ring records refer to are not freed, because a
    /// client is reading the rings.
    pub(crate) pinned_until_ns: u64,
    /// The number of buckets of live allocations in which samples of removed recordings may be
    /// left.
    pub(crate) unreaped: u32,
    #[cfg(feature = "trace")]
    pub(crate) tracer: Tracer,
}

impl Default for Recordings {
    fn default() -> Self {
        Self {
            recordings: core::array::from_fn(Recording::new),
            last: 0,
            pinned_until_ns: 0,
            unreaped: 0,
            #[cfg(feature = "trace")]
            tracer: Tracer::default(),
        }
    }
}

/// The state at an epoch's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) at_ns: u64,
    pub(crate) wall_clock_ns: Option<u64>,
    pub(crate) server_ns: u64,
    pub(crate) gaps: u32,
}

/// A client's description of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// The random number of its process; 0 if it takes no leases.
    pub(crate) id: u64,
    /// Its name and version.
    pub(crate) name: Name,
}

/// The right to fetch a recording. One client has it at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) client: Client,
    pub(crate) since_ns: u64,
    /// When it ends if the client does not reconnect. `None` while the client is connected.
    pub(crate) until_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is no recording.
    #[default]
    Idle,
    Delayed,
    Recording,
    /// Ended, but a tick's use of a slot delays the last flip.
    Ending,
    Finished,
}

/// The recording at an index, if there is one.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) index: usize,
    pub(crate) id: u64,
    pub(crate) phase: Phase,
    pub(crate) settings: Settings,
    pub(crate) epochs: Epochs,
    /// The client that is fetching it.
    pub(crate) lease: Option<Lease>,
    /// The client that may not know yet that it has started the recording, or that watches it, and
    /// when the recording is discarded unless that client makes another request.
    pub(crate) unconfirmed: Option<(u64, u64)>,
    /// The position at which folding (counting old samples as aged) continues.
    pub(crate) folding: Cursor,
    /// Folds of counts and moves of stacks. An answer begun before the last is no longer valid.
    pub(crate) folds: u64,
    /// The recording's live samples, if it has any, are to be removed.
    pub(crate) wants_reap: bool,
    /// The number of times that the guest had been resumed when the recording began.
    pub(crate) gaps_before: u32,
}

impl Recording {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            index,
            id: 0,
            phase: Phase::Idle,
            settings: Settings::default(),
            epochs: Epochs::new(index),
            lease: None,
            unconfirmed: None,
            folding: Cursor::default(),
            folds: 0,
            wants_reap: false,
            gaps_before: 0,
        }
    }
}

/// The next node in one column of a segment, whose counts are taken out in several steps. The
/// column is given by its parity, or by the epoch in it, so that a step for one epoch never
/// continues a step for another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) at: Option<(u32, u32, u64)>,
    pub(crate) node: u32,
}

impl Cursor {
    pub(crate) fn at(vcpu: u32, segment: u32, column: u64, node: u32) -> Self {
        Self { at: Some((vcpu, segment, column)), node }
    }

    /// The index of the node to continue with; 0 if this is another column's cursor.
    pub(crate) fn node(&self, vcpu: u32, segment: u32, column: u64) -> u32 {
        match self.at {
            Some(at) if at == (vcpu, segment, column) => self.node,
            _ => 0,
        }
    }
}

/// The epochs of one recording.
#[derive(Debug)]
pub(crate) struct Epochs {
    pub(crate) index: usize,
    /// The newest epoch, in which samples are counted until the recording ends.
    pub(crate) current: u64,
    /// The number of earlier epochs that wait to be fetched.
    pub(crate) waiting: u32,
    pub(crate) is_counting: bool,
    /// A dump's flip that a tick delayed.
    pub(crate) dumping: bool,
    /// A flip is not finished: some vCPUs may already count in the next epoch.
    pub(crate) is_flipping: bool,
    /// The position at which clearing continues.
    pub(crate) clearing: Cursor,
    pub(crate) marks: [Mark; 4],
}

impl Epochs {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            index,
            current: 0,
            waiting: 0,
            is_counting: false,
            dumping: false,
            is_flipping: false,
            clearing: Cursor::default(),
            marks: [Mark::default(); 4],
        }
    }
}
