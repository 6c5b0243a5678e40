//! Builds the freestanding guests, which are outside the workspace.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache::Cache;
use crate::config::Processor;
use crate::error::LabError;
use crate::packages::create;
use crate::toolchain;

/// The flags of the guest's own `.cargo/config.toml` and the workspace's, but for the frame
/// pointers.
const FLAGS_WITHOUT_FRAME_POINTERS: &[&str] = &[
    "-Clink-arg=-Wl,--build-id=sha1",
    "-Crelocation-model=static",
    "-Cno-redzone=yes",
    "-Cforce-unwind-tables=yes",
    "--cfg=chacha20_force_sse2",
    "--cfg=poly1305_force_soft",
    "--cfg=curve25519_dalek_backend=\"serial\"",
];

/// The flags of a guest for aarch64, but for the linker and the frame pointers.
const AARCH64_FLAGS: &[&str] = &[
    "-Clinker-flavor=ld.lld",
    "-Clink-arg=--build-id=sha1",
    "-Crelocation-model=static",
    "-Cforce-unwind-tables=yes",
    // Atomics are instructions that every processor has, not calls that choose.
    "-Ctarget-feature=-outline-atomics",
    "--cfg=chacha20_force_soft",
    "--cfg=poly1305_force_soft",
    "--cfg=curve25519_dalek_backend=\"serial\"",
];

/// Builds the PVH unikernel of `tests/guests/xen-guest` and returns its ELF file.
///
/// Each set of features has a file of its own, so labs with different guests can run side by side.
pub fn build_xen_guest(features: &[&str]) -> Result<PathBuf, LabError> {
    build_with("xen-guest", features, &Build::default())
}

/// The same guest for a processor: for aarch64 by the compiler that the lab's cache has.
pub fn build_xen_guest_for(processor: Processor, features: &[&str]) -> Result<PathBuf, LabError> {
    match processor {
        Processor::X86_64 => build_xen_guest(features),
        Processor::Aarch64 => {
            let flags = [AARCH64_FLAGS, &["-Cforce-frame-pointers=yes"]].concat();
            build_for_aarch64("xen-guest-aarch64", features, &flags)
        }
    }
}

/// The same guest, compiled without frame pointers; on aarch64 that leaves those of functions that
/// call others. Its unwind tables are there.
pub fn build_xen_guest_without_frame_pointers(
    processor: Processor,
    features: &[&str],
) -> Result<PathBuf, LabError> {
    match processor {
        Processor::X86_64 => {
            let build = Build { flags: Some(FLAGS_WITHOUT_FRAME_POINTERS), ..Build::default() };
            build_with("xen-guest-without-frame-pointers", features, &build)
        }
        Processor::Aarch64 => {
            let name = "xen-guest-aarch64-without-frame-pointers";
            build_for_aarch64(name, features, AARCH64_FLAGS)
        }
    }
}

fn build_for_aarch64(name: &str, features: &[&str], flags: &[&str]) -> Result<PathBuf, LabError> {
    let linker = format!("-Clinker={}", toolchain::linker()?.display());
    let build = Build {
        target: "aarch64-unknown-linux-gnu",
        rustc: Some(aarch64_compiler()?),
        flags: Some(&[&[&*linker], flags].concat()),
        ..Build::default()
    };
    build_with(name, features, &build)
}

/// A compiler for aarch64, with its libraries for Linux.
pub fn aarch64_compiler() -> Result<PathBuf, LabError> {
    let cache = Cache::open(Processor::Aarch64)?;
    Ok(cache.rustc().unwrap_or_else(|| "rustc".into()))
}

/// The guest compiled without the agent, and linked with the drop-in.
pub fn build_xen_guest_with_dropin() -> Result<PathBuf, LabError> {
    const STEP: &str = "building the guest with the drop-in";
    let (folder, _lock) = locked_folder("xen-guest-dropin/archive")?;
    run(STEP, &mut build_archive(&folder, &["--dropin"]))?;
    let archive = folder.join("libunikprof-dropin.a");
    let dropin = [
        "-Cforce-frame-pointers=yes",
        // With link-time optimization it reaches the core library: upcalls come on the interrupted
        // stack.
        "-Cllvm-args=-force-attribute=noredzone",
        "-Clink-arg=-Wl,--undefined=unikprof_dropin_start",
    ];
    let profile = ["profile.release.lto=\"fat\"", "profile.release.codegen-units=1"];
    let flags = [FLAGS_WITHOUT_FRAME_POINTERS, &dropin].concat();
    let build = Build {
        profile: &profile,
        flags: Some(&flags),
        archive: Some(&archive),
        ..Build::default()
    };
    build_with("xen-guest-dropin", &["gate"], &build)
}

/// The options of a guest's build.
struct Build<'a> {
    target: &'a str,
    /// The compiler; `None`: the stock one.
    rustc: Option<PathBuf>,
    /// Settings of the profile, for `--config`.
    profile: &'a [&'a str],
    /// The compiler's flags, in place of those that Cargo finds for the package.
    flags: Option<&'a [&'a str]>,
    /// Linked into the guest. When it changes the guest is linked again: Cargo does not see that in
    /// flags.
    archive: Option<&'a Path>,
}

impl Default for Build<'_> {
    fn default() -> Self {
        Self {
            target: "x86_64-unknown-linux-gnu",
            rustc: None,
            profile: &[],
            flags: None,
            archive: None,
        }
    }
}

fn build_with(name: &str, features: &[&str], build: &Build<'_>) -> Result<PathBuf, LabError> {
    let step = "building the guest";
    // Cargo overwrites one output for every set of features: build and copy are one step.
    let (target, _lock) = locked_folder(name)?;
    let mut command = cargo();
    command
        // The package's own `.cargo/config.toml` holds its flags; Cargo finds it from here.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../guests/xen-guest"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .args(["build", "--release", "--quiet", "--locked"])
        .args(["--target", build.target])
        .args(["--features", &features.join(","), "--target-dir"])
        .arg(&target);
    for setting in build.profile {
        command.args(["--config", setting]);
    }
    if let Some(flags) = build.flags {
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    }
    command.envs(build.rustc.as_ref().map(|rustc| ("RUSTC", rustc)));
    command.envs(build.archive.map(|archive| ("XEN_GUEST_ARCHIVE", archive)));
    run(step, &mut command)?;
    let built = target.join(build.target).join("release/xen-guest");
    let suffix: String = features.iter().map(|feature| format!("+{feature}")).collect();
    let image = target.join(format!("{name}{suffix}.elf"));
    // A lab may be reading the last one: the image is renamed into place.
    let beside = target.join("image");
    std::fs::copy(&built, &beside)
        .and_then(|_| std::fs::rename(&beside, &image))
        .map_err(|e| LabError::setup(step, e))?;
    Ok(image)
}

/// A folder of the target folder, locked until the file is closed: others may build the same.
pub fn locked_folder(name: impl AsRef<Path>) -> Result<(PathBuf, File), LabError> {
    let folder = crate::target_folder().join(name);
    create(&folder)?;
    let step = "locking the folder of a build";
    let folder = folder.canonicalize().map_err(|e| LabError::setup(step, e))?;
    let lock = File::create(folder.join("lock")).map_err(|e| LabError::setup(step, e))?;
    lock.lock().map_err(|e| LabError::setup(step, e))?;
    Ok((folder, lock))
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

/// The Cargo that has built this.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a compiler; its failure is an error with what it said.
pub fn run(step: &str, command: &mut Command) -> Result<(), LabError> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| LabError::setup(step, e))?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(LabError::GuestBuild { output })
}
