//! Links a freestanding image with its own linker script, and with an archive if one is named.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rerun-if-changed=link.ld");
    println!("cargo::rerun-if-changed=link-aarch64.ld");
    println!("cargo::rerun-if-env-changed=XEN_GUEST_ARCHIVE");
    if let Ok(archive) = env::var("XEN_GUEST_ARCHIVE") {
        println!("cargo::rerun-if-changed={archive}");
        println!("cargo::rustc-link-arg-bins={archive}");
    }
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("aarch64") {
        // By the linker itself: there need not be a C compiler for the processor.
        println!("cargo::rustc-link-arg-bins=-T{folder}/link-aarch64.ld");
        println!("cargo::rustc-link-arg-bins=-zmax-page-size=4096");
        return;
    }
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!(
        "cargo::rustc-link-arg-bins=-Wl,-T,{folder}/link.ld,-z,noexecstack,-z,max-page-size=4096"
    );
}
