//! Debug information outside of an image and its debug file: units in `.dwo` files or in a `.dwp`
//! package of them, and what `dwz` has moved to a file that several images share.
//!
//! Their paths are whatever the image says: only regular files are read, up to a limit for all of
//! them, and used only if they have the identity that the image names.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use addr2line::SplitDwarfLoad;
use gimli::{
    Dwarf, DwarfFileType, DwarfPackage, DwarfPackageSections, DwarfSections, DwoId, EndianSlice,
    RunTimeEndian,
};
use object::Object;

use super::debug_info::{Reader, section_bytes};
use super::image::{Image, open_image};
use super::image_bytes::ElfFile;

type Bytes = Cow<'static, [u8]>;

/// What was read from other files, and where they are looked for.
#[derive(Default)]
pub(super) struct SplitInfo {
    /// The folders of the file that names them, and of the image.
    folders: Vec<PathBuf>,
    /// What `dwz` has moved.
    pub(super) shared: Option<DwarfSections<Bytes>>,
    package: Option<DwarfPackageSections<Bytes>>,
    /// Room for a file of each unit; the first `taken` are in use.
    files: Vec<OnceCell<Box<DwarfSections<Bytes>>>>,
    taken: Cell<usize>,
    /// How many bytes may still be read or decompressed.
    left: Cell<u64>,
    /// The first file that was not found.
    pub(super) missing: OnceCell<PathBuf>,
}

impl SplitInfo {
    /// Reads what serves all units of `file`, which has the first of these paths; the image has the
    /// last. The files of single units are read as they are needed.
    pub(super) fn of(
        file: &ElfFile<'_>,
        units: usize,
        paths: &[&Path],
        debug_dirs: &[PathBuf],
    ) -> SplitInfo {
        let folder = |path: &&Path| path.parent().map(Path::to_owned).unwrap_or_default();
        let mut info = SplitInfo {
            folders: paths.iter().map(folder).collect(),
            files: (0..units).map(|_| OnceCell::new()).collect(),
            left: Cell::new(Image::MAX_BYTES),
            ..SplitInfo::default()
        };
        info.package = paths.iter().find_map(|path| {
            let mut package = path.as_os_str().to_owned();
            package.push(".dwp");
            info.read(package.as_ref(), |file| {
                DwarfPackageSections::load(|id| section(file, id.dwo_name(), &info.left)).ok()
            })
        });
        if let Ok(Some((name, id))) = file.gnu_debugaltlink() {
            let name = String::from_utf8_lossy(name);
            let mut places = info.places(Path::new(""), Path::new(&*name));
            places.extend(debug_dirs.iter().map(|dir| dir.join(".dwz").join(base(&*name))));
            let load = |file: &ElfFile<'_>| {
                let is_it = file.build_id().is_ok_and(|found| found == Some(id));
                is_it.then(|| {
                    DwarfSections::load(|id| section(file, Some(id.name()), &info.left)).ok()
                })?
            };
            info.shared = places.iter().find_map(|path| info.read(path, load));
            if info.shared.is_none() {
                info.missing = places.swap_remove(0).into();
            }
        }
        info
    }

    /// The package of all units, ready to look in.
    pub(super) fn package(&self, endian: RunTimeEndian) -> Option<DwarfPackage<Reader<'_>>> {
        let borrow = |bytes| EndianSlice::new(bytes, endian);
        self.package.as_ref()?.borrow(|bytes| borrow(bytes), borrow(&[])).ok()
    }

    /// Reads the file of a unit.
    pub(super) fn unit<'a>(
        &'a self,
        load: &SplitDwarfLoad<Reader<'a>>,
        endian: RunTimeEndian,
    ) -> Option<Arc<Dwarf<Reader<'a>>>> {
        let path = |path: Option<Reader<'a>>| Some(path?.to_string_lossy().into_owned());
        let places = self
            .places(path(load.comp_dir).unwrap_or_default().as_ref(), path(load.path)?.as_ref());
        let sections = places.iter().find_map(|path| {
            self.read(path, |file| {
                let sections =
                    DwarfSections::load(|id| section(file, id.dwo_name(), &self.left)).ok()?;
                (id_of(&sections, endian) == Some(load.dwo_id)).then(|| Box::new(sections))
            })
        });
        let Some(sections) = sections else {
            self.missing.get_or_init(|| places.into_iter().next().unwrap_or_default());
            return None;
        };
        let place = self.files.get(self.taken.replace(self.taken.get() + 1))?;
        let sections = place.get_or_init(|| sections);
        let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
        dwarf.make_dwo(&load.parent);
        Some(Arc::new(dwarf))
    }

    /// Where a file may be that is named from a folder: there, and beside the image.
    fn places(&self, from: &Path, name: &Path) -> Vec<PathBuf> {
        let named = self.folders.iter().map(|folder| folder.join(from).join(name));
        named.chain(self.folders.iter().map(|folder| folder.join(base(name)))).collect()
    }

    fn read<T>(&self, path: &Path, parse: impl FnOnce(&ElfFile<'_>) -> Option<T>) -> Option<T> {
        let bytes = open_image(path, self.left.get()).ok()?;
        self.left.set(self.left.get() - bytes.length());
        parse(&ElfFile::parse(&bytes).ok()?)
    }
}

fn base(path: &(impl AsRef<Path> + ?Sized)) -> &std::ffi::OsStr {
    path.as_ref().file_name().unwrap_or_default()
}

/// The bytes of a section; a damaged one is empty, as it is where a file has none.
fn section(
    file: &ElfFile<'_>,
    name: Option<&str>,
    left: &Cell<u64>,
) -> Result<Bytes, gimli::Error> {
    let section = name.and_then(|name| file.section_by_name(name));
    let bytes = section.and_then(|section| section_bytes(&section, left).ok());
    Ok(bytes.unwrap_or_default().into_owned().into())
}

/// The identity of the unit in a `.dwo` file.
fn id_of(sections: &DwarfSections<Bytes>, endian: RunTimeEndian) -> Option<DwoId> {
    let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, endian));
    dwarf.file_type = DwarfFileType::Dwo;
    let header = dwarf.units().next().ok()??;
    dwarf.unit(header).ok()?.dwo_id
}
