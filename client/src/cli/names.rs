//! The images and symbol lists that the user names.

use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use crate::agent_info::AgentInfo;
use crate::profile::{Architecture, ProfileBuilder, RecordingInfo};
use crate::symbols::{Force, ImageOptions, Images, Symbolizer};

/// Where names come from.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Names of functions")]
pub(super) struct NameArguments {
    /// The guest's ELF image with symbols, or one of its libraries; may be given again
    ///
    /// Its build-id must be the recording's. Separate debug files beside it and in /usr/lib/debug
    /// are found by themselves.
    #[arg(long, value_name = "ELF")]
    image: Vec<PathBuf>,
    /// Use the images even where their build-id differs; names may then be wrong
    #[arg(long, requires = "image")]
    force_image: bool,
    /// A list of the guest's symbols, as `nm` prints it; may be given again
    #[arg(long, value_name = "FILE")]
    symbols: Vec<PathBuf>,
    /// Leave names as their compilers wrote them: `camlLwt__return_1319` for `Lwt.return`
    #[arg(long)]
    raw_names: bool,
}

impl NameArguments {
    /// Reads the files.
    pub(super) fn symbolizer(&self) -> Result<Symbolizer, Failure> {
        let mut images = Images::new(ImageOptions::default());
        let force = if self.force_image {
            Force::Yes
        } else {
            Force::No
        };
        for path in &self.image {
            images.add_image(path, force)?;
        }
        for path in &self.symbols {
            images.add_symbols(path)?;
        }
        Ok(Symbolizer::new(images).with_raw_names(self.raw_names))
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
