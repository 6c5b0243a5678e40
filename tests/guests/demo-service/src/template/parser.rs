//! Template source to parts, by recursive descent over sections.

use alloc::vec::Vec;

use super::{Part, TemplateError};

pub(super) fn parse(source: &'static str) -> Result<Vec<Part>, TemplateError> {
    let mut rest = source;
    parse_block(&mut rest, None)
}

/// Reads up to the end of the section with this name, or of the source.
fn parse_block(
    rest: &mut &'static str,
    section: Option<&'static str>,
) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    while let Some((text, tag_and_after)) = rest.split_once("{{") {
        let (tag, after) = tag_and_after
            .split_once("}}")
            .ok_or(TemplateError::OpenTag)?;
        *rest = after;
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        let kind = tag.bytes().next().unwrap_or_default();
        let name = tag.trim_start_matches(['#', '^', '/', '>']);
        parts.push(match kind {
            b'#' => Part::Section(name, parse_block(rest, Some(name))?),
            b'^' => Part::Inverted(name, parse_block(rest, Some(name))?),
            b'>' => Part::Partial(name),
            b'/' if section == Some(name) => return Ok(parts),
            b'/' => return Err(TemplateError::Unbalanced),
            _ => Part::Variable(name),
        });
    }
    if section.is_some() {
        return Err(TemplateError::Unbalanced);
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
        *rest = "";
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn reads_all_kinds_of_parts() {
        let parts = parse("a{{b}}{{#c}}{{^d}}{{.}}{{/d}}{{/c}}{{>e}}f");
        let inner = vec![Part::Inverted("d", vec![Part::Variable(".")])];
        let expected = vec![
            Part::Text("a"),
            Part::Variable("b"),
            Part::Section("c", inner),
            Part::Partial("e"),
            Part::Text("f"),
        ];
        assert_eq!(parts, Ok(expected));
    }

    #[test]
    fn refuses_what_does_not_close() {
        assert_eq!(parse("a {{b"), Err(TemplateError::OpenTag));
        assert_eq!(parse("{{#a}}"), Err(TemplateError::Unbalanced));
        assert_eq!(parse("{{/a}}"), Err(TemplateError::Unbalanced));
        assert_eq!(
            parse("{{#a}}{{#b}}{{/a}}{{/b}}"),
            Err(TemplateError::Unbalanced)
        );
    }
}
