//! A small wiki that does real work: what every demo guest runs while it is profiled.
//!
//! [`Service`] keeps notes with comments and their replies, and answers HTTP requests about
//! them. [`RequestGenerator`] makes such requests, without end. Both need memory and nothing else: no clock,
//! no I/O, no threads. The same seed gives the same bytes on every platform.
//!
//! # What a profile of it shows
//!
//! One mistake: `note::is_spam` compiles its regular expression anew for every comment of every note that
//! is stored, which takes more than half of the service's time. The rest is the work of such a service:
//!
//! | work | where | crate |
//! |---|---|---|
//! | parse requests | `Request::parse` | httparse |
//! | check signatures, make entity tags | `http::sign`, `Response::write_to` | blake3 |
//! | read and write notes, recursively over replies | `Note::parse`, `Note::to_json` | serde_json |
//! | render pages | `Renderer::page`, which keeps its compiled patterns | regex |
//! | index words, search, sort | `Store` | |
//! | compress pages and archives | `Response::deflate` | miniz_oxide |
//!
//! Functions that a profile should name carry `#[inline(never)]`.
//!
//! # What it needs
//!
//! - A global allocator. For the memory see [`Service::new`].
//! - On a target without an operating system: `memcpy`, `memmove`, `memset`, `memcmp` and `bcmp`.
//! - A stack of 128 KiB (optimised) or 512 KiB (not optimised).
//! - SSE state that is intact across interrupts: the hash uses vector instructions up to SSE4.1 where CPUID
//!   shows them. AVX is used only if another crate of the program enables `std` in memchr.
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
