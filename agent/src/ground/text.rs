//! Short texts without allocation: names of recordings, and error texts.

use core::fmt::{self, Write};

use unikprof_proto::message::{MAX_CLIENT, MAX_NAME, MAX_TEXT};

/// A text of at most `N` bytes. A longer text is truncated at a character boundary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortText<const N: usize> {
    bytes: [u8; N],
    length: u16,
}

/// The reason for a refusal.
pub(crate) type Text = ShortText<MAX_TEXT>;

/// The name of a recording or of a client.
pub(crate) type Name = ShortText<MAX_NAME>;

const _: () = assert!(MAX_CLIENT <= MAX_NAME);

impl<const N: usize> ShortText<N> {
    /// A formatted text. Pass integers as u64, so that the smallest archive has code for that type
    /// only.
    pub(crate) fn format(arguments: fmt::Arguments<'_>) -> Self {
        let mut text = Self::default();
        let _ = text.write_fmt(arguments);
        text
    }

    pub(crate) fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl<const N: usize> Default for ShortText<N> {
    fn default() -> Self {
        Self { bytes: [0; N], length: 0 }
    }
}

impl<const N: usize> From<&str> for ShortText<N> {
    fn from(text: &str) -> Self {
        let mut own = Self::default();
        let _ = own.write_str(text);
        own
    }
}

impl<const N: usize> fmt::Write for ShortText<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // A panic handler calls this, so it must not panic.
        let room = self.bytes.get_mut(usize::from(self.length)..);
        let room = room.unwrap_or_default();
        let fits = text.get(..text.floor_char_boundary(room.len()));
        let fits = fits.unwrap_or_default();
        if let Some(place) = room.get_mut(..fits.len()) {
            place.copy_from_slice(fits.as_bytes());
        }
        self.length = self.length.saturating_add(fits.len() as u16);
        if fits.len() == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl<const N: usize> fmt::Display for ShortText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for ShortText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// At most the last `limit` bytes of `text`, truncated at a character boundary: a path keeps its
/// file name.
pub(crate) fn tail(text: &str, limit: usize) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(limit));
    text.get(start..).unwrap_or_default()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_longer_text_is_cut_at_a_character() {
        let text = Text::format(format_args!("{:255}é", "x"));
        assert_eq!(text.as_str().len(), 255);
        assert_eq!(Text::format(format_args!("{:254}é", "x")).as_str().len(), 256);
        assert_eq!(Text::from("über").as_str(), "über");
        assert_eq!(tail("é/usr/lib", 4), "/lib");
        assert_eq!(tail("éa", 2), "a");
        assert_eq!(tail("a", 2), "a");
    }
}
