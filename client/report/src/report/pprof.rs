//! pprof's protocol buffer in gzip, written as it is made: no more than one sample is in memory
//! as a message.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;

use flate2::{Compression, GzBuilder, write::GzEncoder};
use indexmap::IndexSet;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::filter::shown_symbols;
use super::pprof_messages::{
    Function, Label, Line, Location, Mapping, Sample, ValueType, profile as field,
};
use super::{Report, heap, text};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{FrameId, Mode, RecordingInfo, Sample as CountedStack, Unit};
use unikprof_profile::symbols::{FileId, FunctionId};

/// Level 1 takes a third of the time of level 6 and adds a few percent.
const COMPRESSION: Compression = Compression::fast();

/// How much one profile may hold.
#[derive(Debug, Clone, Copy)]
pub struct PieceLimits {
    /// The number of samples.
    pub samples: usize,
    /// A piece ends with the sample that reaches this size, in bytes before compression.
    pub bytes: usize,
}

/// How much later each piece begins, in ns: engines take profiles of one series with equal times
/// for one profile.
const PIECES_APART_NS: u64 = 1_000_000;

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let recording = report.symbolized.profile().recording();
    let started_unix_ns = recording.started_unix_ns.unwrap_or(0);
    let mut profile = Writer::new(out);
    write_types(report, started_unix_ns, recording.elapsed_ns, &mut profile)?;
    write_samples(report, &mut report.shown_samples(), None, &mut profile)?;
    for line in text::accounting_lines(report) {
        // `go tool pprof` prints comments that begin with a `#` only if it is asked for them.
        let is_always = ["unikprof: ", "warning: "].iter().any(|it| line.starts_with(it));
        let line = if is_always { line } else { format!("# {line}") };
        let line = profile.strings.id(&line);
        profile.number(field::COMMENT, line)?;
    }
    profile.finish()
}

/// Writes the samples as profiles that keep within the limits, without comments; none if there are
/// no samples.
pub(super) fn pieces(
    report: &Report<'_>,
    unix_ns: Range<u64>,
    limits: PieceLimits,
) -> io::Result<Vec<Vec<u8>>> {
    let mut samples = report.shown_samples().peekable();
    let mut pieces = Vec::new();
    while samples.peek().is_some() {
        let later_ns = PIECES_APART_NS.saturating_mul(pieces.len() as u64);
        let started_unix_ns = unix_ns.start.saturating_add(later_ns);
        let length_ns = unix_ns.end.saturating_sub(unix_ns.start);
        let mut piece = Vec::new();
        let mut profile = Writer::new(&mut piece);
        write_types(report, started_unix_ns, length_ns, &mut profile)?;
        write_samples(report, &mut samples, Some(limits), &mut profile)?;
        profile.finish()?;
        pieces.push(piece);
    }
    Ok(pieces)
}

fn write_types(
    report: &Report<'_>,
    started_unix_ns: u64,
    length_ns: u64,
    profile: &mut Writer<impl Write>,
) -> io::Result<()> {
    let recording = report.symbolized.profile().recording();
    if report.symbolized.profile().heap.is_some() {
        return write_heap_types(recording, started_unix_ns, length_ns, profile);
    }
    // The names that pprof's users know: `delay` is what Go's own block profile measures.
    let time = profile.strings.id(match recording.mode {
        Mode::Cpu => "cpu",
        Mode::Wall => "wall",
        Mode::OffCpu => "delay",
        Mode::Alloc | Mode::Live | Mode::Other(_) => "time",
    });
    let nanoseconds = profile.strings.id("nanoseconds");
    let time_type = ValueType { kind: time, unit: nanoseconds };
    if recording.unit() == Unit::Samples {
        let kind = profile.strings.id("samples");
        let unit = profile.strings.id("count");
        profile.message(field::SAMPLE_TYPE, &ValueType { kind, unit })?;
    }
    profile.message(field::SAMPLE_TYPE, &time_type)?;
    profile.message(field::PERIOD_TYPE, &time_type)?;
    profile.number(
        field::PERIOD,
        match recording.unit() {
            Unit::Samples => saturated(recording.period_ns),
            // Measured: every nanosecond is in it.
            _ => 1,
        },
    )?;
    profile.number(field::DEFAULT_SAMPLE_TYPE, time)?;
    profile.number(field::TIME_NANOS, saturated(started_unix_ns))?;
    profile.number(field::DURATION_NANOS, saturated(length_ns))
}

/// The types that Go's own heap profiles have, in their order. A period is the mean number of bytes
/// between two samples.
fn write_heap_types(
    recording: &RecordingInfo,
    started_unix_ns: u64,
    length_ns: u64,
    profile: &mut Writer<impl Write>,
) -> io::Result<()> {
    for (kind, unit) in heap::pprof_types(recording.mode) {
        let (kind, unit) = (profile.strings.id(kind), profile.strings.id(unit));
        profile.message(field::SAMPLE_TYPE, &ValueType { kind, unit })?;
    }
    let (kind, unit) = (profile.strings.id("space"), profile.strings.id("bytes"));
    profile.message(field::PERIOD_TYPE, &ValueType { kind, unit })?;
    profile.number(field::PERIOD, saturated(recording.interval_bytes))?;
    let shown = profile.strings.id(heap::heap_type(recording).0);
    profile.number(field::DEFAULT_SAMPLE_TYPE, shown)?;
    profile.number(field::TIME_NANOS, saturated(started_unix_ns))?;
    profile.number(field::DURATION_NANOS, saturated(length_ns))
}

/// Writes the samples, up to the limits if there are any, and what they refer to.
fn write_samples<'r>(
    report: &Report<'_>,
    samples: &mut impl Iterator<Item = &'r CountedStack>,
    limits: Option<PieceLimits>,
    out: &mut Writer<impl Write>,
) -> io::Result<()> {
    write_mappings(report, out)?;
    let profile = report.symbolized.profile();
    let period = profile.recording().period_ns;
    let unit = profile.recording().unit();
    let guests = &profile.recording().guests;
    let vcpu_key = if guests.is_empty() { "vcpu" } else { "guest" };
    let vcpu_key = out.strings.id(vcpu_key);
    let recording = profile.recording().name.as_str();
    let name = (!recording.is_empty()).then(|| vec![("recording".into(), recording.into())]);
    let fixed = report.options.guest_labels.clone().or(name).unwrap_or_default();
    let fixed: Vec<Label> = fixed
        .iter()
        .map(|(key, text)| Label {
            key: out.strings.id(&Printable(key).to_string()),
            text: out.strings.id(&Printable(text).to_string()),
        })
        .collect();
    let mut locations = Locations::new(report);
    let mut vcpu_labels: HashMap<u32, Label> = HashMap::new();
    let mut span_labels: HashMap<u32, Vec<Label>> = HashMap::new();
    let mut message = Sample::default();
    let most = limits.map_or(usize::MAX, |limits| limits.samples);
    for sample in samples.take(most) {
        message.location_id.clear();
        for frame in profile.stack(sample.node) {
            encode_varint(locations.id(frame, out)?, &mut message.location_id);
        }
        message.value.clear();
        match unit {
            Unit::Samples => message
                .value
                .extend([saturated(sample.count), saturated(sample.count.saturating_mul(period))]),
            Unit::Nanoseconds => message.value.push(saturated(sample.count)),
            Unit::Bytes | Unit::Objects => {
                let amounts = profile.heap.as_ref();
                let amounts =
                    amounts.and_then(|heap| heap.amounts.get(&(sample.node, sample.vcpu)));
                let amounts = amounts.copied().unwrap_or_default();
                message
                    .value
                    .extend([saturated(amounts.objects.count()), saturated(amounts.bytes.count())]);
            }
        }
        let label = vcpu_labels.entry(sample.vcpu).or_insert_with(|| Label {
            key: vcpu_key,
            text: match guests.get(sample.vcpu as usize) {
                Some(guest) => out.strings.id(&Printable(guest).to_string()),
                None => out.strings.id(&sample.vcpu.to_string()),
            },
        });
        message.label.clear();
        message.label.push(label.clone());
        message.label.extend(fixed.iter().cloned());
        if let Some(span) = sample.span {
            let labels = span_labels.entry(span).or_insert_with(|| {
                let name = profile.span_names().get(span as usize);
                let name = name.map(|name| ("span", Printable(name).to_string()));
                // What is pushed has no trace ids: Pyroscope makes a series of each label but span
                // ids.
                let ids = profile.span_trace(span);
                let id = ids.map(|ids| ("span_id", format!("{:016x}", ids.span)));
                let trace = ids.filter(|_| limits.is_none());
                let trace = trace.map(|ids| ("trace_id", format!("{:032x}", ids.trace)));
                let labels = name.into_iter().chain(id).chain(trace);
                let label = |(key, text): (&str, String)| Label {
                    key: out.strings.id(key),
                    text: out.strings.id(&text),
                };
                labels.map(label).collect()
            });
            message.label.extend(labels.iter().cloned());
        }
        out.message(field::SAMPLE, &message)?;
        if limits.is_some_and(|limits| out.size() >= limits.bytes) {
            break;
        }
    }
    Ok(())
}

fn write_mappings(report: &Report<'_>, out: &mut Writer<impl Write>) -> io::Result<()> {
    let mappings = report.symbolized.profile().mappings();
    for (at, (mapping, known)) in
        mappings.iter().zip(report.symbolized.mapping_symbols()).enumerate()
    {
        let message = Mapping {
            id: mapping_id(Some(at)),
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.file_offset,
            filename: out.strings.id(&Printable(&mapping.path).to_string()),
            build_id: mapping.build_id.as_ref().map_or(0, |id| out.strings.id(&id.to_string())),
            has_functions: known.functions,
            has_filenames: known.lines,
            has_line_numbers: known.lines,
            has_inline_frames: known.inlined,
        };
        out.message(field::MAPPING, &message)?;
    }
    Ok(())
}

/// The locations that were written, numbered from 1 in the order of their use: some readers take
/// the numbers for places.
struct Locations<'r> {
    report: &'r Report<'r>,
    /// By frame; zero for one that was not written.
    ids: Vec<u64>,
    next: u64,
    /// A function has one file in the format, but code of one may come from several.
    functions: HashMap<(FunctionId, Option<FileId>), u64>,
}

impl<'r> Locations<'r> {
    fn new(report: &'r Report<'r>) -> Locations<'r> {
        Locations {
            report,
            ids: vec![0; report.symbolized.profile().frames().len()],
            next: 1,
            functions: HashMap::new(),
        }
    }

    fn id(&mut self, frame: FrameId, out: &mut Writer<impl Write>) -> io::Result<u64> {
        let known = self.ids[frame.index()];
        if known != 0 {
            return Ok(known);
        }
        let symbolized = self.report.symbolized;
        let mut lines = Vec::new();
        for symbol in shown_symbols(symbolized.frame(frame), &self.report.options) {
            let next = self.functions.len() as u64 + 1;
            let id = *self.functions.entry((symbol.function, symbol.file)).or_insert(next);
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
                        out.strings.id(&Printable(symbolized.file(file)).to_string())
                    }),
                };
                out.message(field::FUNCTION, &message)?;
            }
            lines.push(Line { function_id: id, line: symbol.line.map_or(0, i64::from) });
        }
        let id = self.next;
        let address = symbolized.profile().frame(frame).lookup_address();
        let message = Location {
            id,
            mapping_id: mapping_id(symbolized.mapping_of(frame)),
            address: address.unwrap_or(0),
            line: lines,
        };
        out.message(field::LOCATION, &message)?;
        self.ids[frame.index()] = id;
        self.next = self.next.saturating_add(1);
        Ok(id)
    }
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
    /// What has left the buffer, in bytes.
    flushed: usize,
    strings: Strings,
}

impl<W: Write> Writer<W> {
    const FLUSH_AT: usize = 1 << 16;

    fn new(out: W) -> Writer<W> {
        Writer {
            // No time and no name in the header: equal profiles are equal files.
            out: GzBuilder::new().write(out, COMPRESSION),
            buffer: Vec::with_capacity(Self::FLUSH_AT * 2),
            flushed: 0,
            strings: Strings::new(),
        }
    }

    /// The profile's size up to now with its strings, in bytes before compression.
    fn size(&self) -> usize {
        self.flushed + self.buffer.len() + self.strings.size
    }

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
            self.flushed += self.buffer.len();
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
    all: IndexSet<String>,
    /// What they take at most when they are written, in bytes.
    size: usize,
}

impl Strings {
    /// The longest field key and length of one.
    const HEADER: usize = 6;

    fn new() -> Strings {
        Strings { all: IndexSet::from([String::new()]), size: Strings::HEADER }
    }

    fn id(&mut self, text: &str) -> i64 {
        if let Some(id) = self.all.get_index_of(text) {
            return id as i64;
        }
        self.size += text.len() + Strings::HEADER;
        self.all.insert_full(text.to_owned()).0 as i64
    }
}
