//! Reads recordings of unikernels and names what they were doing: bytes become a profile.
//!
//! It takes recording files, images and their symbols, crash dumps, and the agent's messages as bytes.
//! It gives a [`profile::Profile`] with named functions, its [`timeline`], the calls of a trace, and
//! the tables that agents find callers with. It connects to no guest, prints nothing, and knows no
//! command line.
//!
//! ```text
//! bytes ► recording ► profile and timeline ► symbols ► names
//!                     an image's call frame information ► caller_table
//! ```
//!
//! ```no_run
//! use std::path::Path;
//!
//! use unikprof_profile::recording::{Reading, Recording};
//! use unikprof_profile::symbols::{Force, ImageOptions, Images, Symbolizer};
//!
//! let recording = Recording::open(Path::new("run.unikprof"), Reading::Strict)?;
//! let mut images = Images::new(ImageOptions::default());
//! images.add_image(Path::new("guest.elf"), Force::No)?;
//! let symbolized = Symbolizer::new(images).resolve(&recording.profile)?;
//! for function in symbolized.functions() {
//!     println!("{}", function.name);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod agent_info;
pub mod caller_table;
pub mod frame_reader;
pub mod messages;
pub mod output;
pub mod printable;
pub mod profile;
pub mod recorder_status;
pub mod recording;
pub mod recover;
mod runs;
pub mod symbols;
pub mod timeline;
pub mod trace;
pub mod units;
