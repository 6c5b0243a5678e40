//! The files that may hold names, and which of them belongs to which mapping.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::by_build_id::open_checked;
use super::error::{SymbolError, SymbolWarning};
use super::image::Image;
use super::symbol_file::SymbolFile;
use super::vdso;
use crate::profile::{Architecture, BuildId, Mapping};

/// Where to look for files besides the given images.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Folders searched for separate debug files, such as `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
    /// Whether to open the file at the path that a mapping names; it is used only if it has the
    /// recording's build-id.
    pub open_recorded_paths: bool,
    /// Folders with files by build-id: `.build-id/ab/cdef.debug` and `.build-id/ab/cdef` as in
    /// `/usr/lib/debug`, files that are called `abcdef` or `abcdef.debug`, or a cache of
    /// debuginfod.
    pub symbol_folders: Vec<PathBuf>,
    /// Servers to query if no file on this machine has the build-id.
    #[cfg(feature = "debuginfod")]
    pub debuginfod: Option<super::Debuginfod>,
}

impl Default for ImageOptions {
    fn default() -> Self {
        ImageOptions {
            debug_dirs: vec!["/usr/lib/debug".into()],
            open_recorded_paths: true,
            symbol_folders: Vec::new(),
            #[cfg(feature = "debuginfod")]
            debuginfod: None,
        }
    }
}

/// Whether an image is used although its build-id is not the recording's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// Refuse it.
    No,
    /// Use it and warn.
    Yes,
}

/// The images and symbol lists a user named.
#[derive(Debug, Default)]
pub struct Images {
    /// How images are found and believed.
    pub options: ImageOptions,
    images: Vec<(Image, Force)>,
    pub(super) symbol_files: Vec<SymbolFile>,
}

impl Images {
    /// Nothing named yet.
    pub fn new(options: ImageOptions) -> Images {
        Images { options, ..Images::default() }
    }

    /// Adds the guest's program or one of its libraries.
    ///
    /// # Errors
    ///
    /// Those of [`Image::open`]. Whether it belongs to a recording is checked when that is
    /// resolved.
    pub fn add_image(&mut self, path: &Path, force: Force) -> Result<(), SymbolError> {
        self.images.push((Image::open(path)?, force));
        Ok(())
    }

    /// Adds a symbol list of the guest's program, for names that the images lack, or a
    /// [folder](ImageOptions::symbol_folders) with files by build-id.
    pub fn add_symbols(&mut self, path: &Path) -> Result<(), SymbolError> {
        if path.is_dir() {
            self.options.symbol_folders.push(path.to_owned());
            return Ok(());
        }
        self.symbol_files.push(SymbolFile::open(path)?);
        Ok(())
    }

    /// Decides which image each mapping came from.
    pub fn assign<'a>(
        &'a self,
        mappings: &'a [Mapping],
        architecture: &Architecture,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Result<Assignment<'a>, SymbolError> {
        for (image, _) in &self.images {
            image.check_architecture(architecture)?;
        }
        let mut groups = Group::of(mappings);
        let mut sure = vec![false; self.images.len()];
        for (at, (image, _)) in self.images.iter().enumerate() {
            for group in groups.iter_mut().filter(|g| {
                g.image.is_none() && g.build_id.is_some() && g.build_id == image.build_id()
            }) {
                group.image = Some(Assigned::Named(image));
                sure[at] = true;
            }
        }
        for (at, (image, force)) in self.images.iter().enumerate() {
            if sure[at] {
                continue;
            }
            let by_name = groups.iter().position(|g| {
                g.image.is_none() && !g.file_name.is_empty() && image.path().ends_with(g.file_name)
            });
            let program = groups.first().filter(|g| g.image.is_none()).map(|_| 0);
            let Some(found) = by_name.or(program) else {
                if !mappings.is_empty() {
                    warnings.push(SymbolWarning::NotUsed { path: image.path().to_owned() });
                }
                continue;
            };
            let group = &mut groups[found];
            warnings.push(accept(image, *force, group.build_id)?);
            group.image = Some(Assigned::Named(image));
        }
        if self.options.open_recorded_paths {
            for group in groups.iter_mut().filter(|g| g.image.is_none()) {
                group.image = open_recorded(group, warnings).map(Assigned::Recorded);
            }
        }
        let unmapped = if mappings.is_empty() {
            self.images.iter().map(|(image, _)| image).collect()
        } else {
            Vec::new()
        };
        Ok(Assignment { groups, unmapped })
    }
}

/// Which image each mapping came from.
pub struct Assignment<'a> {
    pub groups: Vec<Group<'a>>,
    /// The images of a recording without mappings: its addresses are as linked.
    pub(super) unmapped: Vec<&'a Image>,
}

/// The mappings of one file.
pub struct Group<'a> {
    build_id: Option<&'a BuildId>,
    file_name: &'a str,
    path: &'a str,
    pub mappings: Vec<usize>,
    pub image: Option<Assigned<'a>>,
}

/// An image and where it comes from.
pub enum Assigned<'a> {
    /// The user named it.
    Named(&'a Image),
    /// It was found at the recorded path.
    Recorded(Box<Image>),
}

impl Assigned<'_> {
    pub fn is_named(&self) -> bool {
        matches!(self, Assigned::Named(_))
    }

    pub fn image(&self) -> &Image {
        match self {
            Assigned::Named(image) => image,
            Assigned::Recorded(image) => image,
        }
    }
}

impl<'a> Group<'a> {
    fn of(mappings: &'a [Mapping]) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::new();
        let mut known = HashMap::new();
        for (at, mapping) in mappings.iter().enumerate() {
            let key = (mapping.build_id.as_ref(), mapping.path.as_str());
            let group = *known.entry(key).or_insert_with(|| {
                groups.push(Group {
                    build_id: mapping.build_id.as_ref(),
                    file_name: mapping.file_name(),
                    path: &mapping.path,
                    mappings: Vec::new(),
                    image: None,
                });
                groups.len() - 1
            });
            groups[group].mappings.push(at);
        }
        groups
    }

    /// How a user would call the file.
    pub(crate) fn name(&self) -> &str {
        if self.path.is_empty() { "the guest's program" } else { self.path }
    }

    pub(super) fn build_id(&self) -> Option<&BuildId> {
        self.build_id
    }
}

/// An image whose build-id is not the mapping's: unknown, forced or refused.
fn accept(
    image: &Image,
    force: Force,
    expected: Option<&BuildId>,
) -> Result<SymbolWarning, SymbolError> {
    let path = image.path().to_owned();
    let found = image.build_id().cloned();
    match (expected, force) {
        (None, _) => Ok(SymbolWarning::NotVerified { path }),
        (Some(expected), Force::Yes) => {
            Ok(SymbolWarning::Forced { path, expected: expected.clone(), found })
        }
        (Some(expected), Force::No) => {
            Err(SymbolError::WrongBuildId { path, expected: expected.clone(), found })
        }
    }
}

/// The image of a recorded path: the file there, or for the kernel's code in a process this host's
/// own; if its build-id is the recorded one.
fn open_recorded(group: &Group<'_>, warnings: &mut Vec<SymbolWarning>) -> Option<Box<Image>> {
    let expected = group.build_id?;
    let path = Path::new(group.path);
    if vdso::is_vdso(path) {
        let own = vdso::of_this_process().filter(|own| own.build_id() == Some(expected));
        return own.map(Box::new);
    }
    if !path.is_absolute() {
        return None;
    }
    open_checked(path.to_owned(), expected, warnings).map(Box::new)
}
