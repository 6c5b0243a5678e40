//! Resolves addresses to names, files and lines.
//!
//! [`Images`] collects symbol sources for the guest's programs: ELF files with DWARF or a symbol
//! table, their separate debug files, folders and debuginfod servers with files by build-id, and
//! `nm` listings. [`Symbolizer::resolve`] matches them with a profile's mappings by build-id, and
//! resolves every distinct address once, including inlined functions.
//!
//! ```no_run
//! use unikprof_client::symbols::{Force, ImageOptions, Images, Symbolizer};
//! # let profile = unikprof_client::profile::ProfileBuilder::new().finish();
//!
//! let mut images = Images::new(ImageOptions::default());
//! images.add_image("target/release/service.elf".as_ref(), Force::No)?;
//! let symbolized = Symbolizer::new(images).resolve(&profile)?;
//! for warning in symbolized.warnings() {
//!     eprintln!("warning: {warning}");
//! }
//! # Ok::<(), unikprof_client::symbols::SymbolError>(())
//! ```
//!
//! All input is untrusted: a damaged file gives an error or a warning and hexadecimal addresses,
//! never a panic.

mod by_build_id;
mod by_mapping;
mod code;
mod debug_file;
mod debug_info;
#[cfg(feature = "debuginfod")]
mod debuginfod;
mod demangle;
mod error;
mod identity;
mod image;
mod image_bytes;
mod images;
mod linkage_table;
mod memory_work;
mod merged;
mod name_table;
mod namesakes;
mod ocaml;
mod scopes;
mod section;
mod source_paths;
mod split_info;
mod symbol_file;
mod symbolized;
mod symbolizer;
mod unit_code;
mod unit_ranges;
mod vdso;

pub use code::CodeError;
pub(crate) use code::{Code, MappedAddress};
pub(crate) use debug_file::find as find_debug_file;
pub(crate) use debug_info::{DebugSections, MOST_DECOMPRESSED, section_bytes};
#[cfg(feature = "debuginfod")]
pub use debuginfod::{Debuginfod, DownloadLimits};
pub use demangle::demangle;
pub(crate) use demangle::demangle_at;
pub use error::{SymbolError, SymbolWarning};
pub(crate) use identity::Builds;
pub use image::Image;
pub(crate) use image::read_regular_file;
pub(crate) use image_bytes::{ElfFile, ImageBytes};
pub(crate) use images::Assigned;
pub use images::{Force, ImageOptions, Images};
pub(crate) use memory_work::{MemoryWork, allocator_depth, memory_work};
pub use merged::{GuestMerger, MergedNames};
pub(crate) use name_table::is_code;
pub(crate) use namesakes::told_apart;
#[cfg(test)]
pub(crate) use symbolized::Names;
pub(crate) use symbolized::{Called, FileId, Function, FunctionKind, ImageId, Symbol};
pub use symbolized::{FunctionId, KnownNames, Symbolized};
pub use symbolizer::Symbolizer;
