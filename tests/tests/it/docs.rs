//! Documentation and sources refer to headings that exist, and the Rust of the pages compiles.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;
use unikprof_test_kit::documents;
use unikprof_tests::c_xen_guest::{FLAGS, LINK_FLAGS};

/// The guide of the kernel in C quotes its lines, flags and files.
const C_GUIDE: &str = concat!(
    include_str!("../../../docs/guide/c.md"),
    include_str!("../../../docs/guide/c-more.md")
);

/// The guide of the drop-in has the whole command for the same kernel.
const DROPIN_GUIDE: &str = include_str!("../../../docs/guide/dropin.md");

/// The Rust of the pages, in what surrounds it in a guest. It is compiled, not run.
#[allow(unused, unsafe_code, clippy::all, reason = "it stands as readers see it")]
mod guides {
    mod hosted {
        include!(concat!(env!("OUT_DIR"), "/hosted.rs"));
    }
    mod rust {
        include!(concat!(env!("OUT_DIR"), "/rust.rs"));
    }
    mod rust_more {
        include!(concat!(env!("OUT_DIR"), "/rust-more.rs"));
    }
}

/// The files with one of these extensions below `folder`, except build output, packages and folders
/// with a leading dot.
pub(crate) fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') || ["target", "node_modules"].contains(&&*name) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            files(&path, extensions, found);
        } else if extensions.iter().any(|extension| name.ends_with(extension)) {
            found.push(path);
        }
    }
}

/// The anchor that Markdown renderers give a heading.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
    heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

fn anchors(document: &PathBuf) -> HashSet<String> {
    let text = fs::read_to_string(document).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

#[test]
fn every_reference_leads_somewhere() {
    let root = documents::root();
    let mut sources = Vec::new();
    files(root, &[".md", ".rs", ".h", ".c"], &mut sources);
    let link = Regex::new(r"\]\(([\w./-]*)(?:#([\w-]+))?\)").unwrap();
    let mention = Regex::new(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?").unwrap();
    let mut known = HashMap::new();
    let (mut checked, mut broken) = (0, Vec::new());
    for source in &sources {
        let text = fs::read_to_string(source).unwrap();
        // In the brackets of comments in code there are names of items.
        let is_page = source.extension().is_some_and(|it| it == "md");
        let (search, base) =
            if is_page { (&link, source.parent().unwrap()) } else { (&mention, root) };
        for found in search.captures_iter(&text) {
            checked += 1;
            let is_here = found[1].is_empty();
            let document = if is_here { source.clone() } else { base.join(&found[1]) };
            let leads = document.exists()
                && found.get(2).is_none_or(|heading| {
                    let headings = known.entry(document.clone()).or_insert_with_key(anchors);
                    headings.contains(heading.as_str())
                });
            if !leads {
                broken.push(format!("{}: {}", source.display(), &found[0]));
            }
        }
    }
    assert!(checked > 300, "{checked} references are too few: they were not found");
    assert_eq!(broken, [""; 0]);
}

/// Guards against pages in which a reader searches for long.
#[test]
fn documents_are_short() {
    let words = |page: &Path| fs::read_to_string(page).unwrap().split_whitespace().count();
    let pages = documents::pages();
    for page in pages.iter().filter(|page| page.parent().unwrap().ends_with("guide")) {
        assert!(words(page) <= 1_200, "{} has {} words", page.display(), words(page));
    }
    let all: usize = pages.iter().map(|page| words(page)).sum();
    assert!(all <= 45_000, "{all} words");
}

/// `build.rs` knows the pages that `guides` compiles.
#[test]
fn no_page_with_rust_is_left_out() {
    let known = ["hosted", "rust", "rust-more"]
        .map(|page| documents::root().join("docs/guide").join(page).with_extension("md"));
    for page in documents::pages() {
        let has_rust = fs::read_to_string(&page).unwrap().contains("```rust");
        assert_eq!(has_rust, known.contains(&page), "{}", page.display());
    }
}

/// A guide whose lines have been changed in the kernel sends its reader astray.
#[test]
fn lines_that_the_c_guide_quotes_are_lines_of_the_kernel() {
    let mut quoted = 0;
    for block in C_GUIDE.split("```").skip(1).step_by(2) {
        let (head, lines) = block.split_once('\n').unwrap();
        let (_, file) = head.split_once(' ').expect("a block of the guide names its file");
        let source = fs::read_to_string(Path::new("guests/c-xen").join(file)).unwrap();
        for line in lines.lines().filter(|line| !line.is_empty()) {
            assert!(source.lines().any(|other| other == line), "{file} has no line {line:?}");
            quoted += 1;
        }
    }
    assert!(quoted > 15, "{quoted} lines");
}

#[test]
fn flags_of_the_guides_are_those_of_the_build() {
    for flag in FLAGS.iter().chain(LINK_FLAGS) {
        let is_warning = flag.starts_with("-W") && !flag.starts_with("-Wl,");
        assert!(is_warning || DROPIN_GUIDE.contains(flag), "the drop-in's guide lacks {flag}");
        // How strict the compiler is, and where the linker puts pages, is nothing to the profiler.
        let is_of_no_matter =
            flag.starts_with("-W") && !flag.contains("build-id") || flag.starts_with("-std");
        assert!(is_of_no_matter || C_GUIDE.contains(flag), "the guide lacks {flag}");
    }
}

/// A command without `--ignored` whose tests are all in the full tier runs none, and passes.
#[test]
fn documented_commands_run_tests() {
    let root = documents::root();
    let mut pages = Vec::new();
    files(root, &[".md"], &mut pages);
    let command = r"cargo test [^`\n]*(?:unikprof-tests|--workspace) --test it([^`\n|]+)";
    let command = Regex::new(command).unwrap();
    let list = |words: &[&str]| -> HashSet<String> {
        let program = std::env::current_exe().unwrap();
        let output = Command::new(program).arg("--list").args(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().filter(|line| line.ends_with(": test")).map(str::to_owned).collect()
    };
    let mut checked = 0;
    for page in &pages {
        let text = fs::read_to_string(page).unwrap();
        for found in command.captures_iter(&text) {
            let words: Vec<&str> = found[1].split_whitespace().collect();
            let filters: Vec<&str> =
                words.iter().copied().filter(|word| !word.starts_with('-')).collect();
            let ignored = list(&[&["--ignored"], &filters[..]].concat());
            let runs = if words.contains(&"--ignored") {
                ignored
            } else if words.contains(&"--include-ignored") {
                list(&filters)
            } else {
                &list(&filters) - &ignored
            };
            assert!(!runs.is_empty(), "{}: `{}` runs no test", page.display(), &found[0]);
            checked += 1;
        }
    }
    assert!(checked > 5, "only {checked} commands: the search is wrong");
}
