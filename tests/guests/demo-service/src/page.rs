//! Notes as HTML pages.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::note::{Comment, Note, is_spam};

/// Renders a page. Empty lines separate paragraphs, a paragraph that begins with `- ` is a list, and
/// a line may contain `*bold*`, `` `code` `` and `[links](17)` to other notes.
#[inline(never)]
pub(crate) fn render(note: &Note) -> String {
    let title = escape(&note.title);
    let mut page = format!("<!doctype html>\n<title>{title}</title>\n<h1>{title}</h1>\n");
    add_text(&note.text, &mut page);
    add_comments(&note.comments, &mut page);
    page
}

#[inline(never)]
fn add_comments(comments: &[Comment], page: &mut String) {
    // The list grows: what was stored may be spam today.
    for comment in comments.iter().filter(|comment| !is_spam(&comment.text)) {
        *page += &format!("<blockquote><b>{}</b>\n", escape(&comment.author));
        add_text(&comment.text, page);
        add_comments(&comment.replies, page);
        *page += "</blockquote>\n";
    }
}

fn add_text(text: &str, page: &mut String) {
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        match paragraph.strip_prefix("- ") {
            Some(list) => {
                let items: Vec<_> = list.split("\n- ").map(line).collect();
                *page += &format!("<ul><li>{}</ul>\n", items.join("\n<li>"));
            }
            None => *page += &format!("<p>{}\n", line(paragraph)),
        }
    }
}

#[inline(never)]
fn line(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (before, markup) = rest.split_at(at);
        html += &escape(before);
        // What is not closed stands for itself.
        let (replacement, length) = replace(markup).unwrap_or_else(|| (markup[..1].into(), 1));
        html += &replacement;
        rest = &markup[length..];
    }
    html + &escape(rest)
}

/// The HTML of the markup at a text's beginning, and its length; `None` if it is not closed.
fn replace(text: &str) -> Option<(String, usize)> {
    let tag = match text.as_bytes().first()? {
        b'`' => "code",
        b'*' => "b",
        _ => {
            let (label, rest) = text[1..].split_once("](")?;
            let (id, _) = rest.split_once(')')?;
            let link =
                format!("<a href=\"/pages/{}\">{}</a>", id.parse::<u32>().ok()?, escape(label));
            return Some((link, label.len() + id.len() + 4));
        }
    };
    let (inner, _) = text[1..].split_once(&text[..1]).filter(|(inner, _)| !inner.is_empty())?;
    Some((format!("<{tag}>{}</{tag}>", escape(inner)), inner.len() + 2))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
