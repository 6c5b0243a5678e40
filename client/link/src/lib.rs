//! Connects to a running unikernel and records it: a guest becomes a file.
//!
//! It takes an address and, where the guest asks for one, a [`key`]. It gives a [`record::Session`],
//! which starts and stops recordings, fetches what they counted into a file, and traces calls. It reads
//! no profile out of what it fetches, prints nothing, and knows no command line.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use unikprof_link::interrupt::Interrupt;
//! use unikprof_link::record::{Patience, Session, Settings, record};
//!
//! let address = "10.0.0.5:7777".parse()?;
//! let mut session = Session::open(address, Patience::default(), Interrupt::default())?;
//! let settings = Settings { duration_ns: 30_000_000_000, ..Settings::default() };
//! let outcome = record(&mut session, &settings, Path::new("run.unikprof"), &mut ())?;
//! assert!(outcome.incomplete.is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod connection;
pub mod deadline;
pub mod interrupt;
pub mod key;
pub mod plan;
pub mod record;
