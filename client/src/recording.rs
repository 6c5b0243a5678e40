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
//! | frames | any number of epochs: `Epoch`, for each vCPU `VcpuEpoch`, its `Histogram`s and `Nodes`, and `EpochEnd` |
//! | a frame | [`FileEnd`]: whether everything is there, and if not, why |
//!
//! Frames are those of [`unikprof_proto::frame`], each with its checksum. All epochs of a file
//! belong to one recording; a reader adds them up. Where a connection was lost for good, the last
//! epoch is cut and the file's end says so. A file without an end was cut itself: a reader tells,
//! and [salvages](Reading::Salvage) what is whole if asked to. Types of frames that a reader does
//! not know are passed over.

mod completeness;
mod epoch;
mod error;
mod format;
mod reader;
mod stacks;
mod totals;
mod writer;

pub use completeness::Completeness;
pub use epoch::EpochError;
pub(crate) use epoch::{EpochProgress, Part};
pub use error::{Damage, RecordingError};
pub use format::{FileEnd, FileHeader, MAGIC, VERSION};
pub use reader::{Reading, Recording};
pub use writer::RecordingWriter;
