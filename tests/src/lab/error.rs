//! What can go wrong with a lab, told apart by what the reader should do next.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Why a lab did not start, or why something waited for did not come.
///
/// Every variant that follows a boot carries the tail of the log that explains it.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This machine cannot run a lab at all. Cases that need one are skipped by name.
    #[error("no Xen lab on this machine: {0}")]
    Unavailable(#[from] Unavailable),

    /// The configuration contradicts itself; nothing was started.
    #[error("lab configuration: {0}")]
    Config(String),

    /// A step on the host failed: a file, a tool, a package that does not unpack.
    #[error("lab setup, {step}: {detail}")]
    Setup {
        /// What was being done.
        step: String,
        /// What the system or the tool said.
        detail: String,
    },

    /// The guest's own build failed.
    #[error("the guest did not build:\n{output}")]
    GuestBuild {
        /// Cargo's messages.
        output: String,
    },

    /// Xen or dom0 did not come up: a panic, or dom0 ended before it was ready.
    #[error("Xen or dom0 did not boot: {reason}\n--- serial log ---\n{tail}")]
    BootFailed {
        /// What showed the failure.
        reason: String,
        /// The end of the serial log.
        tail: String,
    },

    /// `xl create` or `xl restore` refused the guest.
    #[error("guest {guest} was not created:\n{output}\n--- serial log ---\n{tail}")]
    GuestNotCreated {
        /// The guest's name.
        guest: String,
        /// What `xl` said.
        output: String,
        /// The end of the serial log.
        tail: String,
    },

    /// The guest died of a fault: it crashed itself, or Xen killed it.
    #[error("guest {guest} crashed ({how})\n--- console ---\n{tail}")]
    GuestCrashed {
        /// The guest's name.
        guest: String,
        /// Xen's word for it, such as `crash` or `triple fault`.
        how: String,
        /// The end of the guest's console.
        tail: String,
    },

    /// The guest ended in good order (power off, reboot, suspend) before what was waited for.
    #[error("guest {guest} ended ({reason}) before {waited_for}\n--- console ---\n{tail}")]
    GuestEnded {
        /// The guest's name.
        guest: String,
        /// The shutdown reason.
        reason: String,
        /// What was being waited for.
        waited_for: String,
        /// The end of the guest's console.
        tail: String,
    },

    /// QEMU ended by itself while the lab was running.
    #[error("QEMU ended ({status}) before {waited_for}\n--- QEMU and serial log ---\n{tail}")]
    MachineEnded {
        /// QEMU's exit status.
        status: String,
        /// What was being waited for.
        waited_for: String,
        /// The end of QEMU's messages and of the serial log.
        tail: String,
    },

    /// Everything lives, but what was waited for did not come in time.
    #[error("timed out after {after:?} waiting for {waited_for}\n--- log ---\n{tail}")]
    TimedOut {
        /// What was being waited for.
        waited_for: String,
        /// How long.
        after: Duration,
        /// The end of the log that was watched.
        tail: String,
    },
}

impl LabError {
    pub(crate) fn setup(step: impl fmt::Display, detail: impl fmt::Display) -> Self {
        Self::Setup {
            step: step.to_string(),
            detail: detail.to_string(),
        }
    }
}

/// Why a lab cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The lab's Xen and its packages are those of x86-64.
    #[error("it needs an x86-64 Linux host, this one is {found}")]
    Host {
        /// The host's architecture and operating system.
        found: String,
    },

    /// A tool that every Debian machine has is not here.
    #[error("`{tool}` is not on the PATH (a Debian machine has it)")]
    ToolMissing {
        /// The tool's name.
        tool: &'static str,
    },

    /// The package lists or the packages could not be downloaded.
    #[error("downloading packages failed: {output}")]
    Download {
        /// What apt said.
        output: String,
    },

    /// The machine's package sources have other versions than those the lab is known to run.
    #[error("the package sources do not have what the lab needs (Debian 12's): {}", Wanted(.0))]
    Versions(
        /// Each package that does not fit.
        Vec<WrongVersion>,
    ),

    /// QEMU splits its `-initrd` option at commas and spaces.
    #[error("the cache path {0} holds a comma or a space")]
    Path(PathBuf),
}

/// A package whose version in the machine's sources is not the one the lab needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongVersion {
    /// The package.
    pub package: String,
    /// How its version has to begin.
    pub wanted: String,
    /// The version found, if the package exists at all.
    pub found: Option<String>,
}

struct Wanted<'a>(&'a [WrongVersion]);

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, package) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            let found = package.found.as_deref().unwrap_or("no such package");
            write!(
                f,
                "{separator}{} {}…, found {found}",
                package.package, package.wanted
            )?;
        }
        Ok(())
    }
}
