//! Debian's packages, downloaded with apt as an ordinary user and unpacked without installing.
//!
//! Apt gets state folders of its own and a status file that says nothing is installed, so what it
//! downloads does not depend on the host. The host's package sources are used as they are.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::error::{LabError, Unavailable, WrongVersion};

/// Xen's version in the names of its packages and folders.
pub(crate) const XEN: &str = "4.17";

/// Versions known to run: QEMU 10.0 reports a PVH guest's read of CR2 as one of CR0.
const WANTED: [(&str, &str); 4] = [
    ("qemu-system-x86", "1:7.2"),
    ("xen-hypervisor-4.17-amd64", "4.17"),
    ("xen-utils-4.17", "4.17"),
    ("linux-image-amd64", "6.1"),
];

/// Downloaded with all they depend on.
const WITH_DEPENDENCIES: [&str; 13] = [
    "qemu-system-x86",
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
    "xz-utils",
];

/// Downloaded alone: their dependencies (Python, a boot loader) serve only an installed system.
const ALONE: [&str; 3] = [
    "xen-hypervisor-4.17-amd64",
    "xen-utils-4.17",
    "xenstore-utils",
];

/// Dependencies that nothing here reads.
const NOT_UNPACKED: [&str; 6] = [
    "iso-codes_",
    "libc-bin_",
    "passwd_",
    "perl",
    "tzdata_",
    "debconf_",
];

/// Modules that dom0 loads, in this order.
pub(crate) const DOM0_MODULES: [&str; 10] = [
    "xen-privcmd",
    "xen-evtchn",
    "xen-gntdev",
    "xen-gntalloc",
    "xenfs",
    "llc",
    "stp",
    "bridge",
    "xen-netback",
    "e1000",
];

/// Downloads everything into `folder` and returns the packages, the dom0 kernel's apart.
pub(crate) fn download(folder: &Path) -> Result<Downloaded, LabError> {
    for tool in ["apt-get", "apt-cache", "dpkg-deb", "tar"] {
        if !on_path(tool) {
            return Err(Unavailable::ToolMissing { tool }.into());
        }
    }
    let apt = Apt::prepare(folder)?;
    apt.update()?;
    let wrong = apt.wrong_versions()?;
    if !wrong.is_empty() {
        return Err(Unavailable::Versions(wrong).into());
    }
    let kernel = apt.kernel_package()?;

    let mut install = vec!["-qq", "-y", "--download-only", "install"];
    install.extend(WITH_DEPENDENCIES);
    apt.get(&install, folder)?;
    let alone = folder.join("alone");
    create(&alone)?;
    let mut download = vec!["-qq", "download", kernel.as_str()];
    download.extend(ALONE);
    apt.get(&download, &alone)?;

    let mut packages = debs_in(&folder.join("archives"))?;
    let (kernels, xen): (Vec<_>, Vec<_>) = debs_in(&alone)?
        .into_iter()
        .partition(|deb| file_name(deb).starts_with(&format!("{kernel}_")));
    packages.extend(xen);
    packages.retain(|deb| {
        !NOT_UNPACKED
            .iter()
            .any(|name| file_name(deb).starts_with(name))
    });
    let kernel = kernels.into_iter().next().ok_or_else(|| {
        LabError::setup(
            "downloading the dom0 kernel",
            format!("no file of {kernel}"),
        )
    })?;
    Ok(Downloaded { packages, kernel })
}

pub(crate) struct Downloaded {
    pub(crate) packages: Vec<PathBuf>,
    pub(crate) kernel: PathBuf,
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
    if read.success() {
        Ok(())
    } else {
        Err(LabError::setup(step(), read))
    }
}

/// Apt with a configuration of its own.
struct Apt {
    folder: PathBuf,
    configuration: PathBuf,
}

impl Apt {
    fn prepare(folder: &Path) -> Result<Self, LabError> {
        create(&folder.join("lists/partial"))?;
        create(&folder.join("archives/partial"))?;
        let configuration = folder.join("apt.conf");
        let at = folder.display();
        // The sandbox user could not write here, and "root" means no change of user.
        let text = format!(
            "Dir::State \"{at}\";\nDir::State::lists \"{at}/lists\";\n\
             Dir::State::status \"{at}/status\";\nDir::Cache \"{at}\";\n\
             Dir::Cache::archives \"{at}/archives\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
             APT::Architecture \"amd64\";\nAPT::Architectures {{ \"amd64\"; }};\n\
             APT::Sandbox::User \"root\";\nAPT::Install-Recommends \"false\";\n\
             Acquire::Languages \"none\";\nAcquire::Retries \"3\";\nDebug::NoLocking \"1\";\n"
        );
        write(&folder.join("status"), b"")?;
        write(&configuration, text.as_bytes())?;
        Ok(Self {
            folder: folder.to_owned(),
            configuration,
        })
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
        Err(Unavailable::Download {
            output: both(&output),
        }
        .into())
    }

    /// One source that cannot be reached does not matter if the packages are found in the others.
    fn update(&self) -> Result<(), LabError> {
        self.run("apt-get", &["-qq", "update"], &self.folder)
            .map(drop)
    }

    fn wrong_versions(&self) -> Result<Vec<WrongVersion>, LabError> {
        let mut arguments = vec!["policy"];
        arguments.extend(WANTED.iter().map(|(package, _)| *package));
        let output = self.run("apt-cache", &arguments, &self.folder)?;
        let policy = String::from_utf8_lossy(&output.stdout);
        Ok(WANTED
            .iter()
            .filter_map(|&(package, wanted)| {
                let found = candidate(&policy, package);
                let fits = found
                    .as_deref()
                    .is_some_and(|version| version.starts_with(wanted));
                (!fits).then(|| WrongVersion {
                    package: package.into(),
                    wanted: wanted.into(),
                    found,
                })
            })
            .collect())
    }

    /// The package that the meta package for the standard kernel stands for.
    fn kernel_package(&self) -> Result<String, LabError> {
        let output = self.run("apt-cache", &["depends", "linux-image-amd64"], &self.folder)?;
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
    let mut lines = policy
        .lines()
        .skip_while(|line| line.strip_suffix(':') != Some(package))
        .skip(1);
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
    super::board::tail(text.trim(), 12)
}

/// An error with the tool's own words unless it succeeded.
pub(crate) fn check(step: &str, output: Output) -> Result<Vec<u8>, LabError> {
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(LabError::setup(
            step,
            format!("{}: {}", output.status, both(&output)),
        ))
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

    const POLICY: &str = "qemu-system-x86:\n  Installed: (none)\n  Candidate: 1:7.2+dfsg-7\n  Version \
                          table:\n     1:7.2+dfsg-7 500\nxen-utils-4.17:\n  Installed: (none)\n  \
                          Candidate: (none)\n";

    #[test]
    fn the_candidate_of_the_asked_package_is_read() {
        assert_eq!(
            candidate(POLICY, "qemu-system-x86").as_deref(),
            Some("1:7.2+dfsg-7")
        );
        assert_eq!(
            candidate(POLICY, "xen-utils-4.17"),
            None,
            "apt writes (none)"
        );
        assert_eq!(
            candidate(POLICY, "linux-image-amd64"),
            None,
            "apt leaves unknown names out"
        );
    }
}
