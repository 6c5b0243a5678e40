//! Which functions are meant: patterns over their names.

use regex::Regex;
use thiserror::Error;

/// A pattern over the names of functions.
///
/// - `tcp_*`: `*` stands for any characters and `?` for one. The pattern matches a whole name, or all of it that follows
///   a `::` or a `.`: `netif::*` matches `kernel::netif::poll`. A C++ name matches without its parameters, too.
/// - `/^tcp_(rx|tx)/`: a regular expression that matches anywhere in the name.
///
/// A pattern without upper-case letters matches them as well.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    text: String,
    regex: Regex,
    is_glob: bool,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, Error)]
pub(crate) enum PatternError {
    #[error("expected a pattern such as `tcp_*` or `/^tcp_/`, found nothing")]
    Empty,
    #[error("`{text}` is no regular expression: {source}")]
    Regex {
        text: String,
        source: Box<regex::Error>,
    },
}

impl std::str::FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Pattern, PatternError> {
        let has_case = text.chars().any(char::is_uppercase);
        let any_case = if has_case { "" } else { "(?i)" };
        let body = text.strip_prefix('/').and_then(|it| it.strip_suffix('/'));
        let expression = match body {
            Some("") => return Err(PatternError::Empty),
            Some(body) => format!("{any_case}{body}"),
            None if text.is_empty() => return Err(PatternError::Empty),
            None => {
                let escaped = regex::escape(text).replace(r"\*", ".*").replace(r"\?", ".");
                format!("^(?s){any_case}{escaped}$")
            }
        };
        let regex = Regex::new(&expression).map_err(|source| PatternError::Regex {
            text: text.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Pattern {
            text: text.to_owned(),
            regex,
            is_glob: body.is_none(),
        })
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pattern {
    /// Whether a function's name, as it is in the source, is meant.
    pub(crate) fn matches(&self, name: &str) -> bool {
        if !self.is_glob {
            return self.regex.is_match(name);
        }
        let bare = without_parameters(name);
        starts(name).into_iter().any(|start| {
            let is_match = |name: &str| name.get(start..).is_some_and(|it| self.regex.is_match(it));
            is_match(name) || (bare.len() < name.len() && is_match(bare))
        })
    }
}

/// Where a name and what it is qualified with begin, outside of angle brackets and parentheses.
fn starts(name: &str) -> Vec<usize> {
    let mut starts = vec![0];
    if name.starts_with('<') {
        starts.push(1);
    }
    let (mut depth, bytes) = (0_i32, name.as_bytes());
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' | b'{' => depth += 1,
            // Not the arrow of `operator->` or of a function's type.
            b'>' if at > 0 && bytes[at - 1] != b'-' => depth -= 1,
            b')' | b'}' => depth -= 1,
            b':' if depth <= 0 && at > 0 && bytes[at - 1] == b':' => starts.push(at + 1),
            b'.' if depth <= 0 => starts.push(at + 1),
            _ => {}
        }
    }
    starts
}

/// A C++ name without its parameters and what follows them.
fn without_parameters(name: &str) -> &str {
    let from = match name.find("operator()") {
        Some(at) => at + "operator()".len(),
        None => 0,
    };
    let mut rest = from;
    while let Some(at) = name[rest..].find('(') {
        let at = rest + at;
        // `(anonymous namespace)::` is a part of the name.
        if name[at..].starts_with("(anonymous namespace)") {
            rest = at + "(anonymous namespace)".len();
            continue;
        }
        return if at == 0 { name } else { &name[..at] };
    }
    name
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(name)
    }

    #[test]
    fn globs_match_whole_names_and_what_is_qualified() {
        for (pattern, name, expected) in [
            ("tcp_*", "tcp_input", true),
            ("tcp_*", "my_tcp_input", false),
            ("tcp_?x", "tcp_rx", true),
            ("tcp_?x", "tcp_rxx", false),
            ("netif::*", "kernel::netif::poll", true),
            ("netif::*", "kernel::other::poll", false),
            ("netif::*", "<netif::Device as kernel::Driver>::poll", true),
            ("poll", "<netif::Device as kernel::Driver>::poll", true),
            (
                "driver::*",
                "<netif::Device<a::Driver::x> as kernel::Driver>::poll",
                false,
            ),
            ("Server::poll", "Server::poll(int)", true),
            ("poll", "ns::Server::poll(ns::Request const&)", true),
            ("poll", "ns::(anonymous namespace)::poll(int)", true),
            ("Box::operator()", "Box::operator()(int) const", true),
            ("lwt*", "Lwt.return", true),
            ("Lwt.*", "Lwt.return", true),
            ("return", "Lwt.return", true),
            ("Tcp_*", "tcp_input", false),
            ("*", "anything at all", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} and {name}");
        }
    }

    #[test]
    fn regular_expressions_match_anywhere() {
        assert!(matches("/tcp_(rx|tx)$/", "my_tcp_rx"));
        assert!(!matches("/^tcp_(rx|tx)$/", "my_tcp_rx"));
        assert!(matches("/server::poll/", "Server::poll(int)"));
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for text in ["", "//"] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains("found nothing"), "{error}");
        }
        let error = "/(/".parse::<Pattern>().unwrap_err().to_string();
        assert!(error.contains("no regular expression"), "{error}");
    }
}
