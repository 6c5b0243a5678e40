//! A flame graph as a picture for documents: what the client's SVG shows in a browser, without its script.
//!
//! The script fits the names into their frames, so the file itself has none; documents show no scripts.

/// The picture's width, and the margin on each side of the frames, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
/// Rows below are cut off.
const HEIGHT: f64 = 820.0;
/// Narrower frames are left out.
const LEAST_WIDTH: f64 = 1.0;
/// What a character of the font takes at most, on average.
const CHARACTER: f64 = 6.7;

/// Makes the picture of a flame graph that `unikprof-client` has written. `None` if it is anything else.
pub fn picture(svg: &str) -> Option<String> {
    let (head, frames) = svg.split_once("<svg id=\"frames\"")?;
    let heading = |id| between(head, &format!("<text id=\"{id}\""), "</text>");
    let [title, subtitle] = [heading("title")?, heading("subtitle")?];
    let [title, subtitle] = [title.split_once('>')?.1, subtitle.split_once('>')?.1];
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fbfaf7\"/>\n\
         <g text-anchor=\"middle\"><text x=\"50%\" y=\"24\" font-size=\"17\">{title}</text>\
         <text x=\"50%\" y=\"48\">{subtitle}</text></g>\n"
    );
    for frame in frames.split("<g>").skip(1) {
        picture += &Frame::parse(frame)?.draw().unwrap_or_default();
    }
    Some(picture + "</svg>\n")
}

struct Frame<'s> {
    name: &'s str,
    /// In percent of the frames' width.
    x: f64,
    y: f64,
    /// In percent of the frames' width.
    width: f64,
    fill: &'s str,
}

impl<'s> Frame<'s> {
    fn parse(text: &'s str) -> Option<Self> {
        let title = between(text, "<title>", "</title>")?;
        let number = |before, after| between(text, before, after)?.parse().ok();
        Some(Self {
            name: title.rsplit_once(" (")?.0,
            x: number("<rect x=\"", "%\"")?,
            y: number("y=\"", "\"")?,
            width: number("width=\"", "%\"")?,
            fill: between(text, "fill=\"", "\"")?,
        })
    }

    fn draw(&self) -> Option<String> {
        let percent = (WIDTH - 2.0 * MARGIN) / 100.0;
        let (x, width) = (MARGIN + self.x * percent, self.width * percent);
        if width < LEAST_WIDTH || self.y > HEIGHT {
            return None;
        }
        let (y, fill, text_x, text_y) = (self.y, self.fill, x + 3.0, self.y + 12.5);
        let rect = format!(
            "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"17\" fill=\"{fill}\"/>"
        );
        let text = match fitting(self.name, ((width - 6.0) / CHARACTER) as usize) {
            text if text.is_empty() => text,
            text => format!("<text x=\"{text_x:.1}\" y=\"{text_y}\">{text}</text>"),
        };
        Some(rect + &text + "\n")
    }
}

/// The end of a name, in so many characters, as XML; nothing if that tells nothing.
fn fitting(name: &str, room: usize) -> String {
    const ENTITIES: [(&str, &str); 3] = [("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    let plain = |text: String, (entity, plain)| text.replace(entity, plain);
    let name = ENTITIES.into_iter().fold(name.to_owned(), plain);
    let surplus = name.chars().count().saturating_sub(room);
    let cut = match surplus {
        0 => name,
        _ if room < 5 => String::new(),
        _ => "..".chars().chain(name.chars().skip(surplus + 2)).collect(),
    };
    let escape = |text: String, &(entity, plain): &(&str, &str)| text.replace(plain, entity);
    ENTITIES.iter().rev().fold(cut, escape)
}

fn between<'s>(text: &'s str, before: &str, after: &str) -> Option<&'s str> {
    Some(text.split_once(before)?.1.split_once(after)?.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_from_the_left() {
        assert_eq!(fitting("Vec&lt;u8&gt;::push", 13), "Vec&lt;u8&gt;::push");
        assert_eq!(fitting("Vec&lt;u8&gt;::push", 9), "..&gt;::push");
        assert_eq!(fitting("Vec&lt;u8&gt;::push", 4), "");
    }

    #[test]
    fn frames_stand_where_the_flame_graph_has_them() {
        let svg = "<svg><text id=\"title\" x=\"1\">demo</text><text id=\"subtitle\" x=\"1\">9 samples</text>\
            <svg id=\"frames\" x=\"10\"><g><title>main (a) (5 samples, 50%)</title>\
            <rect x=\"25.0%\" y=\"76\" width=\"50.0%\" height=\"17\" fill=\"rgb(1,2,3)\" fg:x=\"1\"/></g></svg></svg>";
        let picture = picture(svg).unwrap();
        let frame = "<rect x=\"305.0\" y=\"76\" width=\"590.0\" height=\"17\" fill=\"rgb(1,2,3)\"/>\
            <text x=\"308.0\" y=\"88.5\">main (a)</text>\n</svg>";
        assert!(picture.contains(frame), "{picture}");
        assert!(picture.contains(">demo<") && picture.contains(">9 samples<"));
        assert_eq!(super::picture("<svg></svg>"), None);
    }
}
