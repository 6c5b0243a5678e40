//! Files found by their build-id alone: in folders that the user named, and on debuginfod servers.

use std::path::PathBuf;

use super::debug_info::DebugSections;
use super::error::SymbolWarning;
use super::image::Image;
use super::image_bytes::ElfFile;
use super::images::ImageOptions;
use crate::profile::BuildId;

/// What a file is wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The program or library itself.
    Executable,
    /// Its debug information.
    DebugInfo,
}

impl Wanted {
    /// What debuginfod calls it, in requests and in its cache.
    pub(super) fn name(self) -> &'static str {
        match self {
            Wanted::Executable => "executable",
            Wanted::DebugInfo => "debuginfo",
        }
    }
}

impl ImageOptions {
    /// The program or library with this build-id, or else its debug file: its symbols are at the
    /// same addresses.
    pub(super) fn find_image(
        &self,
        id: &BuildId,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        let kinds = [Wanted::Executable, Wanted::DebugInfo];
        let in_folders = kinds.into_iter().find_map(|wanted| self.in_folders(id, wanted, warnings));
        in_folders.or_else(|| {
            let mut kinds = kinds.into_iter();
            kinds.find_map(|wanted| self.on_servers(id, wanted, warnings))
        })
    }

    /// The file with the debug information of the image with this build-id.
    pub(super) fn find_debug_info(
        &self,
        id: &BuildId,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        let has_debug_info = |found: &Image| {
            let file = ElfFile::parse(found.bytes());
            file.is_ok_and(|file| DebugSections::of(&file).is_some())
        };
        // Folders of programs that were not stripped hold both in one file.
        [Wanted::DebugInfo, Wanted::Executable]
            .into_iter()
            .find_map(|wanted| self.in_folders(id, wanted, warnings).filter(has_debug_info))
            .or_else(|| self.on_servers(id, Wanted::DebugInfo, warnings))
    }

    fn in_folders(
        &self,
        id: &BuildId,
        wanted: Wanted,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        let id_text = id.to_string();
        let (first, rest) = id_text.split_at(2);
        let suffix = match wanted {
            Wanted::Executable => "",
            Wanted::DebugInfo => ".debug",
        };
        let names = [
            format!(".build-id/{first}/{rest}{suffix}"),
            format!("{id_text}{suffix}"),
            format!("{id_text}/{}", wanted.name()),
        ];
        let paths = self.symbol_folders.iter();
        let mut paths = paths.flat_map(|folder| names.iter().map(|name| folder.join(name)));
        paths.find_map(|path| open_checked(path, id, warnings))
    }

    #[cfg(feature = "debuginfod")]
    fn on_servers(
        &self,
        id: &BuildId,
        wanted: Wanted,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        self.debuginfod.as_ref()?.find(id, wanted, warnings)
    }

    /// Asks no server, and warns of it once if the user has named one.
    #[cfg(not(feature = "debuginfod"))]
    fn on_servers(
        &self,
        _: &BuildId,
        _: Wanted,
        warnings: &mut Vec<SymbolWarning>,
    ) -> Option<Image> {
        let is_known = warnings.iter().any(|it| matches!(it, SymbolWarning::ServersNotAsked));
        if !is_known && std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.is_empty()) {
            warnings.push(SymbolWarning::ServersNotAsked);
        }
        None
    }
}

/// The image at a path where that of a build-id should be, if it is that.
pub(super) fn open_checked(
    path: PathBuf,
    id: &BuildId,
    warnings: &mut Vec<SymbolWarning>,
) -> Option<Image> {
    let image = Image::open(&path).ok()?;
    if image.build_id() != Some(id) {
        warnings.push(SymbolWarning::LocalFileDiffers {
            path,
            expected: id.clone(),
            found: image.build_id().cloned(),
        });
        return None;
    }
    Some(image)
}
