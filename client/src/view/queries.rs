//! Answers about addresses: names, source and instructions, in the JSON of the front end's symbol
//! servers.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::{Answer, View};
use unikprof_profile::printable::Printable;
use unikprof_profile::profile::{FrameId, Profile};
use unikprof_profile::symbols::{FunctionKind, MappedAddress, Symbol, Symbolized};
use unikprof_report::report::{decode_of, listing, source_text};

/// Reads a query, or says what is wrong with it.
fn parsed<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Answer> {
    serde_json::from_slice(body).map_err(|error| Answer::error(400, &format!("bad query: {error}")))
}

fn hexadecimal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text.strip_prefix("0x").unwrap_or(&text);
    u64::from_str_radix(digits, 16).map_err(|_| {
        serde::de::Error::custom(format!("expected a hexadecimal number, found {text:?}"))
    })
}

/// Addresses of the guest with their names.
struct Named<'p> {
    symbolized: Symbolized<'p>,
    frames: HashMap<u64, FrameId>,
    ranges: HashMap<u64, Range<u64>>,
}

/// A profile with a sample at each of these addresses.
fn profile_of(view: &View<'_>, addresses: impl Iterator<Item = u64>) -> Result<Profile, Answer> {
    let made = view.profile.at_addresses(addresses);
    made.map_err(|error| Answer::error(413, &error.to_string()))
}

impl<'p> Named<'p> {
    fn of(view: &View<'_>, profile: &'p Profile) -> Result<Named<'p>, Answer> {
        let failed = |error: &dyn std::fmt::Display| Answer::error(500, &error.to_string());
        let symbolized = view.symbolizer.resolve(profile).map_err(|e| failed(&e))?;
        let located = |frame| {
            let address = profile.frame(frame).lookup_address()?;
            Some((frame, address, symbolized.mapping_of(frame)))
        };
        let located: Vec<_> = profile.frame_ids().filter_map(located).collect();
        let addresses = located
            .iter()
            .map(|(_, address, mapping)| MappedAddress { address: *address, mapping: *mapping });
        let addresses: Vec<MappedAddress> = addresses.collect();
        let ranges = view.symbolizer.function_ranges(profile, &addresses);
        Ok(Named {
            frames: located.iter().map(|(frame, at, _)| (*at, *frame)).collect(),
            ranges: ranges.map_err(|e| failed(&e))?,
            symbolized,
        })
    }

    /// The functions at an address, innermost first; none if it has no name.
    fn symbols(&self, address: u64) -> &[Symbol] {
        let symbols = self.frames.get(&address).map(|frame| self.symbolized.frame(*frame));
        let is_named = |symbol: &&Symbol| {
            let kind = self.symbolized.function(symbol.function).kind;
            matches!(kind, FunctionKind::Named | FunctionKind::Agent)
        };
        symbols.filter(|all| all.first().as_ref().is_some_and(is_named)).unwrap_or_default()
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Symbolicate {
    Jobs { jobs: Vec<Job> },
    Job(Job),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    /// Name and debug id of each module.
    memory_map: Vec<(String, String)>,
    /// Places of modules in the memory map, and offsets in them.
    stacks: Vec<Vec<(i64, u64)>>,
}

impl Job {
    fn module(&self, at: i64) -> Option<&(String, String)> {
        self.memory_map.get(usize::try_from(at).ok()?)
    }

    fn address(&self, view: &View<'_>, (module, offset): (i64, u64)) -> Option<u64> {
        let (name, id) = self.module(module)?;
        view.modules.address(name, id, offset)
    }
}

#[derive(Serialize, Default)]
struct SymbolicatedFrame<'j> {
    frame: usize,
    module: &'j str,
    module_offset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_offset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlines: Vec<Inline>,
}

/// A function that is inlined into the frame's, innermost first.
#[derive(Serialize)]
struct Inline {
    function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

pub(super) fn symbolicate(view: &View<'_>, body: &[u8]) -> Answer {
    let jobs = match parsed(body) {
        Ok(Symbolicate::Jobs { jobs }) => jobs,
        Ok(Symbolicate::Job(job)) => vec![job],
        Err(answer) => return answer,
    };
    let all = jobs.iter().flat_map(|job| {
        let frames = job.stacks.iter().flatten();
        frames.filter_map(|frame| job.address(view, *frame))
    });
    let profile = match profile_of(view, all) {
        Ok(profile) => profile,
        Err(answer) => return answer,
    };
    let named = match Named::of(view, &profile) {
        Ok(named) => named,
        Err(answer) => return answer,
    };
    let result = |job: &Job| {
        let stack = |stack: &Vec<(i64, u64)>| -> Value {
            let frames = stack.iter().enumerate();
            frames.map(|(at, frame)| json!(symbolicated(view, job, &named, at, *frame))).collect()
        };
        let found = job.memory_map.iter().map(|(name, id)| {
            let is_found = view.modules.has(name, id);
            (format!("{name}/{id}"), Value::Bool(is_found))
        });
        let found: serde_json::Map<String, Value> = found.collect();
        json!({
            "stacks": job.stacks.iter().map(stack).collect::<Vec<_>>(),
            "found_modules": found,
        })
    };
    Answer::json(&json!({ "results": jobs.iter().map(result).collect::<Vec<_>>() }))
}

fn symbolicated<'j>(
    view: &View<'_>,
    job: &'j Job,
    named: &Named<'_>,
    at: usize,
    (module, offset): (i64, u64),
) -> SymbolicatedFrame<'j> {
    let unnamed = SymbolicatedFrame {
        frame: at,
        module: job.module(module).map_or("", |(name, _)| name),
        module_offset: format!("{offset:#x}"),
        ..SymbolicatedFrame::default()
    };
    let Some(address) = job.address(view, (module, offset)) else {
        return unnamed;
    };
    let Some((outermost, inlined)) = named.symbols(address).split_last() else {
        return unnamed;
    };
    let symbolized = &named.symbolized;
    let name = |symbol: &Symbol| Printable(&symbolized.function(symbol.function).name).to_string();
    let file = |symbol: &Symbol| {
        let file = symbol.file?;
        Some(Printable(symbolized.file(file)).to_string())
    };
    let range = named.ranges.get(&address);
    let inlines = inlined.iter().map(|symbol| Inline {
        function: name(symbol),
        file: file(symbol),
        line: symbol.line,
    });
    SymbolicatedFrame {
        function: Some(name(outermost)),
        // The front end expects one with each function.
        function_offset: Some(format!(
            "{:#x}",
            range.map_or(0, |range| address.saturating_sub(range.start))
        )),
        function_size: range.map(|range| format!("{:#x}", range.end - range.start)),
        file: file(outermost),
        line: outermost.line,
        inlines: inlines.collect(),
        ..unnamed
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceQuery {
    debug_name: String,
    debug_id: String,
    #[serde(deserialize_with = "hexadecimal")]
    module_offset: u64,
    file: String,
}

pub(super) fn source(view: &View<'_>, body: &[u8]) -> Answer {
    let query: SourceQuery = match parsed(body) {
        Ok(query) => query,
        Err(answer) => return answer,
    };
    match source_of(view, &query) {
        Ok(answer) | Err(answer) => answer,
    }
}

fn source_of(view: &View<'_>, query: &SourceQuery) -> Result<Answer, Answer> {
    let (name, id) = (&query.debug_name, &query.debug_id);
    let address = view.modules.address(name, id, query.module_offset);
    let address = address.ok_or_else(|| no_such_place(name, query.module_offset))?;
    let profile = profile_of(view, [address].into_iter())?;
    let named = Named::of(view, &profile)?;
    let files = named.symbols(address).iter().filter_map(|symbol| symbol.file);
    let mut files = files.map(|file| named.symbolized.file(file));
    // The path that is read is the debug information's, not the query's.
    let path = files.find(|path| Printable(path).to_string() == query.file);
    let path = path.ok_or_else(|| {
        let message = "the debug information does not name this file at this address";
        Answer::error(404, message)
    })?;
    let text = source_text(view.source_folders, path).ok_or_else(|| {
        let message = format!(
            "there is no {} on this machine; name the folder with the source files with --source",
            Printable(path)
        );
        Answer::error(404, &message)
    })?;
    Ok(Answer::json(&json!({
        "symbolsLastModified": null,
        "sourceLastModified": null,
        "file": query.file,
        "source": text,
    })))
}

fn no_such_place(name: &str, offset: u64) -> Answer {
    let message = format!("the profile has no code of {} at {offset:#x}", Printable(name));
    Answer::error(404, &message)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AssemblyQuery {
    debug_name: String,
    debug_id: String,
    #[serde(deserialize_with = "hexadecimal")]
    start_address: u64,
    #[serde(deserialize_with = "hexadecimal")]
    size: u64,
}

pub(super) fn assembly(view: &View<'_>, body: &[u8]) -> Answer {
    let query: AssemblyQuery = match parsed(body) {
        Ok(query) => query,
        Err(answer) => return answer,
    };
    match assembly_of(view, &query) {
        Ok(answer) | Err(answer) => answer,
    }
}

fn assembly_of(view: &View<'_>, query: &AssemblyQuery) -> Result<Answer, Answer> {
    let architecture = &view.profile.recording().architecture;
    let Some(decode) = decode_of(architecture) else {
        let problem = format!("instructions of {architecture} are not known");
        return Err(Answer::error(404, &problem));
    };
    let (name, id) = (&query.debug_name, &query.debug_id);
    let address = view.modules.address(name, id, query.start_address);
    let address = address.ok_or_else(|| no_such_place(name, query.start_address))?;
    let mapping = view.profile.mapping_of(address).map(|(at, _)| at);
    let at = MappedAddress { address, mapping };
    let code = view.symbolizer.code(view.profile, &[at]);
    let code = code.map_err(|error| Answer::error(404, &error.to_string()))?;
    let code = code.first().ok_or_else(|| no_such_place(name, query.start_address))?;
    // From the address on that is asked for: a function may begin before it.
    let skipped = address - code.address;
    let instructions = listing(code, decode).into_iter().filter_map(|(offset, text)| {
        let offset = offset.checked_sub(skipped)?;
        (offset < query.size).then_some((offset, text))
    });
    let instructions: Vec<(u64, String)> = instructions.collect();
    let size = (code.bytes.len() as u64 - skipped).min(query.size);
    Ok(Answer::json(&json!({
        "startAddress": format!("{:#x}", query.start_address),
        "size": format!("{size:#x}"),
        "arch": architecture.to_string(),
        "syntax": ["GNU"],
        "instructions": instructions,
    })))
}
