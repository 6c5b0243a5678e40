//! Text of the other side, made safe for a terminal and for XML.

use std::fmt::{self, Write as _};
use std::path::Path;

/// Shows text on one line, with what is no character to be seen escaped: a guest's name cannot
/// move the cursor, turn the direction of a line or break a drawing.
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if is_harmless(character) {
                f.write_char(character)?;
            } else {
                write!(f, "{}", character.escape_unicode())?;
            }
        }
        Ok(())
    }
}

/// A word as it is written on a command line.
pub fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:@%+,/".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", Printable(text).to_string().replace('\'', r"'\''"))
    }
}

/// A file's name as it is written on a command line, also where it could be taken for an option.
pub fn path_word(path: &Path) -> String {
    let name = path.to_string_lossy();
    word(&if name.starts_with('-') { format!("./{name}") } else { name.into_owned() })
}

/// Shows bytes of unknown origin: at most `MAX_SHOWN`, what is not text escaped.
pub struct PrintableBytes<'a>(pub &'a [u8]);

const MAX_SHOWN: usize = 32;

impl fmt::Display for PrintableBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(MAX_SHOWN)];
        write!(f, "`{}`", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            f.write_str("…")?;
        }
        Ok(())
    }
}

/// Neither a control character, nor one that changes the direction of text, nor one of the two that
/// XML cannot hold.
fn is_harmless(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
                | '\u{fffe}' | '\u{ffff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_do_not_reach_the_terminal() {
        assert_eq!(Printable("web\x1b[2J\n\u{202e}é").to_string(), "web\\u{1b}[2J\\u{a}\\u{202e}é");
        assert_eq!(Printable("\u{ffff}").to_string(), "\\u{ffff}");
        assert_eq!(PrintableBytes(b"HTTP\r\n\x00").to_string(), "`HTTP\\r\\n\\x00`");
        assert_eq!(PrintableBytes(&[b'a'; 40]).to_string().matches('a').count(), 32);
    }
}
