//! The code that captured samples ran in: where it lay, its functions, its unwind tables.

use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};

use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use object::{
    Architecture, Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind,
};
use unikprof_agent::stack::ReadCode;
use unikprof_agent::{CodeMap, Mapping};
use unikprof_profile::profile as client;

/// The images of one program as they were loaded.
pub(crate) struct Images {
    images: Vec<Image>,
    code: CodeMap,
    program: PathBuf,
}

/// A function of one image: where it begins in the memory that was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FunctionStart(pub(crate) u64);

/// One executable mapping of a file.
struct Image {
    start: u64,
    end: u64,
    path: PathBuf,
    /// Address in memory − address in the file, wrapping.
    bias: u64,
    is_aarch64: bool,
    /// Sorted by start, in memory; names of the file's symbol table.
    functions: Vec<Function>,
    sections: Sections,
}

struct Function {
    start: u64,
    name: String,
}

#[derive(Default)]
struct Sections {
    text: Option<(std::ops::Range<u64>, Vec<u8>)>,
    got: Option<std::ops::Range<u64>>,
    eh_frame: Option<(std::ops::Range<u64>, Vec<u8>)>,
    eh_frame_hdr: Option<(std::ops::Range<u64>, Vec<u8>)>,
    debug_frame: Option<Vec<u8>>,
}

impl Images {
    /// The images at the mappings that an agent tells of, in its order; `file` names the file of a
    /// mapping, `None` where there is none: its code then has neither functions nor tables.
    pub(crate) fn of_mappings<'m>(
        mappings: impl IntoIterator<Item = &'m client::Mapping>,
        program: &Path,
        file: impl Fn(&client::Mapping) -> Option<PathBuf>,
    ) -> Result<Images> {
        let images = mappings
            .into_iter()
            .map(|mapping| match file(mapping) {
                Some(path) => Image::read(mapping, path),
                None => Ok(Image::unknown(mapping)),
            })
            .collect::<Result<Vec<Image>>>()?;
        let laid_out: Vec<Mapping<'_>> = images
            .iter()
            .map(|image| Mapping {
                start: image.start,
                end: image.end,
                file_offset: 0,
                build_id: &[],
                path: "",
            })
            .collect();
        let code = CodeMap::new(&laid_out)?;
        Ok(Images { images, code, program: program.to_owned() })
    }

    /// The code as an agent sees it.
    pub(crate) fn code(&self) -> &CodeMap {
        &self.code
    }

    /// The address of a frame code; `None` for a mark.
    pub(crate) fn address(&self, code: u32) -> Option<u64> {
        let base = |index: usize| self.code.code_base(index);
        let at = (0..self.images.len()).rfind(|index| base(*index) <= Some(code))?;
        let address = self.images[at].start + u64::from(code - base(at)?);
        (address < self.images[at].end).then_some(address)
    }

    /// The function that holds an address: the nearest that begins at or before it, in the same
    /// image.
    pub(crate) fn function(&self, address: u64) -> Option<FunctionStart> {
        self.found(address).map(|function| FunctionStart(function.start))
    }

    /// The function's name, demangled; empty where there is none.
    pub(crate) fn name(&self, function: FunctionStart) -> String {
        self.found(function.0).map_or_else(String::new, |found| {
            let name = &found.name;
            unikprof_profile::symbols::demangle(name).unwrap_or_else(|| name.clone())
        })
    }

    /// Whether the address lies in the program itself and not in a library.
    pub(crate) fn in_program(&self, address: u64) -> bool {
        self.image(address).is_some_and(|image| image.path == self.program)
    }

    /// Whether the address lies in an image that has unwind tables.
    pub(crate) fn has_tables(&self, address: u64) -> bool {
        self.image(address).is_some_and(|image| {
            image.sections.eh_frame.is_some() || image.sections.debug_frame.is_some()
        })
    }

    /// Whether the code is for aarch64; else it is for x86_64.
    pub(crate) fn is_aarch64(&self) -> bool {
        self.images.iter().any(|image| image.is_aarch64)
    }

    /// An unwinder that knows all the images' tables.
    pub(crate) fn unwinder<U: Unwinder<Module = Module<Vec<u8>>> + Default>(&self) -> U {
        let mut unwinder = U::default();
        for image in &self.images {
            let sections = &image.sections;
            let range = |section: &Option<(std::ops::Range<u64>, Vec<u8>)>| {
                section.as_ref().map(|(range, _)| range.clone())
            };
            let data = |section: &Option<(std::ops::Range<u64>, Vec<u8>)>| {
                section.as_ref().map(|(_, data)| data.clone())
            };
            unwinder.add_module(Module::new(
                image.path.display().to_string(),
                image.start..image.end,
                image.bias,
                ExplicitModuleSectionInfo {
                    base_svma: 0,
                    text_svma: range(&sections.text),
                    text: data(&sections.text),
                    got_svma: sections.got.clone(),
                    eh_frame_svma: range(&sections.eh_frame),
                    eh_frame: data(&sections.eh_frame),
                    eh_frame_hdr_svma: range(&sections.eh_frame_hdr),
                    eh_frame_hdr: data(&sections.eh_frame_hdr),
                    debug_frame: sections.debug_frame.clone(),
                    ..Default::default()
                },
            ));
        }
        unwinder
    }

    fn image(&self, address: u64) -> Option<&Image> {
        let after = self.images.partition_point(|image| image.start <= address);
        let image = self.images.get(after.checked_sub(1)?)?;
        (address < image.end).then_some(image)
    }

    fn found(&self, address: u64) -> Option<&Function> {
        let functions = &self.image(address)?.functions;
        let after = functions.partition_point(|function| function.start <= address);
        functions.get(after.checked_sub(1)?)
    }
}

/// The agent may look at the program's instructions, as it does in a process.
impl ReadCode for &Images {
    fn around(&self, pc: u64) -> Option<[u8; 5]> {
        if !self.in_program(pc) {
            return None;
        }
        let image = self.image(pc)?;
        let (range, text) = image.sections.text.as_ref()?;
        let before = pc.wrapping_sub(image.bias).checked_sub(1)?;
        let at = usize::try_from(before.checked_sub(range.start)?).ok()?;
        text.get(at..at.checked_add(5)?)?.try_into().ok()
    }
}

impl Image {
    fn unknown(mapping: &client::Mapping) -> Image {
        Image {
            start: mapping.start,
            end: mapping.end,
            path: PathBuf::new(),
            bias: 0,
            is_aarch64: false,
            functions: Vec::new(),
            sections: Sections::default(),
        }
    }

    fn read(mapping: &client::Mapping, path: PathBuf) -> Result<Image> {
        let place = || path.display().to_string();
        let bytes = fs::read(&path).with_context(place)?;
        let file = object::File::parse(&*bytes).with_context(place)?;
        let linked = address_of_offset(&file, mapping.file_offset);
        let bias = mapping.start.wrapping_sub(linked.unwrap_or(mapping.file_offset));
        let range = mapping.start..mapping.end;
        let mut functions: Vec<Function> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition())
            .map(|symbol| Function {
                start: symbol.address().wrapping_add(bias),
                name: symbol.name().unwrap_or_default().to_owned(),
            })
            .filter(|function| range.contains(&function.start))
            .collect();
        // Stable: of several names for one place the symbol table's first stays.
        functions.sort_by_key(|function| function.start);
        functions.dedup_by_key(|function| function.start);
        Ok(Image {
            start: range.start,
            end: range.end,
            path,
            bias,
            is_aarch64: file.architecture() == Architecture::Aarch64,
            functions,
            sections: Sections::of(&file),
        })
    }
}

impl Sections {
    fn of(file: &object::File<'_>) -> Sections {
        let section = |name| file.section_by_name(name);
        let range = |name| section(name).map(|s| s.address()..s.address().saturating_add(s.size()));
        let data = |name| Some(section(name)?.uncompressed_data().ok()?.into_owned());
        let both = |name| range(name).zip(data(name)).filter(|(_, data)| !data.is_empty());
        Sections {
            text: both(".text"),
            got: range(".got"),
            eh_frame: both(".eh_frame"),
            eh_frame_hdr: both(".eh_frame_hdr"),
            debug_frame: data(".debug_frame"),
        }
    }
}

/// The address at which the file's segments place a byte of it.
fn address_of_offset(file: &object::File<'_>, offset: u64) -> Option<u64> {
    file.segments().filter(is_executable).find_map(|segment| {
        let (begin, size) = segment.file_range();
        // Systems that tell of whole pages begin with the segment's first.
        let page = begin & !0xfff;
        let inside = (page..begin.saturating_add(size)).contains(&offset);
        inside.then(|| (segment.address() & !0xfff).wrapping_add(offset - page))
    })
}

fn is_executable<'data>(segment: &impl ObjectSegment<'data>) -> bool {
    let SegmentFlags::Elf { p_flags, .. } = segment.flags() else {
        return false;
    };
    p_flags.0 & object::elf::PF_X.0 != 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// This test's program where its code lies.
    fn own() -> Images {
        let program = std::env::current_exe().unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let own =
            |line: &&str| line.contains(" r-xp ") && line.ends_with(program.to_str().unwrap());
        let line = maps.lines().find(own).unwrap();
        let words: Vec<&str> = line.split([' ', '-']).collect();
        let number = |at: usize| u64::from_str_radix(words[at], 16).unwrap();
        let mapping = client::Mapping {
            start: number(0),
            end: number(1),
            // The mode has a `-` in it.
            file_offset: number(4),
            ..client::Mapping::default()
        };
        Images::of_mappings([&mapping], &program, |_| Some(program.clone())).unwrap()
    }

    /// Codes and addresses go back and forth, and this test has its own name and instructions.
    #[test]
    fn a_process_finds_its_own_functions() {
        let images = own();
        let here = a_process_finds_its_own_functions as *const () as u64;
        let code = images.code().code(here).unwrap();
        assert_eq!(images.address(code), Some(here));
        assert_eq!(images.address(1), None);
        assert_eq!(images.address(u32::MAX), None);
        let function = images.function(here + 1).unwrap();
        assert_eq!(function, FunctionStart(here));
        let name = images.name(function);
        assert!(name.ends_with("a_process_finds_its_own_functions"), "{name}");
        assert!(images.has_tables(here) && images.in_program(here));
        // `push rbp`: the workspace keeps frame pointers.
        assert_eq!((&images).around(here).unwrap()[1], 0x55);
        assert_eq!((&images).around(1), None);
        assert_eq!(images.function(0), None);
    }

    #[test]
    fn code_without_a_file_is_code() {
        let mapping = client::Mapping { start: 0x1000, end: 0x2000, ..client::Mapping::default() };
        let images = Images::of_mappings([&mapping], Path::new("/guest"), |_| None).unwrap();
        assert!(images.code().code(0x1800).is_some());
        assert_eq!(images.function(0x1800), None);
        assert!(!images.has_tables(0x1800) && !images.in_program(0x1800));
    }
}
