//! The agent needs nothing below it: linked into a program without a C library and without an
//! allocator, it has every symbol it asks for, and records.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use object::elf::{PT_DYNAMIC, PT_INTERP};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _};

/// Names of what allocates, and of what a C library brings: anywhere in a symbol.
const UNWANTED: [&str; 12] = [
    "_ZN5alloc",
    "__rust_alloc",
    "__rust_realloc",
    "__rg_alloc",
    "__rdl_alloc",
    "malloc",
    "calloc",
    "posix_memalign",
    "__libc",
    "__errno_location",
    "pthread_",
    "_ZN3std",
];

/// What must be there, or the linker left out what was to be looked at.
const WANTED: [&str; 4] = [
    "_ZN14unikprof_agent",
    "stream_server",
    "tcp_server",
    "_ZN7smoltcp",
];

/// Builds the program and answers where it is.
fn build() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/freestanding");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("freestanding");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--release", "--locked", "--target-dir"])
        .arg(&target)
        .current_dir(folder)
        // Names that can be looked for, whatever the toolchain's default is.
        .env("CARGO_PROFILE_RELEASE_STRIP", "none")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    target.join("release/freestanding-guest")
}

#[test]
fn the_agent_links_and_records_with_nothing_below_it() {
    let program = build();
    let bytes = fs::read(&program).unwrap();
    let elf: ElfFile64<'_> = ElfFile64::parse(&*bytes).unwrap();

    let undefined: Vec<&str> = elf
        .symbols()
        .filter(object::ObjectSymbol::is_undefined)
        .map(|symbol| symbol.name().unwrap())
        .collect();
    assert_eq!(undefined, [""; 0]);
    let headers = elf.elf_header();
    let segments = headers
        .program_headers(Endianness::Little, &*bytes)
        .unwrap();
    for segment in segments {
        let kind = segment.p_type(Endianness::Little);
        assert!(![PT_DYNAMIC, PT_INTERP].contains(&kind), "segment {kind:?}");
    }

    let names: Vec<&str> = elf.symbols().map(|symbol| symbol.name().unwrap()).collect();
    for wanted in WANTED {
        let is_there = names.iter().any(|name| name.contains(wanted));
        assert!(is_there, "no symbol has `{wanted}`");
    }
    for unwanted in UNWANTED {
        let found = names.iter().find(|name| name.contains(unwanted));
        assert_eq!(found, None, "`{unwanted}`");
    }

    let status = Command::new(&program).status().unwrap();
    assert!(
        status.success(),
        "{status}: its exit code is the `Step` that failed"
    );
}
