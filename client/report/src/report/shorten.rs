//! Shortens long names for a narrow column and keeps the parts that distinguish functions.

use std::borrow::Cow;

/// Stands for what was left out.
const LEFT_OUT: char = '…';

/// A function's name in at most the given number of columns.
///
/// Generic arguments go first, then the paths of a method's type and trait, then the middle: a
/// name begins with its crate and ends with its function.
pub fn name(name: &str, columns: usize) -> Cow<'_, str> {
    if fits(name, columns) {
        return name.into();
    }
    let mut short = without_arguments(name);
    if !fits(&short, columns) {
        short = without_paths_of_self(&short);
    }
    if !fits(&short, columns) {
        short = without_middle(&short, columns);
    }
    short.into()
}

/// A text whose longest names, in backticks or words, are shortened until it fits, none to less than
/// the given number of columns.
pub(crate) fn names_in(text: &str, least: usize, fits: impl Fn(&str) -> bool) -> String {
    let length = |name: &&str| name.chars().count();
    let quoted = text.split('`').skip(1).step_by(2);
    let words = text.split(' ').filter(|word| !word.contains('`'));
    let mut names: Vec<&str> = quoted.chain(words).filter(|name| length(name) > least).collect();
    names.sort_by_key(|name| std::cmp::Reverse(length(name)));
    let mut short = text.to_owned();
    for long in names {
        if fits(&short) {
            break;
        }
        let shorter = |room| short.replace(long, &name(long, room));
        let rooms = (least..length(&long)).rev();
        let fitting = rooms.map(shorter).find(|text| fits(text));
        short = fitting.unwrap_or_else(|| shorter(least));
    }
    short
}

/// The same; where the text does not fit, names in backticks are first as in a table with so many
/// columns for them.
pub(crate) fn like_table(
    text: &str,
    columns: usize,
    least: usize,
    fits: impl Fn(&str) -> bool,
) -> String {
    names_in(&as_in_table(text, columns, &fits), least, &fits)
}

/// A text whose names in backticks are as in a table with so many columns for them, unless it fits.
pub(crate) fn as_in_table(text: &str, columns: usize, fits: impl Fn(&str) -> bool) -> Cow<'_, str> {
    if fits(text) {
        return text.into();
    }
    let part = |(at, part)| if at % 2 == 1 { name(part, columns) } else { part.into() };
    let parts: Vec<Cow<'_, str>> = text.split('`').enumerate().map(part).collect();
    parts.join("`").into()
}

/// A source file's last folder and name: `…/src/store.rs` is `src/store.rs`.
pub fn path(path: &str) -> &str {
    let mut slashes = path.rmatch_indices('/');
    match slashes.nth(1) {
        Some((at, _)) => &path[at + 1..],
        None => path,
    }
}

fn fits(text: &str, columns: usize) -> bool {
    text.chars().count() <= columns
}

/// `keys<Arc<str>, u32>` as `keys<…>`; the `<` of a qualified type, as in `<T as Drop>::drop`,
/// opens no arguments.
fn without_arguments(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('<') {
        let (before, opened) = rest.split_at(at);
        short.push_str(before);
        let has_owner = short.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':'));
        match closing(opened).filter(|_| has_owner) {
            Some(end) => {
                short.push('<');
                short.push(LEFT_OUT);
                rest = &opened[end..];
            }
            None => {
                short.push('<');
                rest = &opened[1..];
            }
        }
    }
    short.push_str(rest);
    short
}

/// `<net::tcp::Socket as io::Read>::read` as `<…Socket as …Read>::read`.
fn without_paths_of_self(name: &str) -> String {
    let Some(end) = name.starts_with('<').then(|| closing(name)).flatten() else {
        return name.to_owned();
    };
    let (qualified, rest) = name.split_at(end);
    let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
    let mut short = String::with_capacity(name.len());
    let mut left = qualified;
    while !left.is_empty() {
        let path_end = left.find(|c| !is_path(c)).unwrap_or(left.len());
        let (path, after) = left.split_at(path_end);
        match path.rsplit_once("::") {
            Some((_, last)) => {
                short.push(LEFT_OUT);
                short.push_str(last);
            }
            None => short.push_str(path),
        }
        let other_end = after.find(is_path).unwrap_or(after.len());
        let (other, next) = after.split_at(other_end);
        short.push_str(other);
        left = next;
    }
    short + rest
}

/// Where the `>` stands that closes the `<` at the beginning.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            // An arrow closes nothing.
            '>' if before != '-' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        before = c;
    }
    None
}

/// One third of the beginning and two thirds of the end.
fn without_middle(text: &str, columns: usize) -> String {
    let kept = columns.saturating_sub(1);
    let head = kept / 3;
    let length = text.chars().count();
    let (begin, end) = (head, length.saturating_sub(kept - head));
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    // What was left out before needs no second sign beside this one.
    let begin = text[..at(begin)].trim_end_matches(LEFT_OUT);
    let end = text[at(end)..].trim_start_matches(LEFT_OUT);
    format!("{begin}{LEFT_OUT}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_left_alone() {
        assert_eq!(name("keys<u8>", 8), "keys<u8>");
        assert_eq!(name("é".repeat(8).as_str(), 8), "é".repeat(8));
    }

    #[test]
    fn generic_arguments_go_first() {
        for (long, short) in [
            ("a::keys<alloc::sync::Arc<str>, u32>::go", "a::keys<…>::go"),
            ("run::<fn(u8) -> alloc::vec::Vec<u8>, u8>", "run::<…>"),
            ("<alloc::vec::Vec<T, A> as D>::drop", "<alloc::vec::Vec<…> as D>::drop"),
        ] {
            assert_eq!(name(long, long.chars().count() - 1), short);
        }
    }

    #[test]
    fn then_the_paths_of_a_methods_type_and_trait() {
        let long = "<demo::middleware::size_limits::SizeLimits as demo::middleware::Layer>::call";
        assert_eq!(name(long, 50), "<…SizeLimits as …Layer>::call");
        assert_eq!(name("<&mut a::b::C<u8> as d::E>::f", 25), "<&mut …C<…> as …E>::f");
    }

    #[test]
    fn then_the_middle() {
        assert_eq!(name("first_crate::module::last_function", 16), "first…t_function");
        assert_eq!(name("abc", 1), "…");
        assert_eq!(name("abc", 0), "…");
    }

    #[test]
    fn two_signs_never_stand_side_by_side() {
        let long = "<&dyn core::ops::function::Fn() + core::marker::Sync as d::E>::call_once";
        for columns in 1..40 {
            let short = name(long, columns);
            assert!(!short.contains("……"), "{short}");
            assert!(short.chars().count() <= columns, "{short}");
        }
    }

    /// Guards a function that has two names in one text.
    #[test]
    fn a_name_that_does_not_fit_is_that_of_the_table() {
        let long = "first_crate::module::last_function";
        let text = format!("`{long}` takes half");
        assert_eq!(as_in_table(&text, 16, |_| true), text);
        let short = format!("`{}` takes half", name(long, 16));
        assert_eq!(as_in_table(&text, 16, |text| text.len() < 40), short);
    }

    #[test]
    fn unbalanced_brackets_are_cut_like_anything_else() {
        for text in [
            "a<<<<<<<<<<",
            "<a>>>>>>>>>",
            "a::operator->",
            "std::operator<<char>(std::ostream&)",
            "<<<<<<<<<<<",
            "<é<é<é<é<é<",
        ] {
            assert!(name(text, 6).chars().count() <= 6, "{text}");
        }
    }

    #[test]
    fn a_path_keeps_its_last_folder() {
        assert_eq!(path("/r/demo/src/store.rs"), "src/store.rs");
        assert_eq!(path("src/store.rs"), "src/store.rs");
        assert_eq!(path("store.rs"), "store.rs");
    }
}
