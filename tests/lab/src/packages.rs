//! Debian's packages, downloaded with apt as an ordinary user and unpacked without installing.
//!
//! Apt gets state folders of its own and a status file that says nothing is installed, so what it
//! downloads does not depend on the host. The host's package sources are used as they are; those of
//! another architecture are found in them too.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::error::{LabError, Unavailable, WrongVersion};

/// Xen's version in the names of its packages and folders.
pub(crate) const XEN: &str = "4.17";

/// Packages of one architecture that are downloaded together.
pub(crate) struct Selection {
    /// Debian's name of the architecture.
    pub(crate) architecture: &'static str,
    /// Packages and how their versions begin, of those that are known to run.
    wanted: &'static [(&'static str, &'static str)],
    /// Downloaded with all they depend on.
    with_dependencies: &'static [&'static [&'static str]],
    /// Downloaded alone: their dependencies (Python, a boot loader, a C compiler) serve only an
    /// installed system.
    alone: &'static [&'static str],
    /// The package that depends on the standard kernel, if one is needed.
    kernel: Option<&'static str>,
}

/// The packages that dom0's programs need on every architecture.
const DOM0: &[&str] = &[
    "libc6",
    "libgcc-s1",
    "liblzma5",
    "libzstd1",
    "zlib1g",
    "libuuid1",
    "libyajl2",
    "libxenmisc4.17",
    "libxenhypfs1",
    "libxenstore4",
    "busybox-static",
];

/// QEMU, Xen and dom0 for x86-64. QEMU 10.0 reports a PVH guest's read of CR2 as one of CR0.
pub(crate) const X86_64: Selection = Selection {
    architecture: "amd64",
    wanted: &[
        ("qemu-system-x86", "1:7.2"),
        ("xen-hypervisor-4.17-amd64", "4.17"),
        ("xen-utils-4.17", "4.17"),
        ("linux-image-amd64", "6.1"),
    ],
    with_dependencies: &[DOM0, &["qemu-system-x86", "xz-utils"]],
    alone: &["xen-hypervisor-4.17-amd64", "xen-utils-4.17", "xenstore-utils"],
    kernel: Some("linux-image-amd64"),
};

/// QEMU for aarch64, which runs on the host beside that for x86-64 and uses the same libraries.
pub(crate) const AARCH64_QEMU: Selection = Selection {
    architecture: "amd64",
    wanted: &[("qemu-system-arm", "1:7.2")],
    with_dependencies: &[],
    alone: &["qemu-system-arm"],
    kernel: None,
};

/// Xen and dom0 for aarch64.
pub(crate) const AARCH64_DOM0: Selection = Selection {
    architecture: "arm64",
    wanted: &[
        ("xen-hypervisor-4.17-arm64", "4.17"),
        ("xen-utils-4.17", "4.17"),
        ("linux-image-arm64", "6.1"),
    ],
    with_dependencies: &[DOM0],
    alone: &["xen-hypervisor-4.17-arm64", "xen-utils-4.17", "xenstore-utils"],
    kernel: Some("linux-image-arm64"),
};

/// Dependencies that nothing here reads.
const NOT_UNPACKED: [&str; 6] =
    ["iso-codes_", "libc-bin_", "passwd_", "perl", "tzdata_", "debconf_"];

/// A Rust compiler with the standard library of the host, for build scripts. There is no package of
/// the stock compiler for other targets. It comes from Debian's security updates, whose version
/// moves on.
pub(crate) const RUSTC: Selection = Selection {
    architecture: "amd64",
    wanted: &[("rustc-web", "1.")],
    with_dependencies: &[&["libstd-rust-web-dev"]],
    alone: &["rustc-web"],
    kernel: None,
};

/// The core library of aarch64.
pub(crate) const AARCH64_CORE: Selection = Selection {
    architecture: "arm64",
    wanted: &[("libstd-rust-web-dev", "1.")],
    with_dependencies: &[],
    alone: &["libstd-rust-web-dev"],
    kernel: None,
};

/// Modules that dom0 loads on every architecture, in this order; those of its network card follow.
pub(crate) const DOM0_MODULES: [&str; 9] = [
    "xen-privcmd",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "xenfs",
    "llc",
    "stp",
    "bridge",
    "xen-netback",
];

/// Downloads a selection into `folder` and returns the packages, the kernel's apart.
pub(crate) fn download(selection: &Selection, folder: &Path) -> Result<Downloaded, LabError> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb", "tar"] {
        if !on_path(tool) {
            return Err(Unavailable::ToolMissing { tool }.into());
        }
    }
    let apt = Apt::prepare(selection.architecture, folder)?;
    apt.update()?;
    let wrong = apt.wrong_versions(selection.wanted)?;
    if !wrong.is_empty() {
        return Err(Unavailable::Versions(wrong).into());
    }
    let kernel = selection.kernel.map(|meta| apt.kernel_package(meta));
    let kernel = kernel.transpose()?;

    if !selection.with_dependencies.is_empty() {
        let mut install = vec!["-qq", "-y", "--download-only", "install"];
        install.extend(selection.with_dependencies.iter().copied().flatten());
        apt.get(&install, folder)?;
    }
    let alone = folder.join("alone");
    create(&alone)?;
    let mut download = vec!["-qq", "download"];
    download.extend(kernel.as_deref());
    download.extend(selection.alone);
    apt.get(&download, &alone)?;

    let mut packages = debs_in(&folder.join("archives"))?;
    let is_kernel = |deb: &PathBuf| {
        let name = kernel.as_deref();
        name.is_some_and(|name| file_name(deb).starts_with(&format!("{name}_")))
    };
    let (kernels, others): (Vec<_>, Vec<_>) = debs_in(&alone)?.into_iter().partition(is_kernel);
    packages.extend(others);
    packages.retain(|deb| !NOT_UNPACKED.iter().any(|name| file_name(deb).starts_with(name)));
    Ok(Downloaded { packages, kernel: kernels.into_iter().next() })
}

pub(crate) struct Downloaded {
    pub(crate) packages: Vec<PathBuf>,
    kernel: Option<PathBuf>,
}

impl Downloaded {
    /// The kernel's package.
    pub(crate) fn kernel(&self) -> Result<&Path, LabError> {
        let missing = || LabError::setup("downloading the dom0 kernel", "apt has left no file");
        self.kernel.as_deref().ok_or_else(missing)
    }
}

/// Unpacks a package into `root`: everything but documentation, or only what `wanted` names.
pub(crate) fn unpack(deb: &Path, root: &Path, wanted: &[String]) -> Result<(), LabError> {
    let step = || format!("unpacking {}", deb.display());
    create(root)?;
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(deb)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| LabError::setup(step(), e))?;
    let mut tar = Command::new("tar");
    tar.arg("-x").arg("--no-same-owner").arg("-C").arg(root);
    for folder in ["doc", "man", "locale"] {
        tar.arg(format!("--exclude=./usr/share/{folder}"));
    }
    if !wanted.is_empty() {
        tar.args(["--wildcards", "--no-anchored"]).args(wanted);
    }
    if let Some(packed) = reader.stdout.take() {
        tar.stdin(packed);
    }
    let unpacked = tar.output();
    let read = reader.wait().map_err(|e| LabError::setup(step(), e))?;
    check(&step(), unpacked.map_err(|e| LabError::setup(step(), e))?)?;
    if read.success() { Ok(()) } else { Err(LabError::setup(step(), read)) }
}

/// Apt with a configuration of its own.
struct Apt {
    folder: PathBuf,
    configuration: PathBuf,
}

impl Apt {
    fn prepare(architecture: &str, folder: &Path) -> Result<Self, LabError> {
        create(&folder.join("lists/partial"))?;
        create(&folder.join("archives/partial"))?;
        let configuration = folder.join("apt.conf");
        let at = folder.display();
        // The sandbox user could not write here, and "root" means no change of user.
        let text = format!(
            "Dir::State \"{at}\";\nDir::State::lists \"{at}/lists\";\n\
             Dir::State::status \"{at}/status\";\nDir::Cache \"{at}\";\n\
             Dir::Cache::archives \"{at}/archives\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
             APT::Architecture \"{architecture}\";\nAPT::Architectures {{ \"{architecture}\"; }};\n\
             APT::Sandbox::User \"root\";\nAPT::Install-Recommends \"false\";\n\
             Acquire::Languages \"none\";\nAcquire::Retries \"3\";\nDebug::NoLocking \"1\";\n"
        );
        write(&folder.join("status"), b"")?;
        write(&configuration, text.as_bytes())?;
        Ok(Self { folder: folder.to_owned(), configuration })
    }

    fn run(&self, tool: &str, arguments: &[&str], folder: &Path) -> Result<Output, LabError> {
        Command::new(tool)
            .args(arguments)
            .current_dir(folder)
            .env("APT_CONFIG", &self.configuration)
            .env("LC_ALL", "C")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| LabError::setup(format!("running {tool}"), e))
    }

    fn get(&self, arguments: &[&str], folder: &Path) -> Result<(), LabError> {
        let output = self.run("apt-get", arguments, folder)?;
        if output.status.success() {
            return Ok(());
        }
        Err(Unavailable::Download { output: both(&output) }.into())
    }

    /// One source that cannot be reached does not matter if the packages are found in the others.
    fn update(&self) -> Result<(), LabError> {
        self.run("apt-get", &["-qq", "update"], &self.folder).map(drop)
    }

    fn wrong_versions(&self, wanted: &[(&str, &str)]) -> Result<Vec<WrongVersion>, LabError> {
        let mut arguments = vec!["policy"];
        arguments.extend(wanted.iter().map(|(package, _)| *package));
        let output = self.run("apt-cache", &arguments, &self.folder)?;
        let policy = String::from_utf8_lossy(&output.stdout);
        Ok(wanted
            .iter()
            .filter_map(|&(package, wanted)| {
                let found = candidate(&policy, package);
                let fits = found.as_deref().is_some_and(|version| version.starts_with(wanted));
                (!fits).then(|| WrongVersion {
                    package: package.into(),
                    wanted: wanted.into(),
                    found,
                })
            })
            .collect())
    }

    /// The package that the meta package for the standard kernel stands for.
    fn kernel_package(&self, meta: &str) -> Result<String, LabError> {
        let output = self.run("apt-cache", &["depends", meta], &self.folder)?;
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with("linux-image-"))
            .map(str::to_owned)
            .ok_or_else(|| LabError::setup("finding the dom0 kernel", both(&output)))
    }
}

/// The candidate version of `package` in the output of `apt-cache policy`.
fn candidate(policy: &str, package: &str) -> Option<String> {
    let mut lines =
        policy.lines().skip_while(|line| line.strip_suffix(':') != Some(package)).skip(1);
    let version = lines
        .by_ref()
        .take_while(|line| line.starts_with(' '))
        .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (version != "(none)").then(|| version.to_owned())
}

fn debs_in(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let step = || format!("listing {}", folder.display());
    let mut debs = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| LabError::setup(step(), e))? {
        let path = entry.map_err(|e| LabError::setup(step(), e))?.path();
        if path.extension() == Some(OsStr::new("deb")) {
            debs.push(path);
        }
    }
    debs.sort();
    Ok(debs)
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(OsStr::to_str).unwrap_or_default()
}

fn on_path(tool: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
}

fn both(output: &Output) -> String {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        String::from_utf8_lossy(&output.stdout)
    );
    crate::board::tail(text.trim(), 12)
}

/// An error with the tool's own words unless it succeeded.
pub(crate) fn check(step: &str, output: Output) -> Result<Vec<u8>, LabError> {
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(LabError::setup(step, format!("{}: {}", output.status, both(&output))))
    }
}

pub(crate) fn create(folder: &Path) -> Result<(), LabError> {
    fs::create_dir_all(folder)
        .map_err(|e| LabError::setup(format!("creating {}", folder.display()), e))
}

pub(crate) fn write(path: &Path, data: &[u8]) -> Result<(), LabError> {
    fs::write(path, data).map_err(|e| LabError::setup(format!("writing {}", path.display()), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "qemu-system-x86:\n  Installed: (none)\n  Candidate: 1:7.2+dfsg-7\n  \
                          Version \
                          table:\n     1:7.2+dfsg-7 500\nxen-utils-4.17:\n  Installed: (none)\n  \
                          Candidate: (none)\n";

    #[test]
    fn the_candidate_of_the_asked_package_is_read() {
        assert_eq!(candidate(POLICY, "qemu-system-x86").as_deref(), Some("1:7.2+dfsg-7"));
        assert_eq!(candidate(POLICY, "xen-utils-4.17"), None, "apt writes (none)");
        assert_eq!(candidate(POLICY, "linux-image-amd64"), None, "apt leaves unknown names out");
    }
}
