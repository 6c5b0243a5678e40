//! Parts and a value to text.

use alloc::string::{String, ToString};

use serde_json_alloc::Value;

use super::{Part, RenderError, Templates, escape_into};

/// Sections and partials within each other; bounds the stack.
const MAX_DEPTH: usize = 80;
const MAX_BYTES: usize = 256 * 1024;

/// Renders a template over a value, to at most 256 KiB.
#[inline(never)]
pub(crate) fn render(
    templates: &Templates,
    name: &str,
    scope: &Value,
) -> Result<String, RenderError> {
    let mut renderer = Renderer {
        templates,
        output: String::with_capacity(1024),
        depth: 0,
    };
    renderer.render_parts(templates.get(name)?, scope)?;
    Ok(renderer.output)
}

struct Renderer<'t> {
    templates: &'t Templates,
    output: String,
    depth: usize,
}

impl Renderer<'_> {
    fn render_parts(&mut self, parts: &[Part], scope: &Value) -> Result<(), RenderError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(RenderError::TooDeep);
        }
        for part in parts {
            match part {
                Part::Text(text) => self.output.push_str(text),
                Part::Variable(name) => self.render_value(look_up(scope, name)),
                Part::Section(name, parts) => {
                    self.render_section(look_up(scope, name), parts, scope)?;
                }
                Part::Inverted(name, parts) => {
                    if is_empty(look_up(scope, name)) {
                        self.render_parts(parts, scope)?;
                    }
                }
                Part::Partial(name) => self.render_parts(self.templates.get(name)?, scope)?,
            }
            if self.output.len() > MAX_BYTES {
                return Err(RenderError::TooLong);
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn render_section(
        &mut self,
        value: &Value,
        parts: &[Part],
        scope: &Value,
    ) -> Result<(), RenderError> {
        match value {
            Value::Array(items) => items
                .iter()
                .try_for_each(|item| self.render_parts(parts, item)),
            Value::Object(_) => self.render_parts(parts, value),
            _ if is_empty(value) => Ok(()),
            _ => self.render_parts(parts, scope),
        }
    }

    fn render_value(&mut self, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(text) => escape_into(&mut self.output, text),
            other => escape_into(&mut self.output, &other.to_string()),
        }
    }
}

fn look_up<'v>(scope: &'v Value, name: &str) -> &'v Value {
    if name == "." {
        scope
    } else {
        scope.get(name).unwrap_or(&Value::Null)
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json_alloc::json;

    fn rendered(source: &'static str, value: &Value) -> Result<String, RenderError> {
        let mut templates = Templates::default();
        templates.add("main", source).unwrap();
        templates
            .add("tree", "<{{n}}{{#children}}{{>tree}}{{/children}}>")
            .unwrap();
        templates.add("loop", "x{{>loop}}").unwrap();
        render(&templates, "main", value)
    }

    #[test]
    fn renders_each_kind_of_part() {
        let cases = [
            ("a {{b}} {{c}}", json!({"b": 1.5}), "a 1.5 "),
            (
                "{{b}}",
                json!({"b": "<i>&\"'é"}),
                "&lt;i&gt;&amp;&quot;&#39;é",
            ),
            ("{{#l}}({{.}}){{/l}}", json!({"l": [1, "x"]}), "(1)(x)"),
            ("{{#o}}{{a}}{{/o}}", json!({"o": {"a": 3}}), "3"),
            ("{{#f}}no{{/f}}{{^f}}yes{{/f}}", json!({"f": false}), "yes"),
            ("{{#t}}{{a}}{{/t}}", json!({"t": true, "a": 4}), "4"),
            (
                "{{>tree}}",
                json!({"n": 1, "children": [{"n": 2}, {"n": 3}]}),
                "<1<2><3>>",
            ),
        ];
        for (source, value, expected) in cases {
            assert_eq!(rendered(source, &value).unwrap(), expected, "{source}");
        }
    }

    #[test]
    fn bounds_depth_and_length() {
        assert_eq!(rendered("{{>loop}}", &json!({})), Err(RenderError::TooDeep));
        assert_eq!(
            rendered("{{>absent}}", &json!({})),
            Err(RenderError::UnknownTemplate)
        );
        let long = json!({ "l": alloc::vec!["x".repeat(1000); 300] });
        assert_eq!(
            rendered("{{#l}}{{.}}{{/l}}", &long),
            Err(RenderError::TooLong)
        );
    }
}
