//! Debug information outside of an image and its debug file: units in `.dwo` files or in a `.dwp`
//! package of them, and what `dwz` has moved to a file that several images share.
//!
//! Their paths are whatever the image says: only regular files are read, up to a limit for all of
//! them, and used only if they have the identity that the image names.

use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use gimli::{
    Dwarf, DwarfFileType, DwarfPackage, DwarfPackageSections, DwarfSections, DwoId, Reader as _,
    Section as _, Unit, UnitHeader, UnitType,
};
use object::{Object, ObjectSection as _};

use super::debug_info::{endian, section_bytes};
use super::image::{Image, open_image};
use super::image_bytes::ElfFile;
use super::scopes::{ScopedUnit, Scopes};
use super::section::{Reader, Section};

type Bytes = Section<'static>;

/// What was read from other files, and where they are looked for.
#[derive(Default)]
pub(super) struct SplitInfo {
    /// The folders of the file that names them, and of the image.
    folders: Vec<PathBuf>,
    /// What `dwz` has moved.
    pub(super) shared: Option<DwarfSections<Bytes>>,
    package: Option<DwarfPackageSections<Bytes>>,
    /// What a package lacks.
    empty: Bytes,
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
    pub(super) fn package(&self) -> Option<DwarfPackage<Reader<'_>>> {
        self.package.as_ref()?.borrow(Section::reader, self.empty.reader()).ok()
    }

    /// Reads the file of a unit with this identity.
    ///
    /// # Errors
    ///
    /// If the unit does not tell its name.
    pub(super) fn unit<'a>(
        &'a self,
        id: DwoId,
        unit: &Unit<Reader<'a>>,
        parent: &Dwarf<Reader<'a>>,
    ) -> gimli::Result<Option<Dwarf<Reader<'a>>>> {
        let folder = unit.comp_dir.map(|folder| folder.text()).unwrap_or_default();
        let Some(name) = unit.dwo_name()? else { return Ok(None) };
        let name = parent.attr_string(unit, name)?.text();
        let places = self.places(folder.as_ref(), name.as_ref());
        let sections = places.iter().find_map(|path| {
            self.read(path, |file| {
                let sections =
                    DwarfSections::load(|id| section(file, id.dwo_name(), &self.left)).ok()?;
                (id_of(&sections) == Some(id)).then(|| Box::new(sections))
            })
        });
        let Some(sections) = sections else {
            self.missing.get_or_init(|| places.into_iter().next().unwrap_or_default());
            return Ok(None);
        };
        let Some(place) = self.files.get(self.taken.replace(self.taken.get() + 1)) else {
            return Ok(None);
        };
        let sections = place.get_or_init(|| sections);
        let mut dwarf = sections.borrow(Section::reader);
        dwarf.make_dwo(parent);
        Ok(Some(dwarf))
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

/// The bytes of a section; a damaged one is empty, as it is where a file has none. Compilers put
/// each unit of types into a section of the same name: these follow one another.
fn section(
    file: &ElfFile<'_>,
    name: Option<&str>,
    left: &Cell<u64>,
) -> Result<Bytes, gimli::Error> {
    let sections = file.sections().filter(|section| name.is_some() && section.name().ok() == name);
    let sections: Vec<_> = sections.collect();
    let read = match &sections[..] {
        [one] => Section::of(file, one, left).ok().map(Section::into_owned),
        several => {
            let bytes = several.iter().map(|one| section_bytes(one, left).ok());
            let bytes = bytes.collect::<Option<Vec<_>>>().map(|bytes| bytes.concat());
            bytes.map(|bytes| Section::whole(bytes.into(), endian(file)))
        }
    };
    Ok(read.unwrap_or_else(|| Section::whole(Default::default(), endian(file))))
}

/// The identity of the unit in a `.dwo` file.
fn id_of(sections: &DwarfSections<Bytes>) -> Option<DwoId> {
    let mut dwarf = sections.borrow(Section::reader);
    dwarf.file_type = DwarfFileType::Dwo;
    dwarf.unit(with_code(&dwarf).ok()??).ok()?.dwo_id
}

/// The first unit that describes code: those of types may come before it.
fn with_code<'a>(dwarf: &Dwarf<Reader<'a>>) -> gimli::Result<Option<UnitHeader<Reader<'a>>>> {
    let mut units = dwarf.units();
    while let Some(header) = units.next()? {
        if !matches!(header.type_(), UnitType::Type { .. } | UnitType::SplitType { .. }) {
            return Ok(Some(header));
        }
    }
    Ok(None)
}

/// A unit in another file.
pub(super) struct SplitUnit<'a> {
    /// Those of that file.
    pub(super) scopes: Scopes<'a>,
    pub(super) unit: Rc<ScopedUnit<'a>>,
}

impl<'a> SplitUnit<'a> {
    /// The unit of a file which a unit of `parent` names.
    #[expect(clippy::arc_with_non_send_sync, reason = "gimli shares files by an Arc")]
    pub(super) fn of(
        mut file: Dwarf<Reader<'a>>,
        unit: &Rc<ScopedUnit<'a>>,
        parent: &Dwarf<Reader<'a>>,
    ) -> gimli::Result<Option<SplitUnit<'a>>> {
        let Some(header) = with_code(&file)? else { return Ok(None) };
        if file.debug_line_str.reader().is_empty() {
            file.debug_line_str = parent.debug_line_str;
        }
        let scopes = Scopes::of(Arc::new(file), Some(Rc::clone(unit)));
        let (_, unit) = scopes.unit(header.offset().0).ok_or(gimli::Error::MissingUnitDie)?;
        Ok(Some(SplitUnit { scopes, unit }))
    }
}
