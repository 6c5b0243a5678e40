//! A small wiki that does real work: the load of every demo guest while it is profiled.
//!
//! [`Service`] stores notes with comments and their replies, and answers HTTP requests about them.
//! [`RequestGenerator`] generates such requests endlessly. Both need only memory: no clock, no I/O,
//! no threads. The same seed gives the same bytes on every platform.
//!
//! # What its profile shows
//!
//! One mistake: `note::is_spam` parses the list of forbidden phrases again for every comment of
//! every stored note, which takes more than half of the service's time. The rest is a usual
//! service's work:
//!
//! | work | where | crate |
//! |---|---|---|
//! | parse requests | `Request::parse` | httparse |
//! | check signatures, make entity tags | `http::sign`, `Response::write_to` | blake2 |
//! | read and write notes, recursively over replies | `Note::parse`, `Note::to_json` | serde_json |
//! | render pages, recursively over replies | `page::render` | |
//! | index words, search, sort | `Store` | |
//! | compress pages and archives | `Response::deflate` | miniz_oxide |
//!
//! Functions that a profile should name carry `#[inline(never)]`.
//!
//! # What it needs
//!
//! - A global allocator. For the amount of memory see [`Service::new`].
//! - On a target without an operating system: `memcpy`, `memmove`, `memset`, `memcmp` and `bcmp`.
//! - A stack of 128 KiB (optimised) or 512 KiB (not optimised).
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod generator;
mod http;
mod note;
mod page;
mod service;
mod store;
#[cfg(test)]
mod tests;

pub use generator::RequestGenerator;
pub use service::Service;
