//! The archive as a guest gets it, built once per test program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder with the archive without options.
pub(crate) fn streams() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("streams", &[]))
}

/// The folder with the archive with `--smoltcp`.
#[allow(dead_code, reason = "not every program that includes this asks for it")]
pub(crate) fn frames() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("frames", &["--smoltcp"]))
}

/// The folder with the archive with `--noise`.
#[allow(dead_code, reason = "not every program that includes this asks for it")]
pub(crate) fn keyed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("keyed", &["--noise"]))
}

/// The folder with the archive with `--ring`.
#[allow(dead_code, reason = "not every program that includes this asks for it")]
pub(crate) fn recorder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("recorder", &["--ring"]))
}

/// The folder with the archive with `--heap`.
#[allow(dead_code, reason = "not every program that includes this asks for it")]
pub(crate) fn heap() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("heap", &["--heap"]))
}

/// The folder with the archive with `--trace`.
#[allow(dead_code, reason = "not every program that includes this asks for it")]
pub(crate) fn tracer() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("tracer", &["--trace"]))
}

/// The folder with the drop-in archive.
#[allow(dead_code, reason = "not every program that includes this asks for it")]
pub(crate) fn dropin() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| build("dropin", &["--dropin"]))
}

fn build(name: &str, options: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new(env!("CARGO_BIN_EXE_build-archive"))
        .arg(&folder)
        .args(options)
        .status()
        .unwrap();
    assert!(status.success(), "build-archive: {status}");
    folder
}
