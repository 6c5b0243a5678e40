//! The tables of samples, stacks, frames, functions and libraries. The rest of the library's JSON is
//! copied as it is.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::ops::Range;

use fxprof_processed_profile as fx;
use indexmap::IndexSet;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::{Categories, Sample, Track};
use crate::report::Report;
use crate::report::filter::shown_symbols;
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{BuildId, Frame, FrameId, Mapping, NodeId, SpecialFrame, Unit};
use unikprof_profile::symbols::{FileId, FunctionId, Symbol};

/// How the file calls an image.
fn library(path: &str, build_id: Option<&BuildId>) -> fx::LibraryInfo {
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = Printable(name).to_string();
    let path = Printable(path).to_string();
    fx::LibraryInfo {
        debug_name: name.clone(),
        name,
        debug_path: path.clone(),
        path,
        debug_id: build_id.map_or(fx::debugid::DebugId::nil(), debug_id),
        code_id: build_id.map(ToString::to_string),
        arch: None,
        symbol_table: None,
    }
}

/// How the file calls a mapping's image: its name and its debug id.
pub fn library_key(mapping: &Mapping) -> (String, String) {
    let library = library(&mapping.path, mapping.build_id.as_ref());
    (library.debug_name, library.debug_id.breakpad().to_string())
}

/// The first 16 bytes of a build-id as symbol servers write them: a GUID whose first three numbers
/// are little endian.
fn debug_id(build_id: &BuildId) -> fx::debugid::DebugId {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let bytes = build_id.as_bytes();
    let guid = ORDER.map(|at| bytes.get(at).copied().unwrap_or(0));
    fx::debugid::DebugId::from_guid_age(&guid, 0).unwrap_or_default()
}

/// A JSON object whose members are kept as text.
type Object = BTreeMap<String, Box<RawValue>>;

/// Writes the profile with the threads' samples, and more members of its `meta`.
pub(super) fn write(
    report: &Report<'_>,
    profile: &fx::Profile,
    categories: Categories,
    mut samples: BTreeMap<Track, Vec<Sample>>,
    more_meta: &[(&str, Value)],
    out: &mut impl Write,
) -> io::Result<()> {
    let text = serde_json::to_string(profile)?;
    let mut file: Object = serde_json::from_str(&text)?;
    drop(text);
    let libraries = Libraries::of(report);
    set(&mut file, "libs", &libraries.all)?;
    let mut meta: Object = get(&file, "meta")?;
    for (key, value) in more_meta {
        set(&mut meta, key, value)?;
    }
    set(&mut file, "meta", &meta)?;
    let made: Vec<Object> = get(&file, "threads")?;
    let strings = made.iter().map(|thread| get(thread, "stringArray"));
    let strings: Vec<Vec<String>> = strings.collect::<io::Result<_>>()?;
    for samples in samples.values_mut() {
        // The file has differences of times, and a hostile ring any order.
        samples.sort_by_key(|sample| sample.since_ns);
    }
    file.remove("threads");
    let threads = Threads { report, categories, libraries, made, strings, samples };
    serde_json::to_writer(out, &File { rest: file, threads })?;
    Ok(())
}

fn get<'o, T: Deserialize<'o>>(object: &'o Object, key: &str) -> io::Result<T> {
    let text = object.get(key).map_or("null", |value| value.get());
    Ok(serde_json::from_str(text)?)
}

fn set(object: &mut Object, key: &str, value: &impl Serialize) -> io::Result<()> {
    object.insert(key.to_owned(), to_raw_value(value)?);
    Ok(())
}

#[derive(Serialize)]
struct File<'r> {
    #[serde(flatten)]
    rest: Object,
    threads: Threads<'r>,
}

/// The threads, each made when it is written: no more than one is in memory.
struct Threads<'r> {
    report: &'r Report<'r>,
    categories: Categories,
    libraries: Libraries,
    /// What the library wrote of them, and the strings in it.
    made: Vec<Object>,
    strings: Vec<Vec<String>>,
    samples: BTreeMap<Track, Vec<Sample>>,
}

impl Serialize for Threads<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let made = self.made.iter().zip(&self.strings).zip(self.samples.values());
        let threads = made.map(|((made, strings), samples)| {
            let text = made.iter().map(|(key, value)| (key.as_str(), Member::Text(value)));
            let mut thread: BTreeMap<&str, Member<'_>> = text.collect();
            thread.extend(Tables::of(self, strings).members(samples));
            thread
        });
        serializer.collect_seq(threads)
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Member<'t> {
    Text(&'t RawValue),
    Samples(SampleTable),
    Stacks(StackTable),
    Frames(FrameTable),
    Functions(Functions),
    Resources(ResourceTable),
    NativeSymbols(NativeSymbols),
    Strings(Vec<String>),
}

/// The images of the mappings.
struct Libraries {
    all: Vec<fx::LibraryInfo>,
    /// By mapping, the place in `all`.
    of_mapping: Vec<usize>,
}

impl Libraries {
    fn of(report: &Report<'_>) -> Libraries {
        let mut all = IndexSet::new();
        let mappings = report.symbolized.profile().mappings().iter();
        let of_mapping = mappings.map(|mapping| {
            let library = library(&mapping.path, mapping.build_id.as_ref());
            all.insert_full(library).0
        });
        let of_mapping = of_mapping.collect();
        let all = all.into_iter().collect();
        Libraries { all, of_mapping }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SampleTable {
    length: usize,
    #[serde(serialize_with = "place_or_null")]
    stack: Vec<u32>,
    /// In µs.
    #[serde(rename = "threadCPUDelta")]
    thread_cpu_delta: Vec<u64>,
    /// In ms.
    time_deltas: Vec<f64>,
    weight: Weights,
    weight_type: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Weights {
    Counts(Vec<u64>),
    Ms(Vec<f64>),
}

#[derive(Serialize, Default)]
struct StackTable {
    length: usize,
    /// The place of the caller's stack in this table, counted from 1; 0 for an outermost frame.
    #[serde(serialize_with = "place_or_null")]
    prefix: Vec<u32>,
    frame: Vec<u32>,
}

/// Places from 1, and 0 for none, as places from 0.
fn place_or_null<S: Serializer>(places: &[u32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(places.iter().map(|place| place.checked_sub(1)))
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    length: usize,
    /// In the image's file; -1 if that is unknown.
    address: Vec<i64>,
    inline_depth: Vec<u32>,
    category: Vec<fx::CategoryHandle>,
    subcategory: Vec<u32>,
    func: Vec<usize>,
    native_symbol: Vec<Option<usize>>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Vec<u32>,
    line: Vec<Option<u32>>,
    column: Vec<Option<u32>>,
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Functions {
    length: usize,
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Vec<bool>,
    /// -1 if there is none.
    resource: Vec<i64>,
    file_name: Vec<Option<usize>>,
    line_number: Vec<Option<u32>>,
    column_number: Vec<Option<u32>>,
}

#[derive(Serialize)]
struct ResourceTable {
    length: usize,
    lib: Vec<usize>,
    name: Vec<usize>,
    host: Vec<Option<usize>>,
    r#type: Vec<u32>,
}

/// A resource that is a library.
const LIBRARY: u32 = 1;

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct NativeSymbols {
    length: usize,
    address: Vec<u32>,
    function_size: Vec<Option<u32>>,
    lib_index: Vec<usize>,
    name: Vec<usize>,
}

/// The tables of one thread.
struct Tables<'r> {
    report: &'r Report<'r>,
    categories: Categories,
    libraries: &'r Libraries,
    strings: IndexSet<String>,
    stacks: StackTable,
    /// By the profile's node, the place of its stack in the table, from 1; apart for those in which
    /// the thread waits.
    of_node: [Vec<u32>; 2],
    frames: FrameTable,
    /// By the profile's frame, the place of its outermost function, likewise.
    of_frame: [Vec<u32>; 2],
    functions: Functions,
    /// A function has one file in the format, but code of one may come from several.
    function_ids: HashMap<(FunctionId, Option<FileId>, Option<usize>), usize>,
    /// The place of its library, by resource.
    resources: IndexSet<usize>,
    native_symbols: NativeSymbols,
    /// By library and address.
    native_ids: HashMap<(usize, u32), usize>,
}

impl<'r> Tables<'r> {
    fn of(threads: &'r Threads<'r>, strings: &[String]) -> Tables<'r> {
        let profile = threads.report.symbolized.profile();
        Tables {
            report: threads.report,
            categories: threads.categories,
            libraries: &threads.libraries,
            strings: strings.iter().cloned().collect(),
            stacks: StackTable::default(),
            of_node: [0; 2].map(|unknown| vec![unknown; profile.tree().node_count()]),
            frames: FrameTable::default(),
            of_frame: [0; 2].map(|unknown| vec![unknown; profile.frames().len()]),
            functions: Functions::default(),
            function_ids: HashMap::new(),
            resources: IndexSet::new(),
            native_symbols: NativeSymbols::default(),
            native_ids: HashMap::new(),
        }
    }

    /// The members of a thread with these samples.
    fn members(mut self, samples: &[Sample]) -> [(&'static str, Member<'r>); 7] {
        let samples = self.samples(samples);
        self.stacks.length = self.stacks.frame.len();
        let frames = &mut self.frames;
        frames.length = frames.func.len();
        frames.subcategory = vec![0; frames.length];
        frames.inner_window_id = vec![0; frames.length];
        frames.column = vec![None; frames.length];
        let resources = self.resource_table();
        [
            ("samples", Member::Samples(samples)),
            ("stackTable", Member::Stacks(self.stacks)),
            ("frameTable", Member::Frames(self.frames)),
            ("funcTable", Member::Functions(self.functions)),
            ("resourceTable", Member::Resources(resources)),
            ("nativeSymbols", Member::NativeSymbols(self.native_symbols)),
            ("stringArray", Member::Strings(self.strings.into_iter().collect())),
        ]
    }

    fn samples(&mut self, samples: &[Sample]) -> SampleTable {
        let profile = self.report.symbolized.profile();
        let info = profile.recording();
        // A wait without times is known by its frame. Any other sample stands for so much running
        // time.
        let ran_ns = |sample: &Sample| match sample.is_wait || self.is_blocked(sample.stack) {
            true => 0,
            false => info.period_ns.saturating_mul(sample.count),
        };
        let thread_cpu_delta = samples.iter().map(|sample| ran_ns(sample) / 1_000).collect();
        let mut before_ns = 0;
        let deltas = samples.iter().map(|sample| {
            let since_ns = sample.since_ns - std::mem::replace(&mut before_ns, sample.since_ns);
            since_ns as f64 / 1e6
        });
        let counts = samples.iter().map(|sample| sample.count);
        let (weight, weight_type) = match info.unit() {
            Unit::Nanoseconds => {
                (Weights::Ms(counts.map(|ns| ns as f64 / 1e6).collect()), "tracing-ms")
            }
            Unit::Bytes => (Weights::Counts(counts.collect()), "bytes"),
            Unit::Samples | Unit::Objects => (Weights::Counts(counts.collect()), "samples"),
        };
        SampleTable {
            length: samples.len(),
            thread_cpu_delta,
            time_deltas: deltas.collect(),
            weight,
            weight_type,
            stack: samples.iter().map(|sample| self.stack(sample)).collect(),
        }
    }

    /// Whether the innermost frame says that the thread waits.
    fn is_blocked(&self, stack: NodeId) -> bool {
        let profile = self.report.symbolized.profile();
        let leaf = profile.tree().item(stack).map(|frame| profile.frame(FrameId(frame)));
        leaf == Some(Frame::Special(SpecialFrame::Blocked))
    }

    /// The place of a sample's stack, from 1.
    fn stack(&mut self, sample: &Sample) -> u32 {
        let tree = self.report.symbolized.profile().tree();
        let is_wait = sample.is_wait && !self.is_blocked(sample.stack);
        let known = self.of_node[usize::from(is_wait)][sample.stack.index()];
        if known != 0 {
            return known;
        }
        let mut new = vec![sample.stack];
        let mut at = sample.stack;
        let mut stack = loop {
            at = tree.parent(at).unwrap_or(NodeId::ROOT);
            match self.of_node[0][at.index()] {
                0 if at != NodeId::ROOT => new.push(at),
                known => break known,
            }
        };
        for node in new.into_iter().rev() {
            let waits = is_wait && node == sample.stack;
            for frame in tree.item(node).map(FrameId).map_or(0..0, |at| self.frame(at, waits)) {
                self.stacks.prefix.push(stack);
                self.stacks.frame.push(frame);
                stack = self.stacks.frame.len() as u32;
            }
            self.of_node[usize::from(waits)][node.index()] = stack;
        }
        stack
    }

    /// The places of a frame's functions, outermost first.
    fn frame(&mut self, frame: FrameId, waits: bool) -> Range<u32> {
        let (symbolized, options) = (self.report.symbolized, &self.report.options);
        let symbols = shown_symbols(symbolized.frame(frame), options);
        let known = self.of_frame[usize::from(waits)][frame.index()];
        if let Some(first) = known.checked_sub(1) {
            return first..first + symbols.len() as u32;
        }
        let first = self.frames.func.len() as u32;
        self.of_frame[usize::from(waits)][frame.index()] = first + 1;
        let profile = symbolized.profile();
        let mapping = symbolized.mapping_of(frame);
        let address = profile.frame(frame).lookup_address();
        let offset = mapping
            .zip(address)
            .and_then(|(mapping, address)| profile.mappings()[mapping].offset_of(address));
        // Addresses have 32 bits in the format.
        let offset = offset.filter(|offset| *offset <= u64::from(u32::MAX));
        let library = mapping.map(|mapping| self.libraries.of_mapping[mapping]);
        for (symbol, depth) in symbols.iter().rev().zip(0..) {
            let category = match waits {
                true => self.categories.blocked,
                false => self.categories.of(self.report, symbol),
            };
            let function = self.function(symbol, library);
            let native = self.native_symbol(frame, address);
            let table = &mut self.frames;
            table.address.push(offset.map_or(-1, |offset| offset as i64));
            table.inline_depth.push(depth);
            table.category.push(category);
            table.func.push(function);
            table.native_symbol.push(native);
            table.line.push(symbol.line);
        }
        first..self.frames.func.len() as u32
    }

    /// The function whose code holds the address of a frame, where that is known.
    fn native_symbol(&mut self, frame: FrameId, address: Option<u64>) -> Option<usize> {
        let symbolized = self.report.symbolized;
        let range = self.report.ranges.get(&address?)?;
        let mapping = symbolized.mapping_of(frame)?;
        let offset = symbolized.profile().mappings()[mapping].offset_of(range.start)?;
        let offset = u32::try_from(offset).ok()?;
        let library = self.libraries.of_mapping[mapping];
        if let Some(known) = self.native_ids.get(&(library, offset)) {
            return Some(*known);
        }
        let outermost = symbolized.frame(frame).last()?;
        let name = Printable(&symbolized.function(outermost.function).name).to_string();
        let symbols = &mut self.native_symbols;
        symbols.address.push(offset);
        let size = u32::try_from(range.end - range.start).ok();
        symbols.function_size.push(size);
        symbols.lib_index.push(library);
        symbols.name.push(self.strings.insert_full(name).0);
        symbols.length += 1;
        self.native_ids.insert((library, offset), symbols.length - 1);
        Some(symbols.length - 1)
    }

    fn function(&mut self, symbol: &Symbol, library: Option<usize>) -> usize {
        let key = (symbol.function, symbol.file, library);
        if let Some(known) = self.function_ids.get(&key) {
            return *known;
        }
        let symbolized = self.report.symbolized;
        let name = Printable(&symbolized.function(symbol.function).name).to_string();
        let file = symbol.file.map(|file| Printable(symbolized.file(file)).to_string());
        let functions = &mut self.functions;
        functions.name.push(self.strings.insert_full(name).0);
        functions.is_js.push(false);
        functions.relevant_for_js.push(false);
        let resource = library.map(|library| self.resources.insert_full(library).0);
        functions.resource.push(resource.map_or(-1, |at| at as i64));
        functions.file_name.push(file.map(|file| self.strings.insert_full(file).0));
        functions.line_number.push(None);
        functions.column_number.push(None);
        functions.length += 1;
        self.function_ids.insert(key, functions.length - 1);
        functions.length - 1
    }

    fn resource_table(&mut self) -> ResourceTable {
        let libraries = self.resources.iter().map(|at| &self.libraries.all[*at]);
        let strings = &mut self.strings;
        let length = self.resources.len();
        ResourceTable {
            length,
            name: libraries.map(|library| strings.insert_full(library.name.clone()).0).collect(),
            lib: self.resources.iter().copied().collect(),
            host: vec![None; length],
            r#type: vec![LIBRARY; length],
        }
    }
}
