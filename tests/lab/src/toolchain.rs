//! A Rust compiler for aarch64 from Debian's packages, where the stock toolchain has only the
//! host's core library.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{LabError, Unavailable, WrongVersion};
use crate::packages::{self, check, write};

/// The oldest version that compiles the guests.
const OLDEST: &str = env!("CARGO_PKG_RUST_VERSION");

/// The path of the linker's program in a toolchain's root.
const LINKER: &str = "lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld";

/// The compiler that [`unpack`] has left.
pub(super) fn rustc(folder: &Path) -> PathBuf {
    folder.join("rustc")
}

/// Downloads the compiler by apt's folder and unpacks it.
pub(super) fn unpack(folder: &Path, apt: &Path) -> Result<(), LabError> {
    for (selection, name) in [(&packages::RUSTC, "rustc"), (&packages::AARCH64_CORE, "core")] {
        for deb in &packages::download(selection, &apt.join(name))?.packages {
            packages::unpack(deb, folder, &[])?;
        }
    }
    // The host's own loader and C library run it; what else it needs is beside it.
    let at = folder.display();
    let script = format!(
        "#!/bin/sh\nLD_LIBRARY_PATH=\"{at}/usr/lib/x86_64-linux-gnu\" \
         exec \"{at}/usr/bin/rustc\" \"$@\"\n"
    );
    let step = "setting up the compiler for aarch64";
    let rustc = rustc(folder);
    write(&rustc, script.as_bytes())?;
    fs::set_permissions(&rustc, Permissions::from_mode(0o755))
        .map_err(|e| LabError::setup(step, e))?;
    let output = Command::new(&rustc).arg("--version").output();
    let output = check(step, output.map_err(|e| LabError::setup(step, e))?)?;
    let found = String::from_utf8_lossy(&output).trim().to_owned();
    if minor(found.trim_start_matches("rustc ")) < minor(OLDEST) {
        let wrong =
            WrongVersion { package: "rustc-web".into(), wanted: OLDEST.into(), found: Some(found) };
        return Err(Unavailable::Versions(vec![wrong]).into());
    }
    Ok(())
}

/// The stock toolchain's linker, which links for every processor.
pub(super) fn linker() -> Result<PathBuf, LabError> {
    let step = "finding the toolchain's linker";
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    let output = check(step, output.map_err(|e| LabError::setup(step, e))?)?;
    let sysroot = String::from_utf8_lossy(&output);
    let linker = Path::new(sysroot.trim()).join(LINKER);
    if !linker.is_file() {
        return Err(LabError::setup(step, format!("{} is missing", linker.display())));
    }
    Ok(linker)
}

/// The second number of a version; `None` sorts first.
fn minor(version: &str) -> Option<u32> {
    version.split('.').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(minor("1.96.0 (ac68faa20 2026-05-25)"), Some(96));
        assert!(minor("1.100.0") > minor("1.95"));
        assert!(minor("") < minor(OLDEST));
    }
}
