//! The options for images and symbol lists.

use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use unikprof_profile::agent_info::AgentInfo;
use unikprof_profile::printable::path_word;
use unikprof_profile::profile::{Architecture, ProfileBuilder, RecordingInfo};
#[cfg(feature = "debuginfod")]
use unikprof_profile::symbols::Debuginfod;
use unikprof_profile::symbols::{Force, ImageOptions, Images, Symbolizer};

/// Where names come from.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Symbols")]
pub(super) struct NameArguments {
    /// The guest's ELF image with symbols, or one of its libraries; can be repeated
    ///
    /// Its build-id must match the recording's. Separate debug files are searched for beside it and
    /// in /usr/lib/debug.
    #[arg(long, value_name = "ELF")]
    image: Vec<PathBuf>,
    /// Use the images even if their build-ids differ; names may then be wrong
    #[arg(long, requires = "image")]
    force_image: bool,
    /// A folder with ELF or debug files by build-id, or a symbol list in the output format of `nm`;
    /// can be repeated
    ///
    /// A folder contains .build-id/ab/cdef.debug, or files named by their build-ids. If
    /// DEBUGINFOD_URLS is set, debuginfod servers are asked for files that are not on this machine.
    #[arg(long, value_name = "PATH")]
    symbols: Vec<PathBuf>,
    /// Do not demangle names: show `camlLwt__return_1319` instead of `Lwt.return`
    #[arg(long)]
    raw_names: bool,
}

impl NameArguments {
    /// Reads the files.
    pub(super) fn symbolizer(&self) -> Result<Symbolizer, Failure> {
        let mut images = Images::new(ImageOptions {
            #[cfg(feature = "debuginfod")]
            debuginfod: Debuginfod::from_environment()
                .map_err(|error| Failure::Usage(error.to_string()))?,
            ..ImageOptions::default()
        });
        let force = if self.force_image { Force::Yes } else { Force::No };
        for path in &self.image {
            images.add_image(path, force)?;
        }
        for path in &self.symbols {
            images.add_symbols(path)?;
        }
        Ok(Symbolizer::new(images).with_raw_names(self.raw_names))
    }

    /// The files that are read.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.image.iter().chain(&self.symbols)
    }

    /// These options as words of a command line that finds the same names, with a space before
    /// each.
    pub(super) fn words(&self) -> String {
        let image = self.image.iter().map(|path| format!(" --image {}", path_word(path)));
        let symbols = self.symbols.iter().map(|path| format!(" --symbols {}", path_word(path)));
        let force = self.force_image.then(|| " --force-image".to_owned());
        image.chain(force).chain(symbols).collect()
    }

    /// Whether the images that were named, if any, are the ones that the guest runs.
    pub(super) fn check(&self, symbolizer: &Symbolizer, agent: &AgentInfo) -> Result<(), Failure> {
        if self.is_empty() {
            return Ok(());
        }
        check(symbolizer, agent)
    }

    /// Whether the user named any file.
    pub(super) fn is_empty(&self) -> bool {
        self.image.is_empty() && self.symbols.is_empty()
    }
}

/// Whether these images are the ones that the guest runs, before time is spent on a recording.
pub(super) fn check(symbolizer: &Symbolizer, agent: &AgentInfo) -> Result<(), Failure> {
    let mut nothing = ProfileBuilder::new();
    for mapping in agent.mappings.iter() {
        nothing.add_mapping(mapping.clone());
    }
    nothing.set_recording(RecordingInfo {
        architecture: Architecture::from_name(&agent.architecture),
        ..RecordingInfo::default()
    });
    symbolizer.resolve(&nothing.finish())?;
    Ok(())
}
