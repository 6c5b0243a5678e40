//! Reads recordings of unikernels and names what they were doing: bytes become a profile.
//!
//! It takes recording files, images and their symbols, crash dumps, and the agent's messages as bytes.
//! It gives a [`profile::Profile`] with named functions, its [`timeline`], the calls of a trace, and
//! the tables that agents find callers with. It connects to no guest, prints nothing, and knows no
//! command line.

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
