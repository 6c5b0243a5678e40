//! The formats and their names.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

/// A format a report is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Tables for people: `.txt`.
    Text,
    /// One stack a line: `.folded`.
    Folded,
    /// A flame graph: `.svg`.
    Svg,
    /// The pprof protocol buffer, compressed with gzip: `.pb.gz` or `.pprof`.
    Pprof,
    /// A page that shows the recording over time and as a flame graph: `.html`.
    Page,
    /// The Firefox profiler's processed format, compressed with gzip: `.profile.json.gz`.
    Firefox,
    /// The Trace Event Format of Chrome's and Perfetto's viewers, for traces: `.trace.json`.
    Chrome,
    /// speedscope's format: `.speedscope.json`.
    Speedscope,
    /// OpenTelemetry's profiles signal, which is in development: `.otlp`. Needs the feature `otlp`.
    Otlp,
    /// Counters and functions for programs: `.json`.
    Json,
}

/// Name and endings, in the order they are listed. Of endings that one name has, the first counts.
const FORMATS: [(Format, &str, &[&str]); 10] = [
    (Format::Text, "text", &[".txt"]),
    (Format::Folded, "folded", &[".folded"]),
    (Format::Page, "html", &[".html", ".htm"]),
    (Format::Svg, "svg", &[".svg"]),
    (Format::Pprof, "pprof", &[".pb.gz", ".pprof"]),
    (Format::Firefox, "firefox", &[".profile.json.gz"]),
    (Format::Chrome, "chrome", &[".trace.json"]),
    (Format::Speedscope, "speedscope", &[".speedscope.json"]),
    (Format::Otlp, "otlp", &[".otlp"]),
    (Format::Json, "json", &[".json"]),
];

impl Format {
    /// Every format.
    pub fn all() -> impl Iterator<Item = Format> {
        FORMATS.iter().map(|(format, _, _)| *format)
    }

    /// The name [`Format::from_str`] takes.
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|(format, _, _)| *format == self).map_or("", |(_, name, _)| name)
    }

    /// The first of the endings that select it.
    pub fn ending(self) -> &'static str {
        let found = FORMATS.iter().find(|(format, _, _)| *format == self);
        found.and_then(|(_, _, endings)| endings.first()).copied().unwrap_or_default()
    }

    /// Whether its reader is told the warnings in it.
    pub fn has_warnings(self) -> bool {
        matches!(self, Format::Text | Format::Json)
    }

    /// Whether it is not for a terminal.
    pub fn is_binary(self) -> bool {
        matches!(self, Format::Pprof | Format::Firefox | Format::Otlp)
    }

    /// The format that a file's extension selects, in upper or lower case.
    pub fn from_path(path: &Path) -> Result<Format, UnknownFormat> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        FORMATS
            .iter()
            .find(|(_, _, endings)| endings.iter().any(|ending| name.ends_with(ending)))
            .map(|(format, _, _)| *format)
            .ok_or_else(|| UnknownFormat::Ending { path: path.display().to_string() })
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        FORMATS
            .iter()
            .find(|(_, name, _)| *name == text)
            .map(|(format, _, _)| *format)
            .ok_or_else(|| UnknownFormat::Name { name: text.to_owned() })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No format is called so.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnknownFormat {
    #[error("unknown format {name:?}: expected {}", names())]
    Name { name: String },
    #[error(
        "the extension of {path:?} is unknown: expected {}; or choose a format with --format ({})",
        endings(),
        names()
    )]
    Ending { path: String },
}

fn names() -> String {
    FORMATS.map(|(_, name, _)| name).join(", ")
}

fn endings() -> String {
    FORMATS
        .iter()
        .flat_map(|(_, _, endings)| endings.iter().copied())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_format_is_found_by_its_name_and_its_endings() {
        for (format, name, endings) in FORMATS {
            assert_eq!(name.parse(), Ok(format));
            assert_eq!(format.to_string(), name);
            for ending in endings {
                let path = format!("/tmp/a.b{}", ending.to_uppercase());
                assert_eq!(Format::from_path(Path::new(&path)), Ok(format), "{path}");
            }
        }
    }

    #[test]
    fn the_error_lists_what_there_is() {
        let error = Format::from_path(Path::new("x.pdf")).unwrap_err().to_string();
        assert!(
            error.contains(
                ".txt, .folded, .html, .htm, .svg, .pb.gz, .pprof, .profile.json.gz, \
                            .trace.json, .speedscope.json, .otlp, .json"
            ),
            "{error}"
        );
        let error = "PDF".parse::<Format>().unwrap_err().to_string();
        assert!(
            error.contains(
                "text, folded, html, svg, pprof, firefox, chrome, speedscope, otlp, json"
            ),
            "{error}"
        );
        assert!(Format::from_path(Path::new("svg")).is_err(), "a name is no ending");
        assert!(Format::from_path(Path::new("")).is_err());
    }
}
