//! Traces: every call of chosen functions, with its duration.
//!
//! [`pattern`] says which functions are meant, `plan` finds where their probes go, and `order` puts both together for the
//! guest that runs. `data` is what came of it, `calls` the calls in the rings, `tree` what of them is drawn, and `view`
//! both together; `text` and the others show it.

mod calls;
mod data;
mod diff;
mod export;
mod json;
mod order;
mod page;
mod pattern;
mod plan;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod view;

use std::io;

use data::CallsFrom;
pub(crate) use data::TraceError;
pub(crate) use data::{Order, Trace, TracedFunction};
pub(crate) use diff::TraceDiff;
pub(crate) use order::{OrderError, Wanted, plan};
pub(crate) use pattern::Pattern;
pub(crate) use view::{Sort, TraceOptions, TraceView, refusal_lines};

use crate::printable::Printable;
use crate::report::Format;

/// A caller's name, or its code if it has none.
fn caller_name(caller: &CallsFrom) -> String {
    match caller.name.as_str() {
        "" => format!("unknown code (frame code {:#x})", caller.code),
        name => Printable(name).to_string(),
    }
}

impl TraceView<'_> {
    /// Writes it in a format.
    pub(crate) fn write(&self, format: Format, out: &mut dyn io::Write) -> io::Result<()> {
        let needs_calls = matches!(
            format,
            Format::Chrome | Format::Firefox | Format::Folded | Format::Svg
        );
        if needs_calls && self.calls.is_none() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the trace kept no calls (--count), and {format} shows nothing else"),
            ));
        }
        match format {
            Format::Text => text::write(self, out),
            Format::Json => json::write(self, out),
            Format::Chrome => json::write_chrome(self, out),
            Format::Firefox => export::write_firefox(self, out),
            Format::Folded => export::write_folded(self, out),
            Format::Svg => export::write_svg(self, out),
            Format::Page => page::write(self, out),
            other => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "a trace cannot be written as {other}: expected text, html, json, chrome, firefox, folded or svg"
                ),
            )),
        }
    }
}
