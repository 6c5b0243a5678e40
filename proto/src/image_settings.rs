//! Settings of a guest's profiler inside its image: for tenants who cannot write to xenstore.
//!
//! The drop-in has a block of [`MAGIC`] and [`CAPACITY`] zeros among its constants. The client
//! finds it in the linked file by its magic, wherever a linker script has put it, and writes text
//! there: lines of `NAME=VALUE`, with the names and values of the nodes below `data/unikprof` in
//! xenstore.

/// The first bytes of the block; nowhere else in an image.
pub const MAGIC: [u8; 16] = *b"\xffunikprof image\xff";

/// The bytes of text behind the magic; those that are not used are zero.
pub const CAPACITY: usize = 1008;

/// The text in the bytes behind the magic.
///
/// # Errors
/// [`Utf8Error`](core::str::Utf8Error) if it is none.
pub fn text(block: &[u8]) -> Result<&str, core::str::Utf8Error> {
    let end = block.iter().position(|&byte| byte == 0);
    core::str::from_utf8(&block[..end.unwrap_or(block.len())])
}

/// The value of a setting.
///
/// ```
/// use unikprof_proto::image_settings::value;
///
/// assert_eq!(value("port=7777\naccess=open\n", "access"), Some("open"));
/// assert_eq!(value("port=7777\n", "access"), None);
/// ```
#[must_use]
pub fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}
