//! An order, taken apart.

use core::str::FromStr;

/// `WORD NAME=VALUE ...`
#[derive(Clone, Copy)]
pub(super) struct Command<'a>(pub(super) &'a str);

impl<'a> Command<'a> {
    /// What to do.
    pub(super) fn word(self) -> &'a str {
        self.0.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// The text of this name.
    pub(super) fn text(self, name: &str) -> Option<&'a str> {
        self.0
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The number of this name.
    pub(super) fn number<T: FromStr>(self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
}
