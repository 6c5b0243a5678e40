//! A parsed order.

use core::str::FromStr;

/// `WORD NAME=VALUE ...`
#[derive(Clone, Copy)]
pub(super) struct Command<'a>(pub(super) &'a str);

impl<'a> Command<'a> {
    /// The load's name.
    pub(super) fn word(self) -> &'a str {
        self.0.split_ascii_whitespace().next().unwrap_or_default()
    }

    /// The value of this name as text.
    pub(super) fn text(self, name: &str) -> Option<&'a str> {
        self.0
            .split_ascii_whitespace()
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    }

    /// The value of this name as a number.
    pub(super) fn number<T: FromStr>(self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }
}
