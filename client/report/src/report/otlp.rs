//! OpenTelemetry's profiles signal, which is in development: a `ProfilesData` message, whose bytes
//! are those of an `ExportProfilesServiceRequest` too.
//!
//! A profile has the stacks with their values in ns, by vCPU and span, and the times of their
//! samples. What has no times is a profile of its own: samples of one profile should have one
//! shape. Names of attributes are those of OpenTelemetry's semantic conventions where they have
//! one.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io::{self, Write};
use std::ops::Range;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValue,
};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::filter::shown_symbols;
use super::moments::Moments;
use super::{Report, text};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{Frame, FrameId, Mode, NodeId, Unit};
use unikprof_profile::symbols::{FileId, FunctionId};
use unikprof_profile::timeline::{SpanOf, TraceIds};

pub(super) fn write(report: &Report<'_>, out: &mut impl Write) -> io::Result<()> {
    let recording = report.symbolized.profile().recording();
    let known =
        [("service.name", &recording.guest_name), ("service.instance.id", &recording.guest_id)];
    let attributes = known.into_iter().filter(|(_, value)| !value.is_empty());
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value.clone()));
    out.write_all(&encoded(report, attributes, None)?)
}

/// The message with these attributes of the guest, for counts of this time.
pub(super) fn request(
    report: &Report<'_>,
    attributes: impl IntoIterator<Item = (String, String)>,
    unix_ns: Range<u64>,
) -> io::Result<Vec<u8>> {
    encoded(report, attributes, Some(unix_ns))
}

fn encoded(
    report: &Report<'_>,
    attributes: impl IntoIterator<Item = (String, String)>,
    unix_ns_of_counts: Option<Range<u64>>,
) -> io::Result<Vec<u8>> {
    let resource = resource(attributes);
    let profile = report.symbolized.profile();
    let recording = profile.recording();
    let mut tables = Tables::new(report);
    let (value_type, each) = tables.value_type()?;
    let moments = Moments::of(report);
    let view = report.view.as_ref();
    let clock = view.map(|view| view.timeline.wall_clock());
    let unix_ns = |at_ns| clock.as_ref().and_then(|clock| clock.unix_ns(at_ns));
    let mut series: BTreeMap<Identity, Series> = BTreeMap::new();
    for moment in moments.timed.iter().filter(|moment| moment.count != 0) {
        let unix_ns = unix_ns(moment.at_ns);
        let identity = (unix_ns.is_some(), moment.vcpu, moment.stack, moment.span);
        series.entry(identity).or_default().add(unix_ns, moment.count);
    }
    for (vcpu, stacks) in moments.untimed {
        for (stack, count) in stacks {
            let identity = (false, vcpu, stack, None);
            series.entry(identity).or_default().add(None, count);
        }
    }
    let (mut timed, mut untimed) = (Vec::new(), Vec::new());
    for ((is_timed, vcpu, stack, span), series) in series {
        let vcpu = Value::IntValue(vcpu.into());
        let mut attributes = vec![tables.attribute("cpu.logical_number", vcpu)?];
        if let Some((view, span)) = view.zip(span) {
            let name = view.timeline.name_or_id(span.name);
            let span = Value::StringValue(Printable(&name).to_string());
            attributes.push(tables.attribute("unikprof.span", span)?);
        }
        let counts = series.counts.into_iter();
        let samples = if is_timed { &mut timed } else { &mut untimed };
        samples.push(otlp::Sample {
            stack_index: tables.stack(stack)?,
            attribute_indices: attributes,
            link_index: match span.and_then(|span| span.trace) {
                Some(trace) => tables.link(trace)?,
                None => 0,
            },
            values: counts.map(|count| signed(count.saturating_mul(each))).collect(),
            timestamps_unix_nano: series.unix_ns,
        });
    }
    let lines = text::accounting_lines(report).into_iter();
    let lines = lines.map(|line| any(Value::StringValue(line)));
    let comment = Value::ArrayValue(ArrayValue { values: lines.collect() });
    let mut attributes = vec![tables.attribute("pprof.profile.comment", comment)?];
    if !recording.name.is_empty() {
        let name = Value::StringValue(Printable(&recording.name).to_string());
        attributes.push(tables.attribute("unikprof.recording", name)?);
    }
    let period = match recording.unit() {
        Unit::Samples => signed(recording.period_ns),
        // Measured: every nanosecond is in it.
        Unit::Nanoseconds => 1,
        Unit::Bytes | Unit::Objects => signed(recording.interval_bytes),
    };
    let profile = |samples, began_unix_ns: Option<u64>, duration_nano| otlp::Profile {
        sample_type: Some(value_type),
        samples,
        time_unix_nano: began_unix_ns.unwrap_or(0),
        duration_nano,
        period_type: Some(value_type),
        period,
        attribute_indices: attributes.clone(),
        ..otlp::Profile::default()
    };
    let mut profiles = Vec::new();
    if let Some(view) = view.filter(|_| !timed.is_empty()) {
        let window = view.timeline.bounded(&view.of, view.window);
        profiles.push(profile(timed, unix_ns(window.from_ns), window.length_ns()));
    }
    if profiles.is_empty() || !untimed.is_empty() {
        let (began_unix_ns, length_ns) = match unix_ns_of_counts {
            Some(of) => (Some(of.start), of.end.saturating_sub(of.start)),
            None => (recording.started_unix_ns, recording.elapsed_ns),
        };
        profiles.push(profile(untimed, began_unix_ns, length_ns));
    }
    let data = otlp::ProfilesData {
        resource_profiles: vec![otlp::ResourceProfiles {
            resource: Some(resource),
            scope_profiles: vec![otlp::ScopeProfiles {
                scope: Some(InstrumentationScope {
                    name: "unikprof".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    ..InstrumentationScope::default()
                }),
                profiles,
                ..otlp::ScopeProfiles::default()
            }],
            ..otlp::ResourceProfiles::default()
        }],
        dictionary: Some(tables.into_dictionary()),
    };
    Ok(data.encode_to_vec())
}

/// Whether it has times, its vCPU, its stack and its span.
type Identity = (bool, u32, NodeId, Option<SpanOf>);

/// What was counted of one identity: with a time each, or all of it together.
#[derive(Debug, Default)]
struct Series {
    counts: Vec<u64>,
    unix_ns: Vec<u64>,
}

impl Series {
    fn add(&mut self, unix_ns: Option<u64>, count: u64) {
        match (unix_ns, self.counts.first_mut()) {
            (None, Some(sum)) => *sum = sum.saturating_add(count),
            (unix_ns, _) => {
                self.counts.push(count);
                self.unix_ns.extend(unix_ns);
            }
        }
    }
}

fn any(value: Value) -> AnyValue {
    AnyValue { value: Some(value) }
}

/// The guest.
fn resource(attributes: impl IntoIterator<Item = (String, String)>) -> Resource {
    let attributes = attributes.into_iter().map(|(key, value)| KeyValue {
        key,
        value: Some(any(Value::StringValue(Printable(&value).to_string()))),
        ..KeyValue::default()
    });
    Resource { attributes: attributes.collect(), ..Resource::default() }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A table of the dictionary. Its first entry means none.
struct Table<K, T> {
    entries: Vec<T>,
    known: HashMap<K, i32>,
}

impl<K: Eq + Hash, T: Default> Table<K, T> {
    fn new() -> Table<K, T> {
        Table { entries: vec![T::default()], known: HashMap::new() }
    }

    fn known(&self, key: &K) -> Option<i32> {
        self.known.get(key).copied()
    }

    fn push(&mut self, key: K, entry: T) -> io::Result<i32> {
        let index = i32::try_from(self.entries.len()).map_err(io::Error::other)?;
        self.entries.push(entry);
        self.known.insert(key, index);
        Ok(index)
    }
}

struct Tables<'r> {
    report: &'r Report<'r>,
    strings: Table<String, String>,
    stacks: Table<NodeId, otlp::Stack>,
    locations: Table<FrameId, otlp::Location>,
    mappings: Table<usize, otlp::Mapping>,
    functions: Table<(FunctionId, Option<FileId>), otlp::Function>,
    links: Table<TraceIds, otlp::Link>,
    /// By the key's index and the encoded value.
    attributes: Table<(i32, Vec<u8>), otlp::KeyValueAndUnit>,
}

impl<'r> Tables<'r> {
    fn new(report: &'r Report<'r>) -> Tables<'r> {
        Tables {
            report,
            strings: Table::new(),
            stacks: Table::new(),
            locations: Table::new(),
            mappings: Table::new(),
            functions: Table::new(),
            links: Table::new(),
            attributes: Table::new(),
        }
    }

    fn into_dictionary(self) -> otlp::ProfilesDictionary {
        otlp::ProfilesDictionary {
            mapping_table: self.mappings.entries,
            location_table: self.locations.entries,
            function_table: self.functions.entries,
            link_table: self.links.entries,
            string_table: self.strings.entries,
            attribute_table: self.attributes.entries,
            stack_table: self.stacks.entries,
        }
    }

    /// What the values mean, and the value of a count of one.
    fn value_type(&mut self) -> io::Result<(otlp::ValueType, u64)> {
        let recording = self.report.symbolized.profile().recording();
        let (name, unit, each) = match (recording.mode, recording.period_ns) {
            (Mode::OffCpu, _) => ("off_cpu", "nanoseconds", 1),
            (Mode::Alloc | Mode::Live, _) if recording.unit() != Unit::Samples => {
                let (name, unit) = super::heap::heap_type(recording);
                (name, unit, 1)
            }
            (_, 0) => ("samples", "count", 1),
            (Mode::Cpu, period_ns) => ("cpu", "nanoseconds", period_ns),
            (Mode::Wall, period_ns) => ("wall", "nanoseconds", period_ns),
            (Mode::Alloc | Mode::Live | Mode::Other(_), period_ns) => {
                ("time", "nanoseconds", period_ns)
            }
        };
        let value_type = otlp::ValueType {
            type_strindex: self.string(name)?,
            unit_strindex: self.string(unit)?,
        };
        Ok((value_type, each))
    }

    fn string(&mut self, text: &str) -> io::Result<i32> {
        if text.is_empty() {
            return Ok(0);
        }
        match self.strings.known(&text.to_owned()) {
            Some(known) => Ok(known),
            None => self.strings.push(text.to_owned(), text.to_owned()),
        }
    }

    fn printable(&mut self, text: &str) -> io::Result<i32> {
        self.string(&Printable(text).to_string())
    }

    fn attribute(&mut self, key: &str, value: Value) -> io::Result<i32> {
        let key_strindex = self.string(key)?;
        let value = any(value);
        let known = (key_strindex, value.encode_to_vec());
        if let Some(known) = self.attributes.known(&known) {
            return Ok(known);
        }
        let attribute =
            otlp::KeyValueAndUnit { key_strindex, value: Some(value), unit_strindex: 0 };
        self.attributes.push(known, attribute)
    }

    fn link(&mut self, ids: TraceIds) -> io::Result<i32> {
        if let Some(known) = self.links.known(&ids) {
            return Ok(known);
        }
        let (trace_id, span_id) = (ids.trace.to_be_bytes(), ids.span.to_be_bytes());
        self.links.push(ids, otlp::Link { trace_id: trace_id.into(), span_id: span_id.into() })
    }

    fn stack(&mut self, node: NodeId) -> io::Result<i32> {
        if let Some(known) = self.stacks.known(&node) {
            return Ok(known);
        }
        // Leaf first.
        let frames = self.report.symbolized.profile().stack(node);
        let locations = frames.map(|frame| self.location(frame));
        let stack = otlp::Stack { location_indices: locations.collect::<io::Result<_>>()? };
        self.stacks.push(node, stack)
    }

    fn location(&mut self, id: FrameId) -> io::Result<i32> {
        if let Some(known) = self.locations.known(&id) {
            return Ok(known);
        }
        let symbolized = self.report.symbolized;
        let mut lines = Vec::new();
        for symbol in shown_symbols(symbolized.frame(id), &self.report.options) {
            lines.push(otlp::Line {
                function_index: self.function(symbol.function, symbol.file)?,
                line: symbol.line.map_or(0, i64::from),
                column: 0,
            });
        }
        let frame = symbolized.profile().frame(id);
        let mut attributes = Vec::new();
        if let Frame::Address { .. } = frame {
            let native = Value::StringValue("native".to_owned());
            attributes.push(self.attribute("profile.frame.type", native)?);
        }
        let location = otlp::Location {
            mapping_index: match symbolized.mapping_of(id) {
                Some(mapping) => self.mapping(mapping)?,
                None => 0,
            },
            address: frame.lookup_address().unwrap_or(0),
            lines,
            attribute_indices: attributes,
        };
        self.locations.push(id, location)
    }

    fn mapping(&mut self, at: usize) -> io::Result<i32> {
        if let Some(known) = self.mappings.known(&at) {
            return Ok(known);
        }
        let mapping = &self.report.symbolized.profile().mappings()[at];
        let mut attributes = Vec::new();
        if let Some(id) = &mapping.build_id {
            let id = Value::StringValue(id.to_string());
            attributes.push(self.attribute("process.executable.build_id.gnu", id)?);
        }
        let mapping = otlp::Mapping {
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.file_offset,
            filename_strindex: self.printable(&mapping.path)?,
            attribute_indices: attributes,
        };
        self.mappings.push(at, mapping)
    }

    fn function(&mut self, id: FunctionId, file: Option<FileId>) -> io::Result<i32> {
        if let Some(known) = self.functions.known(&(id, file)) {
            return Ok(known);
        }
        let symbolized = self.report.symbolized;
        let function = symbolized.function(id);
        let made = otlp::Function {
            name_strindex: self.printable(&function.name)?,
            system_name_strindex: self.printable(&function.raw_name)?,
            filename_strindex: match file {
                Some(file) => self.printable(symbolized.file(file))?,
                None => 0,
            },
            start_line: 0,
        };
        self.functions.push((id, file), made)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use opentelemetry_proto::tonic::collector::profiles::v1development as service;
    use service::ExportProfilesServiceRequest;

    use unikprof_proto::ring::{Record, kind};

    use super::*;
    use crate::report::golden_tests::with_report;
    use crate::report::moments::tests::{sample, with_ring};
    use crate::report::{Format, ReportOptions};
    use unikprof_profile::timeline::Ring;

    fn request(report: &Report<'_>) -> ExportProfilesServiceRequest {
        let mut bytes = Vec::new();
        report.write(Format::Otlp, &mut bytes).unwrap();
        ExportProfilesServiceRequest::decode(&*bytes).unwrap()
    }

    /// The functions of a sample from the leaf to the root, with their lines.
    fn stack(dictionary: &otlp::ProfilesDictionary, sample: &otlp::Sample) -> Vec<String> {
        let text = |at: i32| dictionary.string_table[at as usize].as_str();
        let stack = &dictionary.stack_table[sample.stack_index as usize];
        let locations = stack.location_indices.iter();
        let lines = locations.flat_map(|at| &dictionary.location_table[*at as usize].lines);
        let name = |line: &otlp::Line| {
            let function = &dictionary.function_table[line.function_index as usize];
            let (name, file) = (function.name_strindex, function.filename_strindex);
            format!("{} {}:{}", text(name), text(file), line.line)
        };
        lines.map(name).collect()
    }

    #[test]
    fn a_request_has_all_stacks_with_values_and_attributes() {
        with_report(ReportOptions::default(), |report| {
            let request = request(report);
            let dictionary = request.dictionary.unwrap();
            let profile = &request.resource_profiles[0].scope_profiles[0].profiles[0];
            let text = |at: i32| dictionary.string_table[at as usize].as_str();
            let of = profile.sample_type.unwrap();
            assert_eq!((text(of.type_strindex), text(of.unit_strindex)), ("cpu", "nanoseconds"));
            let recording = report.symbolized.profile().recording();
            let sum: i64 = profile.samples.iter().flat_map(|s| &s.values).sum();
            assert_eq!(sum as u64, report.weights.shown * recording.period_ns);
            let inlined = [
                "parse::<[u8; 4]> src/parse.rs:7",
                "mycrate::packet::next src/packet.rs:99",
                "Server::poll(int) src/server.cc:40",
                "main src/main.c:12",
            ];
            let found = |vcpu: i64| {
                let attribute = |at: &i32| dictionary.attribute_table[*at as usize].clone();
                let is_on = |sample: &&otlp::Sample| {
                    let attribute = attribute(&sample.attribute_indices[0]);
                    text(attribute.key_strindex) == "cpu.logical_number"
                        && attribute.value == Some(any(Value::IntValue(vcpu)))
                };
                let mut on = profile.samples.iter().filter(is_on);
                on.find(|sample| stack(&dictionary, sample) == inlined).unwrap().values[0] as u64
            };
            assert_eq!(found(0), 500 * recording.period_ns);
            assert_eq!(found(1), 100 * recording.period_ns);
        });
    }

    /// The specification demands it: index 0 means none.
    #[test]
    fn tables_begin_with_nothing_and_repeat_nothing() {
        with_report(ReportOptions::default(), |report| {
            let dictionary = request(report).dictionary.unwrap();
            assert_eq!(dictionary.mapping_table[0], otlp::Mapping::default());
            assert_eq!(dictionary.location_table[0], otlp::Location::default());
            assert_eq!(dictionary.function_table[0], otlp::Function::default());
            assert_eq!(dictionary.link_table[0], otlp::Link::default());
            assert_eq!(dictionary.string_table[0], "");
            assert_eq!(dictionary.attribute_table[0], otlp::KeyValueAndUnit::default());
            assert_eq!(dictionary.stack_table[0], otlp::Stack::default());
            let strings: std::collections::BTreeSet<_> = dictionary.string_table.iter().collect();
            assert_eq!(strings.len(), dictionary.string_table.len());
            let id = Value::StringValue("0123456789abcdef".to_owned());
            let values: Vec<_> =
                dictionary.attribute_table.iter().map(|a| a.value.clone()).collect();
            assert!(values.contains(&Some(any(id))), "the build-id");
        });
    }

    #[test]
    fn samples_have_the_times_of_the_ring_and_the_rest_is_a_profile_of_its_own() {
        const MIDNIGHT: u64 = 1_700_000_000_000_000_000;
        let clock = Record { kind: kind::CLOCK, first: MIDNIGHT, ..Record::default() };
        let records = [clock, sample(10, 1), sample(20, 1), sample(30, 2)];
        with_ring(Mode::Cpu, [2, 3], &records, Ring::default(), |report| {
            let request = request(report);
            let [timed, untimed] = &request.resource_profiles[0].scope_profiles[0].profiles[..]
            else {
                panic!("{request:#?}");
            };
            let period = report.symbolized.profile().recording().period_ns;
            let of = |sample: &otlp::Sample| {
                let times = sample.timestamps_unix_nano.iter();
                let times: Vec<u64> = times.map(|ns| ns - MIDNIGHT).collect();
                let values = sample.values.iter().map(|ns| *ns as u64 / period);
                (times, values.collect::<Vec<u64>>())
            };
            let found: Vec<_> = timed.samples.iter().map(of).collect();
            assert_eq!(found, [(vec![10, 20], vec![1, 1]), (vec![30], vec![1])]);
            for sample in &timed.samples {
                let end = timed.time_unix_nano + timed.duration_nano;
                let mut times = sample.timestamps_unix_nano.iter();
                assert!(times.all(|ns| (timed.time_unix_nano..end).contains(ns)));
            }
            let found: Vec<_> = untimed.samples.iter().map(of).collect();
            assert_eq!(found, [(vec![], vec![2])]);
        });
    }

    /// Guards samples that cannot be found from a request's trace: in code that ran for its span, in
    /// a nested span without ids of its own, and not in another's.
    #[test]
    fn samples_link_to_the_spans_of_a_distributed_trace() {
        let of = |kind, at_ns, first, second| Record { kind, at_ns, first, second, third: 0 };
        let records = [
            of(kind::CLOCK, 0, 1_700_000_000_000_000_000, 0),
            of(kind::ASYNC_SPAN_BEGIN, 1, 0, 7),
            of(kind::TRACE_HIGH, 1, 7, 0x0102_0304_0506_0708),
            of(kind::TRACE_LOW, 1, 7, 0x090a_0b0c_0d0e_0f10),
            of(kind::TRACE_SPAN, 1, 7, 0xa1a2_a3a4_a5a6_a7a8),
            // A part of its ids is lost.
            of(kind::ASYNC_SPAN_BEGIN, 2, 0, 8),
            of(kind::TRACE_LOW, 2, 8, 5),
            of(kind::ENTERED, 10, 0, 7),
            sample(10, 1),
            of(kind::SPAN_BEGIN, 15, 1, 9),
            of(kind::ENTERED, 20, 0, 7),
            sample(20, 1),
            of(kind::SPAN_END, 25, 1, 9),
            of(kind::ENTERED, 30, 0, 8),
            sample(30, 2),
            sample(40, 2),
        ];
        with_ring(Mode::Cpu, [2, 2], &records, Ring::default(), |report| {
            let request = request(report);
            let links = request.dictionary.unwrap().link_table;
            let trace_id = (1..=16).collect();
            let span_id = (0xa1..=0xa8).collect();
            assert_eq!(links, [otlp::Link::default(), otlp::Link { trace_id, span_id }]);
            let samples = &request.resource_profiles[0].scope_profiles[0].profiles[0].samples;
            let mut found: Vec<(usize, i32)> = samples
                .iter()
                .map(|sample| (sample.timestamps_unix_nano.len(), sample.link_index))
                .collect();
            found.sort_unstable();
            assert_eq!(found, [(1, 0), (1, 0), (1, 1), (1, 1)]);
        });
    }
}
