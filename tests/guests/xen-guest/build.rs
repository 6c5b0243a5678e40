//! Links a freestanding image with its own linker script, and with an archive if one is named.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-env-changed=XEN_GUEST_ARCHIVE");
    if let Ok(archive) = env::var("XEN_GUEST_ARCHIVE") {
        println!("cargo::rerun-if-changed={archive}");
        println!("cargo::rustc-link-arg-bins={archive}");
    }
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!(
        "cargo::rustc-link-arg-bins=-Wl,-T,{folder}/link.ld,-z,noexecstack,-z,max-page-size=4096"
    );
}
