//! Which functions are meant: patterns over their names.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use regex_lite::Regex;
use strsim::normalized_damerau_levenshtein;
use thiserror::Error;

use crate::printable::Printable;

/// A pattern over the names of functions.
///
/// - `tcp_*`: `*` stands for any characters and `?` for one. The pattern matches a whole name, or
///   all of it that follows a `::` or a `.`: `netif::*` matches `kernel::netif::poll`. A C++ name
///   matches without its parameters, too.
/// - `/^tcp_(rx|tx)/`: a regular expression that matches anywhere in the name.
///
/// A pattern without upper-case letters matches them as well.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    regex: Regex,
    is_glob: bool,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, Error)]
pub enum PatternError {
    #[error("expected a pattern such as `tcp_*` or `/^tcp_/`, found nothing")]
    Empty,
    #[error("`{text}` is no regular expression: {source}")]
    Regex { text: String, source: regex_lite::Error },
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
                let escaped = regex_lite::escape(text).replace(r"\*", ".*").replace(r"\?", ".");
                format!("^(?s){any_case}{escaped}$")
            }
        };
        let regex = Regex::new(&expression)
            .map_err(|source| PatternError::Regex { text: text.to_owned(), source })?;
        Ok(Pattern { text: text.to_owned(), regex, is_glob: body.is_none() })
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pattern {
    /// Whether a function's name, as it is in the source, is meant.
    pub fn matches(&self, name: &str) -> bool {
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

impl Pattern {
    /// The end of a message that nothing matches: which of `names` may be meant, if any. They
    /// differ from the pattern in a few characters, or else contain its longest word.
    pub fn almost<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> String {
        const MOST: usize = 5;
        let text = self.text.to_lowercase();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        let longest = words.max_by_key(|it| it.len()).unwrap_or_default();
        if longest.len() < 3 {
            return String::new();
        }
        let similar = names.clone().filter(|_| self.is_glob);
        let similar = similar.filter_map(|name| Some((Reverse(alike(&text, name)?), name)));
        let mut similar: BTreeSet<(Reverse<u32>, &str)> = similar.collect();
        if similar.is_empty() {
            let containing = names.filter(|name| name.to_lowercase().contains(longest));
            similar = containing.map(|name| (Reverse(0), name)).collect();
        }
        let names = similar.iter().take(MOST);
        let names: Vec<String> = names.map(|(_, name)| format!("`{}`", Printable(name))).collect();
        match names.is_empty() {
            true => String::new(),
            false => format!("; there is {}", names.join(", ")),
        }
    }
}

/// How similar a name, or all of it that follows a `::` or a `.`, is to a pattern in lower case, in
/// thousandths. `None` if it is not. What a `*` at the pattern's end stands for does not count.
fn alike(pattern: &str, name: &str) -> Option<u32> {
    const LEAST: f64 = 0.65;
    let (start, is_open) = match pattern.strip_suffix('*') {
        Some(start) => (start, true),
        None => (pattern, false),
    };
    let bare = without_parameters(name).to_lowercase();
    let parts = starts(&bare).into_iter().filter_map(|from| bare.get(from..));
    let scores = parts.filter_map(|part| {
        let length = if is_open { start.len() } else { part.len() };
        let part = part.get(..length).unwrap_or(part);
        // A cheap bound first: an image has ten thousands of names.
        let (short, long) = (start.len().min(part.len()), start.len().max(part.len()));
        let may_be = short as f64 >= LEAST * long as f64;
        may_be.then(|| normalized_damerau_levenshtein(start, part))
    });
    let best = scores.fold(0.0, f64::max);
    (best >= LEAST).then_some((best * 1000.0) as u32)
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

/// A C++ name without its parameters and what follows them; any name without its file.
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
        return if at == 0 { name } else { name[..at].trim_end() };
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
            ("driver::*", "<netif::Device<a::Driver::x> as kernel::Driver>::poll", false),
            ("Server::poll", "Server::poll(int)", true),
            ("poll", "ns::Server::poll(ns::Request const&)", true),
            ("poll", "ns::(anonymous namespace)::poll(int)", true),
            ("Box::operator()", "Box::operator()(int) const", true),
            ("helper", "helper (a.c)", true),
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
    fn a_misspelt_pattern_is_told_similar_names() {
        let names = [
            "kernel::console::write_line",
            "kernel::console::flush",
            "tcp_input",
            "Server::poll(int)",
        ];
        for (pattern, expected) in [
            ("flush_all", ""),
            ("/flush.*x/", "; there is `kernel::console::flush`"),
            ("wirte_line", "; there is `kernel::console::write_line`"),
            ("consle::flush", "; there is `kernel::console::flush`"),
            ("tpc_*", "; there is `tcp_input`"),
            ("pol", "; there is `Server::poll(int)`"),
            ("Srever::poll", "; there is `Server::poll(int)`"),
            ("ab", ""),
            ("something_else", ""),
        ] {
            let found = pattern.parse::<Pattern>().unwrap().almost(names.into_iter());
            assert_eq!(found, expected, "{pattern}");
        }
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
