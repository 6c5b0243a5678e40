//! Whether the guide (docs/embedding/c.md) says what the kernel does: it quotes lines, flags and files.

use std::fs;
use std::path::Path;

use unikprof_tests::c_xen_guest::{FLAGS, LINK_FLAGS};

const GUIDE: &str = include_str!("../../../../docs/embedding/c.md");

fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/guests/c-xen"))
}

/// A guide whose lines have been changed in the kernel sends its reader astray.
#[test]
fn quoted_lines_are_lines_of_the_kernel() {
    let mut quoted = 0;
    for block in GUIDE.split("```").skip(1).step_by(2) {
        let (head, lines) = block.split_once('\n').unwrap();
        let (_, file) = head
            .split_once(' ')
            .expect("a block of the guide names its file");
        let source = fs::read_to_string(sources().join(file)).unwrap();
        for line in lines.lines().filter(|line| !line.is_empty()) {
            assert!(
                source.lines().any(|other| other == line),
                "{file} has no line {line:?}"
            );
            quoted += 1;
        }
    }
    assert!(quoted > 15, "{quoted} lines");
}

#[test]
fn flags_of_the_guide_are_those_of_the_build() {
    for flag in FLAGS.iter().chain(LINK_FLAGS) {
        // How strict the compiler is, and where the linker puts pages, is nothing to the profiler.
        let is_of_no_matter =
            flag.starts_with("-W") && !flag.contains("build-id") || flag.starts_with("-std");
        assert!(
            is_of_no_matter || GUIDE.contains(flag),
            "the guide lacks {flag}"
        );
    }
}
