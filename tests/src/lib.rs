//! End-to-end cases of unikprof, and what they run on.

// Not published: an error's message describes it.
#![allow(missing_docs)]

pub mod accuracy;
pub mod c_xen_guest;
pub mod guest_statistics;
pub mod lab;
pub mod many_guests;
pub mod process;
pub mod profiled;
pub mod requirement;
pub mod soak;
pub mod source;
pub mod xen_bench;
pub mod xen_demo;

/// A length of time on the command line, as in `4s`.
fn parse_duration(text: &str) -> Result<std::time::Duration, jiff::Error> {
    jiff::fmt::friendly::SpanParser::new().parse_unsigned_duration(text)
}
