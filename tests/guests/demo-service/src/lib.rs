//! A small request service that does real work: what every demo guest runs and is profiled doing.
//!
//! [`Service`] keeps JSON documents and answers HTTP requests about them; [`RequestGenerator`] makes
//! such requests for ever. Both need memory and nothing else: no clock, no I/O, no threads, no
//! chance but a seed. The same seed gives the same bytes on every platform.
//!
//! ```no_run
//! use unikprof_demo_service::{RequestGenerator, Service};
//!
//! let (seed, size) = (1, 256);
//! let mut service = Service::new(seed, size);
//! let mut response = Vec::new();
//! for request in RequestGenerator::new(seed, size) {
//!     service.handle(&request, &mut response);
//! }
//! ```
//!
//! # What a profile of it shows
//!
//! | work | where | recursion |
//! |---|---|---|
//! | parse requests | `http::request`, httparse | |
//! | parse and write JSON | `handlers::parse_json`, `handlers::write_json`, serde_json | over values |
//! | hash | `hashing`, blake3 | over values |
//! | compress, inflate | `compression`, miniz_oxide | |
//! | tree | `store::digest_tree`: a treap with a digest in every node | over the tree |
//! | index | `store::term_index`, `document::Document::terms` | over values |
//! | sort | `ranking::sort`, `handlers::query::sort` | in the sort |
//! | evaluate | `expression`: parser and evaluator | over expressions, over values |
//! | render | `template` | over templates and values |
//! | sum | `checksum` | |
//!
//! Functions that a profile should name carry `#[inline(never)]`; all others are left to the
//! compiler. A request passes the layers of `middleware`, then `router`, then one of `handlers`.
//!
//! Sampled at 997 Hz for 5 s (optimised, 256 documents) it showed about 1,450 different stacks within
//! [`Service::handle`], a third of them of 20 frames and more, the deepest of 87.
//!
//! # What it needs
//!
//! - A global allocator. Service and generator together held 1.5 MB at most with 64 documents and
//!   3.2 MB with 256, over 100,000 requests.
//! - On a target without an operating system: `memcpy`, `memmove`, `memset`, `memcmp` and `bcmp`.
//! - A stack of 128 KiB (optimised), of 512 KiB (not optimised).
//! - SSE2 and an intact x87/SSE state across interrupts: numbers are floats, and the hash uses
//!   vector instructions up to SSE4.1 where CPUID shows them. AVX is never used.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod checksum;
mod compression;
mod document;
mod expression;
mod failure;
mod generator;
mod handlers;
mod hashing;
mod http;
mod middleware;
mod random;
mod ranking;
mod router;
mod service;
#[cfg(test)]
mod stack_tests;
mod statistics;
mod store;
mod template;

pub use generator::{RequestGenerator, RequestKind};
pub use http::reply::{Reply, ReplyError};
pub use http::status::Status;
pub use service::Service;
pub use statistics::Statistics;
