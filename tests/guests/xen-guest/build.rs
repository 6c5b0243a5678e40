//! Links a freestanding image with its own linker script.

use std::env;

fn main() {
    let folder = env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo::rerun-if-changed=link.ld");
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!(
        "cargo::rustc-link-arg-bins=-Wl,-T,{folder}/link.ld,-z,noexecstack,-z,max-page-size=4096"
    );
}
