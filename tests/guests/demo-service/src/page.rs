//! Notes as HTML pages.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use regex::Regex;

use crate::note::{Comment, Note};

/// The markup within a line, and its replacement.
const RULES: [(&str, &str); 3] = [
    (r"`([^`]+)`", "<code>$1</code>"),
    (r"\*([^*]+)\*", "<b>$1</b>"),
    (r"\[([^\[\]]+)\]\((\d+)\)", r#"<a href="/pages/$2">$1</a>"#),
];

/// Renders pages. Empty lines separate paragraphs, a paragraph that begins with `- ` is a list, and
/// a line may contain `*bold*`, `` `code` `` and `[links](17)` to other notes.
pub(crate) struct Renderer([(Regex, &'static str); RULES.len()]);

impl Renderer {
    pub(crate) fn new() -> Self {
        let rule = |(pattern, html)| (Regex::new(pattern).expect("a valid pattern"), html);
        Self(RULES.map(rule))
    }

    #[inline(never)]
    pub(crate) fn page(&self, note: &Note) -> String {
        let title = escape(&note.title);
        let mut page = format!("<!doctype html>\n<title>{title}</title>\n<h1>{title}</h1>\n");
        self.text(&note.text, &mut page);
        self.comments(&note.comments, &mut page);
        page
    }

    #[inline(never)]
    fn comments(&self, comments: &[Comment], page: &mut String) {
        for comment in comments {
            *page += &format!("<blockquote><b>{}</b>\n", escape(&comment.author));
            self.text(&comment.text, page);
            self.comments(&comment.replies, page);
            *page += "</blockquote>\n";
        }
    }

    fn text(&self, text: &str, page: &mut String) {
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
            match paragraph.strip_prefix("- ") {
                Some(list) => {
                    let items: Vec<_> = list.split("\n- ").map(|item| self.line(item)).collect();
                    *page += &format!("<ul><li>{}</ul>\n", items.join("\n<li>"));
                }
                None => *page += &format!("<p>{}\n", self.line(paragraph)),
            }
        }
    }

    #[inline(never)]
    fn line(&self, text: &str) -> String {
        let mut html = escape(text);
        for (pattern, replacement) in &self.0 {
            html = pattern.replace_all(&html, *replacement).into_owned();
        }
        html
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
