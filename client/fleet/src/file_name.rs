//! File names made of guests' names, which come from lists that others write.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The longest name made, in bytes: file systems allow 255, and a file's suffix, or the random part
/// of a temporary name, still fits.
const LONGEST: usize = 200;

/// The length of a name's hash, in hexadecimal.
const HASH: usize = 64;

/// The name of a guest's file or folder: different for each guest, and one component of a path.
///
/// Letters and digits of ASCII, `-`, `_` and dots between other characters stay; all other bytes
/// become `%` and two hexadecimal digits. A name that would be longer than 200 bytes is cut, and
/// ends in `~` and its SHA-256. An empty name becomes `%`.
pub(super) fn of_guest(name: &str) -> String {
    if name.is_empty() {
        return "%".to_owned();
    }
    let last = name.len() - 1;
    let mut encoded = String::with_capacity(name.len());
    let mut cut = 0;
    for (at, byte) in name.bytes().enumerate() {
        let stays = match byte {
            b'.' => at != 0 && at != last,
            _ => byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_',
        };
        if stays {
            encoded.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
        if encoded.len() < LONGEST - HASH {
            cut = encoded.len();
        }
    }
    if encoded.len() > LONGEST {
        encoded.truncate(cut);
        let _ = write!(encoded, "~{:x}", Sha256::digest(name));
    }
    encoded
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Component, Path};

    use super::*;

    #[test]
    fn harmless_names_stay_and_all_else_is_escaped() {
        for (name, expected) in [
            ("web-1_A.example.org", "web-1_A.example.org"),
            ("a/b", "a%2Fb"),
            ("..", "%2E%2E"),
            (".hidden.", "%2Ehidden%2E"),
            ("", "%"),
            ("%2F", "%252F"),
            ("a\0\nb ~", "a%00%0Ab%20%7E"),
            ("ü", "%C3%BC"),
        ] {
            assert_eq!(of_guest(name), expected, "{name:?}");
        }
    }

    /// A name that is two components, or another guest's, would mix or overwrite files.
    #[test]
    fn every_name_is_one_component_of_its_own() {
        let long = "/".repeat(128);
        let mut names: Vec<String> = (0_u8..128).map(|byte| char::from(byte).to_string()).collect();
        for length in 1..=128 {
            names.extend([
                "x".repeat(length + 1),
                "/.".repeat(length),
                long[..length].to_owned() + "ü",
                long[..length].to_owned() + "x",
            ]);
        }
        // What the encoding of another name looks like.
        names.extend([of_guest(&long), of_guest(&long[..67]), "%".into()]);
        names.extend(["..", "...", "a..b", ". ."].map(String::from));
        let names: BTreeSet<String> = names.into_iter().collect();
        let made: BTreeSet<String> = names.iter().map(|name| of_guest(name)).collect();
        assert_eq!(made.len(), names.len());
        for name in &made {
            assert!(name.len() <= LONGEST, "{name}");
            let mut parts = Path::new(name).components();
            assert_eq!(parts.next(), Some(Component::Normal(name.as_ref())));
            assert_eq!(parts.next(), None, "{name}");
        }
    }
}
