//! The header matches the Rust source, and compiles as C and C++.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use unikprof_test_kit::golden;

const BLESS: &str = "UNIKPROF_BLESS=1 cargo test -p unikprof-capi --test it header::";

/// The header's first comment.
const INTRODUCTION: &str = include_str!("../../include/introduction.h");

/// The sources of calls, structures and constants.
const SOURCES: [&str; 8] = [
    "src/abi.rs",
    "src/status.rs",
    "src/ffi/calls.rs",
    "src/ffi/boot.rs",
    "src/ffi/entry.rs",
    "src/ffi/events.rs",
    "src/ffi/heap.rs",
    "src/ffi/trace.rs",
];

/// Names of structures in Rust and in C.
const NAMES: [(&str, &str); 11] = [
    ("Registers", "unikprof_registers"),
    ("Range", "unikprof_range"),
    ("CallStack", "unikprof_call_stack"),
    ("Runstate", "unikprof_runstate"),
    ("TrapFrame", "unikprof_trap_frame"),
    ("Mapping", "unikprof_mapping"),
    ("Config", "unikprof_config"),
    ("BootRecording", "unikprof_boot_recording"),
    ("Network", "unikprof_network"),
    ("Key", "unikprof_key"),
    ("Ops", "unikprof_ops"),
];

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn generate() -> String {
    let mut config = Config {
        language: Language::C,
        cpp_compat: true,
        style: Style::Tag,
        documentation_style: DocumentationStyle::C99,
        include_guard: Some("UNIKPROF_H".to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        header: Some(INTRODUCTION.trim_end().to_owned()),
        usize_is_size_t: true,
        line_length: 100,
        tab_width: 4,
        ..Config::default()
    };
    config.export.rename = NAMES.map(|(rust, c)| (rust.to_owned(), c.to_owned())).into();
    let builder = SOURCES
        .iter()
        .fold(Builder::new(), |builder, source| builder.with_src(package().join(source)));
    let mut text = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut text);
    for_c(&String::from_utf8(text).unwrap())
}

/// Removes what concerns Rust only, and the markup of Rust's documentation.
fn for_c(text: &str) -> String {
    let mut kept = Vec::new();
    let mut in_safety = false;
    for line in text.lines() {
        let comment = line.trim_start().strip_prefix("//").map(str::trim);
        in_safety = match comment {
            Some("# Safety") => {
                // The empty comment line before it.
                kept.pop();
                true
            }
            Some(_) => in_safety,
            None => false,
        };
        if !in_safety {
            kept.push(for_c_line(line));
        }
    }
    kept.join("\n") + "\n"
}

fn for_c_line(line: &str) -> String {
    let negative = line.starts_with("#define ").then(|| line.rsplit_once(" -"));
    if let Some(Some((name, number))) = negative {
        return format!("{name} (-{number})");
    }
    let unlinked = line.replace("[`", "").replace("`]", "").replace('`', "");
    unlinked.replace('*', if line.trim_start().starts_with("//") { "" } else { "*" })
}

#[test]
fn the_checked_in_header_is_what_the_source_says() {
    golden::check("agent/capi/include/unikprof.h", &generate(), BLESS);
}

/// Every standard that an embedder's kernel may be written in.
#[test]
fn c_and_cpp_take_the_header_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("unit.c");
    fs::write(&unit, "#include <unikprof.h>\n#include <unikprof.h>\nint unit;\n").unwrap();
    for (compiler, language, standard) in [
        ("gcc", "c", "c99"),
        ("gcc", "c", "c11"),
        ("gcc", "c", "gnu2x"),
        ("g++", "c++", "c++98"),
        ("g++", "c++", "c++20"),
    ] {
        let output = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"])
            .arg(format!("-std={standard}"))
            .args(["-x", language, "-I"])
            .arg(PathBuf::from(package()).join("include"))
            .arg(&unit)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} -std={standard}: {said}");
    }
}
