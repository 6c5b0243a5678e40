//! Percent-encoding of paths and queries.

use alloc::string::String;
use alloc::vec::Vec;

/// Decodes `%41` to `A` and, in a query, `+` to a space. `None` for a broken escape or text that is
/// not UTF-8 afterwards.
pub(crate) fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let high = hex_digit(bytes.next()?)?;
                let low = hex_digit(bytes.next()?)?;
                high << 4 | low
            }
            b'+' if plus_is_space => b' ',
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

/// Splits `a=1&b=two` into decoded pairs. `None` when a part does not decode.
pub(crate) fn parse_query(query: &str) -> Option<Vec<(String, String)>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((percent_decode(name, true)?, percent_decode(value, true)?))
        })
        .collect()
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn decodes_escapes_and_keeps_the_rest() {
        assert_eq!(percent_decode("a%20b+c", false).unwrap(), "a b+c");
        assert_eq!(percent_decode("a%20b+c", true).unwrap(), "a b c");
        assert_eq!(percent_decode("%C3%A9", false).unwrap(), "é");
    }

    #[test]
    fn refuses_broken_escapes() {
        for text in ["%", "%4", "%zz", "%+1", "%FF"] {
            assert_eq!(percent_decode(text, false), None, "{text}");
        }
        assert_eq!(parse_query("q=%G0"), None);
    }

    #[test]
    fn splits_pairs() {
        let pairs = parse_query("q=one+two&&flag&limit=3").unwrap();
        let expected = [("q", "one two"), ("flag", ""), ("limit", "3")];
        assert!(
            pairs
                .iter()
                .map(|(n, v)| (n.as_str(), v.as_str()))
                .eq(expected)
        );
    }
}
