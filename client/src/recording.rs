//! Recording files: raw, lossless, and read with suspicion.
//!
//! A file holds what the agent sent, frame by frame as it came, so that everything can be drawn
//! from it later, also with images and clients that did not exist when it was made:
//!
//! | bytes | what |
//! |---|---|
//! | 16 | the preamble: magic [`MAGIC`], [`VERSION`] and the protocol version (u16, little endian), four zero bytes |
//! | a frame | [`FileHeader`]: who wrote the file, and when |
//! | frames | the agent's `Welcome` and its `Mapping`s |
//! | frames | any number of epochs: `Epoch`, and for each vCPU `VcpuEpoch`, its `Histogram`s, `Nodes`, `Counts` and `VcpuEnd` |
//! | frames | where the agent has rings: the `EventName`s and their end; for each vCPU `RingHead`, its `RingRun`s, `RingEnd`, `Nodes` and `StacksEnd` |
//! | a frame | [`FileWindow`], where a window of time was asked for |
//! | a frame | [`FileEnd`]: whether everything is there, and if not, why |
//!
//! Frames are those of [`unikprof_proto::frame`], each with its checksum. Epochs and rings may come again, in any order:
//! a client that drains a recording writes an epoch and the new records of each ring every few seconds. All epochs of
//! a file belong to one recording; a reader adds them up. All nodes of a vCPU, wherever they come, have numbers of
//! their own, and a node comes once: before or after the counts and records that name it. Where a connection was lost for good, the last
//! epoch is cut and the file's end says so. A file without an end was cut itself: a reader tells,
//! and [salvages](Reading::Salvage) what is whole if asked to. Types of frames that a reader does
//! not know are passed over.
//!
//! What a guest left when it crashed is such a file as well, without counts: an `Epoch` of no vCPUs, with nothing
//! behind it, describes a recording. Out of the guest's memory it comes in a
//! [block](unikprof_proto::file::BlockHead), which is read like the file in it. The newest records of a ring come first
//! in it, in runs with the stacks that they name before them, and a `RingEnd` and a `StacksEnd` behind all: a file that
//! is cut tells of the last moments.

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
mod writer;

pub use completeness::Completeness;
pub use epoch::EpochError;
pub(crate) use epoch::{EpochProgress, Part};
pub use error::{Damage, RecordingError};
pub(crate) use format::preamble;
pub use format::{FileEnd, FileHeader, FileWindow, MAGIC, VERSION};
pub use known_nodes::NodeError;
pub(crate) use known_nodes::{KnownNodes, NodeOrder};
pub use reader::{Reading, Recording};
pub use writer::RecordingWriter;
