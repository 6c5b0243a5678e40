//! Resolves addresses to names, files and lines.
//!
//! [`Images`] collects symbol sources for the guest's programs: ELF files with DWARF or a symbol
//! table, their separate debug files, folders and debuginfod servers with files by build-id, and
//! `nm` listings. [`Symbolizer::resolve`] matches them with a profile's mappings by build-id, and
//! resolves every distinct address once, including inlined functions.
//!
//! ```no_run
//! use unikprof_profile::symbols::{Force, ImageOptions, Images, Symbolizer};
//! # let profile = unikprof_profile::profile::ProfileBuilder::new().finish();
//!
//! let mut images = Images::new(ImageOptions::default());
//! images.add_image("target/release/service.elf".as_ref(), Force::No)?;
//! let symbolized = Symbolizer::new(images).resolve(&profile)?;
//! for warning in symbolized.warnings() {
//!     eprintln!("warning: {warning}");
//! }
//! # Ok::<(), unikprof_profile::symbols::SymbolError>(())
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
pub mod memory_work;
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

pub use code::{Code, CodeError, MappedAddress};
pub use debug_file::find as find_debug_file;
pub use debug_info::{DebugSections, MOST_DECOMPRESSED, section_bytes};
#[cfg(feature = "debuginfod")]
pub use debuginfod::{Debuginfod, DownloadLimits};
pub use demangle::{demangle, demangle_at};
pub use error::{SymbolError, SymbolWarning};
pub use identity::Builds;
pub use image::{Image, read_regular_file};
pub use image_bytes::{ElfFile, ImageBytes};
pub(crate) use images::Assigned;
pub use images::{Force, ImageOptions, Images};
pub use memory_work::{MemoryWork, allocator_depth, memory_work};
pub use merged::{GuestMerger, MergedNames};
pub use name_table::is_code;
pub use namesakes::told_apart;
pub use symbolized::{
    Called, FileId, Function, FunctionId, FunctionKind, ImageId, KnownNames, Names, Symbol,
    Symbolized,
};
pub use symbolizer::Symbolizer;
