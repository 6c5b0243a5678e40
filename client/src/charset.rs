//! Text for people, in the characters that their terminal shows.

use std::env;
use std::fmt;
use std::io::{self, Write as _};
use std::sync::LazyLock;

use crate::cli::error_columns;
use unikprof_report::finding::wrapped;

/// Whether the locale's character set is UTF-8. It is taken to be where no locale is set at all, as
/// in containers.
static IS_UTF8: LazyLock<bool> = LazyLock::new(|| {
    let set = |name: &str| env::var(name).ok().filter(|locale| !locale.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    locale.is_none_or(|locale| is_utf8(&locale))
});

fn is_utf8(locale: &str) -> bool {
    let without_modifier = locale.split('@').next().unwrap_or_default();
    let set = without_modifier.rsplit('.').next().unwrap_or_default();
    set.eq_ignore_ascii_case("UTF-8") || set.eq_ignore_ascii_case("utf8")
}

/// The text with ASCII characters for those that this program draws with, if the locale's character
/// set is not UTF-8. Columns keep their width, and names of functions their letters.
pub(crate) fn local(text: String) -> String {
    if *IS_UTF8 || text.is_ascii() { text } else { ascii(&text) }
}

fn ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let drawn = match character {
            '→' => "->",
            '≤' => "<=",
            '±' => "+-",
            '…' | '⋯' => "~",
            'µ' => "u",
            '×' => "x",
            '│' => "|",
            '└' | '├' => "+",
            '─' => "-",
            '·' => "?",
            '▁' => "_",
            '▂' => ".",
            '▃' => ":",
            '▄' => "-",
            '▅' => "=",
            '▆' => "+",
            '▇' => "*",
            '█' => "#",
            other => {
                out.push(other);
                continue;
            }
        };
        out.push_str(drawn);
        if drawn.len() > 1 {
            characters.next_if_eq(&' ');
        }
    }
    out
}

/// Writes a text to stderr, in lines that its terminal holds. A terminal that was closed is no reason
/// to stop.
pub(crate) fn tell(text: fmt::Arguments<'_>) {
    let text = local(text.to_string()) + "\n";
    let text = match error_columns() {
        Some(columns) => wrapped(&text, columns),
        None => text,
    };
    let _ = io::stderr().write_all(text.as_bytes());
}

/// [`tell`](charset::tell) with the arguments of `eprintln!`.
macro_rules! tell {
    ($($line:tt)*) => { $crate::charset::tell(format_args!($($line)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_name_their_character_set_last() {
        for locale in ["en_US.UTF-8", "C.utf8", "de_DE.UTF-8@euro", "UTF-8"] {
            assert!(is_utf8(locale), "{locale}");
        }
        for locale in ["C", "POSIX", "en_US", "ja_JP.eucJP", "de_DE.ISO-8859-15@euro"] {
            assert!(!is_utf8(locale), "{locale}");
        }
    }

    #[test]
    fn columns_keep_their_width() {
        assert_eq!(ascii("p50 ≤ 11 µs  ▁▄█·│ f<…>é"), "p50 <=11 us  _-#?| f<~>é");
        assert_eq!(ascii("1.1 µs → 1.3 µs"), "1.1 us ->1.3 us");
    }
}
