//! pprof's protocol buffer in gzip, written as it is made: no more than one sample is in memory
//! as a message.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder, write::GzEncoder};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::filter::shown_symbols;
use super::pprof_messages::{
    Function, Label, Line, Location, Mapping, Sample, ValueType, profile as field,
};
use super::{Report, text};
use crate::printable::Printable;
use crate::profile::{FrameId, Mode, Unit};
use crate::symbols::{FileId, FunctionId};

/// Level 1 takes a third of the time of level 6 and adds a few percent.
const COMPRESSION: Compression = Compression::fast();

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    // No time and no name in the header: equal profiles are equal files.
    let mut profile = Writer {
        out: GzBuilder::new().write(out, COMPRESSION),
        buffer: Vec::with_capacity(Writer::<&mut Vec<u8>>::FLUSH_AT * 2),
        strings: Strings::new(),
    };
    write_types(report, &mut profile)?;
    let used = write_samples(report, &mut profile)?;
    write_mappings(report, &mut profile)?;
    write_locations(report, &used, &mut profile)?;
    for line in text::accounting_lines(report) {
        let line = profile.strings.id(&line);
        profile.number(field::COMMENT, line)?;
    }
    profile.finish()
}

fn write_types(report: &Report<'_>, profile: &mut Writer<impl Write>) -> io::Result<()> {
    let recording = report.symbolized.profile().recording();
    // The names that pprof's users know: `delay` is what Go's own block profile measures.
    let time = profile.strings.id(match recording.mode {
        Mode::Cpu => "cpu",
        Mode::Wall => "wall",
        Mode::OffCpu => "delay",
        Mode::Other(_) => "time",
    });
    let nanoseconds = profile.strings.id("nanoseconds");
    let time_type = ValueType {
        kind: time,
        unit: nanoseconds,
    };
    if recording.mode.unit() == Unit::Samples {
        let kind = profile.strings.id("samples");
        let unit = profile.strings.id("count");
        profile.message(field::SAMPLE_TYPE, &ValueType { kind, unit })?;
    }
    profile.message(field::SAMPLE_TYPE, &time_type)?;
    profile.message(field::PERIOD_TYPE, &time_type)?;
    profile.number(
        field::PERIOD,
        match recording.mode.unit() {
            Unit::Samples => saturated(recording.period_ns),
            // Measured: every nanosecond is in it.
            Unit::Nanoseconds => 1,
        },
    )?;
    profile.number(field::DEFAULT_SAMPLE_TYPE, time)?;
    profile.number(
        field::TIME_NANOS,
        saturated(recording.started_unix_ns.unwrap_or(0)),
    )?;
    profile.number(field::DURATION_NANOS, saturated(recording.elapsed_ns))
}

/// Writes the samples and tells which frames they use.
fn write_samples(report: &Report<'_>, out: &mut Writer<impl Write>) -> io::Result<Vec<bool>> {
    let profile = report.symbolized.profile();
    let period = profile.recording().period_ns;
    let unit = profile.recording().mode.unit();
    let vcpu_key = out.strings.id("vcpu");
    let recording = profile.recording().name.as_str();
    let name = (!recording.is_empty()).then(|| vec![("recording".into(), recording.into())]);
    let fixed = report
        .options
        .guest_labels
        .clone()
        .or(name)
        .unwrap_or_default();
    let fixed: Vec<Label> = fixed
        .iter()
        .map(|(key, text)| Label {
            key: out.strings.id(&Printable(key).to_string()),
            text: out.strings.id(&Printable(text).to_string()),
        })
        .collect();
    let span_labels: Vec<Label> = profile
        .span_names()
        .iter()
        .map(|name| Label {
            key: out.strings.id("span"),
            text: out.strings.id(&Printable(name).to_string()),
        })
        .collect();
    let mut used = vec![false; profile.frames().len()];
    let mut vcpu_labels: HashMap<u32, Label> = HashMap::new();
    let mut message = Sample::default();
    for sample in profile
        .samples()
        .iter()
        .filter(|sample| report.weights.keeps(sample.node))
    {
        message.location_id.clear();
        for frame in profile.stack(sample.node) {
            used[frame.index()] = true;
            message.location_id.push(location_id(frame));
        }
        message.value.clear();
        match unit {
            Unit::Samples => message.value.extend([
                saturated(sample.count),
                saturated(sample.count.saturating_mul(period)),
            ]),
            Unit::Nanoseconds => message.value.push(saturated(sample.count)),
        }
        let label = vcpu_labels.entry(sample.vcpu).or_insert_with(|| Label {
            key: vcpu_key,
            text: out.strings.id(&sample.vcpu.to_string()),
        });
        message.label.clear();
        message.label.push(label.clone());
        message.label.extend(fixed.iter().cloned());
        let span = sample.span.and_then(|span| span_labels.get(span as usize));
        message.label.extend(span.cloned());
        out.message(field::SAMPLE, &message)?;
    }
    Ok(used)
}

fn write_mappings(report: &Report<'_>, out: &mut Writer<impl Write>) -> io::Result<()> {
    let mappings = report.symbolized.profile().mappings();
    for (at, (mapping, known)) in mappings
        .iter()
        .zip(report.symbolized.mapping_symbols())
        .enumerate()
    {
        let message = Mapping {
            id: mapping_id(Some(at)),
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.file_offset,
            filename: out.strings.id(&Printable(&mapping.path).to_string()),
            build_id: mapping
                .build_id
                .as_ref()
                .map_or(0, |id| out.strings.id(&id.to_string())),
            has_functions: known.functions,
            has_filenames: known.lines,
            has_line_numbers: known.lines,
            has_inline_frames: known.inlined,
        };
        out.message(field::MAPPING, &message)?;
    }
    Ok(())
}

fn write_locations(
    report: &Report<'_>,
    used: &[bool],
    out: &mut Writer<impl Write>,
) -> io::Result<()> {
    let symbolized = report.symbolized;
    let profile = symbolized.profile();
    // A function has one file in the format, but code of one may come from several.
    let mut functions: HashMap<(FunctionId, Option<FileId>), u64> = HashMap::new();
    for frame in profile.frame_ids().filter(|frame| used[frame.index()]) {
        let mut lines = Vec::new();
        for symbol in shown_symbols(symbolized.frame(frame), &report.options) {
            let next = functions.len() as u64 + 1;
            let id = *functions
                .entry((symbol.function, symbol.file))
                .or_insert(next);
            if id == next {
                let function = symbolized.function(symbol.function);
                let message = Function {
                    id,
                    name: out.strings.id(&Printable(&function.name).to_string()),
                    // `pprof` takes equal names for mangled ones and cuts `<...>` out of them.
                    system_name: if function.raw_name == function.name {
                        0
                    } else {
                        out.strings.id(&Printable(&function.raw_name).to_string())
                    },
                    filename: symbol.file.map_or(0, |file| {
                        out.strings
                            .id(&Printable(symbolized.file(file)).to_string())
                    }),
                };
                out.message(field::FUNCTION, &message)?;
            }
            lines.push(Line {
                function_id: id,
                line: symbol.line.map_or(0, i64::from),
            });
        }
        let message = Location {
            id: location_id(frame),
            mapping_id: mapping_id(symbolized.mapping_of(frame)),
            address: profile.frame(frame).lookup_address().unwrap_or(0),
            line: lines,
        };
        out.message(field::LOCATION, &message)?;
    }
    Ok(())
}

/// Zero means none.
fn location_id(frame: FrameId) -> u64 {
    frame.index() as u64 + 1
}

/// Zero means none.
fn mapping_id(mapping: Option<usize>) -> u64 {
    mapping.map_or(0, |at| at as u64 + 1)
}

fn saturated(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Writes the fields of a `Profile` one after the other.
struct Writer<W: Write> {
    out: GzEncoder<W>,
    buffer: Vec<u8>,
    strings: Strings,
}

impl<W: Write> Writer<W> {
    const FLUSH_AT: usize = 1 << 16;

    fn message(&mut self, tag: u32, message: &impl Message) -> io::Result<()> {
        prost::encoding::message::encode(tag, message, &mut self.buffer);
        self.flush_if_full()
    }

    fn number(&mut self, tag: u32, number: i64) -> io::Result<()> {
        encode_key(tag, WireType::Varint, &mut self.buffer);
        // Negative numbers take ten bytes, as in every protocol buffer.
        encode_varint(number as u64, &mut self.buffer);
        self.flush_if_full()
    }

    fn text(&mut self, tag: u32, text: &str) -> io::Result<()> {
        encode_key(tag, WireType::LengthDelimited, &mut self.buffer);
        encode_varint(text.len() as u64, &mut self.buffer);
        self.buffer.extend_from_slice(text.as_bytes());
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> io::Result<()> {
        if self.buffer.len() >= Self::FLUSH_AT {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// The strings come last, when all are known.
    fn finish(mut self) -> io::Result<()> {
        for text in std::mem::take(&mut self.strings.all) {
            self.text(field::STRING_TABLE, &text)?;
        }
        self.out.write_all(&self.buffer)?;
        self.out.finish()?.flush()
    }
}

/// The table of strings; the first is empty, as the format demands.
struct Strings {
    all: Vec<String>,
    ids: HashMap<String, i64>,
}

impl Strings {
    fn new() -> Strings {
        Strings {
            all: vec![String::new()],
            ids: HashMap::from([(String::new(), 0)]),
        }
    }

    fn id(&mut self, text: &str) -> i64 {
        if let Some(id) = self.ids.get(text) {
            return *id;
        }
        let id = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.ids.insert(text.to_owned(), id);
        id
    }
}
