//! Names every frame of a profile.

use std::collections::HashMap;

use super::by_mapping::{ByMapping, Unnamed};
use super::debug_file;
use super::debug_info::{DebugInfo, DebugSections};
use super::demangle::is_mangled;
use super::error::{SymbolError, SymbolWarning};
use super::identity::{
    AcrossBuilds, Place, has_place, order, stem, without_copies, without_suffixes, without_version,
};
use super::image::Image;
use super::image_bytes::ElfFile;
use super::images::{Assigned, Group, Images};
use super::name_table::NameTable;
use super::namesakes::Numbered;
use super::ocaml;
use super::symbol_file::{SymbolFile, namesakes};
use super::symbolized::{
    Function, FunctionId, FunctionKind, ImageId, KnownNames, Names, Symbol, Symbolized,
};
use super::vdso;
use crate::profile::{Frame, FrameId, Mapping, Profile};

/// Names profiles with the images it was given.
#[derive(Debug, Default)]
pub struct Symbolizer {
    pub(super) images: Images,
    raw_names: bool,
}

impl Symbolizer {
    /// With no images at all, addresses stay hexadecimal.
    pub fn new(images: Images) -> Symbolizer {
        Symbolizer { images, raw_names: false }
    }

    /// Leaves names as their compilers wrote them.
    #[must_use]
    pub fn with_raw_names(self, raw_names: bool) -> Symbolizer {
        Symbolizer { raw_names, ..self }
    }

    /// What it was given.
    pub fn images(&self) -> &Images {
        &self.images
    }

    /// Resolves every distinct address once.
    ///
    /// # Errors
    ///
    /// If an image given by the user does not belong to the recording. Problems with files found
    /// otherwise, damaged debug information and missing names are warnings in the result.
    pub fn resolve<'p>(&self, profile: &'p Profile) -> Result<Symbolized<'p>, SymbolError> {
        self.resolve_new(profile, &mut KnownNames::default())
    }

    /// The same for a profile that follows another one of the same guest: only what is new in it is
    /// looked up.
    pub fn resolve_new<'p>(
        &self,
        profile: &'p Profile,
        known: &mut KnownNames,
    ) -> Result<Symbolized<'p>, SymbolError> {
        let mut names = known.begin(profile);
        names.raw = self.raw_names;
        let mut by_mapping = ByMapping::of(profile);
        by_mapping.retain(|frame| !names.has(frame));
        if known.is_empty() || !by_mapping.is_empty() {
            let found = self.look_up(profile, &mut by_mapping, &mut names);
            found.inspect_err(|_| *known = KnownNames::default())?;
        }
        name_the_rest(profile, &by_mapping, &mut names);
        let symbolized = names.finish(profile, by_mapping.of_frame);
        known.end(profile, names);
        Ok(symbolized)
    }

    fn look_up(
        &self,
        profile: &Profile,
        by_mapping: &mut ByMapping,
        names: &mut Names,
    ) -> Result<(), SymbolError> {
        let mappings = profile.mappings();
        let warned = std::mem::take(&mut names.warnings);
        let assignment =
            self.images.assign(mappings, &profile.recording().architecture, &mut names.warnings)?;
        for group in &assignment.groups {
            self.resolve_group(group, mappings, by_mapping, names);
        }
        let linked = std::mem::take(&mut by_mapping.outside);
        let has_image = !assignment.unmapped.is_empty();
        for image in assignment.unmapped {
            let id = names.add_image(&path_text(image), image.build_id());
            if mappings.is_empty() {
                names.set_program(id);
            }
            let open: Vec<(u64, FrameId)> =
                linked.iter().copied().filter(|(_, frame)| !names.has(*frame)).collect();
            self.resolve_image(image, id, open, names, &mut by_mapping.unnamed);
        }
        let (mut listed, known) =
            (Listed::new(&self.images.symbol_files, None), names.functions().len());
        for (address, frame) in linked {
            if mappings.is_empty() && !names.has(frame) {
                let begin = has_image.then(|| by_mapping.begin(frame));
                listed.name(&[address], begin, frame, names);
            }
        }
        listed.number(known, names);
        let new = std::mem::replace(&mut names.warnings, warned);
        for warning in new {
            SymbolWarning::add(&mut names.warnings, warning);
        }
        Ok(())
    }

    fn resolve_group(
        &self,
        group: &Group<'_>,
        mappings: &[Mapping],
        by_mapping: &mut ByMapping,
        names: &mut Names,
    ) {
        let is_program = group.mappings.contains(&0);
        let mut frames: Vec<(usize, u64, FrameId)> = Vec::new();
        for &at in &group.mappings {
            let found = std::mem::take(&mut by_mapping.mapped[at]);
            frames.extend(found.into_iter().map(|(address, frame)| (at, address, frame)));
        }
        if frames.is_empty() {
            return;
        }
        let mut image_id = None;
        let assigned = group.image.as_ref().map(Assigned::image);
        let found = match (assigned, group.build_id()) {
            (None, Some(id)) => self.images.options.find_image(id, &mut names.warnings),
            _ => None,
        };
        let image = assigned.or(found.as_ref());
        if let Some(image) = image {
            let id = names.add_image(&path_text(image), image.build_id());
            match is_program {
                true => names.set_program(id),
                false => names.set_library(id, &mappings[group.mappings[0]].path),
            }
            image_id = Some(id);
            let linked = frames
                .iter()
                .filter_map(|(at, address, frame)| {
                    Some((image.link_address(&mappings[*at], *address)?, *frame))
                })
                .collect();
            self.resolve_image(image, id, linked, names, &mut by_mapping.unnamed);
        }
        if is_program {
            let known = names.functions().len();
            let mut listed = Listed::new(&self.images.symbol_files, image_id);
            for (at, address, frame) in &frames {
                if !names.has(*frame) {
                    let mapping = &mappings[*at];
                    let candidates = match image {
                        Some(image) => vec![image.link_address(mapping, *address)],
                        // Where the image is unknown it lies either where it was linked, or as
                        // far from there as its mapping is from its place in the file.
                        None => vec![Some(*address), mapping.offset_of(*address)],
                    };
                    let candidates: Vec<u64> = candidates.into_iter().flatten().collect();
                    let begin = image.map(|_| by_mapping.begin(*frame));
                    listed.name(&candidates, begin, *frame, names);
                }
            }
            listed.number(known, names);
        }
        for (at, _, frame) in &frames {
            names.note_mapping(*at, *frame);
        }
        let unnamed = frames.iter().filter(|(_, _, frame)| !names.has(*frame)).count();
        if unnamed != 0 && image.is_none() {
            names.warnings.push(SymbolWarning::NoImage {
                mapping: group.name().to_owned(),
                build_id: group.build_id().cloned(),
                addresses: unnamed,
            });
        }
    }

    /// Names the frames at these link addresses, as far as the image and its debug file can.
    fn resolve_image(
        &self,
        image: &Image,
        id: ImageId,
        linked: Vec<(u64, FrameId)>,
        names: &mut Names,
        unnamed: &mut HashMap<FrameId, Unnamed>,
    ) {
        let warned = names.warnings.len();
        let separate = self.resolve_unchanged(image, id, linked, names, unnamed);
        let mut files = [Some(image), separate.as_ref()].into_iter().flatten();
        if let Some(changed) = files.find(|file| file.bytes().has_changed()) {
            // What else is wrong with it may be so for that reason.
            names.warnings.truncate(warned);
            names.warnings.push(SymbolWarning::Changed { path: changed.path().to_owned() });
        }
    }

    /// The same unless its files change meanwhile. Answers the debug file.
    fn resolve_unchanged(
        &self,
        image: &Image,
        id: ImageId,
        mut linked: Vec<(u64, FrameId)>,
        names: &mut Names,
        unnamed: &mut HashMap<FrameId, Unnamed>,
    ) -> Option<Image> {
        linked.sort_unstable();
        // It was parsed when it was opened.
        let file = ElfFile::parse(image.bytes()).ok()?;
        let mut sections = DebugSections::of(&file);
        let mut info_path = image.path();

        let separate = match sections {
            None => self.separate_file(image, &file, &mut names.warnings),
            Some(_) => None,
        };
        let debug = separate.as_ref().and_then(|file| ElfFile::parse(file.bytes()).ok());
        if let (Some(separate), Some(debug)) = (&separate, &debug) {
            sections = DebugSections::of(debug);
            info_path = separate.path();
        }
        let table = NameTable::from_elf(&file, debug.as_ref());
        if let Some(sections) = &mut sections {
            let paths = [info_path, image.path()];
            let dirs = &self.images.options.debug_dirs;
            sections.read_split(debug.as_ref().unwrap_or(&file), &paths, dirs);
        }
        let mut damage = Damage::default();
        let info = sections.as_ref().and_then(|sections| {
            if let Some(problem) = &sections.damage {
                damage.note(problem);
            }
            sections.open().inspect_err(|problem| damage.note(problem)).ok()
        });
        // The kernel's own code is as it is.
        if sections.is_none() && !vdso::is_vdso(image.path()) {
            let path = image.path().to_owned();
            names.warnings.push(if table.is_stripped() && self.images.symbol_files.is_empty() {
                SymbolWarning::Stripped { path }
            } else {
                SymbolWarning::NoDebugInfo { path }
            });
        }
        let known = names.functions().len();
        let source = NameSource { image: id, info: info.as_ref(), table: &table };
        for here in linked.chunk_by(|(one, _), (next, _)| one == next) {
            let (address, _) = here[0];
            let begin = names.begin();
            source.name_address(address, names, &mut damage);
            here.iter().for_each(|(_, frame)| names.assign(*frame, begin));
            if names.begin() == begin
                && let Some((start, is_described)) = table.unnamed(address)
            {
                let distance = address - start;
                let found = Unnamed { image: id, start, distance, is_described };
                unnamed.extend(here.iter().map(|(_, frame)| (*frame, found)));
            }
        }
        source.add_namesakes(known, names);
        if let Some(missing) = sections.as_ref().and_then(DebugSections::missing) {
            names.warnings.push(SymbolWarning::DebugFileMissing {
                path: info_path.to_owned(),
                missing: missing.clone(),
            });
        }
        if let Some(problem) = damage.first {
            names.warnings.push(SymbolWarning::DamagedDebugInfo {
                path: info_path.to_owned(),
                problem,
                addresses: damage.addresses,
            });
        }
        separate
    }
}

impl Symbolizer {
    /// The file with the debug information of an image that has none itself.
    pub(super) fn separate_file(
        &self,
        image: &Image,
        file: &ElfFile<'_>,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        let options = &self.images.options;
        debug_file::find(image, file, &options.debug_dirs, warnings)
            .or_else(|| options.find_debug_info(image.build_id()?, warnings))
    }
}

/// What was wrong with the debug information of one file.
#[derive(Default)]
struct Damage {
    first: Option<String>,
    addresses: usize,
}

impl Damage {
    fn note(&mut self, problem: &impl ToString) {
        self.first.get_or_insert_with(|| problem.to_string());
    }
}

/// What names the functions of one image.
pub(super) struct NameSource<'s, 'a> {
    pub(super) image: ImageId,
    pub(super) info: Option<&'s DebugInfo<'a>>,
    pub(super) table: &'s NameTable<'s>,
}

impl NameSource<'_, '_> {
    /// Pushes the symbols of one address: from DWARF, with the symbol table for what DWARF leaves
    /// out.
    fn name_address(&self, address: u64, names: &mut Names, damage: &mut Damage) {
        let begin = names.begin();
        let mut nameless = None;
        if let Some(info) = self.info {
            let result = info.find(address, |found| {
                let file = found.file.map(|path| names.file(path));
                let Some(raw_name) = found.raw_name else {
                    nameless.get_or_insert((file, found.line));
                    return;
                };
                let place = found.declared.map(|declared| names.place(&declared));
                // What was not inlined has a symbol; that tells crate and module where DWARF does
                // not.
                let symbol = (!found.inlined).then(|| self.table.find(address)).flatten();
                let function = match symbol {
                    Some(symbol) if is_mangled(symbol) && !is_mangled(&raw_name) => {
                        let place = place.filter(|_| has_place(symbol));
                        names.function_in(Some(self.image), None, symbol, place)
                    }
                    // Named as C or OCaml name functions.
                    Some(_) => self.plain_function(address, &raw_name, place, names),
                    None => {
                        let path = found.path.as_deref();
                        names.function_in(Some(self.image), path, &raw_name, place)
                    }
                };
                names.push(Symbol { function, file, line: found.line, inlined: found.inlined });
            });
            if let Err(problem) = result {
                damage.note(&problem);
                damage.addresses += 1;
            }
        }
        if let Some(outermost) = names.since(begin).last_mut() {
            outermost.inlined = false;
        } else if let Some(raw_name) = self.table.find(address) {
            let function = self.plain_function(address, raw_name, None, names);
            let (file, line) = nameless.unwrap_or_default();
            names.push(Symbol { function, file, line, inlined: false });
        }
    }

    /// The function that holds an address, by a name of the symbol table. The `place` is what DWARF
    /// tells.
    fn plain_function(
        &self,
        address: u64,
        raw_name: &str,
        place: Option<Place>,
        names: &mut Names,
    ) -> FunctionId {
        let symbol = self.table.entry(address).filter(|_| stem(raw_name).is_some());
        if ocaml::stem(raw_name).is_none() {
            let whole = symbol.map(|symbol| self.table.whole(symbol));
            // A program's functions have different names, but for those that only one file sees.
            let place = place.or_else(|| match whole.map(|it| (it.is_local(), it.file))? {
                // Files of one name may lie in several folders.
                (_, Some((file, _))) if is_source(file) => {
                    Some(Place { column: whole?.start as u32, ..names.place_in(file) })
                }
                // A unit of Rust's compiler holds copies of others' functions, and one that a linker
                // made has statics of several files.
                (_, Some(_)) if without_copies(raw_name) == without_suffixes(raw_name) => None,
                (false, None) => Some(names.place_in("")),
                _ => Some(names.place_at(order(raw_name, whole?.start))),
            });
            return names.function_in(Some(self.image), None, raw_name, place);
        }
        let start = symbol.map_or(address, |symbol| symbol.start);
        let declared = self.info.and_then(|info| info.declared_at(start));
        let text = || declared.as_ref().map(|declared| declared.text());
        let path = (!names.raw).then(|| ocaml::demangle(raw_name, text)).flatten();
        let place = match &declared {
            Some(declared) => names.place(declared),
            None => names.place_at(start),
        };
        names.function_in(Some(self.image), path.as_deref(), raw_name, Some(place))
    }

    /// The function that holds an address, which may not occur in the profile.
    pub(super) fn function_at(&self, address: u64, names: &mut Names) -> Option<FunctionId> {
        let begin = names.begin();
        self.name_address(address, names, &mut Damage::default());
        let outermost = names.since(begin).last().map(|symbol| symbol.function);
        names.forget(begin);
        outermost
    }
}

/// Whether a symbol table names a file of the source, and not a unit made by a compiler, such as
/// `core.1f0e5c-cgu.0` or `a.ltrans0.o`.
fn is_source(file: &str) -> bool {
    let kind = file.rsplit_once('.').map_or("o", |(_, kind)| kind);
    kind != "o" && kind.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// Names frames by symbol lists.
struct Listed<'l> {
    lists: &'l [SymbolFile],
    image: Option<ImageId>,
    /// By their addresses and names, the functions that were met and their namesakes.
    met: HashMap<(u64, &'l str), FunctionId>,
}

impl<'l> Listed<'l> {
    fn new(lists: &'l [SymbolFile], image: Option<ImageId>) -> Listed<'l> {
        Listed { lists, image, met: HashMap::new() }
    }

    /// Names a frame from the first list that knows one of the addresses.
    fn name(&mut self, candidates: &[u64], begin: Option<u64>, frame: FrameId, names: &mut Names) {
        let found = self.lists.iter().find_map(|list| {
            let mut spanned = candidates.iter().filter(|a| list.spans(**a));
            let found = spanned.find_map(|a| list.find(*a, begin));
            found.or_else(|| candidates.iter().find_map(|a| list.find(*a, begin)))
        });
        let Some(found) = found else { return };
        let key = (found.start, &*found.name);
        if !self.met.contains_key(&key) {
            for (of_name, whole) in namesakes(self.lists, found) {
                let place = Some(names.place_at(whole));
                let function = names.function_in(self.image, None, &of_name.name, place);
                self.met.insert((of_name.start, &of_name.name), function);
            }
        }
        let alone = || names.function(self.image, &found.name);
        let function = *self.met.entry(key).or_insert_with(alone);
        names.assign_function(frame, function);
    }

    /// Names the lambdas and closures that were met since there were `known` functions across
    /// builds.
    fn number(mut self, known: usize, names: &mut Names) {
        let numbered = Numbered::of(&names.functions()[known..], self.image);
        for (symbol, numbers) in self.lists.iter().flat_map(|list| numbered.find(list.entries())) {
            let alone = || names.function(self.image, &symbol.name);
            let key = (symbol.start, &*symbol.name);
            let function = *self.met.entry(key).or_insert_with(alone);
            names.across(function.index()).namesake = numbers;
        }
    }
}

/// Marks get their text. Code without a name is named by its image and the offset in it: of its
/// function if that is known, else of the address itself.
fn name_the_rest(profile: &Profile, by_mapping: &ByMapping, names: &mut Names) {
    let mappings = profile.mappings();
    for (at, frame) in profile.frames().iter().enumerate() {
        let id = FrameId(at as u32);
        if names.has(id) {
            continue;
        }
        let function = match frame {
            Frame::Special(mark) => {
                Function::new(mark.to_string(), None, FunctionKind::Special(*mark))
            }
            Frame::Address { address, .. } => {
                let address = frame.lookup_address().unwrap_or(*address);
                let mapping = by_mapping.of_frame[at].map(|mapping| &mappings[mapping as usize]);
                let unnamed = by_mapping.unnamed.get(&id);
                let distance = unnamed.map_or(0, |unnamed| unnamed.distance);
                let image = match (mapping, unnamed) {
                    (Some(mapping), _) => mapping.file_name().to_owned(),
                    (None, Some(unnamed)) => names.image_name(unnamed.image).to_owned(),
                    (None, None) => String::new(),
                };
                let offset = match (unnamed, mapping) {
                    (_, Some(mapping)) => {
                        mapping.offset_of(address).map(|it| it.wrapping_sub(distance))
                    }
                    (unnamed, None) => unnamed.map(|unnamed| unnamed.start),
                };
                let name = match offset.filter(|_| !image.is_empty()) {
                    Some(offset) => format!("{image}+{offset:#x}"),
                    None => format!("{:#x}", address.wrapping_sub(distance)),
                };
                let is_program = mapping.map_or(mappings.is_empty(), |mapping| {
                    mappings.first().is_some_and(|program| program.path == mapping.path)
                });
                let across = match image.as_str() {
                    _ if is_program => "[program]".to_owned(),
                    "" => "[outside of all images]".to_owned(),
                    image => format!("[{}]", without_version(image)),
                };
                let image = unnamed.map(|unnamed| unnamed.image);
                let mut function = Function::new(name, image, FunctionKind::Address);
                function.across = AcrossBuilds {
                    name: across,
                    build: mapping.and_then(|mapping| mapping.build_id.clone()),
                    is_lone: !unnamed.is_some_and(|unnamed| unnamed.is_described),
                    ..AcrossBuilds::default()
                };
                function
            }
        };
        let function = names.intern(function);
        names.assign_function(id, function);
    }
}

fn path_text(image: &Image) -> String {
    image.path().to_string_lossy().into_owned()
}

pub(super) fn file_name(image: &Image) -> String {
    image.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::profile::ProfileBuilder;
    use crate::symbols::{Force, ImageOptions};
    use unikprof_test_kit::elf::TestElf;

    const MAIN: u64 = 0x10_1000;

    fn profile(mapping: Mapping, addresses: &[u64]) -> Profile {
        let mut builder = ProfileBuilder::new();
        builder.add_mapping(mapping);
        for address in addresses {
            let stack = [Frame::leaf(*address), Frame::caller(MAIN)];
            builder.add_stack(0, 1, &stack).unwrap();
        }
        builder.finish()
    }

    fn names(symbolized: &Symbolized<'_>) -> Vec<String> {
        let frames = symbolized.profile().frame_ids();
        let function = |frame| symbolized.function(symbolized.frame(frame)[0].function);
        frames.map(|frame| function(frame).name.clone()).collect()
    }

    /// What a profile has in common with the one before is not looked up again, whatever the order
    /// of its frames, and a warning counts each address once.
    #[test]
    fn only_new_addresses_are_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("symbols");
        let symbols = |text: &str| {
            fs::write(&list, text).unwrap();
            let mut images = Images::new(ImageOptions::default());
            images.add_symbols(&list).unwrap();
            Symbolizer::new(images)
        };
        let before = symbols("0000000000101000 0000000000000100 T main\n");
        let after = symbols(
            "0000000000101000 0000000000000100 T other\n0000000000102000 0000000000000100 T work\n",
        );
        let mapping = Mapping {
            start: 0x10_0000,
            end: 0x20_0000,
            path: "web.elf".into(),
            ..Mapping::default()
        };
        let mut known = KnownNames::default();
        let first = profile(mapping.clone(), &[MAIN + 8, MAIN + 0x4000]);
        let first = before.resolve_new(&first, &mut known).unwrap();
        assert_eq!(names(&first)[1], "main");
        let unnamed = |symbolized: &Symbolized<'_>| match symbolized.warnings() {
            [SymbolWarning::NoImage { addresses, .. }] => *addresses,
            other => panic!("{other:?}"),
        };
        assert_eq!(unnamed(&first), 2, "the call of main is outside of it");
        let next = profile(mapping.clone(), &[MAIN + 0x1010, MAIN + 0x5000, MAIN + 8]);
        let next = after.resolve_new(&next, &mut known).unwrap();
        let found = names(&next);
        assert!(found.contains(&"main".into()) && found.contains(&"work".into()), "{found:?}");
        assert!(!found.contains(&"other".into()), "{found:?}");
        assert_eq!(unnamed(&next), 3, "one more");

        // Code elsewhere is another program.
        let moved = Mapping { end: 0x30_0000, ..mapping };
        let moved = profile(moved, &[MAIN + 8]);
        let moved = after.resolve_new(&moved, &mut known).unwrap();
        assert!(names(&moved).contains(&"other".into()));
        assert_eq!(unnamed(&moved), 1);
    }

    /// Guards a false reason: that the image is stripped or damaged.
    #[test]
    fn an_image_that_changes_while_it_is_read_is_told() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let elf = TestElf::new(&[0xf4; 16], &[(".rest", 0, &[7; 5_000])]);
        fs::write(&image, elf.bytes()).unwrap();
        let mut images = Images::new(ImageOptions::default());
        images.add_image(image.path(), Force::No).unwrap();
        let later = SystemTime::now() + Duration::from_secs(3);
        image.as_file().set_modified(later).unwrap();
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 1, &[Frame::leaf(MAIN)]).unwrap();
        let profile = builder.finish();
        let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
        let path = image.path().to_owned();
        assert_eq!(symbolized.warnings(), [SymbolWarning::Changed { path }]);
    }

    /// Guards memory that grows with the image: 680 MB for one of 625 MB.
    #[test]
    #[cfg(target_os = "linux")]
    fn of_many_units_those_that_hold_an_address_are_read() {
        use gimli::write::{
            Address, AttributeValue, Dwarf, EndianVec, LineProgram, Sections, Unit,
        };
        use gimli::{DW_AT_high_pc, DW_AT_low_pc, DW_AT_name, DW_TAG_base_type, DW_TAG_subprogram};

        const UNITS: u64 = 24;
        let encoding =
            gimli::Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };
        let mut dwarf = Dwarf::new();
        let text = |text: String| AttributeValue::String(text.into_bytes());
        for number in 0..UNITS {
            let unit = dwarf.units.add(Unit::new(encoding, LineProgram::none()));
            let unit = dwarf.units.get_mut(unit);
            let root = unit.root();
            let function = unit.add(root, DW_TAG_subprogram);
            for entry in [root, function] {
                let start = Address::Constant(MAIN + number * 16);
                unit.get_mut(entry).set(DW_AT_low_pc, AttributeValue::Address(start));
                unit.get_mut(entry).set(DW_AT_high_pc, AttributeValue::Udata(16));
            }
            unit.get_mut(function).set(DW_AT_name, text(format!("f{number}")));
            let large = unit.add(root, DW_TAG_base_type);
            unit.get_mut(large).set(DW_AT_name, text("x".repeat(1 << 20)));
        }
        let mut sections = Sections::new(EndianVec::new(gimli::LittleEndian));
        dwarf.write(&mut sections).unwrap();
        let mut list = Vec::new();
        let add = |id: gimli::SectionId, bytes: &EndianVec<_>| {
            list.push((id.name(), 0, bytes.slice().to_vec()));
            Ok::<(), gimli::Error>(())
        };
        sections.for_each(add).unwrap();
        let list: Vec<_> = list.iter().map(|(name, at, bytes)| (*name, *at, &bytes[..])).collect();
        let image = tempfile::NamedTempFile::new().unwrap();
        fs::write(&image, TestElf::new(&[0xf4; 16], &list).bytes()).unwrap();

        // This thread's, in bytes.
        let read = || -> u64 {
            let counts = fs::read_to_string("/proc/thread-self/io").unwrap();
            counts.lines().find_map(|it| it.strip_prefix("rchar: ")).unwrap().parse().unwrap()
        };
        let mut builder = ProfileBuilder::new();
        builder.add_stack(0, 1, &[Frame::leaf(MAIN + 7 * 16)]).unwrap();
        let profile = builder.finish();
        let before = read();
        let mut images = Images::new(ImageOptions::default());
        images.add_image(image.path(), Force::No).unwrap();
        let symbolized = Symbolizer::new(images).resolve(&profile).unwrap();
        assert_eq!(names(&symbolized), ["f7"]);
        let read = read() - before;
        assert!(read < 4 << 20, "{read} bytes of {UNITS} units of 1 MiB");
    }
}
