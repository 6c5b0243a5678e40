//! The words of the command line: `key=value`.

use core::str::FromStr;

#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandLine(pub(crate) &'static str);

impl CommandLine {
    /// The value of `key`; the last one if there are several.
    pub(crate) fn value(self, key: &str) -> Option<&'static str> {
        self.0
            .split_ascii_whitespace()
            .filter_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .next_back()
    }

    /// The value of `key` as a number or an address; `None` if it is missing or invalid.
    pub(crate) fn parsed<T: FromStr>(self, key: &str) -> Option<T> {
        self.value(key)?.parse().ok()
    }
}
