//! What the agent keeps of its recordings, as plain data. The [recorder](crate::record::recorder) works on it, on behalf of the
//! service that has claimed it; it outlives the service.

use crate::agent::head::Settings;
use crate::count::recording::MAX_RECORDINGS;
use crate::ground::text::Name;

/// All recordings. Each has the same index here and in every slot.
#[derive(Debug)]
pub(crate) struct Recordings {
    pub(crate) recordings: [Recording; MAX_RECORDINGS],
    /// The id of the recording that was started last.
    pub(crate) last: u64,
    /// Until when segments that rings name are not freed, as a client reads them.
    pub(crate) pinned_until_ns: u64,
}

impl Default for Recordings {
    fn default() -> Self {
        Self {
            recordings: core::array::from_fn(Recording::new),
            last: 0,
            pinned_until_ns: 0,
        }
    }
}

/// What was so at an epoch's start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) at_ns: u64,
    pub(crate) wall_clock_ns: Option<u64>,
    pub(crate) server_ns: u64,
    pub(crate) gaps: u32,
}

/// A client, as it has introduced itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Client {
    /// The random number of its process; 0: it takes no leases.
    pub(crate) id: u64,
    /// Its name and version.
    pub(crate) name: Name,
}

/// The right to fetch a recording, which one client has at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) client: Client,
    pub(crate) since_ns: u64,
    /// When it ends, if the client does not come back. `None` while the client is connected.
    pub(crate) until_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// There is no recording.
    #[default]
    Idle,
    Delayed,
    Recording,
    /// Ended, but a tick is in the way of the last flip.
    Ending,
    Finished,
}

/// The recording of an index, if there is one.
#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) index: usize,
    pub(crate) id: u64,
    pub(crate) phase: Phase,
    pub(crate) settings: Settings,
    pub(crate) epochs: Epochs,
    /// The client that fetches it, while there is one.
    pub(crate) lease: Option<Lease>,
    /// Where folding goes on.
    pub(crate) folding: Cursor,
    /// How often counts were folded: an answer under way that began before is no longer true.
    pub(crate) folds: u64,
    /// How often the guest had been resumed when the recording began.
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
            folding: Cursor::default(),
            folds: 0,
            gaps_before: 0,
        }
    }
}

/// The next node of one column of a segment whose counts are taken out piece by piece.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) at: Option<(u32, u32, u64)>,
    pub(crate) node: u32,
}

impl Cursor {
    pub(crate) fn at(vcpu: u32, segment: u32, parity: u64, node: u32) -> Self {
        Self {
            at: Some((vcpu, segment, parity)),
            node,
        }
    }

    /// The node to go on with, counted from 0; the first if this is the cursor of another column.
    pub(crate) fn node(&self, vcpu: u32, segment: u32, parity: u64) -> u32 {
        match self.at {
            Some(at) if at == (vcpu, segment, parity) => self.node,
            _ => 0,
        }
    }
}

/// The epochs of one recording.
#[derive(Debug)]
pub(crate) struct Epochs {
    pub(crate) index: usize,
    /// The newest epoch: the one that is counted, until the recording ends.
    pub(crate) current: u64,
    /// How many epochs before it wait.
    pub(crate) waiting: u32,
    pub(crate) is_counting: bool,
    /// A dump's flip that a tick was in the way of.
    pub(crate) dumping: bool,
    /// A flip is under way: some vCPUs may count the next epoch already.
    pub(crate) is_flipping: bool,
    /// Where clearing goes on.
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
