//! Builds the kernel in C of `tests/guests/c-xen`, as its guide (`docs/embedding/c.md`) says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::LabError;
use crate::lab::guest_image::{cargo, locked_folder, run};

/// The compiler's flags that matter to the profiler or to the kernel; the guide explains them.
pub const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-g",
    "-fno-omit-frame-pointer",
    "-mno-red-zone",
    "-mgeneral-regs-only",
    "-ffreestanding",
    "-fasynchronous-unwind-tables",
    "-fno-stack-protector",
    "-fno-pic",
    "-fcf-protection=none",
    "-Wall",
    "-Wextra",
    "-Werror",
];

pub const LINK_FLAGS: &[&str] = &[
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,--build-id=sha1",
    "-Wl,-z,noexecstack",
    "-Wl,-z,max-page-size=4096",
];

/// What of the agent is linked into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// None: the kernel as it was before.
    Without,
    /// The archive of byte streams. This kernel has none: the image is for its size.
    Streams,
    /// The archive with the agent's own TCP over the kernel's frames.
    Frames,
}

/// Builds the kernel with gcc and returns its ELF file. Each kind has a file of its own.
pub fn build_c_xen_guest(agent: Agent) -> Result<PathBuf, LabError> {
    let step = "building the kernel in C";
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/c-xen");
    let (name, option) = match agent {
        Agent::Without => ("without", None),
        Agent::Streams => ("streams", Some(&[][..])),
        Agent::Frames => ("frames", Some(&["--smoltcp"][..])),
    };
    // The archive's header is written in place.
    let (folder, _lock) = locked_folder(Path::new("c-xen").join(name))?;
    let mut gcc = Command::new("gcc");
    gcc.current_dir(&sources);
    gcc.args(FLAGS).args(LINK_FLAGS).arg("-I").arg(&folder);
    gcc.arg("-Wl,-T,link.ld");
    for unit in units(&sources).map_err(|e| LabError::setup(step, e))? {
        if agent != Agent::Without || !unit.ends_with("profiler.c") {
            gcc.arg(unit);
        }
    }
    match option {
        None => {
            gcc.arg("-DWITHOUT_AGENT");
        }
        Some(options) => {
            run(step, &mut build_archive(&folder, options))?;
            gcc.arg(folder.join("libunikprof.a"));
        }
    }
    // A lab may be reading the last one: the image is renamed into place.
    let image = folder.join("c-xen.elf");
    let beside = folder.join(format!(".c-xen.elf.{}", std::process::id()));
    run(step, gcc.arg("-o").arg(&beside))?;
    fs::rename(&beside, &image).map_err(|e| LabError::setup(step, e))?;
    Ok(image)
}

/// The names of the sources in C and assembly, in a settled order.
fn units(sources: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut units = Vec::new();
    for entry in fs::read_dir(sources)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|ending| ending == "c" || ending == "S")
        {
            units.extend(path.file_name().map(PathBuf::from));
        }
    }
    units.sort();
    Ok(units)
}

/// The command by which an embedder builds the archive and its header in a folder.
pub fn build_archive(folder: &Path, options: &[&str]) -> Command {
    let mut command = cargo();
    command
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["run", "--quiet", "-p", "unikprof-capi"])
        .args(["--bin", "build-archive", "--"])
        .arg(folder)
        .args(options);
    command
}
