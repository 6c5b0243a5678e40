//! The lines of a guest's functions in its source, with which the lines of a profile are compared.

use std::ops::RangeInclusive;

/// The lines, counted from 1, of the function `name`, from its head to the brace that ends it: both
/// begin in the first column, in C as in Rust. `None` where `source` has none of that name.
pub fn lines_of(name: &str, source: &str) -> Option<RangeInclusive<usize>> {
    let call = format!(" {name}(");
    let is_head = |line: &&str| {
        let is_outermost = !line.starts_with([' ', '\t', '}']);
        // A declaration in C ends where it stands.
        is_outermost
            && !line.ends_with(';')
            && (line.contains(&call) || line.starts_with(&call[1..]))
    };
    let mut lines = (1..).zip(source.lines());
    let (first, _) = lines.find(|(_, line)| is_head(line))?;
    let (last, _) = lines.find(|(_, line)| *line == "}")?;
    Some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::lines_of;

    #[test]
    fn a_head_is_told_from_a_declaration_and_a_call() {
        let source = "int work(int a);\nint other(void)\n{\n    work(1);\n}\n\nint work(int a)\n\
                      {\n    {\n    }\n}\n";
        assert_eq!(lines_of("work", source), Some(7..=11));
        assert_eq!(lines_of("wor", source), None);
        assert_eq!(lines_of("f", "pub fn f(a: u8) {\n    g();\n}\n"), Some(1..=3));
        assert_eq!(lines_of("f", "fn f(a: u8) {\n    g();\n"), None);
    }
}
