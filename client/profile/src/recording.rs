//! Recording files: raw, lossless, and treated as untrusted input.
//!
//! A file contains the frames exactly as the agent sent them, so that they can be evaluated later,
//! also with images and clients that did not exist when it was made:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | the preamble: magic [`MAGIC`], [`VERSION`] and the protocol version (u16, little endian), four zero bytes |
//! | a frame | [`FileHeader`]: who wrote the file, and when |
//! | frames | the agent's `Welcome` and its `Mapping`s |
//! | frames | any number of epochs: `Epoch`, and for each vCPU `VcpuEpoch`, its `Histogram`s, `Nodes`, `Counts` and `VcpuEnd` |
//! | frames | where the agent has rings: the `EventName`s and their end; for each vCPU `RingHead`, its `RingRun`s, `RingEnd`, `Nodes` and `StacksEnd` |
//! | frames | where functions were traced: `FileTrace`, a `FileFunction` for each, and what the agent answered and counted |
//! | a frame | `FileWindow`, where a window of time was asked for |
//! | a frame | [`FileEnd`]: whether everything is there, and if not, why |
//!
//! Frames are those of [`unikprof_proto::frame`], each with its checksum. Epochs and rings may
//! repeat, in any order: a client that drains a recording writes an epoch and the new records of
//! each ring every few seconds. All epochs of a file belong to one recording; a reader adds them
//! up. Node numbers are unique within a vCPU for the whole file, and each node occurs once, before
//! or after the counts and records that refer to it. If a connection was lost permanently, the last
//! epoch is truncated and the file's end says so. A file without an end was itself truncated: a
//! reader reports that, and [salvages](Reading::Salvage) the intact frames on request. Unknown
//! frame types are skipped.
//!
//! A crashed guest's data is such a file too, but without counts: an `Epoch` without vCPUs,
//! followed by no data, describes a recording. In the guest's memory it is wrapped in a
//! [block](unikprof_proto::file::BlockHead), which is read like the file in it. It has the newest
//! records of a ring first, in runs, each preceded by the stacks that it refers to, and a `RingEnd`
//! and a `StacksEnd` after all of them: a truncated file still contains the last moments.

mod block;
mod completeness;
mod contents;
mod epoch;
mod error;
mod finish;
mod format;
mod known_nodes;
mod merge;
mod reader;
mod rings;
mod stacks;
mod totals;
mod traces;
mod writer;

pub use completeness::Completeness;
pub use contents::EpochCounts;
pub use epoch::{EpochError, EpochProgress, Part};
pub use error::{Damage, RecordingError};
pub use format::{
    FileCaller, FileEnd, FileFunction, FileHeader, FileTrace, MAGIC, VERSION, preamble,
};
pub use known_nodes::{KnownNodes, NodeError, NodeOrder};
pub use merge::holds;
pub use reader::{Reading, Recording};
pub use writer::RecordingWriter;
