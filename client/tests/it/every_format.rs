//! What every format makes of recordings that are hard to show.

use std::io::Read as _;

use flate2::read::GzDecoder;
use serde_json::Value;
use unikprof_profile::profile::{
    Frame, Mapping, Profile, ProfileBuilder, RecordingInfo, VcpuStats,
};
use unikprof_profile::symbols::{ImageOptions, Images, Symbolizer};
use unikprof_report::report::{Format, Report, ReportError, ReportOptions};

/// What each format that is built in, but for those of traces, writes.
fn written(profile: &Profile, symbols: &str) -> Vec<(Format, Result<Vec<u8>, ReportError>)> {
    let names = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&names, symbols).unwrap();
    let mut images = Images::new(ImageOptions::default());
    images.add_symbols(names.path()).unwrap();
    let symbolizer = Symbolizer::new(images);
    let symbolized = symbolizer.resolve(profile).unwrap();
    let report = Report::new(&symbolized, ReportOptions::default());
    let write = |format| {
        let mut bytes = Vec::new();
        let done = report.write(format, &mut bytes);
        (format, done.map(|()| bytes))
    };
    let (traces, all): (Vec<_>, Vec<_>) = Format::all()
        .map(write)
        .partition(|(_, written)| matches!(written, Err(ReportError::OnlyTraces { .. })));
    let traces: Vec<Format> = traces.iter().map(|(format, _)| *format).collect();
    assert_eq!(traces, [Format::Chrome]);
    all.into_iter()
        .filter(|(_, written)| !matches!(written, Err(ReportError::NotBuiltIn { .. })))
        .collect()
}

fn unpacked(gzip: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(gzip).read_to_string(&mut text).unwrap();
    text
}

fn sum(numbers: &Value) -> u64 {
    let numbers = numbers.as_array().unwrap().iter();
    numbers.map(|number| number.as_u64().unwrap()).sum()
}

/// 64 vCPUs, 128 frames, names of 4 KB, and ones that a terminal or a browser would obey.
#[test]
fn all_formats_count_the_same_and_keep_hostile_names_as_text() {
    let long = "x".repeat(4_096);
    let mut symbols = format!("1000 T </script><b>\n1100 T a\x1b[2J\u{202e}b\n1200 T {long}\n");
    for at in 3..128 {
        symbols.push_str(&format!("{:x} T function_{at}\n", 0x1000 + at * 0x100));
    }
    let mut builder = ProfileBuilder::new();
    builder.add_mapping(Mapping {
        start: 0,
        end: 0x10_0000,
        path: "/guest\x07.elf".into(),
        ..Mapping::default()
    });
    builder.set_recording(RecordingInfo {
        guest_name: "web\x1b[31m".into(),
        period_ns: 1_000,
        ..RecordingInfo::default()
    });
    let frames: Vec<Frame> = (0..128).map(|at| Frame::leaf(0x1000 + at * 0x100)).collect();
    let mut counted = 0;
    for vcpu in 0..64 {
        let count = 1 + u64::from(vcpu);
        builder.add_stack(vcpu, count, &frames).unwrap();
        builder.add_vcpu(VcpuStats { vcpu, ..VcpuStats::default() });
        counted += count;
    }
    for (format, written) in written(&builder.finish(), &symbols) {
        let bytes = written.unwrap();
        let text = match format {
            Format::Firefox => unpacked(&bytes),
            // Protocol buffers.
            Format::Pprof | Format::Otlp => continue,
            _ => String::from_utf8(bytes).unwrap(),
        };
        // Programs get names as they are.
        let is_turning = |c| c == '\u{202e}' && format != Format::Json;
        let is_shown = |c: char| c == '\n' || !c.is_control() && !is_turning(c);
        assert!(text.chars().all(is_shown), "{format}");
        let found: u64 = match format {
            Format::Folded => {
                let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap().1);
                lines.map(|count| count.parse::<u64>().unwrap()).sum()
            }
            Format::Firefox => {
                let file: Value = serde_json::from_str(&text).unwrap();
                let threads = file["threads"].as_array().unwrap();
                assert_eq!(threads.len(), 64);
                let weights = threads.iter().map(|thread| &thread["samples"]["weight"]);
                weights.map(sum).sum()
            }
            Format::Speedscope => {
                let file: Value = serde_json::from_str(&text).unwrap();
                let profiles = file["profiles"].as_array().unwrap();
                assert_eq!(profiles.len(), 64);
                let weights = profiles.iter().map(|profile| &profile["weights"]);
                weights.map(sum).sum::<u64>() / 1_000
            }
            Format::Json => {
                let file: Value = serde_json::from_str(&text).unwrap();
                let functions = file["functions"].as_array().unwrap();
                let own = functions.iter().map(|function| function["self"].as_u64());
                own.map(Option::unwrap).sum()
            }
            _ => continue,
        };
        assert_eq!(found, counted, "{format}");
    }
}

/// What has nothing to draw says so; what can tell of nothing does.
#[test]
fn a_recording_without_samples_is_an_error_or_an_empty_file() {
    for (format, written) in written(&ProfileBuilder::new().finish(), "1000 T main\n") {
        match format {
            Format::Svg | Format::Firefox | Format::Speedscope => {
                let error = written.unwrap_err().to_string();
                assert!(
                    error.contains("no samples to draw: the recording has none;"),
                    "{format}: {error}"
                );
            }
            _ => assert!(written.is_ok(), "{format}"),
        }
    }
}
