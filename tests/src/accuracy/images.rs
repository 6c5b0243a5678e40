//! The code that captured samples ran in: where it lay, its functions, its unwind tables.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SegmentFlags, SymbolKind};
use thiserror::Error;
use unikprof_agent::{CodeMap, Mapping, MappingsError};

/// The images of one program as they were loaded.
pub struct Images {
    images: Vec<Image>,
    code: CodeMap,
    program: Option<PathBuf>,
}

/// A function of one image: where it begins in the memory that was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionStart(pub u64);

/// Why images cannot be used.
#[derive(Debug, Error)]
pub enum ImageError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is no ELF file.
    #[error("{}: {source}", path.display())]
    Object {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: object::Error,
    },
    /// The mappings cannot be used by an agent.
    #[error(transparent)]
    Mappings(#[from] MappingsError),
}

/// One executable mapping of a file.
struct Image {
    start: u64,
    end: u64,
    path: PathBuf,
    /// Address in memory − address in the file, wrapping.
    bias: u64,
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
    /// Those of a Linux process, from the text of its `/proc/PID/maps`, which names the program first. What
    /// has no file is left out.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn of_process(maps: &str) -> Result<Images, ImageError> {
        let mut images = Vec::new();
        for line in maps.lines() {
            let Some((start, end, offset, path)) = executable(line) else {
                continue;
            };
            let bytes = read(&path)?;
            let file = parse(&path, &bytes)?;
            let bias = start.wrapping_sub(address_of_offset(&file, offset).unwrap_or(offset));
            images.push(Image::new(start..end, path, bias, &file));
        }
        Images::new(images)
    }

    /// A program that runs where it was linked, such as a unikernel.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn of_static(path: &Path) -> Result<Images, ImageError> {
        let bytes = read(path)?;
        let file = parse(path, &bytes)?;
        let images = file
            .segments()
            .filter(is_executable)
            .map(|segment| {
                let start = segment.address();
                let range = start..start.saturating_add(segment.size());
                Image::new(range, path.to_owned(), 0, &file)
            })
            .collect();
        Images::new(images)
    }

    /// The first is the program.
    fn new(mut images: Vec<Image>) -> Result<Images, ImageError> {
        let program = images.first().map(|image| image.path.clone());
        images.sort_by_key(|image| image.start);
        let mappings: Vec<Mapping<'_>> = images
            .iter()
            .map(|image| Mapping {
                start: image.start,
                end: image.end,
                file_offset: 0,
                build_id: &[],
                path: "",
            })
            .collect();
        let code = CodeMap::new(&mappings)?;
        Ok(Images {
            images,
            code,
            program,
        })
    }

    /// The code as an agent sees it.
    pub fn code(&self) -> &CodeMap {
        &self.code
    }

    /// The address of a frame code; `None` for a mark.
    pub fn address(&self, code: u32) -> Option<u64> {
        let base = |index: usize| self.code.code_base(index);
        let at = (0..self.images.len()).rfind(|index| base(*index) <= Some(code))?;
        let address = self.images[at].start + u64::from(code - base(at)?);
        (address < self.images[at].end).then_some(address)
    }

    /// The function that holds an address: the nearest that begins at or before it, in the same image.
    pub fn function(&self, address: u64) -> Option<FunctionStart> {
        self.found(address)
            .map(|function| FunctionStart(function.start))
    }

    /// The function's name, demangled; empty where there is none.
    pub fn name(&self, function: FunctionStart) -> String {
        self.found(function.0).map_or_else(String::new, |found| {
            let name = &found.name;
            unikprof_client::symbols::demangle(name).unwrap_or_else(|| name.clone())
        })
    }

    /// Whether the address lies in the program itself and not in a library.
    pub fn in_program(&self, address: u64) -> bool {
        let program = self.program.as_deref();
        self.image(address)
            .is_some_and(|image| Some(&*image.path) == program)
    }

    /// Whether the address lies in an image that has unwind tables.
    pub fn has_tables(&self, address: u64) -> bool {
        self.image(address).is_some_and(|image| {
            image.sections.eh_frame.is_some() || image.sections.debug_frame.is_some()
        })
    }

    /// An unwinder that knows all the images' tables.
    pub fn unwinder(&self) -> UnwinderX86_64<Vec<u8>> {
        let mut unwinder = UnwinderX86_64::new();
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

impl Image {
    fn new(
        range: std::ops::Range<u64>,
        path: PathBuf,
        bias: u64,
        file: &object::File<'_>,
    ) -> Image {
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
        Image {
            start: range.start,
            end: range.end,
            path,
            bias,
            functions,
            sections: Sections::of(file),
        }
    }
}

impl Sections {
    fn of(file: &object::File<'_>) -> Sections {
        let section = |name| file.section_by_name(name);
        let range = |name| section(name).map(|s| s.address()..s.address().saturating_add(s.size()));
        let data = |name| Some(section(name)?.uncompressed_data().ok()?.into_owned());
        let both = |name| {
            range(name)
                .zip(data(name))
                .filter(|(_, data)| !data.is_empty())
        };
        Sections {
            text: both(".text"),
            got: range(".got"),
            eh_frame: both(".eh_frame"),
            eh_frame_hdr: both(".eh_frame_hdr"),
            debug_frame: data(".debug_frame"),
        }
    }
}

/// Start, end, file offset and path of an executable mapping of a file.
fn executable(line: &str) -> Option<(u64, u64, u64, PathBuf)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let mode = words.next()?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let offset = number(words.next()?)?;
    let path = words.nth(2)?;
    let is_code = mode.contains('x') && path.starts_with('/');
    is_code.then_some((number(start)?, number(end)?, offset, path.into()))
}

/// Where the file says that a byte of it is to lie.
fn address_of_offset(file: &object::File<'_>, offset: u64) -> Option<u64> {
    file.segments().filter(is_executable).find_map(|segment| {
        let (begin, size) = segment.file_range();
        // The loader maps whole pages.
        let page = begin & !0xfff;
        (page..begin.saturating_add(size))
            .contains(&offset)
            .then(|| (segment.address() & !0xfff) + (offset - page))
    })
}

fn is_executable<'data>(segment: &impl ObjectSegment<'data>) -> bool {
    let SegmentFlags::Elf { p_flags, .. } = segment.flags() else {
        return false;
    };
    p_flags.0 & object::elf::PF_X.0 != 0
}

fn read(path: &Path) -> Result<Vec<u8>, ImageError> {
    fs::read(path).map_err(|source| ImageError::Read {
        path: path.to_owned(),
        source,
    })
}

fn parse<'data>(path: &Path, bytes: &'data [u8]) -> Result<object::File<'data>, ImageError> {
    object::File::parse(bytes).map_err(|source| ImageError::Object {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Codes and addresses go back and forth, and this test has its own name.
    #[test]
    fn a_process_finds_its_own_functions() {
        let images = Images::of_process(&fs::read_to_string("/proc/self/maps").unwrap()).unwrap();
        let here = a_process_finds_its_own_functions as *const () as u64;
        let code = images.code().code(here).unwrap();
        assert_eq!(images.address(code), Some(here));
        assert_eq!(images.address(1), None);
        assert_eq!(images.address(u32::MAX), None);
        let function = images.function(here + 1).unwrap();
        assert_eq!(function, FunctionStart(here));
        let name = images.name(function);
        assert!(
            name.ends_with("a_process_finds_its_own_functions"),
            "{name}"
        );
        assert!(images.has_tables(here));
        assert!(images.in_program(here));
        assert_eq!(images.function(0), None);
    }

    #[test]
    fn only_code_of_files_counts() {
        let line = "55d0-55e0 r-xp 00001000 08:01 77  /bin/guest";
        assert_eq!(
            executable(line),
            Some((0x55d0, 0x55e0, 0x1000, "/bin/guest".into()))
        );
        for other in [
            "",
            "55d0-55e0 r--p 0 08:01 77 /bin/guest",
            "55d0-55e0 r-xp 0 00:00 0 [vdso]",
            "55d0-55e0 r-xp 0 00:00 0",
            "x-y r-xp 0 08:01 77 /bin/guest",
        ] {
            assert_eq!(executable(other), None, "{other}");
        }
    }
}
