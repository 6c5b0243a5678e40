//! The separate debug file of a stripped image.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use flate2::CrcReader;
use object::Object;

use super::error::SymbolWarning;
use super::image::Image;
use super::image_bytes::ElfFile;

/// Looks where distributions and debuggers put debug files: by build-id, then by the name in
/// `.gnu_debuglink` beside the image, in `.debug` beside it, and under each debug directory.
///
/// A file that is found but belongs to another build is left aside with a warning.
pub fn find(
    image: &Image,
    file: &ElfFile<'_>,
    debug_dirs: &[PathBuf],
    warnings: &mut Vec<SymbolWarning>,
) -> Option<Image> {
    by_build_id(image, debug_dirs, warnings)
        .or_else(|| by_debug_link(image, file, debug_dirs, warnings))
}

fn by_build_id(
    image: &Image,
    debug_dirs: &[PathBuf],
    warnings: &mut Vec<SymbolWarning>,
) -> Option<Image> {
    let id = image.build_id()?.to_string();
    let (folder, rest) = id.split_at(2);
    debug_dirs.iter().find_map(|dir| {
        let path = dir.join(".build-id").join(folder).join(format!("{rest}.debug"));
        let found = Image::open(&path).ok()?;
        if found.build_id() != image.build_id() {
            warnings.push(differs(image, &path));
            return None;
        }
        Some(found)
    })
}

fn by_debug_link(
    image: &Image,
    file: &ElfFile<'_>,
    debug_dirs: &[PathBuf],
    warnings: &mut Vec<SymbolWarning>,
) -> Option<Image> {
    let (name, checksum) = file.gnu_debuglink().ok()??;
    let name = std::str::from_utf8(name).ok()?;
    // A name, not a path: the image must not send us through the file system.
    if name.is_empty() || name.contains('/') || name == ".." {
        return None;
    }
    let image_path = fs::canonicalize(image.path()).ok()?;
    let folder = image_path.parent()?;
    let mut places = vec![folder.join(name), folder.join(".debug").join(name)];
    let below_root = folder.strip_prefix("/").unwrap_or(folder);
    places.extend(debug_dirs.iter().map(|dir| dir.join(below_root).join(name)));
    places.iter().filter(|path| **path != image_path).find_map(|path| {
        let found = Image::open(path).ok()?;
        let mut file = CrcReader::new(File::open(path).ok()?);
        io::copy(&mut file, &mut io::sink()).ok()?;
        let same_id = image.build_id().is_none() || found.build_id() == image.build_id();
        if file.crc().sum() != checksum || !same_id {
            warnings.push(differs(image, path));
            return None;
        }
        Some(found)
    })
}

fn differs(image: &Image, debug_file: &Path) -> SymbolWarning {
    SymbolWarning::DebugFileDiffers {
        debug_file: debug_file.to_owned(),
        image: image.path().to_owned(),
    }
}
