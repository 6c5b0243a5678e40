//! The tables of frames, functions and libraries, with what `fxprof-processed-profile` does not
//! write: files, lines, inlined functions at addresses, and weights of any size.
//!
//! In the profile that the library makes, a frame's address is the number of a [place](Places). The
//! rest of its JSON is copied as it is.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::Arc;

use fxprof_processed_profile as fx;
use indexmap::IndexSet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::Track;
use crate::printable::Printable;
use crate::profile::{BuildId, FrameId, Mapping, Unit};
use crate::report::Report;
use crate::report::filter::shown_symbols;
use crate::symbols::{FileId, FunctionId, Symbol};

/// The functions at every frame of a report. Their numbers stand for frames until [`write`] puts
/// the frames in.
pub(super) struct Places {
    /// By frame, the number of the first of its places; and the one after the last.
    first: Vec<u32>,
    /// The places are its addresses.
    library: fx::LibraryHandle,
}

impl Places {
    pub(super) fn of(report: &Report<'_>, profile: &mut fx::Profile) -> Places {
        let mut first = vec![0];
        let mut next: u32 = 0;
        for frame in report.symbolized.profile().frame_ids() {
            let symbols = shown_symbols(report.symbolized.frame(frame), &report.options);
            next += symbols.len() as u32;
            first.push(next);
        }
        // One symbol for all: without it, each frame would leave a name among the strings.
        let all = fx::Symbol { address: 0, size: None, name: String::new() };
        let library = profile.add_lib(fx::LibraryInfo {
            symbol_table: Some(Arc::new(fx::SymbolTable::new(vec![all]))),
            ..library("", None)
        });
        Places { first, library }
    }

    /// The places of a frame, outermost first.
    pub(super) fn of_frame(&self, frame: FrameId) -> impl Iterator<Item = u32> + use<> {
        self.first[frame.index()]..self.first[frame.index() + 1]
    }

    /// What stands for a place.
    pub(super) fn frame(&self, place: u32) -> fx::Frame {
        fx::Frame::RelativeAddressFromInstructionPointer(self.library, place)
    }

    /// The frame of a place, and how many functions it is inlined into there.
    fn frame_of(&self, place: u32) -> Option<(FrameId, u32)> {
        let after = self.first.partition_point(|first| *first <= place);
        let frame = after.checked_sub(1).filter(|_| after < self.first.len())?;
        Some((FrameId(frame as u32), place - self.first[frame]))
    }
}

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
pub(crate) fn library_key(mapping: &Mapping) -> (String, String) {
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

/// JSON objects whose members are kept as text.
type Object = BTreeMap<String, Box<RawValue>>;

/// The columns that are read of a table of frames.
#[derive(Deserialize)]
struct MadeFrames {
    address: Vec<u32>,
    category: Box<RawValue>,
    subcategory: Box<RawValue>,
}

/// Writes the profile with its frames, more members of its `meta`, and the threads' `weights` in
/// the order of their samples.
pub(super) fn write(
    report: &Report<'_>,
    profile: &fx::Profile,
    places: &Places,
    weights: &BTreeMap<Track, Vec<u64>>,
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
    let mut threads: Vec<Object> = get(&file, "threads")?;
    let unit = report.symbolized.profile().recording().unit();
    for (thread, weights) in threads.iter_mut().zip(weights.values()) {
        let mut samples: Object = get(thread, "samples")?;
        match unit {
            Unit::Samples | Unit::Bytes | Unit::Objects => {
                set(&mut samples, "weight", weights)?;
            }
            Unit::Nanoseconds => {
                let ms: Vec<f64> = weights.iter().map(|ns| *ns as f64 / 1e6).collect();
                set(&mut samples, "weight", &ms)?;
            }
        }
        set(thread, "samples", &samples)?;
        let made: MadeFrames = get(thread, "frameTable")?;
        let mut tables = Tables {
            report,
            libraries: &libraries,
            strings: get::<Vec<String>>(thread, "stringArray")?.into_iter().collect(),
            functions: Functions::default(),
            function_ids: HashMap::new(),
            resources: IndexSet::new(),
            native_symbols: NativeSymbols::default(),
            native_ids: HashMap::new(),
        };
        let frames = tables.frames(places, made);
        set(thread, "frameTable", &frames)?;
        set(thread, "resourceTable", &tables.resource_table())?;
        set(thread, "nativeSymbols", &tables.native_symbols)?;
        set(thread, "funcTable", &tables.functions)?;
        let strings: Vec<&String> = tables.strings.iter().collect();
        set(thread, "stringArray", &strings)?;
    }
    set(&mut file, "threads", &threads)?;
    serde_json::to_writer(out, &file)?;
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
struct FrameTable {
    length: usize,
    /// In the image's file; -1 if that is unknown.
    address: Vec<i64>,
    inline_depth: Vec<u32>,
    category: Box<RawValue>,
    subcategory: Box<RawValue>,
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
    libraries: &'r Libraries,
    strings: IndexSet<String>,
    functions: Functions,
    /// A function has one file in the format, but code of one may come from several.
    function_ids: HashMap<(FunctionId, Option<FileId>, Option<usize>), usize>,
    /// The place of its library, by resource.
    resources: IndexSet<usize>,
    native_symbols: NativeSymbols,
    /// By library and address.
    native_ids: HashMap<(usize, u32), usize>,
}

impl Tables<'_> {
    fn frames(&mut self, places: &Places, made: MadeFrames) -> FrameTable {
        let length = made.address.len();
        let mut table = FrameTable {
            length,
            address: Vec::with_capacity(length),
            inline_depth: Vec::with_capacity(length),
            category: made.category,
            subcategory: made.subcategory,
            func: Vec::with_capacity(length),
            native_symbol: Vec::with_capacity(length),
            inner_window_id: vec![0; length],
            line: Vec::with_capacity(length),
            column: vec![None; length],
        };
        let (symbolized, options) = (self.report.symbolized, &self.report.options);
        let profile = symbolized.profile();
        for (frame, depth) in made.address.iter().filter_map(|place| places.frame_of(*place)) {
            let symbols = shown_symbols(symbolized.frame(frame), options);
            let mapping = symbolized.mapping_of(frame);
            let address = profile.frame(frame).lookup_address();
            let offset = mapping
                .zip(address)
                .and_then(|(mapping, address)| profile.mappings()[mapping].offset_of(address));
            // Addresses have 32 bits in the format.
            let offset = offset.filter(|offset| *offset <= u64::from(u32::MAX));
            // Outermost first; the places are as many.
            let symbol = symbols[symbols.len() - 1 - depth as usize];
            let library = mapping.map(|mapping| self.libraries.of_mapping[mapping]);
            table.address.push(offset.map_or(-1, |offset| offset as i64));
            table.inline_depth.push(depth);
            table.func.push(self.function(&symbol, library));
            table.line.push(symbol.line);
            let native = self.native_symbol(frame, address);
            table.native_symbol.push(native);
        }
        table
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
