//! The errors of a lab, told apart by what the reader should do next.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Why a lab did not start, or why something waited for did not come.
///
/// Every variant that follows a boot carries the tail of the log that explains it.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("no Xen lab on this machine: {0}")]
    Unavailable(#[from] Unavailable),

    #[error("lab configuration: {0}")]
    Config(String),

    #[error("lab setup, {step}: {detail}")]
    Setup { step: String, detail: String },

    #[error("the guest did not build:\n{output}")]
    GuestBuild { output: String },

    #[error("Xen or dom0 did not boot: {reason}\n--- serial log ---\n{tail}")]
    BootFailed { reason: String, tail: String },

    #[error("guest {guest} was not created:\n{output}\n--- serial log ---\n{tail}")]
    GuestNotCreated { guest: String, output: String, tail: String },

    #[error("guest {guest} crashed ({how})\n--- console ---\n{tail}")]
    GuestCrashed { guest: String, how: String, tail: String },

    #[error("guest {guest} ended ({reason}) before {waited_for}\n--- console ---\n{tail}")]
    GuestEnded { guest: String, reason: String, waited_for: String, tail: String },

    #[error("QEMU ended ({status}) before {waited_for}\n--- QEMU and serial log ---\n{tail}")]
    MachineEnded { status: String, waited_for: String, tail: String },

    #[error("timed out after {after:?} waiting for {waited_for}\n--- log ---\n{tail}")]
    TimedOut { waited_for: String, after: Duration, tail: String },
}

impl LabError {
    pub fn setup(step: impl fmt::Display, detail: impl fmt::Display) -> Self {
        Self::Setup { step: step.to_string(), detail: detail.to_string() }
    }
}

/// Why a lab cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("it needs an x86-64 Linux host, this one is {found}")]
    Host { found: String },

    #[error("`{tool}` is not on the PATH (a Debian machine has it)")]
    ToolMissing { tool: &'static str },

    #[error("downloading packages failed: {output}")]
    Download { output: String },

    #[error("the package sources do not have what the lab needs (Debian 12's): {}", Wanted(.0))]
    Versions(Vec<WrongVersion>),

    #[error("the cache path {0} holds a comma or a space")]
    Path(PathBuf),
}

/// A package whose version in the machine's sources is not the one the lab needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongVersion {
    pub(crate) package: String,
    /// The required beginning of its version.
    pub(crate) wanted: String,
    /// The version found, if the package exists at all.
    pub(crate) found: Option<String>,
}

struct Wanted<'a>(&'a [WrongVersion]);

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, package) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            let found = package.found.as_deref().unwrap_or("no such package");
            write!(f, "{separator}{} {}…, found {found}", package.package, package.wanted)?;
        }
        Ok(())
    }
}
