//! The code of the pages about kernels that are not in Rust compiles with the headers, in what
//! surrounds it in the kernel that the page is about.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use unikprof_test_kit::documents::{commands, framed, pages, root};

/// The pages with code of their own, its language, and the file with what surrounds it.
const PAGES: [(&str, &str, &str); 10] = [
    ("docs/guide/hosted.md", "c", "hosted.c"),
    ("docs/guide/mini-os.md", "c", "mini-os.c"),
    ("docs/guide/unikraft.md", "c", "unikraft.c"),
    ("docs/guide/unikraft-arm64.md", "c", "unikraft-arm64.c"),
    ("docs/guide/memory.md", "c", "memory.c"),
    ("docs/guide/memory.md", "ocaml", "memory.ml"),
    ("docs/guide/mirageos.md", "c", "mirageos.c"),
    ("docs/guide/mirageos.md", "asm", "mirageos.s"),
    ("docs/guide/mirageos.md", "ocaml", "mirageos.ml"),
    ("agent/capi/README.md", "c", "readme.c"),
];

/// Compiles the code of every page in this language.
fn compile(language: &str, compiler: &str, flags: &[&str]) {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    for (page, _, name) in PAGES.iter().filter(|(_, of, _)| *of == language) {
        let surroundings = fs::read_to_string(package.join("tests/guides").join(name)).unwrap();
        fs::write(folder.path().join(name), framed(&surroundings, page, language)).unwrap();
        let output = Command::new(compiler)
            .args(flags)
            .arg(name)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}: {said}");
    }
}

#[test]
fn the_c_of_every_page_compiles() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let headers = ["include", "tests/c"].map(|it| format!("-I{}", package.join(it).display()));
    let [include, of_kernels] = &headers;
    // Not used: functions that another part of the page calls, and results that only its reader
    // uses.
    let strict = ["-Wall", "-Werror", "-Wno-unused"];
    let flags = ["-std=gnu11", "-O2", "-fsyntax-only", include, of_kernels];
    compile("c", "gcc", &[&flags[..], &strict].concat());
    compile("asm", "gcc", &["-c"]);
}

#[test]
fn the_ocaml_of_every_page_compiles() {
    if Command::new("ocamlc").arg("-version").output().is_err() {
        const REQUIRE: &str = "UNIKPROF_REQUIRE_ALL";
        let is_required = env::var_os(REQUIRE).is_some_and(|value| value == "1");
        assert!(!is_required, "{REQUIRE} is set, but there is no `ocamlc`");
        // Not `eprintln!`: the harness hides what a passing test prints.
        let line = "SKIPPED the_ocaml_of_every_page_compiles: there is no `ocamlc`";
        writeln!(std::io::stderr(), "{line}").unwrap();
        return;
    }
    compile("ocaml", "ocamlc", &["-c"]);
}

#[test]
fn the_archive_has_the_options_that_pages_show() {
    const SOURCE: &str = include_str!("../../src/bin/build-archive/main.rs");
    let shown = commands("build-archive");
    assert!(shown.len() > 3, "{shown:?}");
    for (line, words) in shown {
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(SOURCE.contains(&format!("\"{option}\"")), "{line}");
        }
    }
}

/// Blocks of C that name a file are quotations, which another test compares with that file.
#[test]
fn no_page_is_left_out() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for language in ["c", "asm", "ocaml"] {
            let is_known =
                PAGES.iter().any(|(known, of, _)| root().join(known) == page && *of == language);
            let has_code = text.contains(&format!("```{language}\n"));
            assert_eq!(has_code, is_known, "{language} in {}", page.display());
        }
    }
}
