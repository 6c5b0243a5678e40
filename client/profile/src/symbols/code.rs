//! The code of functions, from the images that name them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use object::{Object, ObjectSection};
use thiserror::Error;

use super::debug_info::DebugSections;
use super::error::SymbolError;
use super::image::Image;
use super::image_bytes::ElfFile;
use super::images::Assigned;
use super::name_table::{NameTable, is_code};
use super::symbolizer::{Symbolizer, file_name};
use crate::profile::{Profile, TooManyStacks};

/// The largest function whose code is taken, in bytes: its symbol may claim any size.
const MAX_FUNCTION: u64 = 1 << 20;

/// An address of a profile, and the place of its mapping in [`Profile::mappings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedAddress {
    /// Where it begins.
    pub address: u64,
    /// The place of its mapping in the profile.
    pub mapping: Option<usize>,
}

/// The code of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// The name of the image's file.
    pub image: String,
    /// The address of the first byte in the image.
    pub link_address: u64,
    /// The address of the first byte in the guest.
    pub address: u64,
    /// The code itself.
    pub bytes: Vec<u8>,
}

impl Code {
    /// Whether the address lies in it.
    pub fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.address) < self.bytes.len() as u64
    }
}

/// The code at an address cannot be shown.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CodeError {
    /// An image that the user named does not belong to the recording.
    #[error(transparent)]
    Image(#[from] SymbolError),
    /// More instructions than can be numbered.
    #[error(transparent)]
    TooMany(#[from] TooManyStacks),
    /// There is no image.
    #[error(
        "no image for {mapping}: name the image that holds the code at {address:#x} with --image"
    )]
    NoImage {
        /// The file's path in the recording.
        mapping: String,
        /// The address in the guest.
        address: u64,
    },
    /// The address lies in no mapping.
    #[error("{address:#x} lies in no mapping of the recording: there is no code to show")]
    NotMapped {
        /// The address in the guest.
        address: u64,
    },
    /// The image has no function there.
    #[error(
        "{address:#x} lies in no function of {}: expected a symbol that covers it; name the \
         unstripped image",
        path.display()
    )]
    NoFunction {
        /// The image.
        path: PathBuf,
        /// The address in the image.
        address: u64,
    },
    /// The image has a function there, but no bytes.
    #[error(
        "{} holds no code at {address:#x}: it is a separate debug file or damaged; name the \
         program itself with --image",
        path.display()
    )]
    NoBytes {
        /// The image.
        path: PathBuf,
        /// The address in the image.
        address: u64,
    },
    /// The function is too large.
    #[error(
        "the function at {address:#x} of {} has {size} bytes, more than the {MAX_FUNCTION} that \
         can be annotated",
        path.display()
    )]
    TooLarge {
        /// The image.
        path: PathBuf,
        /// The function's address in the image.
        address: u64,
        /// Its size, as its symbol says.
        size: u64,
    },
}

impl Symbolizer {
    /// The code of the functions that hold these addresses of a profile, each function once, in the
    /// order of the images and the addresses.
    ///
    /// # Errors
    /// [`CodeError`], if one of them lies in no code that is known.
    pub fn code(
        &self,
        profile: &Profile,
        addresses: &[MappedAddress],
    ) -> Result<Vec<Code>, CodeError> {
        let mut all = Vec::new();
        self.locate(profile, addresses, &mut |located| match located {
            Located::In(image, addresses) => {
                let linked = addresses.into_iter().map(|(linked, address)| {
                    let no_bytes = || CodeError::NoBytes { path: image.path().to_owned(), address };
                    Ok((linked.ok_or_else(no_bytes)?, address))
                });
                let linked = linked.collect::<Result<_, CodeError>>()?;
                let found = self.code_of(image, linked, &mut all);
                // What it lacks, it may lack for that reason.
                let path = image.path().to_owned();
                let changed = image.bytes().has_changed().then_some(SymbolError::Changed { path });
                changed.map_or(found, |changed| Err(changed.into()))
            }
            Located::NoImage { mapping, address } => {
                Err(CodeError::NoImage { mapping: mapping.to_owned(), address })
            }
            Located::NotMapped { address } => Err(CodeError::NotMapped { address }),
        })?;
        Ok(all)
    }

    /// By address, the functions that hold these addresses of a profile: from the function's first
    /// address in the guest to the one after its last. Addresses in no known function are left out.
    ///
    /// # Errors
    /// If an image that the user named does not belong to the profile.
    pub fn function_ranges(
        &self,
        profile: &Profile,
        addresses: &[MappedAddress],
    ) -> Result<HashMap<u64, Range<u64>>, CodeError> {
        let mut ranges = HashMap::new();
        self.locate(profile, addresses, &mut |located| {
            let Located::In(image, addresses) = located else {
                return Ok(());
            };
            self.with_names(image, |_, table| {
                for (linked, address) in addresses {
                    let range = linked.and_then(|linked| Some((linked, table.range(linked)?)));
                    if let Some((linked, range)) = range {
                        let start = address.wrapping_sub(linked - range.start);
                        let end = start.saturating_add(range.end - range.start);
                        ranges.insert(address, start..end);
                    }
                }
                Ok(())
            })
        })?;
        Ok(ranges)
    }

    /// Finds the image of each address, and visits the images.
    fn locate(
        &self,
        profile: &Profile,
        addresses: &[MappedAddress],
        visit: &mut dyn FnMut(Located<'_>) -> Result<(), CodeError>,
    ) -> Result<(), CodeError> {
        let mappings = profile.mappings();
        // Its warnings were shown when the profile was resolved.
        let mut warnings = Vec::new();
        let architecture = &profile.recording().architecture;
        let assignment = self.images.assign(mappings, architecture, &mut warnings)?;
        for group in &assignment.groups {
            let here = addresses.iter().filter_map(|at| {
                let mapping = at.mapping.filter(|mapping| group.mappings.contains(mapping))?;
                Some((&mappings[mapping], at.address))
            });
            let here: Vec<_> = here.collect();
            let Some((_, first)) = here.first() else {
                continue;
            };
            let assigned = group.image.as_ref().map(Assigned::image);
            let found = match (assigned, group.build_id()) {
                (None, Some(id)) => self.images.options.find_image(id, &mut warnings),
                _ => None,
            };
            visit(match assigned.or(found.as_ref()) {
                Some(image) => {
                    let linked =
                        |(mapping, address)| (image.link_address(mapping, address), address);
                    Located::In(image, here.into_iter().map(linked).collect())
                }
                None => Located::NoImage { mapping: group.name(), address: *first },
            })?;
        }
        let outside = addresses.iter().filter(|at| at.mapping.is_none());
        let outside: Vec<u64> = outside.map(|at| at.address).collect();
        if let Some(address) = outside.first() {
            // A recording without mappings: its addresses are as linked.
            visit(match assignment.unmapped.as_slice() {
                [image] => Located::In(image, outside.iter().map(|at| (Some(*at), *at)).collect()),
                _ => Located::NotMapped { address: *address },
            })?;
        }
        Ok(())
    }

    /// Reads the names of an image's functions, or else those of its debug file.
    fn with_names(
        &self,
        image: &Image,
        read: impl FnOnce(&ElfFile<'_>, &NameTable<'_>) -> Result<(), CodeError>,
    ) -> Result<(), CodeError> {
        // It was parsed when it was opened.
        let Ok(file) = ElfFile::parse(image.bytes()) else {
            return Ok(());
        };
        let separate = match DebugSections::of(&file) {
            None => self.separate_file(image, &file, &mut Vec::new()),
            Some(_) => None,
        };
        let separate = separate.as_ref();
        let separate = separate.and_then(|file| ElfFile::parse(file.bytes()).ok());
        read(&file, &NameTable::from_elf(&file, separate.as_ref()))
    }

    /// Adds the functions of an image that hold these addresses, given in the image and in the
    /// guest.
    fn code_of(
        &self,
        image: &Image,
        mut linked: Vec<(u64, u64)>,
        all: &mut Vec<Code>,
    ) -> Result<(), CodeError> {
        linked.sort_unstable();
        let path = || image.path().to_owned();
        self.with_names(image, |file, table| {
            for (link_address, address) in linked {
                if all.iter().any(|code| code.contains(address)) {
                    continue;
                }
                let range = table
                    .range(link_address)
                    .ok_or_else(|| CodeError::NoFunction { path: path(), address: link_address })?;
                let size = range.end - range.start;
                if size > MAX_FUNCTION {
                    return Err(CodeError::TooLarge { path: path(), address: range.start, size });
                }
                let bytes = bytes_at(file, &range)
                    .ok_or_else(|| CodeError::NoBytes { path: path(), address: link_address })?;
                let address = address.wrapping_sub(link_address - range.start);
                // A function that lies inside this one.
                all.retain(|inner| inner.address.wrapping_sub(address) >= size);
                all.push(Code {
                    image: file_name(image),
                    link_address: range.start,
                    address,
                    bytes: bytes.to_owned(),
                });
            }
            Ok(())
        })
    }
}

/// The image that addresses of a profile lie in.
enum Located<'l> {
    /// Each address with that in the image, if it has one.
    In(&'l Image, Vec<(Option<u64>, u64)>),
    NoImage {
        /// The file's path in the recording.
        mapping: &'l str,
        /// One of the addresses.
        address: u64,
    },
    NotMapped {
        /// One of the addresses.
        address: u64,
    },
}

/// The bytes of an image at these addresses.
fn bytes_at<'f>(file: &ElfFile<'f>, range: &Range<u64>) -> Option<&'f [u8]> {
    let size = range.end - range.start;
    let mut sections = file.sections().filter(is_code);
    let bytes = sections.find_map(|section| section.data_range(range.start, size).ok()?);
    bytes.filter(|bytes| bytes.len() as u64 == size)
}
