//! `%t`, `%n` and `%r` in the names of output files.

use std::path::PathBuf;
use std::str::FromStr;

use jiff::Timestamp;
use thiserror::Error;

/// The name of an output file, with placeholders: `%t` is the time in UTC, `%n` the guest's name,
/// `%r` the recording's, `%%` a percent sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

/// What a file is named after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedAfter<'a> {
    /// The guest's name; one without is called `guest`.
    pub guest: Option<&'a str>,
    /// The recording's name; one without is called `recording`.
    pub recording: &'a str,
    /// When the client connected to the guest.
    pub time: Timestamp,
}

/// Why text is not the name of an output file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NamePatternError {
    #[error("the name of an output file is empty")]
    Empty,
    #[error(
        "unknown placeholder `%{found}`: expected %t (time), %n (guest name), %r (recording name) \
         or %% (percent \
         sign)"
    )]
    Placeholder { found: String },
}

impl NamePattern {
    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The file's name. What does not belong into a file's name becomes `_`.
    pub fn expand(&self, after: &NamedAfter<'_>) -> PathBuf {
        let mut name = String::with_capacity(self.0.len());
        let mut characters = self.0.chars();
        while let Some(character) = characters.next() {
            match character {
                '%' => match characters.next() {
                    Some('t') => name.push_str(&after.time.strftime("%Y%m%dT%H%M%SZ").to_string()),
                    Some('n') => {
                        name.push_str(&file_name(after.guest.unwrap_or_default(), "guest"));
                    }
                    Some('r') => name.push_str(&file_name(after.recording, "recording")),
                    // `from_str` lets only `%%` pass besides.
                    _ => name.push('%'),
                },
                other => name.push(other),
            }
        }
        name.into()
    }
}

impl FromStr for NamePattern {
    type Err = NamePatternError;

    fn from_str(text: &str) -> Result<NamePattern, NamePatternError> {
        if text.is_empty() {
            return Err(NamePatternError::Empty);
        }
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            if character == '%' {
                match characters.next() {
                    Some('t' | 'n' | 'r' | '%') => {}
                    found => {
                        return Err(NamePatternError::Placeholder {
                            found: found.map(String::from).unwrap_or_default(),
                        });
                    }
                }
            }
        }
        Ok(NamePattern(text.into()))
    }
}

/// Names come from the other side: they must not leave the directory.
fn file_name(told: &str, otherwise: &str) -> String {
    const LONGEST: usize = 64;
    let name: String = told
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .collect();
    match name.trim_start_matches('.') {
        "" => otherwise.into(),
        name => name.into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn expand(pattern: &str, guest: Option<&str>) -> String {
        let pattern: NamePattern = pattern.parse().unwrap();
        let path = pattern.expand(&NamedAfter {
            guest,
            recording: guest.unwrap_or_default(),
            time: Timestamp::UNIX_EPOCH,
        });
        path.to_str().unwrap().into()
    }

    #[test]
    fn a_guest_cannot_choose_the_directory() {
        assert_eq!(expand("d/%r.svg", Some("../night shift")), "d/_night_shift.svg");
        assert_eq!(expand("%r.svg", None), "recording.svg");
        assert_eq!(expand("d/%n.svg", Some("../../etc/passwd")), "d/_.._etc_passwd.svg");
        assert_eq!(expand("%n.svg", Some("..")), "guest.svg");
        assert_eq!(expand("%n.svg", None), "guest.svg");
        assert_eq!(expand("%n.svg", Some(&"x".repeat(500))).len(), 64 + 4);
    }

    #[test]
    fn only_the_known_placeholders_pass() {
        assert_eq!(expand("100%%", None), "100%");
        assert_eq!(expand("%n-%r-%t", Some("web-1")), "web-1-web-1-19700101T000000Z");
        let parse = |text: &str| text.parse::<NamePattern>().unwrap_err();
        assert_eq!(parse("a%p"), NamePatternError::Placeholder { found: "p".into() });
        assert_eq!(parse("a%"), NamePatternError::Placeholder { found: String::new() });
        assert_eq!(parse(""), NamePatternError::Empty);
    }
}
