//! The archive as a guest gets it, built once.
//!
//! With [`AARCH64`], it is for that processor: `unikprof-tests` executes the tests a second time in
//! that way.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names a Rust compiler with the core library of aarch64.
const AARCH64: &str = "UNIKPROF_AARCH64_RUSTC";

/// Whether the archives are for aarch64.
pub(crate) fn is_aarch64() -> bool {
    env::var_os(AARCH64).is_some()
}

/// The C compiler for the archive's processor.
pub(crate) fn gcc() -> Command {
    Command::new(if is_aarch64() { "aarch64-linux-gnu-gcc" } else { "gcc" })
}

/// A command that executes a program which [`gcc`] has linked.
pub(crate) fn execute(program: &Path) -> Command {
    if !is_aarch64() {
        return Command::new(program);
    }
    let mut command = Command::new("qemu-aarch64");
    command.args(["-L", "/usr/aarch64-linux-gnu"]).arg(program);
    command
}

/// The folder with the archive without options.
pub(crate) fn streams() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("streams", &[]))
}

/// The folder with the archive with `--smoltcp`.
pub(crate) fn frames() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("frames", &["--smoltcp"]))
}

/// The folder with the archive with `--noise`.
pub(crate) fn keyed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("keyed", &["--noise"]))
}

/// The folder with the archive with `--ring`.
pub(crate) fn recorder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("recorder", &["--ring"]))
}

/// The folder with the archive with `--heap`.
pub(crate) fn heap() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("heap", &["--heap"]))
}

/// The folder with the archive with `--trace`.
pub(crate) fn tracer() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("tracer", &["--trace"]))
}

/// The folder with the drop-in archive.
pub(crate) fn dropin() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("dropin", &["--dropin"]))
}

fn build(name: &str, options: &[&str]) -> PathBuf {
    let mut command = Command::new(env!("CARGO_BIN_EXE_build-archive"));
    let mut folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if let Some(compiler) = env::var_os(AARCH64) {
        folder = folder.join("aarch64");
        command.env("RUSTC", compiler);
        command.arg(&folder).args(["--arch", "aarch64"]);
    } else {
        command.arg(&folder);
    }
    let status = command.args(options).status().unwrap();
    assert!(status.success(), "build-archive: {status}");
    folder
}
