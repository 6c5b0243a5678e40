//! What is shown of a trace: `view` chooses it, `text` and the others write it.

mod diff;
mod export;
mod json;
mod page;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod view;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

pub use diff::TraceDiff;
pub use view::{Sort, TraceOptions, TraceView};

use super::Format;
use unikprof_profile::printable::Printable;
use unikprof_profile::trace::CallsFrom;

/// The calls of a function by caller, the most first. A caller without a name is named by its code.
fn by_caller(callers: &[CallsFrom]) -> Vec<(String, u64)> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for caller in callers {
        let name = match caller.name.as_str() {
            "" => format!("unknown code (frame code {:#x})", caller.code),
            name => Printable(name).to_string(),
        };
        let calls = all.entry(name).or_default();
        *calls = calls.saturating_add(caller.calls);
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, calls)| Reverse(*calls));
    all
}

/// Rejects a format that traces cannot be written in, or none that `keeps_calls` says to have no
/// calls.
pub fn check_format(format: Format, keeps_calls: bool) -> io::Result<()> {
    let unsupported = |text| Err(io::Error::new(io::ErrorKind::Unsupported, text));
    match format {
        Format::Text | Format::Json | Format::Page => Ok(()),
        Format::Chrome | Format::Firefox | Format::Folded | Format::Svg if keeps_calls => Ok(()),
        Format::Chrome | Format::Firefox | Format::Folded | Format::Svg => unsupported(format!(
            "the trace keeps no calls (--count), and {format} shows nothing else"
        )),
        other => unsupported(format!(
            "a trace cannot be written as {other}: expected text, html, json, chrome, firefox, \
             folded or svg"
        )),
    }
}

impl TraceView<'_> {
    /// Writes the text without the calls.
    pub fn write_summary(&self, out: &mut dyn io::Write) -> io::Result<()> {
        text::write_summary(self, out).map(|_| ())
    }

    /// Writes it in a format.
    pub fn write(&self, format: Format, out: &mut dyn io::Write) -> io::Result<()> {
        check_format(format, self.calls.is_some())?;
        match format {
            Format::Text => text::write(self, out),
            Format::Json => json::write(self, out),
            Format::Chrome => json::write_chrome(self, out),
            Format::Firefox => export::write_firefox(self, out),
            Format::Folded => export::write_folded(self, out),
            Format::Svg => export::write_svg(self, out),
            Format::Page => page::write(self, out),
            _ => Ok(()),
        }
    }
}
