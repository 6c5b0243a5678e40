//! Which files are to be written, and writing them.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use super::failure::Failure;
use super::name_pattern::{NamePattern, NamedAfter};
use super::output_format::OutputFormat;
use super::screen;
use super::shared::CommandError;
use unikprof_profile::output::{AtomicFile, OutputError, target_of, temporary_beside};
use unikprof_report::report::{DEFAULT_COLUMNS, Format, Report, ReportError, warnings};

/// The name that means standard output.
const STDOUT: &str = "-";

/// A report that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportOutput {
    /// The format, by the name of the file or by an option.
    pub format: Format,
    /// Where it is written.
    pub target: Target,
}

/// Where a report is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

/// Where a recording and its reports go.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) recording: RecordingFile,
    pub(super) reports: Vec<ReportOutput>,
}

#[derive(Debug)]
pub(super) enum RecordingFile {
    /// It was asked for, by its name or by none at all.
    Wanted(PathBuf),
    /// Only its reports were asked for: dropping it removes it.
    Temporary(TempPath),
}

impl RecordingFile {
    pub(super) fn path(&self) -> &Path {
        match self {
            RecordingFile::Wanted(path) => path,
            RecordingFile::Temporary(path) => path,
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        matches!(self, RecordingFile::Wanted(_))
    }

    /// Leaves the file where it is, whether it was asked for or not.
    pub(super) fn keep(self) {
        if let RecordingFile::Temporary(mut path) = self {
            path.disable_cleanup(true);
        }
    }
}

impl Plan {
    /// The files that are to be written.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.report_files().chain([self.recording.path()])
    }

    /// The files that reports are written to.
    pub(super) fn report_files(&self) -> impl Iterator<Item = &Path> {
        self.reports.iter().filter_map(ReportOutput::file)
    }

    /// Whether standard output is the only place for some of it.
    pub(super) fn is_for_stdout(&self) -> bool {
        let to_stdout = self.reports.iter().any(|output| output.target == Target::Stdout);
        to_stdout && !self.recording.is_wanted()
    }

    /// What the patterns mean; no pattern: a recording named after guest, recording and time.
    pub(super) fn new(
        patterns: &[NamePattern],
        format: Option<OutputFormat>,
        after: &NamedAfter<'_>,
    ) -> Result<Plan, Failure> {
        let mut recordings = Vec::new();
        let mut reports = Vec::new();
        let targets = match patterns {
            [] => {
                let format = format.unwrap_or(OutputFormat::Recording);
                let ending = match format {
                    OutputFormat::Recording => ".unikprof",
                    OutputFormat::Report(format) => format.ending(),
                };
                let stem = pattern("%n-%r-%t")?.expand(after);
                vec![(format, Target::File(unused(&stem, ending)))]
            }
            given => targets(given, format, after)?,
        };
        for (format, target) in targets {
            match (format, target) {
                (OutputFormat::Recording, Target::File(path)) => recordings.push(path),
                (OutputFormat::Recording, Target::Stdout) => {
                    return Err(Failure::Usage(
                        "a raw recording cannot be written to standard output: name a file with -o"
                            .into(),
                    ));
                }
                (OutputFormat::Report(format), target) => {
                    reports.push(ReportOutput { format, target });
                }
            }
        }
        no_name_twice(&recordings, &reports)?;
        let recording = match recordings.as_slice() {
            [] => RecordingFile::Temporary(temporary_recording(&reports)?),
            [only] if !reports.is_empty() => {
                can_be_read_back(only)?;
                RecordingFile::Wanted(only.clone())
            }
            [only] => RecordingFile::Wanted(only.clone()),
            [_, more, ..] => {
                return Err(Failure::Usage(format!(
                    "only one .unikprof output is possible: remove `-o {}`",
                    more.display()
                )));
            }
        };
        Ok(Plan { recording, reports })
    }
}

impl ReportOutput {
    /// How wide the text of these reports may be: as wide as the terminal, if one goes there.
    pub fn columns(outputs: &[ReportOutput]) -> usize {
        if outputs.iter().any(|output| output.target == Target::Stdout) {
            screen::columns()
        } else {
            DEFAULT_COLUMNS
        }
    }

    /// What the patterns mean; no pattern: standard output.
    pub fn plan(
        patterns: &[NamePattern],
        format: Option<Format>,
        after: &NamedAfter<'_>,
    ) -> Result<Vec<ReportOutput>, CommandError> {
        if patterns.is_empty() {
            return Ok(vec![ReportOutput {
                format: format.unwrap_or(Format::Text),
                target: Target::Stdout,
            }]);
        }
        let format = format.map(OutputFormat::Report);
        let mut outputs = Vec::new();
        for (format, target) in targets(patterns, format, after)? {
            let OutputFormat::Report(format) = format else {
                return Err(CommandError::usage("`report` cannot write a .unikprof file"));
            };
            outputs.push(ReportOutput { format, target });
        }
        no_name_twice(&[], &outputs)?;
        Ok(outputs)
    }

    /// What the patterns mean, and the page among them that is to be opened. If there is none, it
    /// is added, in the directory for temporary files.
    pub(super) fn plan_to_open(
        patterns: &[NamePattern],
        after: &NamedAfter<'_>,
    ) -> Result<(Vec<ReportOutput>, PathBuf), Failure> {
        let mut outputs = match patterns {
            [] => Vec::new(),
            patterns => ReportOutput::plan(patterns, None, after)?,
        };
        let page = outputs.iter().find_map(|output| match &output.target {
            Target::File(path) if output.format == Format::Page => Some(path.clone()),
            _ => None,
        });
        let page = match page {
            Some(path) => path,
            None => {
                let path = std::env::temp_dir().join(pattern("%n-%r-%t.html")?.expand(after));
                outputs.push(ReportOutput {
                    format: Format::Page,
                    target: Target::File(path.clone()),
                });
                path
            }
        };
        Ok((outputs, page))
    }

    /// Refuses files that cannot be written, before anything is done for them.
    ///
    /// # Errors
    /// Of the first such file.
    pub fn expect_writable(outputs: &[ReportOutput]) -> Result<(), CommandError> {
        let files = outputs.iter().filter_map(ReportOutput::file);
        // Opening a pipe would wait for its reader.
        for path in files.filter(|path| !is_device(path)) {
            AtomicFile::create(path)?;
        }
        Ok(())
    }

    /// Writes the reports, and their warnings. `is_text_shown`: another text has the warnings.
    pub fn write_all(
        outputs: &[ReportOutput],
        report: &Report<'_>,
        is_text_shown: bool,
    ) -> Result<(), CommandError> {
        Ok(ReportOutput::write_telling(&report.warnings(), outputs, report, is_text_shown)?)
    }

    /// The same with these warnings. Formats that do not suit the recording are told before the
    /// others are written.
    pub(super) fn write_telling(
        warnings: &[String],
        outputs: &[ReportOutput],
        report: &Report<'_>,
        is_text_shown: bool,
    ) -> Result<(), Failure> {
        let is_told =
            |output: &ReportOutput| output.target == Target::Stdout && output.format.has_warnings();
        warn(warnings, is_text_shown || outputs.iter().any(is_told));
        let mut unsuited = Ok(());
        let mut suited = Vec::new();
        for output in outputs {
            match report.suits(output.format) {
                Ok(()) => suited.push(output),
                Err(source) => {
                    let path = output.file().unwrap_or(STDOUT.as_ref());
                    note(&mut unsuited, failed(path, source));
                }
            }
        }
        if let Err(failure) = &unsuited
            && !suited.is_empty()
        {
            tell!("error: {failure}");
        }
        let written = write_each(suited.iter().copied(), |output| output.write(report));
        written.and(unsuited.map_err(|failure| match suited.len() {
            0 => failure,
            _ => Failure::Told { exit_code: failure.exit_code() },
        }))
    }

    /// Writes the report, whole or not at all.
    fn write(&self, report: &Report<'_>) -> Result<(), Failure> {
        match &self.target {
            Target::Stdout => {
                if self.format.is_binary() && std::io::stdout().is_terminal() {
                    return Err(Failure::Usage(format!(
                        "{} is a binary format, not for terminals: name a file with -o, or use a \
                         pipe",
                        self.format
                    )));
                }
                let mut bytes = Vec::new();
                let written = report.write(self.format, &mut bytes);
                written.map_err(|source| failed(STDOUT.as_ref(), source))?;
                screen::print_output(self.format == Format::Text, bytes)
            }
            Target::File(path) => write_report(report, self.format, path),
        }
    }
}

/// Writes the warnings to stderr, unless a text or JSON on stdout has them: other formats have no
/// place for them, or none that people see.
pub(super) fn warn(warnings: impl IntoIterator<Item: ToString>, is_shown: bool) {
    if !is_shown {
        let warnings: Vec<String> = warnings.into_iter().map(|it| it.to_string()).collect();
        let mut text = Vec::new();
        // A vector takes everything.
        let columns = screen::error_columns().unwrap_or(DEFAULT_COLUMNS);
        let _ = warnings::write_first(&warnings, warnings::ALL, columns, &mut text);
        if !text.is_empty() {
            tell!("{}", String::from_utf8_lossy(&text).trim_end());
        }
    }
}

/// Writes all outputs that can be written. Of several errors, all but the last are printed.
pub(super) fn write_each<T>(
    outputs: impl IntoIterator<Item = T>,
    mut write: impl FnMut(T) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut result = Ok(());
    for output in outputs {
        if let Err(error) = write(output) {
            note(&mut result, error);
        }
    }
    result
}

/// Keeps an error, and prints an earlier one.
pub(super) fn note(result: &mut Result<(), Failure>, error: Failure) {
    if let Err(earlier) = std::mem::replace(result, Err(error))
        && let Some(text) = earlier.text()
    {
        tell!("error: {text}");
    }
}

/// Writes a report to a file, whole or not at all.
pub(crate) fn write_report(
    report: &Report<'_>,
    format: Format,
    path: &Path,
) -> Result<(), Failure> {
    let mut file = AtomicFile::create(path)?;
    match report.write_in_full(format, &mut file) {
        Ok(()) => Ok(file.publish()?),
        Err(ReportError::Write(source)) => Err(file.failed(source).into()),
        Err(source) => Err(failed(path, source)),
    }
}

fn failed(path: &Path, source: ReportError) -> Failure {
    Failure::Report { path: path.into(), source }
}

fn pattern(text: &str) -> Result<NamePattern, Failure> {
    text.parse().map_err(|error| Failure::Usage(format!("{error}")))
}

/// A name that no file has: the stem and the ending, with `-2`, `-3` and so on between if need be.
fn unused(stem: &Path, ending: &str) -> PathBuf {
    let name = |number: u64| match number {
        1 => format!("{}{ending}", stem.display()).into(),
        _ => format!("{}-{number}{ending}", stem.display()).into(),
    };
    let is_free = |path: &PathBuf| std::fs::symlink_metadata(path).is_err();
    (1..).map(name).find(is_free).unwrap_or_else(|| name(1))
}

/// What each pattern means: the format given, or else the one that the name asks for.
fn targets(
    patterns: &[NamePattern],
    format: Option<OutputFormat>,
    after: &NamedAfter<'_>,
) -> Result<Vec<(OutputFormat, Target)>, Failure> {
    let one = |pattern: &NamePattern| {
        if pattern.as_str() == STDOUT {
            let format = format.unwrap_or(OutputFormat::Report(Format::Text));
            return Ok((format, Target::Stdout));
        }
        let path = pattern.expand(after);
        let format = match format {
            Some(format) => format,
            None => OutputFormat::from_path(&path)?,
        };
        Ok((format, Target::File(path)))
    };
    patterns.iter().map(one).collect()
}

/// What a dump has fetched is in no other place, whatever its format, since the guest clears it. An
/// empty file holds nothing.
pub(super) fn nothing_is_replaced<'p>(
    outputs: impl IntoIterator<Item = &'p Path>,
) -> Result<(), Failure> {
    let is_kept = |path: &&Path| {
        std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
    };
    match outputs.into_iter().find(is_kept) {
        None => Ok(()),
        Some(path) => Err(Failure::Replaces { path: path.into() }),
    }
}

/// What is written must not replace what is read, whatever links lead there.
pub(super) fn no_input_is_replaced<'p>(
    inputs: impl IntoIterator<Item = &'p PathBuf>,
    outputs: impl IntoIterator<Item = &'p Path>,
) -> Result<(), Failure> {
    let found = |input: &PathBuf| match input == Path::new(STDOUT) {
        true => Path::new("/dev/stdin").canonicalize(),
        false => input.canonicalize(),
    };
    let inputs: Vec<PathBuf> = inputs.into_iter().filter_map(|input| found(input).ok()).collect();
    let is_input = |path: &&Path| path.canonicalize().is_ok_and(|path| inputs.contains(&path));
    match outputs.into_iter().find(is_input) {
        None => Ok(()),
        Some(path) => Err(Failure::Usage(format!(
            "{} is read: it would be replaced by what is written; give another name",
            path.display()
        ))),
    }
}

impl ReportOutput {
    /// The file that it is written to, if it is one.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.target {
            Target::Stdout => None,
            Target::File(path) => Some(path),
        }
    }
}

/// Two results under one name, or names that lead to one file: the second would replace the first.
fn no_name_twice(recordings: &[PathBuf], reports: &[ReportOutput]) -> Result<(), Failure> {
    let reports = reports.iter().map(|output| output.file().unwrap_or(STDOUT.as_ref()));
    let mut names = recordings.iter().map(PathBuf::as_path).chain(reports);
    let mut seen = BTreeSet::new();
    let is_known = |name: &&Path| {
        !seen.insert(match *name == Path::new(STDOUT) {
            true => PathBuf::from(STDOUT),
            false => target_of(name),
        })
    };
    match names.find(is_known) {
        None => Ok(()),
        Some(name) => {
            Err(Failure::Usage(format!("two outputs cannot both be written to {}", name.display())))
        }
    }
}

/// Creates an empty file for a recording that nobody asked for: beside the first report, on whose
/// disk there should be room, or in the directory for temporary files.
fn temporary_recording(reports: &[ReportOutput]) -> Result<TempPath, OutputError> {
    let file = reports.iter().find_map(|output| match &output.target {
        Target::File(path) if !is_device(path) => Some(path),
        _ => None,
    });
    match file {
        Some(report) => temporary_beside(report, ".unikprof"),
        None => temporary_beside(&std::env::temp_dir().join("unikprof"), ".unikprof"),
    }
}

/// Reports are made of the recording in its file.
pub(super) fn can_be_read_back(recording: &Path) -> Result<(), Failure> {
    if !is_device(recording) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "the recording cannot be read back from {} to report on it, since that is a device or a \
         pipe: name a file",
        recording.display()
    )))
}

/// Whether it is a device or a pipe, such as /dev/null: there is nothing to read back.
pub(super) fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::Timestamp;

    use super::*;

    const AFTER: NamedAfter<'_> =
        NamedAfter { guest: Some("web"), recording: "flight", time: Timestamp::UNIX_EPOCH };

    fn plan(names: &[&str], format: Option<OutputFormat>) -> Result<Plan, Failure> {
        let patterns: Vec<NamePattern> = names.iter().map(|n| n.parse().unwrap()).collect();
        Plan::new(&patterns, format, &AFTER)
    }

    #[test]
    fn without_a_name_there_is_a_recording_named_after_all_that_tells_it() {
        let plan = plan(&[], None).unwrap();
        let name = Path::new("web-flight-19700101T000000Z.unikprof");
        assert_eq!(plan.recording.path(), name);
        assert!(plan.recording.is_wanted() && plan.reports.is_empty());
        let patterns = plan_reports(Some(Format::Pprof));
        assert_eq!(patterns, "web-flight-19700101T000000Z.pb.gz");
    }

    /// What `start` prints may be pasted at once: two fetches of one recording within a second.
    #[test]
    fn default_names_do_not_collide() {
        let directory = tempfile::tempdir().unwrap();
        let stem = directory.path().join("web-flight");
        for name in ["web-flight.pb.gz", "web-flight-2.pb.gz", "web-flight-3.pb.gz"] {
            let path = unused(&stem, ".pb.gz");
            assert_eq!(path.file_name().unwrap(), name);
            std::fs::write(path, "").unwrap();
        }
    }

    fn plan_reports(format: Option<Format>) -> String {
        let plan = plan(&[], format.map(OutputFormat::Report)).unwrap();
        match &plan.reports[0].target {
            Target::File(path) => path.display().to_string(),
            Target::Stdout => STDOUT.into(),
        }
    }

    #[test]
    fn reports_alone_keep_their_recording_until_they_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("%n.svg");
        let plan = plan(&[report.to_str().unwrap(), "-"], None).unwrap();
        let recording = plan.recording.path();
        assert!(!plan.recording.is_wanted() && recording.is_file());
        assert_eq!(recording.parent(), report.parent(), "on the same disk");
        assert_eq!(plan.reports[1].format, Format::Text);
        assert_eq!(plan.reports[1].target, Target::Stdout);
    }

    /// The second would replace the first, or there is nothing to read back.
    #[cfg(unix)]
    #[test]
    fn links_are_followed_before_anything_is_recorded() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        symlink("base.unikprof", path("link.html")).unwrap();
        symlink(".", path("here")).unwrap();
        symlink("/dev/null", path("null.unikprof")).unwrap();
        for (first, second) in [
            ("base.unikprof", "link.html"),
            ("link.html", "base.unikprof"),
            ("a.svg", "here/a.svg"),
            ("null.unikprof", "a.svg"),
        ] {
            let refused = plan(&[&path(first), &path(second)], None).unwrap_err();
            assert_eq!(refused.exit_code(), 2, "{first} and {second}: {refused}");
        }
        plan(&[&path("null.unikprof")], None).unwrap();
        plan(&[&path("a.svg"), &path("b.svg"), "-"], None).unwrap();
    }

    #[test]
    fn names_that_cannot_be_are_refused_before_anything_is_recorded() {
        for names in [&["a.pdf"][..], &["a.svg", "a.svg"], &["a.unikprof", "b.unikprof"]] {
            assert_eq!(plan(names, None).unwrap_err().exit_code(), 2, "{names:?}");
        }
        assert!(plan(&["-"], Some(OutputFormat::Recording)).is_err());
        let to_recording = ["a.unikprof".parse().unwrap()];
        assert!(ReportOutput::plan(&to_recording, None, &AFTER).is_err());
    }
}
