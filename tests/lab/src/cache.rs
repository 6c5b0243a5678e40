//! The cache: packages downloaded once, unpacked once, shared by every lab of this checkout.
//!
//! A file lock is held while it is filled, so labs that start together fill it once. A stamp,
//! written last, says that it is whole; a cache without one is made anew.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::read::elf::ElfFile64;
use object::{Endianness, elf};

use crate::config::Processor;
use crate::error::{LabError, Unavailable};
use crate::kernel::compressed_payload;
use crate::packages::{self, DOM0_MODULES, Selection, XEN, check, create, write};
use crate::toolchain;

/// Raise when the steps below change what they leave behind.
const RECIPE: &str = "1";

/// Holds the recipe's number once everything else is there.
const STAMP: &str = "stamp";

/// Names another folder than `target/xen-lab` for the cache and the run folders.
pub(crate) const CACHE_VARIABLE: &str = "UNIKPROF_XEN_CACHE";

/// A filled cache.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    /// Holds QEMU and its libraries, and what machines of x86-64 boot.
    folder: PathBuf,
    processor: Processor,
}

impl Cache {
    /// Opens the cache; the first caller fills it, which downloads about 170 MB, and for aarch64
    /// another 250 MB.
    pub(crate) fn open(processor: Processor) -> Result<Self, LabError> {
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
        let cache = Self { folder, processor };
        cache.fill()?;
        Ok(cache)
    }

    /// Is there a whole cache for machines with this processor already?
    pub(crate) fn is_filled(processor: Processor) -> bool {
        is_whole(&folder()) && is_whole(&machine_folder(&folder(), processor))
    }

    /// The folder in which labs make their run folders.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The unpacked packages for the host, QEMU's among them.
    pub(crate) fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// QEMU for the machine.
    pub(crate) fn qemu(&self) -> Command {
        match self.processor {
            Processor::X86_64 => self.program("usr/bin/qemu-system-x86_64"),
            Processor::Aarch64 => {
                let mut command = self.loader();
                command.arg(self.machine().join("qemu/usr/bin/qemu-system-aarch64"));
                command
            }
        }
    }

    /// A Rust compiler for the guests of machines with this processor; `None` where the stock one
    /// is.
    pub(crate) fn rustc(&self) -> Option<PathBuf> {
        match self.processor {
            Processor::X86_64 => None,
            Processor::Aarch64 => Some(toolchain::rustc(&self.machine().join("rust"))),
        }
    }

    /// The processor of the machines that the cache is for.
    pub(crate) fn processor(&self) -> Processor {
        self.processor
    }

    /// The files that machines with this processor boot.
    fn machine(&self) -> PathBuf {
        machine_folder(&self.folder, self.processor)
    }

    /// The unpacked packages for dom0.
    pub(crate) fn dom0_root(&self) -> PathBuf {
        self.machine().join("root")
    }

    /// The loader of dom0's programs, as a path in [`dom0_root`](Self::dom0_root) and in dom0.
    pub(crate) fn dom0_loader(&self) -> &'static str {
        match self.processor {
            Processor::X86_64 => "lib64/ld-linux-x86-64.so.2",
            Processor::Aarch64 => "lib/ld-linux-aarch64.so.1",
        }
    }

    /// The hypervisor, decompressed.
    pub(crate) fn xen(&self) -> PathBuf {
        self.machine().join("xen")
    }

    /// Dom0's kernel: an ELF image where its compression is known, a bzImage otherwise; on aarch64
    /// a flat image.
    pub(crate) fn dom0_kernel(&self) -> PathBuf {
        self.machine().join("vmlinux-dom0")
    }

    /// The names of the modules that dom0 loads, in this order.
    pub(crate) fn modules(&self) -> Vec<&'static str> {
        let network: &[&str] = match self.processor {
            Processor::X86_64 => &["e1000"],
            Processor::Aarch64 => &["virtio_mmio", "failover", "net_failover", "virtio_net"],
        };
        DOM0_MODULES.iter().chain(network).copied().collect()
    }

    /// Dom0's kernel modules by name.
    pub(crate) fn module(&self, name: &str) -> PathBuf {
        self.machine().join("modules").join(format!("{name}.ko"))
    }

    /// A program of the cache, run with the cache's own loader and libraries.
    pub(crate) fn program(&self, path: &str) -> Command {
        let mut command = self.loader();
        command.arg(self.root().join(path));
        command
    }

    /// A library of dom0 by its name.
    pub(crate) fn dom0_library(&self, name: &str) -> Result<PathBuf, LabError> {
        let triplet = match self.processor {
            Processor::X86_64 => "x86_64-linux-gnu",
            Processor::Aarch64 => "aarch64-linux-gnu",
        };
        let root = self.dom0_root();
        ["lib", "usr/lib"]
            .map(|folder| root.join(folder).join(triplet).join(name))
            .into_iter()
            .find(|path| path.exists())
            .ok_or_else(|| LabError::setup("finding dom0's libraries", format!("no {name}")))
    }

    /// The shared libraries that a program of dom0 needs, as files of the cache.
    pub(crate) fn libraries(&self, program: &Path) -> Result<Vec<PathBuf>, LabError> {
        match self.processor {
            Processor::X86_64 => self.listed_libraries(program),
            // The host cannot run the loader of another processor.
            Processor::Aarch64 => self.needed_libraries(program),
        }
    }

    /// The libraries in the program's dynamic section, and those that they need.
    fn needed_libraries(&self, program: &Path) -> Result<Vec<PathBuf>, LabError> {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut open = vec![program.to_owned()];
        while let Some(file) = open.pop() {
            for name in needed(&file)? {
                let library = self.dom0_library(&name);
                // The loader has a place of its own.
                if self.dom0_loader().ends_with(&name) {
                    continue;
                }
                let library = library?;
                if !found.contains(&library) {
                    open.push(library.clone());
                    found.push(library);
                }
            }
        }
        Ok(found)
    }

    /// The libraries that the program's own loader lists.
    fn listed_libraries(&self, program: &Path) -> Result<Vec<PathBuf>, LabError> {
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
        // QEMU for aarch64 uses libraries and files of the other.
        let host = Self { folder: self.folder.clone(), processor: Processor::X86_64 };
        host.fill_machine(&packages::X86_64)?;
        match self.processor {
            Processor::X86_64 => Ok(()),
            Processor::Aarch64 => self.fill_machine(&packages::AARCH64_DOM0),
        }
    }

    /// Fills the folder of one processor's machines.
    fn fill_machine(&self, selection: &Selection) -> Result<(), LabError> {
        let machine = self.machine();
        if is_whole(&machine) {
            return Ok(());
        }
        for leftover in ["root", "kernel", "modules", "apt", "qemu", "rust"] {
            let path = machine.join(leftover);
            if path.exists() {
                fs::remove_dir_all(&path)
                    .map_err(|e| LabError::setup(format!("removing {}", path.display()), e))?;
            }
        }
        let apt = machine.join("apt");
        let downloaded = packages::download(selection, &apt)?;
        for deb in &downloaded.packages {
            packages::unpack(deb, &self.dom0_root(), &[])?;
        }
        if self.processor == Processor::Aarch64 {
            let qemu = packages::download(&packages::AARCH64_QEMU, &apt.join("qemu"))?;
            let wanted = ["./usr/bin/qemu-system-aarch64".to_owned()];
            for deb in &qemu.packages {
                packages::unpack(deb, &machine.join("qemu"), &wanted)?;
            }
        }
        if self.processor == Processor::Aarch64 {
            toolchain::unpack(&machine.join("rust"), &apt)?;
        }
        self.unpack_kernel(downloaded.kernel()?)?;
        self.decompress_xen(selection.architecture)?;
        // The packages are unpacked: half of the cache's size can go.
        fs::remove_dir_all(&apt).map_err(|e| LabError::setup("removing the packages", e))?;
        write(&machine.join(STAMP), RECIPE.as_bytes())
    }

    fn unpack_kernel(&self, deb: &Path) -> Result<(), LabError> {
        let folder = self.machine().join("kernel");
        let mut wanted = vec!["vmlinuz-*".to_owned()];
        wanted.extend(self.modules().iter().map(|module| format!("{module}.ko")));
        packages::unpack(deb, &folder, &wanted)?;
        create(&self.machine().join("modules"))?;
        let mut image = None;
        for file in files_below(&folder)? {
            let name = file.file_name().unwrap_or_default().to_owned();
            if name.to_string_lossy().starts_with("vmlinuz-") {
                image = Some(file);
            } else {
                let to = self.machine().join("modules").join(name);
                fs::rename(&file, &to).map_err(|e| LabError::setup("moving a dom0 module", e))?;
            }
        }
        let step = "reading the dom0 kernel";
        let image = image.ok_or_else(|| LabError::setup(step, "the package has none"))?;
        if self.processor == Processor::Aarch64 {
            return self.decompress("decompressing the dom0 kernel", &image, &self.dom0_kernel());
        }
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
        Ok(output.stdout.starts_with(b"\x7fELF").then_some(output.stdout))
    }

    fn decompress_xen(&self, architecture: &str) -> Result<(), LabError> {
        let boot = self.dom0_root().join("boot");
        let packed = boot.join(format!("xen-{XEN}-{architecture}.gz"));
        let plain = boot.join(format!("xen-{XEN}-{architecture}"));
        let image = if packed.exists() { packed } else { plain };
        self.decompress("decompressing Xen", &image, &self.xen())
    }

    /// Writes a file that may be compressed by gzip.
    fn decompress(&self, step: &str, from: &Path, to: &Path) -> Result<(), LabError> {
        const GZIP: [u8; 2] = [0x1f, 0x8b];
        let bytes = fs::read(from).map_err(|e| LabError::setup(step, e))?;
        if !bytes.starts_with(&GZIP) {
            return write(to, &bytes);
        }
        let output = Command::new(self.root().join("bin/busybox"))
            .args(["gzip", "-dc"])
            .arg(from)
            .output()
            .map_err(|e| LabError::setup(step, e))?;
        write(to, &check(step, output)?)
    }
}

fn folder() -> PathBuf {
    std::env::var_os(CACHE_VARIABLE)
        .map_or_else(|| crate::target_folder().join("xen-lab"), PathBuf::from)
}

/// The folder with what machines of a processor boot.
fn machine_folder(cache: &Path, processor: Processor) -> PathBuf {
    match processor {
        Processor::X86_64 => cache.to_owned(),
        Processor::Aarch64 => cache.join("aarch64"),
    }
}

/// The names of the libraries that an ELF file asks for.
fn needed(file: &Path) -> Result<Vec<String>, LabError> {
    let step = format!("reading the libraries of {}", file.display());
    let bytes = fs::read(file).map_err(|e| LabError::setup(&step, e))?;
    let elf = ElfFile64::<Endianness>::parse(&*bytes).map_err(|e| LabError::setup(&step, e))?;
    let table = elf.elf_dynamic_table().map_err(|e| LabError::setup(&step, e))?;
    let needed = table.iter().filter(|entry| entry.tag == elf::DT_NEEDED);
    let name = |entry| Some(String::from_utf8_lossy(table.string(entry).ok()?).into_owned());
    Ok(needed.filter_map(name).collect())
}

fn is_whole(cache: &Path) -> bool {
    fs::read_to_string(cache.join(STAMP)).is_ok_and(|found| found == RECIPE)
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let step = || format!("listing {}", folder.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| LabError::setup(step(), e))? {
        let entry = entry.map_err(|e| LabError::setup(step(), e))?;
        if entry.file_type().map_err(|e| LabError::setup(step(), e))?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}
