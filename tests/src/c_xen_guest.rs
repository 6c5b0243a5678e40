//! Builds the kernel in C of `tests/guests/c-xen`, as its guide (`docs/guide/c.md`) says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use unikprof_lab::LabError;
pub use unikprof_lab::guest_image::build_archive;
use unikprof_lab::guest_image::{locked_folder, run};
use unikprof_profile::caller_table::ImageTable;
use unikprof_profile::symbols::Image;

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

const STEP: &str = "building the kernel in C";
/// The function of the kernel before which the drop-in starts: events work then, and xenstore is
/// not used yet.
const DROPIN_ENTRY: &str = "xenstore_start";

/// The function by which the kernel ends.
const DROPIN_ABORT: &str = "panic";

/// The part of the agent that is linked into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// None: the kernel as it was before.
    Without,
    /// The archive of byte streams. This kernel has none: the image is for its size.
    Streams,
    /// The archive with the agent's own TCP over the kernel's frames.
    Frames,
    /// The archive of [`Frames`](Agent::Frames) with keys, the flight recorder, samples of
    /// allocations, traces and a linked caller table.
    Full,
    /// The drop-in, linked with the kernel as it was before.
    DropIn,
}

/// Renames the functions that the archive of the drop-in wraps to this kernel's.
fn wrap_other_functions(archive: &Path) -> Command {
    let mut objcopy = Command::new("objcopy");
    for (built_in, own) in [("solo5_app_main", DROPIN_ENTRY), ("solo5_abort", DROPIN_ABORT)] {
        for prefix in ["__wrap_", "__real_"] {
            objcopy.arg("--redefine-sym").arg(format!("{prefix}{built_in}={prefix}{own}"));
        }
    }
    objcopy.arg(archive);
    objcopy
}

/// Builds the kernel with gcc and returns its ELF file. Each kind has a file of its own.
/// [`Agent::Full`] also has a caller table linked in, and a [stripped] copy to boot.
pub fn build_c_xen_guest(agent: Agent) -> Result<PathBuf, LabError> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/c-xen");
    let (name, option) = match agent {
        Agent::Without => ("without", None),
        Agent::Streams => ("streams", Some(&[][..])),
        Agent::Frames => ("frames", Some(&["--smoltcp"][..])),
        Agent::Full => ("full", Some(&["--smoltcp", "--noise", "--ring", "--heap", "--trace"][..])),
        Agent::DropIn => ("dropin", Some(&["--dropin", "--trace"][..])),
    };
    let is_dropin = agent == Agent::DropIn;
    let archive = if is_dropin { "libunikprof-dropin.a" } else { "libunikprof.a" };
    // The archive's header is written in place.
    let (folder, _lock) = locked_folder(Path::new("c-xen").join(name))?;
    if let Some(options) = option {
        run(STEP, &mut build_archive(&folder, options))?;
    }
    if is_dropin {
        run(STEP, &mut wrap_other_functions(&folder.join(archive)))?;
    }
    // A lab may be reading the last one: the image is renamed into place.
    let image = folder.join("c-xen.elf");
    let beside = folder.join(format!(".c-xen.elf.{}", std::process::id()));
    let units = units(&sources).map_err(|e| LabError::setup(STEP, e))?;
    let link = |definitions: &[&str]| {
        let mut gcc = Command::new("gcc");
        gcc.current_dir(&sources);
        gcc.args(FLAGS).args(LINK_FLAGS).arg("-I").arg(&folder);
        gcc.arg("-Wl,-T,link.ld").args(definitions);
        let knows_agent = option.is_some() && !is_dropin;
        let is_linked = |unit: &&PathBuf| knows_agent || !unit.ends_with("profiler.c");
        gcc.args(units.iter().filter(is_linked));
        gcc.args(option.map(|_| folder.join(archive)));
        run(STEP, gcc.arg("-o").arg(&beside))
    };
    match agent {
        Agent::Without => link(&["-DWITHOUT_AGENT"])?,
        Agent::DropIn => {
            let wrap = format!("-Wl,--wrap={DROPIN_ENTRY},--wrap={DROPIN_ABORT}");
            link(&["-DWITHOUT_AGENT", &wrap])?;
        }
        Agent::Streams | Agent::Frames => link(&[])?,
        Agent::Full => {
            let link_with = |bytes: usize| -> Result<Vec<u8>, LabError> {
                let bytes = format!("-DCALLER_TABLE_BYTES={bytes}");
                link(&[
                    "-DPROFILER_KEYS",
                    "-DPROFILER_RING",
                    "-DPROFILER_HEAP",
                    "-DPROFILER_TRACE",
                    &bytes,
                ])?;
                caller_table(&beside)
            };
            let bytes = link_with(1)?.len();
            let table = link_with(bytes)?;
            if table.len() != bytes {
                let found = format!("{bytes} bytes, and {} in the second pass", table.len());
                return Err(LabError::setup("linking the caller table", found));
            }
            let file = folder.join("c-xen.elf.callers");
            fs::write(&file, table).map_err(|e| LabError::setup(STEP, e))?;
            let section = format!(".unikprof.callers={}", file.display());
            let mut fill = Command::new("objcopy");
            run(STEP, fill.arg("--update-section").arg(section).arg(&beside))?;
            let bare = beside.with_added_extension("stripped");
            let mut strip = Command::new("objcopy");
            run(STEP, strip.arg("--strip-all").arg(&beside).arg(&bare))?;
            fs::rename(bare, stripped(&image)).map_err(|e| LabError::setup(STEP, e))?;
        }
    }
    fs::rename(&beside, &image).map_err(|e| LabError::setup(STEP, e))?;
    Ok(image)
}

/// The copy without symbols and debug information of the image of [`Agent::Full`].
pub fn stripped(image: &Path) -> PathBuf {
    image.with_added_extension("stripped")
}

/// The file that `unikprof-client caller-table` writes.
fn caller_table(image: &Path) -> Result<Vec<u8>, LabError> {
    let step = "compiling the caller table";
    let image = Image::open(image).map_err(|e| LabError::setup(step, e))?;
    let table = ImageTable::compile(&image, &[]).map_err(|e| LabError::setup(step, e))?;
    table.to_file().map_err(|e| LabError::setup(step, e))
}

/// The names of the sources in C and assembly, in a settled order.
fn units(sources: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut units = Vec::new();
    for entry in fs::read_dir(sources)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "c" || ending == "S") {
            units.extend(path.file_name().map(PathBuf::from));
        }
    }
    units.sort();
    Ok(units)
}
