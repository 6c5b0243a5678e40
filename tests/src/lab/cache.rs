//! The cache: packages downloaded once, unpacked once, shared by every lab of this checkout.
//!
//! A file lock is held while it is filled, so labs that start together fill it once. A stamp, written
//! last, says that it is whole; a cache without one is made anew.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{LabError, Unavailable};
use super::kernel::compressed_payload;
use super::packages::{self, XEN, check, create, write};

/// Raise when the steps below change what they leave behind.
const RECIPE: &str = "1";

/// Holds the recipe's number once everything else is there.
const STAMP: &str = "stamp";

/// Names another folder than `target/xen-lab` for the cache and the run folders.
pub(crate) const CACHE_VARIABLE: &str = "UNIKPROF_XEN_CACHE";

/// A filled cache.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// Opens the cache; the first caller fills it, which downloads about 170 MB.
    pub(crate) fn open() -> Result<Self, LabError> {
        let host = format!("{} {}", std::env::consts::ARCH, std::env::consts::OS);
        if host != "x86_64 linux" {
            return Err(Unavailable::Host { found: host }.into());
        }
        let folder = folder();
        create(&folder)?;
        let folder = folder
            .canonicalize()
            .map_err(|e| LabError::setup(format!("resolving {}", folder.display()), e))?;
        if folder.to_string_lossy().contains([',', ' ']) {
            return Err(Unavailable::Path(folder).into());
        }
        let cache = Self { folder };
        cache.fill()?;
        Ok(cache)
    }

    /// Is there a whole cache already?
    pub(crate) fn is_filled() -> bool {
        is_whole(&folder())
    }

    /// Where labs make their run folders.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The unpacked packages.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// The hypervisor, decompressed.
    pub(crate) fn xen(&self) -> PathBuf {
        self.folder.join("xen")
    }

    /// Dom0's kernel: an ELF image where its compression is known, a bzImage otherwise.
    pub(crate) fn dom0_kernel(&self) -> PathBuf {
        self.folder.join("vmlinux-dom0")
    }

    /// Dom0's kernel modules by name.
    pub(crate) fn module(&self, name: &str) -> PathBuf {
        self.folder.join("modules").join(format!("{name}.ko"))
    }

    /// A program of the cache, run with the cache's own loader and libraries.
    pub(crate) fn program(&self, path: &str) -> Command {
        let mut command = self.loader();
        command.arg(self.root().join(path));
        command
    }

    /// The shared libraries that a program of the cache needs, as files of the cache.
    pub(crate) fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>, LabError> {
        let step = format!("listing the libraries of {}", program.display());
        let output = self
            .loader()
            .arg("--list")
            .arg(program)
            .output()
            .map_err(|e| LabError::setup(&step, e))?;
        let text = check(&step, output)?;
        Ok(String::from_utf8_lossy(&text)
            .lines()
            .filter_map(|line| line.split_once(" => ")?.1.split_whitespace().next())
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from)
            .collect())
    }

    fn loader(&self) -> Command {
        let root = self.root();
        let folders = [
            "lib/x86_64-linux-gnu",
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/x86_64-linux-gnu/pulseaudio",
        ]
        .map(|folder| root.join(folder).display().to_string());
        let mut command = Command::new(root.join("lib64/ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(folders.join(":"));
        command
    }

    fn fill(&self) -> Result<(), LabError> {
        let step = "locking the cache";
        let lock = File::create(self.folder.join("lock")).map_err(|e| LabError::setup(step, e))?;
        // Released when the file is closed, also when this process dies.
        lock.lock().map_err(|e| LabError::setup(step, e))?;
        if is_whole(&self.folder) {
            return Ok(());
        }
        for leftover in ["root", "kernel", "modules", "apt"] {
            let path = self.folder.join(leftover);
            if path.exists() {
                fs::remove_dir_all(&path)
                    .map_err(|e| LabError::setup(format!("removing {}", path.display()), e))?;
            }
        }
        let apt = self.folder.join("apt");
        let downloaded = packages::download(&apt)?;
        for deb in &downloaded.packages {
            packages::unpack(deb, &self.root(), &[])?;
        }
        self.unpack_kernel(&downloaded.kernel)?;
        self.decompress_xen()?;
        // The packages are unpacked: half of the cache's size can go.
        fs::remove_dir_all(&apt).map_err(|e| LabError::setup("removing the packages", e))?;
        write(&self.folder.join(STAMP), RECIPE.as_bytes())
    }

    fn unpack_kernel(&self, deb: &Path) -> Result<(), LabError> {
        let folder = self.folder.join("kernel");
        let mut wanted = vec!["vmlinuz-*".to_owned()];
        wanted.extend(packages::DOM0_MODULES.map(|module| format!("{module}.ko")));
        packages::unpack(deb, &folder, &wanted)?;
        create(&self.folder.join("modules"))?;
        let mut image = None;
        for file in files_below(&folder)? {
            let name = file.file_name().unwrap_or_default().to_owned();
            if name.to_string_lossy().starts_with("vmlinuz-") {
                image = Some(file);
            } else {
                let to = self.folder.join("modules").join(name);
                fs::rename(&file, &to).map_err(|e| LabError::setup("moving a dom0 module", e))?;
            }
        }
        let step = "reading the dom0 kernel";
        let image = image.ok_or_else(|| LabError::setup(step, "the package has none"))?;
        let image = fs::read(image).map_err(|e| LabError::setup(step, e))?;
        write(&self.dom0_kernel(), &self.elf_of(&image)?.unwrap_or(image))
    }

    /// The ELF image in a bzImage, or `None` where it is compressed in another way than xz.
    fn elf_of(&self, image: &[u8]) -> Result<Option<Vec<u8>>, LabError> {
        let Some(payload) = compressed_payload(image) else {
            return Ok(None);
        };
        let packed = self.folder.join("payload.xz");
        write(&packed, payload)?;
        let input = File::open(&packed).map_err(|e| LabError::setup("opening the payload", e))?;
        // The kernel's build appends its size after the stream: `xz` would call that garbage.
        let output = self
            .program("usr/bin/xz")
            .args(["-dc", "--single-stream"])
            .stdin(input)
            .stderr(Stdio::null())
            .output()
            .map_err(|e| LabError::setup("decompressing the dom0 kernel", e))?;
        fs::remove_file(&packed).map_err(|e| LabError::setup("removing the payload", e))?;
        Ok(output
            .stdout
            .starts_with(b"\x7fELF")
            .then_some(output.stdout))
    }

    fn decompress_xen(&self) -> Result<(), LabError> {
        let step = "decompressing Xen";
        let packed = self.root().join(format!("boot/xen-{XEN}-amd64.gz"));
        let output = Command::new(self.root().join("bin/busybox"))
            .args(["gzip", "-dc"])
            .arg(packed)
            .output()
            .map_err(|e| LabError::setup(step, e))?;
        write(&self.xen(), &check(step, output)?)
    }
}

fn folder() -> PathBuf {
    std::env::var_os(CACHE_VARIABLE)
        .map_or_else(|| super::target_folder().join("xen-lab"), PathBuf::from)
}

fn is_whole(cache: &Path) -> bool {
    fs::read_to_string(cache.join(STAMP)).is_ok_and(|found| found == RECIPE)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let step = || format!("listing {}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| LabError::setup(step(), e))? {
        let entry = entry.map_err(|e| LabError::setup(step(), e))?;
        if entry
            .file_type()
            .map_err(|e| LabError::setup(step(), e))?
            .is_dir()
        {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}
