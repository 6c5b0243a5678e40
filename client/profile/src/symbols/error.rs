//! Errors and warnings about images and symbol lists.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::vdso;
use crate::profile::{Architecture, BuildId};

/// Why a file that the user named cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are named for what they hold")]
pub enum SymbolError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A directory, a device or a pipe.
    #[error("{} is not a regular file: name the guest's ELF image", path.display())]
    NotAFile { path: PathBuf },
    /// The file is larger than any sensible image.
    #[error("{} has {found} bytes; the limit for an image is {limit}", path.display())]
    TooLarge {
        path: PathBuf,
        found: u64,
        /// The most that is taken.
        limit: u64,
    },
    /// The file does not begin as an ELF file does.
    #[error(
        "{} is not an ELF file: expected it to begin with 7f 45 4c 46, found {}; name the \
         guest's linked image (symbol lists are for `report --symbols`)",
        path.display(), hex_bytes(found)
    )]
    NotElf {
        path: PathBuf,
        /// Its first bytes, four at most.
        found: Vec<u8>,
    },
    /// The file begins as an ELF file but its tables make no sense.
    #[error("{} is a damaged ELF file: {problem}; rebuild it or copy it again", path.display())]
    Damaged { path: PathBuf, problem: object::Error },
    /// The file was written to while it was read.
    #[error("{} changed while it was read: try again when it is complete", path.display())]
    Changed { path: PathBuf },
    /// The image is not what the guest ran.
    #[error(
        "{} is not the recorded image: expected build-id {expected}, found {}; name the image that \
         the guest ran, \
         or use this one anyway with --force-image",
        path.display(), id_or_none(found.as_ref())
    )]
    WrongBuildId {
        path: PathBuf,
        expected: BuildId,
        /// The file's; `None` if it has none.
        found: Option<BuildId>,
    },
    /// The image is for another processor than the guest's.
    #[error(
        "{} is for another architecture: expected {expected}, found {found}; name the image that \
         the guest ran",
        path.display()
    )]
    WrongArchitecture { path: PathBuf, expected: Architecture, found: String },
    /// A symbol list without a single function.
    #[error(
        "{} contains no functions: expected lines such as `0000000000101000 T main` or \
         `0000000000101000 0000000000000020 T main` (the output of `nm` or `nm -S`), found {found}",
        path.display()
    )]
    NoFunctions {
        path: PathBuf,
        /// The first line that is not a symbol, or a description of the content.
        found: String,
    },
}

/// A warning about names. The rest of the profile is symbolized regardless.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "fields are named for what they hold")]
pub enum SymbolWarning {
    /// There is no image for a mapping.
    #[error(
        "no image for {mapping} (build-id {}): {} shown in hexadecimal; {}",
        id_or_none(build_id.as_ref()), how_many(*addresses), image_advice(mapping)
    )]
    NoImage {
        /// The file's path in the recording.
        mapping: String,
        /// The recording's build-id.
        build_id: Option<BuildId>,
        /// How many distinct addresses have no name.
        addresses: usize,
    },
    /// The file at the recorded path differs from the recorded file.
    #[error(
        "{} has build-id {} here, and not the recorded {expected}; name the recorded file with \
         --image", path.display(), id_or_none(found.as_ref())
    )]
    LocalFileDiffers {
        /// The path that was tried.
        path: PathBuf,
        expected: BuildId,
        found: Option<BuildId>,
    },
    /// Used although its build-id differs, because of `--force-image`.
    #[error(
        "{} is used by --force-image: recorded was build-id {expected}, found {}; names may be \
         wrong",
        path.display(), id_or_none(found.as_ref())
    )]
    Forced { path: PathBuf, expected: BuildId, found: Option<BuildId> },
    /// The image cannot be verified.
    #[error(
        "{} could not be verified: the recording has no build-id for it; link the guest with \
         --build-id", path.display()
    )]
    NotVerified { path: PathBuf },
    /// The image belongs to no mapping.
    #[error("{} was not used: it matches no mapping of the recording", path.display())]
    NotUsed { path: PathBuf },
    /// The file was written to while it was read.
    #[error(
        "{} changed while it was read: names of its code are missing; try again when it is \
         complete",
        path.display()
    )]
    Changed { path: PathBuf },
    /// Names from the symbol table only.
    #[error(
        "{} has no debug information, so no lines or inlined functions; build it with -g (Rust: \
         debug = \"line-tables-only\")", path.display()
    )]
    NoDebugInfo { path: PathBuf },
    /// No names at all.
    #[error(
        "{} is stripped: it names no function; name the unstripped image, or a symbol list with \
         --symbols", path.display()
    )]
    Stripped { path: PathBuf },
    /// The debug information is damaged at some places.
    #[error("the debug information of {} is damaged ({problem}): {addresses} addresses affected",
        path.display())]
    DamagedDebugInfo {
        path: PathBuf,
        /// The parser error of the first one.
        problem: String,
        /// How many distinct addresses met it.
        addresses: usize,
    },
    /// Debug information of the file is in another one, which was not found or is of another build.
    #[error(
        "{} (debug information of {}) is missing or differs: no inlining is shown; put it beside \
         the image",
        missing.display(), path.display()
    )]
    DebugFileMissing {
        path: PathBuf,
        /// The first one.
        missing: PathBuf,
    },
    /// A request to a debuginfod server failed, or the file received is not the requested one.
    #[error("the debuginfod server {url} gave no file for build-id {build_id}: {problem}")]
    ServerFailed { url: String, build_id: BuildId, problem: String },
    /// `DEBUGINFOD_URLS` is set, but this build of the client cannot ask the servers.
    #[error(
        "no debuginfod server was asked: the client was built without the feature `debuginfod`"
    )]
    ServersNotAsked,
    /// A separate debug file does not belong to the image.
    #[error("{} is not the debug file of {} and was \
             ignored", debug_file.display(), image.display())]
    DebugFileDiffers { debug_file: PathBuf, image: PathBuf },
}

fn image_advice(mapping: &str) -> &'static str {
    match vdso::is_vdso(mapping.as_ref()) {
        true => "it is kernel code, in no file",
        false => "name the image with --image",
    }
}

impl SymbolWarning {
    /// Whether names are missing that `--image` could give.
    pub fn is_image_missing(&self) -> bool {
        matches!(self, SymbolWarning::NoImage { mapping, .. } if !vdso::is_vdso(mapping.as_ref()))
    }

    /// Adds a warning, or what it counts to one that says the same.
    pub(super) fn add(all: &mut Vec<SymbolWarning>, new: SymbolWarning) {
        for known in all.iter_mut() {
            match (known, &new) {
                (
                    SymbolWarning::NoImage { mapping, build_id, addresses },
                    SymbolWarning::NoImage { mapping: other, build_id: other_id, addresses: more },
                ) if mapping == other && build_id == other_id => {
                    *addresses += more;
                    return;
                }
                (
                    SymbolWarning::DamagedDebugInfo { path, addresses, .. },
                    SymbolWarning::DamagedDebugInfo { path: other, addresses: more, .. },
                ) if path == other => {
                    *addresses += more;
                    return;
                }
                (
                    SymbolWarning::DebugFileMissing { path, .. },
                    SymbolWarning::DebugFileMissing { path: other, .. },
                ) if path == other => return,
                (known, new) if known == new => return,
                _ => {}
            }
        }
        all.push(new);
    }
}

fn id_or_none(id: Option<&BuildId>) -> String {
    id.map_or_else(|| "none".to_owned(), ToString::to_string)
}

fn how_many(addresses: usize) -> String {
    match addresses {
        1 => "1 address is".to_owned(),
        many => format!("{many} addresses are"),
    }
}

fn hex_bytes(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "an empty file".to_owned();
    }
    bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::SymbolWarning;

    /// The kernel's code in a process is in no file, so nobody can name one.
    #[test]
    fn no_image_of_the_kernels_own_code_is_asked_for() {
        for (mapping, is_missing) in [("linux-vdso.so.1", false), ("guest.elf", true)] {
            let warning =
                SymbolWarning::NoImage { mapping: mapping.into(), build_id: None, addresses: 1 };
            assert_eq!(warning.is_image_missing(), is_missing);
            assert_eq!(warning.to_string().contains("--image"), is_missing);
        }
    }
}
