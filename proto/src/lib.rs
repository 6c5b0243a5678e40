//! The wire protocol between a unikprof agent (inside a guest) and its clients.
//!
//! Read it bottom to top:
//!
//! 1. [`preamble`]: the fixed 16 bytes each side sends first, with its range of protocol versions.
//! 2. [`frame`]: typed, length-prefixed, checksummed frames with a hard limit.
//! 3. [`message`]: the bodies, in [postcard] encoding, borrowed from the frame.
//! 4. [`nodes`]: the compact encoding of stacks inside a [`message::Nodes`] body.
//! 5. [`ring`]: the encoding of the flight recorder's records, inside a [`message::RingRun`] body.
//! 6. [`live`](mod@live): the encoding of sampled allocations, inside a [`message::LiveSamples`]
//!    body.
//! 7. [`trace`](mod@trace): the encoding of functions, probes and totals of a trace.
//! 8. [`caller_table`]: rules for finding callers, compiled by the client for the agent.
//! 9. [`secure`]: encryption with a key, between the preambles and the frames.
//! 10. [`code`]: the values of integer codes, and the conversion of frame codes to addresses.
//!
//! A conversation: both sides send their preamble; the client sends requests, and the agent answers
//! every request in order. A message's structure never changes once released; a new field requires
//! a new message type. Codes are raw integers, so that unknown ones survive a round trip.
//!
//! A recording file has the same frames after a different magic: see [`file`](mod@file).
//! [`console`] carries such a file as text lines out of a guest that has crashed.
//! [`image_settings`] are the settings that a client writes into a guest's image.
//!
//! ```
//! use unikprof_proto::{frame, message};
//!
//! let mut buffer = [0; 64];
//! let length = frame::encode(&message::Acknowledge { epoch: 7 }, &mut buffer).unwrap();
//! let parsed = frame::split(&buffer[..length]).unwrap().unwrap();
//! let back: message::Acknowledge = frame::decode(&parsed).unwrap();
//! assert_eq!(back.epoch, 7);
//! ```
//!
//! [postcard]: https://postcard.jamesmunns.com/wire-format
#![no_std]
#![forbid(unsafe_code)]

pub mod caller_table;
pub mod code;
pub mod console;
pub mod counts;
pub mod file;
pub mod frame;
pub mod image_settings;
pub mod live;
pub mod message;
pub mod nodes;
pub mod preamble;
pub mod ring;
pub mod run;
pub mod secure;
pub mod trace;
pub mod varint;
