//! A profile with names.

use std::collections::{HashMap, HashSet};

use super::debug_info::Declared;
use super::demangle::demangle;
use super::error::SymbolWarning;
use super::identity::{AcrossBuilds, Place, ends, labelled, libraries};
use super::memory_work::allocator_depth;
use crate::printable::Printable;
use crate::profile::{BuildId, Frame, FrameId, Mapping, Mode, Profile};

/// A function of a [`Symbolized`] profile, by its place in the table of functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// An index into the source files; [`Symbolized::file`] gives the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u32);

/// An index into the image names; [`Symbolized::image`] gives the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub(crate) u32);

impl FunctionId {
    /// The place in [`Symbolized::functions`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A function. Those of one name in one image are one, unless they are declared at different
/// places: the instances of a generic function count together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Demangled, with its file, as in `helper (a.c)`, if the image has others of this name. Code
    /// without a name is `libc.so.6+0x1234`, or an address.
    pub name: String,
    /// The length of the name without its file, in bytes.
    bare: usize,
    /// As in the image (of the first instance met).
    pub raw_name: String,
    /// The program or library, if known.
    pub image: Option<ImageId>,
    /// The kind of the name.
    pub kind: FunctionKind,
    /// Where it is declared.
    pub place: Option<Place>,
    pub(super) across: AcrossBuilds,
}

impl Function {
    /// A function without a file.
    pub fn new(name: String, image: Option<ImageId>, kind: FunctionKind) -> Function {
        Function {
            bare: name.len(),
            raw_name: name.clone(),
            name,
            image,
            kind,
            place: None,
            across: AcrossBuilds::default(),
        }
    }

    /// The name without its file.
    pub fn bare_name(&self) -> &str {
        &self.name[..self.bare]
    }

    /// What tells it from its namesakes in all builds, or nothing.
    pub(super) fn namesake(&self) -> &str {
        &self.across.namesake
    }

    /// Whether tables call it so.
    pub fn is_called(&self, text: &str, called: Called) -> bool {
        let AcrossBuilds { name, namesake, library, .. } = &self.across;
        let is_text = |name: &str| !text.is_empty() && Printable(name).to_string() == text;
        let is_of_builds = |name: &str| {
            is_text(name) || !library.is_empty() && is_text(&format!("{name} ({library})"))
        };
        match called {
            Called::Here => is_text(&self.name),
            Called::Bare => is_text(self.bare_name()),
            Called::AcrossBuilds => is_of_builds(&format!("{name}{namesake}")),
            Called::WithNamesakes => is_of_builds(name),
        }
    }

    /// As the function of a profile of several builds, under a name that [`Builds::name`] replaces.
    ///
    /// [`Builds::name`]: super::identity::Builds::name
    pub(super) fn in_any_image(&self) -> Function {
        let AcrossBuilds { name, namesake, library, .. } = &self.across;
        let name = match self.kind {
            FunctionKind::Address if !self.is_lone_address() => self.name.clone(),
            _ => format!("{name}{namesake} ({library})"),
        };
        let (image, place, bare) = (None, None, name.len());
        Function { name, bare, image, place, ..self.clone() }
    }

    /// Whether it is code of no known function: of an address that no table describes.
    pub fn is_lone_address(&self) -> bool {
        self.across.is_lone
    }
}

/// By which of its names a function is meant, in the order of their precedence.
#[derive(Debug, Clone, Copy)]
pub enum Called {
    /// That of reports.
    Here,
    /// That of reports without the file, where it stands for all namesakes.
    Bare,
    /// That of comparisons of builds which have the same namesakes.
    AcrossBuilds,
    /// That of comparisons of other builds, where it stands for all namesakes.
    WithNamesakes,
}

impl Called {
    /// All of them.
    pub const ALL: [Called; 4] =
        [Called::Here, Called::Bare, Called::AcrossBuilds, Called::WithNamesakes];
}

/// The kind of a function's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// A function of the guest.
    Named,
    /// An address without a name.
    Address,
    /// A function of the profiler's agent.
    Agent,
    /// A mark such as `[truncated]`.
    Special(crate::profile::SpecialFrame),
}

/// One function at a frame's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// The function.
    pub function: FunctionId,
    /// The source file.
    pub file: Option<FileId>,
    /// The line in `file`, from 1.
    pub line: Option<u32>,
    /// Whether it was inlined into the symbol after it.
    pub inlined: bool,
}

/// The symbol information for the code in one mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MappingSymbols {
    /// Some address has a function's name.
    pub functions: bool,
    /// Some address has a source file and a line.
    pub lines: bool,
    /// Inlined functions are known.
    pub inlined: bool,
}

/// A profile and a name for each of its frames.
#[derive(Debug)]
pub struct Symbolized<'p> {
    profile: &'p Profile,
    /// `symbols[ends[f - 1]..ends[f]]` belong to frame `f`.
    ends: Vec<u32>,
    symbols: Vec<Symbol>,
    functions: Vec<Function>,
    files: Vec<String>,
    images: Vec<String>,
    mappings: Vec<MappingSymbols>,
    mapping_of_frame: Vec<Option<u32>>,
    warnings: Vec<SymbolWarning>,
}

impl<'p> Symbolized<'p> {
    /// The profile that was named.
    pub fn profile(&self) -> &'p Profile {
        self.profile
    }

    /// The same names for another profile with the same frames, such as one of another
    /// [window](crate::timeline::Timeline::profile).
    ///
    /// # Panics
    ///
    /// If the other has other frames.
    pub fn of_window<'q>(self, profile: &'q Profile) -> Symbolized<'q> {
        assert!(self.profile.frames() == profile.frames(), "a profile with other frames");
        Symbolized { profile, ..self }
    }

    /// The functions at a frame's address, innermost first; at least one.
    ///
    /// # Panics
    ///
    /// If the id comes from another profile and is out of range here.
    pub fn frame(&self, id: FrameId) -> &[Symbol] {
        let end = self.ends[id.index()] as usize;
        let start = id.index().checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.symbols[start..end]
    }

    /// In the order of their ids.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// One function.
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.index()]
    }

    /// The path of a source file, as the compiler wrote it.
    pub fn file(&self, id: FileId) -> &str {
        &self.files[id.0 as usize]
    }

    /// The name of a program or library, with its folder if another one's file has this name.
    pub fn image(&self, id: ImageId) -> &str {
        let path = self.image_path(id);
        let paths = self.images.iter().map(String::as_str);
        let namesakes: Vec<&str> = paths.filter(|it| ends(&[it]) == ends(&[path])).collect();
        let at = namesakes.iter().position(|it| *it == path).unwrap_or(0);
        ends(&namesakes)[at]
    }

    /// The path of a program's or library's file.
    pub fn image_path(&self, id: ImageId) -> &str {
        &self.images[id.0 as usize]
    }

    /// The symbol information for each of [`Profile::mappings`].
    pub fn mapping_symbols(&self) -> &[MappingSymbols] {
        &self.mappings
    }

    /// The place in [`Profile::mappings`] of the mapping that holds a frame's address.
    pub fn mapping_of(&self, id: FrameId) -> Option<usize> {
        self.mapping_of_frame[id.index()].map(|mapping| mapping as usize)
    }

    /// The place of a frame's code in its file; `None` if it lies in no mapping.
    pub fn offset_of(&self, id: FrameId) -> Option<u64> {
        let mapping = &self.profile.mappings()[self.mapping_of(id)?];
        mapping.offset_of(self.profile.frame(id).lookup_address()?)
    }

    /// Warnings about the names.
    pub fn warnings(&self) -> &[SymbolWarning] {
        &self.warnings
    }
}

/// The names of the frames that were met so far, kept from one profile of a guest to the next.
#[derive(Debug, Default)]
pub struct KnownNames {
    names: Names,
    mappings: Vec<Mapping>,
    /// Where the symbols of a frame begin and end.
    frames: HashMap<Frame, (u32, u32)>,
}

impl KnownNames {
    /// Whether no profile was named yet.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What is known of a profile's frames; nothing if its code lies elsewhere. [`KnownNames::end`]
    /// takes it back.
    pub(super) fn begin(&mut self, profile: &Profile) -> Names {
        let (frames, mappings) = (profile.frames(), profile.mappings());
        if self.is_empty() || self.mappings != mappings {
            *self = KnownNames::default();
            return Names::new(frames.len(), mappings.len());
        }
        let known = frames.iter().map(|frame| self.frames.get(frame).copied().unwrap_or_default());
        Names { frames: known.collect(), ..std::mem::take(&mut self.names) }
    }

    pub(super) fn end(&mut self, profile: &Profile, names: Names) {
        let frames = profile.frames().iter().copied();
        self.frames.extend(frames.zip(names.frames.iter().copied()));
        self.mappings = profile.mappings().to_vec();
        self.names = names;
    }
}

/// Collects the names of frames in any order.
#[derive(Debug, Default)]
pub struct Names {
    /// Where the symbols of a frame begin and end in `symbols`.
    frames: Vec<(u32, u32)>,
    symbols: Vec<Symbol>,
    functions: Vec<Function>,
    function_ids: HashMap<(Option<ImageId>, String, Option<Place>), FunctionId>,
    /// Demangling is dear and names repeat. By image and place, then path, a NUL and the raw name.
    by_raw_name: HashMap<(Option<ImageId>, Option<Place>), HashMap<String, FunctionId>>,
    /// The key under which a name is looked up.
    key: String,
    /// Names stay as their compilers wrote them.
    pub(crate) raw: bool,
    files: Vec<String>,
    file_ids: HashMap<String, FileId>,
    /// The paths of their files.
    images: Vec<String>,
    image_ids: HashMap<(String, String), ImageId>,
    /// The image that is no library.
    program: Option<ImageId>,
    /// The paths of libraries in the guest.
    in_guest: HashMap<ImageId, String>,
    pub(crate) mappings: Vec<MappingSymbols>,
    pub(crate) warnings: Vec<SymbolWarning>,
}

impl Names {
    /// None yet, with room for so many.
    pub fn new(frames: usize, mappings: usize) -> Names {
        Names {
            frames: vec![(0, 0); frames],
            mappings: vec![MappingSymbols::default(); mappings],
            ..Names::default()
        }
    }

    /// Makes room for so many frames.
    pub(super) fn make_room(&mut self, frames: usize) {
        self.frames.resize(frames, (0, 0));
    }

    /// One function.
    pub(super) fn function_of(&self, id: FunctionId) -> &Function {
        &self.functions[id.index()]
    }

    /// All that were met.
    pub(super) fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Gives them other names. Answers, by function, the first one that has its name now.
    pub(super) fn rename(&mut self, name: impl Fn(&Function) -> String) -> Vec<FunctionId> {
        let mut first: HashMap<String, FunctionId> = HashMap::new();
        let renamed = self.functions.iter_mut().enumerate().map(|(at, function)| {
            function.name = name(function);
            function.bare = function.name.len();
            *first.entry(function.name.clone()).or_insert(FunctionId(at as u32))
        });
        renamed.collect()
    }

    /// The name of the file of a program or library.
    pub(super) fn image_name(&self, id: ImageId) -> &str {
        ends(&[&self.images[id.0 as usize]])[0]
    }

    pub(super) fn place(&mut self, declared: &Declared) -> Place {
        let Declared { line, column, .. } = *declared;
        Place { line, column, ..self.place_in(&declared.file) }
    }

    /// Somewhere in a file.
    pub fn place_in(&mut self, file: &str) -> Place {
        Place { file: self.file(file), line: 0, column: 0 }
    }

    /// In an unknown file, by the order of addresses.
    pub fn place_at(&mut self, address: u64) -> Place {
        Place { line: (address >> 32) as u32, column: address as u32, ..self.place_in("") }
    }

    /// What one of them is called across builds.
    pub(super) fn across(&mut self, at: usize) -> &mut AcrossBuilds {
        &mut self.functions[at].across
    }

    /// See [`labelled`].
    pub(super) fn labelled(&self) -> (Vec<Function>, Vec<FunctionId>) {
        labelled(&self.functions, &self.files)
    }

    /// Tells functions of one name in several images apart.
    fn tell_images(&self, profile: &Profile, functions: &mut [Function]) {
        let path = |image: ImageId| match self.in_guest.get(&image) {
            Some(path) => path.as_str(),
            None => &self.images[image.0 as usize],
        };
        let is_library = |image: &ImageId| Some(*image) != self.program;
        let all = (0..self.images.len() as u32).map(ImageId).filter(is_library).map(path);
        let mapped = profile.mappings().iter().map(|mapping| mapping.path.as_str());
        let called = libraries(all.chain(mapped));
        let mut images: HashMap<&str, HashSet<Option<ImageId>>> = HashMap::new();
        for function in &*functions {
            images.entry(&function.name).or_default().insert(function.image);
        }
        let in_several = functions.iter().map(|function| images[&*function.name].len() > 1);
        let in_several: Vec<bool> = in_several.collect();
        for (Function { name, image, across, .. }, is_in_several) in
            functions.iter_mut().zip(in_several)
        {
            let Some(image) = image.filter(is_library) else { continue };
            across.library = called[path(image)].clone();
            if is_in_several {
                *name += &format!(" ({})", across.library);
            }
        }
    }

    /// The path of a source file.
    pub(super) fn path(&self, id: FileId) -> &str {
        &self.files[id.0 as usize]
    }

    /// Images are the same if their files have one name and one build-id; without one, one path.
    pub fn add_image(&mut self, path: &str, build_id: Option<&BuildId>) -> ImageId {
        let file = ends(&[path])[0].to_owned();
        let key = (file, build_id.map_or_else(|| path.to_owned(), BuildId::to_string));
        let next = ImageId(self.images.len() as u32);
        let id = *self.image_ids.entry(key).or_insert(next);
        if id == next {
            self.images.push(path.to_owned());
        }
        id
    }

    /// Says which image is the program.
    pub(super) fn set_program(&mut self, image: ImageId) {
        self.program.get_or_insert(image);
    }

    /// Says where a library lies in the guest.
    pub(super) fn set_library(&mut self, image: ImageId, path: &str) {
        self.in_guest.entry(image).or_insert_with(|| path.to_owned());
    }

    /// The function of this name in the image; it is made if it is new.
    pub fn function(&mut self, image: Option<ImageId>, raw_name: &str) -> FunctionId {
        self.function_in(image, None, raw_name, None)
    }

    /// A function by its name and place; `path` is the name with its scopes where the raw name lacks
    /// them.
    pub fn function_in(
        &mut self,
        image: Option<ImageId>,
        path: Option<&str>,
        raw_name: &str,
        place: Option<Place>,
    ) -> FunctionId {
        self.key.clear();
        self.key.push_str(path.unwrap_or_default());
        self.key.push('\0');
        self.key.push_str(raw_name);
        let known = self.by_raw_name.entry((image, place)).or_default();
        if let Some(id) = known.get(&self.key) {
            return *id;
        }
        let name = match path {
            Some(path) => path.to_owned(),
            None if self.raw => raw_name.to_owned(),
            None => demangle(raw_name).unwrap_or_else(|| raw_name.to_owned()),
        };
        let kind = if is_agent(&name) { FunctionKind::Agent } else { FunctionKind::Named };
        let key = self.key.clone();
        let raw_name = raw_name.to_owned();
        let id = self.intern(Function { raw_name, place, ..Function::new(name, image, kind) });
        self.by_raw_name.entry((image, place)).or_default().insert(key, id);
        id
    }

    /// A function with a name that needs no reading.
    pub fn intern(&mut self, function: Function) -> FunctionId {
        let next = FunctionId(self.functions.len() as u32);
        let key = (function.image, function.name.clone(), function.place);
        let id = *self.function_ids.entry(key).or_insert(next);
        if id == next {
            self.functions.push(function);
        }
        id
    }

    /// The file of this path; it is made if it is new.
    pub fn file(&mut self, path: &str) -> FileId {
        if let Some(id) = self.file_ids.get(path) {
            return *id;
        }
        let id = FileId(self.files.len() as u32);
        self.files.push(path.to_owned());
        self.file_ids.insert(path.to_owned(), id);
        id
    }

    /// Begins the symbols of an address; [`Names::push`] adds to them.
    pub fn begin(&self) -> u32 {
        self.symbols.len() as u32
    }

    /// Names the next frame.
    pub fn push(&mut self, symbol: Symbol) {
        self.symbols.push(symbol);
    }

    /// Drops the symbols that were pushed since `begin`.
    pub(super) fn forget(&mut self, begin: u32) {
        self.symbols.truncate(begin as usize);
    }

    /// The symbols that were pushed since `begin`.
    pub(crate) fn since(&mut self, begin: u32) -> &mut [Symbol] {
        &mut self.symbols[begin as usize..]
    }

    /// Gives the symbols that were pushed since `begin` to a frame; several frames may share
    /// them.
    pub fn assign(&mut self, frame: FrameId, begin: u32) {
        self.frames[frame.index()] = (begin, self.symbols.len() as u32);
    }

    /// Gives a frame one function without a source location.
    pub(crate) fn assign_function(&mut self, frame: FrameId, function: FunctionId) {
        let begin = self.begin();
        self.push(Symbol { function, file: None, line: None, inlined: false });
        self.assign(frame, begin);
    }

    /// Whether the frame has symbols.
    pub(crate) fn has(&self, frame: FrameId) -> bool {
        let (begin, end) = self.frames[frame.index()];
        begin != end
    }

    /// Notes what a frame's symbols say of the mapping it lies in.
    pub fn note_mapping(&mut self, mapping: usize, frame: FrameId) {
        let (begin, end) = self.frames[frame.index()];
        let symbols = &self.symbols[begin as usize..end as usize];
        let known = &mut self.mappings[mapping];
        known.functions |= !symbols.is_empty();
        known.lines |= symbols.iter().any(|s| s.line.is_some());
        known.inlined |= symbols.iter().any(|s| s.inlined);
    }

    /// Whether a symbol is the agent's `Registers::here`, inlined into the code that blocks: that
    /// code is what the stack is about.
    fn is_here(&self, symbol: &Symbol) -> bool {
        let name = &self.functions[symbol.function.index()].name;
        // Where inlined functions have bare names only, theirs lacks the type.
        symbol.inlined
            && name.starts_with("unikprof_agent::ground::platform::")
            && name.ends_with("::here")
    }

    /// A wait's place without the agent's functions that were inlined into it.
    fn without_agent<'s>(&self, symbols: &'s [Symbol]) -> &'s [Symbol] {
        let is_guests =
            |symbol: &Symbol| self.functions[symbol.function.index()].kind != FunctionKind::Agent;
        symbols.iter().position(is_guests).map_or(symbols, |at| &symbols[at..])
    }

    /// An allocation's place without the allocator's functions that were inlined into it.
    fn without_allocator<'s>(&self, symbols: &'s [Symbol]) -> &'s [Symbol] {
        let functions = symbols.iter().map(|symbol| &self.functions[symbol.function.index()]);
        let inner = allocator_depth(functions);
        match &symbols[inner..] {
            [] => symbols,
            rest => rest,
        }
    }

    /// Computes the functions' labels: whether a name is unique shows when all names are known.
    pub fn finish<'p>(
        &self,
        profile: &'p Profile,
        mapping_of_frame: Vec<Option<u32>>,
    ) -> Symbolized<'p> {
        let mode = profile.recording().mode;
        let is_heap = mode.is_heap();
        let mut symbols = Vec::with_capacity(self.symbols.len());
        let mut ends = Vec::with_capacity(self.frames.len());
        for (begin, end) in &self.frames {
            let found = &self.symbols[*begin as usize..*end as usize];
            symbols.extend_from_slice(match found {
                all if is_heap => self.without_allocator(all),
                all if mode == Mode::OffCpu => self.without_agent(all),
                [first, rest @ ..] if !rest.is_empty() && self.is_here(first) => rest,
                all => all,
            });
            ends.push(symbols.len() as u32);
        }
        let (mut functions, first) = self.labelled();
        self.tell_images(profile, &mut functions);
        for symbol in &mut symbols {
            symbol.function = first[symbol.function.index()];
        }
        Symbolized {
            profile,
            ends,
            symbols,
            functions,
            files: self.files.clone(),
            images: self.images.clone(),
            mappings: self.mappings.clone(),
            mapping_of_frame,
            warnings: self.warnings.clone(),
        }
    }
}

/// Whether a function belongs to the agent's own crate or its C interface.
fn is_agent(name: &str) -> bool {
    name.trim_start_matches('<').starts_with("unikprof_agent")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::ProfileBuilder;

    /// Who asks for registers before it blocks must be named, not the asking.
    #[test]
    fn the_asking_for_registers_is_no_place_to_wait() {
        let mut builder = ProfileBuilder::new();
        for place in [0x10, 0x20] {
            assert_eq!(builder.add_stack(0, 1, &[Frame::leaf(place)]), Ok(()));
        }
        let profile = builder.finish();
        let mut names = Names::new(2, 0);
        let here = names.function(None, "unikprof_agent::ground::platform::Registers::here");
        let wait = names.function(None, "guest::wait");
        let symbol = |function, inlined| Symbol { function, file: None, line: None, inlined };
        let begin = names.begin();
        names.push(symbol(here, true));
        names.push(symbol(wait, false));
        names.assign(FrameId(0), begin);
        names.assign_function(FrameId(1), here);
        let symbolized = names.finish(&profile, vec![None, None]);
        assert_eq!(symbolized.frame(FrameId(0)), [symbol(wait, false)]);
        let alone = symbolized.frame(FrameId(1));
        assert_eq!(alone, [symbol(here, false)], "it is all there is");
    }

    #[test]
    fn the_agents_functions_are_told_from_the_guests() {
        assert!(is_agent("unikprof_agent::walk::walk"));
        assert!(is_agent("<unikprof_agent::table::Table as core::fmt::Debug>::fmt"));
        assert!(!is_agent("unikprof_demo_service::main"));
        assert!(!is_agent("core::ptr::drop_in_place<unikprof_agent::Slot>"));
    }
}
