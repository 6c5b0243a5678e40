//! Recording files: whatever is in one, reading it ends with a recording or an error, in memory
//! that its length bounds; and what could be read can be reported and judged.

use std::path::Path;

use unikprof_profile::recording::{MAGIC, Reading, Recording, VERSION};
use unikprof_profile::symbols::Symbolizer;
use unikprof_profile::timeline::{RecordingSpan, SpanFilter, Timeline, Window};
use unikprof_proto::frame::MAX_BODY;
use unikprof_report::doctor::Diagnosis;
use unikprof_report::report::{Format, Report, ReportOptions, TimelineView};
use unikprof_test_kit::frames::framed;

use crate::ALLOCATED;
use crate::input::Input;

/// The most bytes of memory for a byte of a file: a node of 15 frames can take 17 bytes, and each
/// frame becomes a node of the profile's tree, in tables that double when they are full.
const MEMORY_PER_BYTE: usize = 512;
/// And for any file, however short: buffers.
const MEMORY: usize = 128 << 10;

/// Reads the bytes as a file, or as the frames of one.
pub fn check(bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    match input.byte() {
        0 => read(input.bytes(usize::MAX)),
        _ => read(&file_of(input)),
    }
}

/// A file whose frames are these: type, length, body.
fn file_of(input: &mut Input<'_>) -> Vec<u8> {
    let mut file = preamble();
    while !input.is_empty() {
        let (kind, length) = (input.short(), input.short());
        let length = usize::from(length).min(MAX_BODY);
        file.extend(framed(kind, input.bytes(length)));
    }
    file
}

pub(crate) fn preamble() -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend(1_u16.to_le_bytes());
    file.extend([0; 4]);
    file
}

fn read(file: &[u8]) {
    let path = Path::new("fuzz.unikprof");
    let strict = bounded(file.len(), || Recording::read(file, path, Reading::Strict));
    let salvaged = bounded(file.len(), || Recording::read(file, path, Reading::Salvage));
    if let Err(error) = &strict {
        assert!(!error.to_string().is_empty());
    }
    assert!(strict.is_err() || salvaged.is_ok(), "what is sound can be salvaged");
    if let Ok(recording) = strict.or(salvaged) {
        report(&recording);
    }
}

/// Reports are bounded by the recording, not by its file: counts may be large, and names repeat.
fn report(recording: &Recording) {
    let symbolized =
        Symbolizer::default().resolve(&recording.profile).expect("no image is asked for");
    let options = ReportOptions { labels: true, ..ReportOptions::default() };
    let mut report = Report::new(&symbolized, options);
    if let Some((timeline, of)) = recording.timeline.as_ref().zip(recording.span) {
        in_time(recording, timeline, of);
        report = report.with_timeline(TimelineView {
            timeline,
            of,
            window: Window::ALL,
            seconds: true,
            step_ns: None,
        });
    }
    for format in [Format::Text, Format::Folded, Format::Json, Format::Pprof] {
        report.write(format, &mut Vec::new()).expect("a vector takes everything");
    }
    // There may be nothing to show.
    for format in [Format::Firefox, Format::Speedscope] {
        let _ = report.write(format, &mut Vec::new());
    }
    let diagnosis = Diagnosis::of_recording(recording, &Symbolizer::default());
    assert!(!diagnosis.text(80, true).contains("NaN"));
    assert!(diagnosis.json()["checks"].is_array());
}

/// Windows of a recording are profiles that account for every tick.
fn in_time(recording: &Recording, timeline: &Timeline, of: RecordingSpan) {
    let extent = timeline.extent().unwrap_or(Window::ALL);
    let middle_ns = extent.from_ns + extent.length_ns() / 2;
    let spans = timeline.spans(Window::ALL);
    let span = spans.first().map(|table| SpanFilter {
        longer_ns: Some(middle_ns / 2),
        ..SpanFilter::named(&table.name)
    });
    for (window, inside) in [(Window::ALL, None), (extent, span)] {
        let window = Window { to_ns: window.to_ns.max(middle_ns), ..window };
        let profile = timeline.profile(&recording.profile, &of, window, inside);
        for vcpu in profile.vcpus() {
            assert_eq!(vcpu.check(profile.recording()), Ok(()));
        }
    }
    for event in timeline.events(Window::ALL) {
        assert!(!event.what.to_string().contains('\u{1b}'));
    }
}

/// Runs, within the memory that so many bytes of input may take.
pub(crate) fn bounded<T>(length: usize, run: impl FnOnce() -> T) -> T {
    let before = ALLOCATED.current_usage();
    ALLOCATED.reset_peak_usage();
    let result = run();
    let used = ALLOCATED.peak_usage().saturating_sub(before);
    let most = MEMORY + MEMORY_PER_BYTE * length;
    assert!(used <= most, "{used} bytes for a file of {length}");
    result
}
