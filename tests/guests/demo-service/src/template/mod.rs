//! Render: HTML from JSON by small logic-less templates.
//!
//! `{{name}}` is a value with HTML escaped, `{{.}}` the value in scope, `{{#name}}…{{/name}}` a
//! block for each element of a list or once for anything else true, `{{^name}}…{{/name}}` a block
//! for what is empty, `{{>name}}` another template with the same scope. Unlike in Mustache, names
//! are looked up in the innermost scope only, so a template may call itself over a tree.

mod parser;
mod renderer;

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

pub(crate) use renderer::render;

/// Parsed templates by name.
#[derive(Debug, Default)]
pub(crate) struct Templates {
    by_name: BTreeMap<&'static str, Vec<Part>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(&'static str),
    Variable(&'static str),
    Section(&'static str, Vec<Part>),
    Inverted(&'static str, Vec<Part>),
    Partial(&'static str),
}

/// Why a template did not render.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenderError {
    UnknownTemplate,
    TooDeep,
    TooLong,
}

/// Why a template's source is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TemplateError {
    /// `{{` without `}}`.
    OpenTag,
    /// A section without its end, or an end without its section.
    Unbalanced,
}

impl Templates {
    /// Parses a source and keeps it under a name.
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        source: &'static str,
    ) -> Result<(), TemplateError> {
        self.by_name.insert(name, parser::parse(source)?);
        Ok(())
    }

    fn get(&self, name: &str) -> Result<&[Part], RenderError> {
        self.by_name
            .get(name)
            .map(Vec::as_slice)
            .ok_or(RenderError::UnknownTemplate)
    }
}

/// Adds a text with the characters that HTML would read otherwise escaped.
fn escape_into(output: &mut String, text: &str) {
    let mut rest = text;
    while let Some(position) = rest.find(['&', '<', '>', '"', '\'']) {
        output.push_str(&rest[..position]);
        output.push_str(match rest.as_bytes()[position] {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&quot;",
            _ => "&#39;",
        });
        rest = &rest[position + 1..];
    }
    output.push_str(rest);
}

impl fmt::Display for RenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownTemplate => "unknown template",
            Self::TooDeep => "the templates are nested too deeply",
            Self::TooLong => "the rendered text is too long",
        })
    }
}
