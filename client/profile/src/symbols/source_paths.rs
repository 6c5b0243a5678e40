//! A Rust function's module path, from its source file.
//!
//! A build with only line tables keeps each inlined function's bare name, such as `find_match`.
//! Every compilation unit still names its crate and that crate's root file
//! (`…/miniz_oxide-0.9.1/src/lib.rs/@/miniz_oxide.1f0e…-cgu.0`), and a module is a file below it:
//! `find_match` in `…/miniz_oxide-0.9.1/src/deflate/core.rs` is in `miniz_oxide::deflate::core`.
//! Paths do not give a method's type or the modules written inside a file.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use gimli::{Dwarf, Reader};

/// Between a root file's path and the crate, in the names of Rust's compilation units.
const CRATE_MARK: &str = "/@/";

/// The crates of one image by the folders of their sources.
#[derive(Debug, Default)]
pub(super) struct SourcePaths {
    /// By folder.
    crates: HashMap<String, Crate>,
    /// By file, as it was asked for.
    known: RefCell<HashMap<String, Option<Rc<str>>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Crate {
    name: String,
    /// The root's file name; `lib.rs` where a program shares its folder with a library.
    root: String,
}

impl SourcePaths {
    /// Reads the names of all units; a unit that cannot be read tells nothing.
    pub(super) fn of<R: Reader>(dwarf: &Dwarf<R>) -> SourcePaths {
        let mut paths = SourcePaths::default();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            let Ok(unit) = dwarf.unit(header) else {
                continue;
            };
            let text = |value: &Option<R>| {
                let value = value.as_ref()?.to_string_lossy().ok()?;
                Some(value.into_owned())
            };
            if let Some(name) = text(&unit.name) {
                paths.add_unit(&name, text(&unit.comp_dir).as_deref().unwrap_or_default());
            }
        }
        paths
    }

    /// Takes a unit's name and the folder it is relative to.
    fn add_unit(&mut self, name: &str, folder: &str) {
        let Some((root, unit)) = name.rsplit_once(CRATE_MARK) else {
            return;
        };
        let root = if root.starts_with('/') {
            without_dots(root)
        } else {
            without_dots(&format!("{folder}/{root}"))
        };
        let Some((folder, root)) = root.rsplit_once('/') else {
            return;
        };
        let name = unit.split('.').next().unwrap_or_default();
        if !is_identifier(name) {
            return;
        }
        let found = Crate { name: name.to_owned(), root: root.to_owned() };
        let rank = |c: &Crate| (c.root != "lib.rs", c.root.clone(), c.name.clone());
        self.crates
            .entry(folder.to_owned())
            .and_modify(|known| {
                if rank(&found) < rank(known) {
                    *known = found.clone();
                }
            })
            .or_insert(found);
    }

    /// The module that a file holds, as in `core::slice::iter`, or `None` where its path does not
    /// tell.
    pub(super) fn module_of(&self, file: &str) -> Option<Rc<str>> {
        if let Some(known) = self.known.borrow().get(file) {
            return known.clone();
        }
        let found = self.find(&without_dots(file)).map(Rc::from);
        self.known.borrow_mut().insert(file.to_owned(), found.clone());
        found
    }

    fn find(&self, path: &str) -> Option<String> {
        let mut folder = path;
        while let Some((above, _)) = folder.rsplit_once('/') {
            folder = above;
            if let Some(found) = self.crates.get(folder) {
                let below = &path[folder.len() + 1..];
                return if below == found.root {
                    Some(found.name.clone())
                } else {
                    module(&found.name, below)
                };
            }
        }
        let (folder, below) = path.rsplit_once("/src/")?;
        module(&released_crate(folder)?, below)
    }
}

/// The crate that a folder's name tells: `smallvec-1.13.2`, or one of the standard library's.
///
/// For crates without a unit in the image, because all of their functions were inlined.
fn released_crate(folder: &str) -> Option<String> {
    let (above, name) = folder.rsplit_once('/')?;
    let version = name
        .match_indices('-')
        .find(|(at, _)| name[at + 1..].starts_with(|c: char| c.is_ascii_digit()));
    let bare = match version {
        Some((at, _)) => &name[..at],
        None if above.contains("/library/") || above.ends_with("/library") => name,
        None => return None,
    };
    let name = bare.replace('-', "_");
    is_identifier(&name).then_some(name)
}

/// `deflate/core.rs` below `miniz_oxide` as a module.
fn module(name: &str, below: &str) -> Option<String> {
    let mut path = name.to_owned();
    let stem = below.strip_suffix(".rs")?;
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    for part in stem.split('/').filter(|part| !matches!(*part, "lib" | "mod")) {
        if !is_identifier(part) {
            return None;
        }
        path.push_str("::");
        path.push_str(part);
    }
    Some(path)
}

/// A path without `.` and `..`, as far as that is possible without the file system.
pub(super) fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." => {}
            "" if !parts.is_empty() => {}
            ".." if parts.last().is_some_and(|last| !last.is_empty()) => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths() -> SourcePaths {
        let mut paths = SourcePaths::default();
        for (name, folder) in [
            ("/r/miniz_oxide-0.9.1/src/lib.rs/@/miniz_oxide.1f0e-cgu.0", "/r"),
            ("guests/demo/src/main.rs/@/demo.22-cgu.0", "/ws"),
            ("guests/demo/src/lib.rs/@/demo_service.11-cgu.0", "/ws"),
            ("agent/examples/hosted.rs/@/hosted.33-cgu.1", "/ws/./"),
            ("/rustc/aa/library/core/src/lib.rs/@/core.44-cgu.0", "/rustc/aa"),
            ("src/main.c", "/ws"),
            ("x/src/lib.rs/@/not a name", "/ws"),
        ] {
            paths.add_unit(name, folder);
        }
        paths
    }

    #[test]
    fn a_file_below_a_crates_root_is_a_module_of_it() {
        let paths = paths();
        for (file, module) in [
            ("/r/miniz_oxide-0.9.1/src/deflate/core.rs", "miniz_oxide::deflate::core"),
            ("/r/miniz_oxide-0.9.1/src/deflate/mod.rs", "miniz_oxide::deflate"),
            ("/r/miniz_oxide-0.9.1/src/lib.rs", "miniz_oxide"),
            ("/ws/guests/demo/src/store.rs", "demo_service::store"),
            ("/ws/guests/../guests/demo/src/./lib.rs", "demo_service"),
            ("/ws/agent/examples/hosted.rs", "hosted"),
            ("/rustc/aa/library/core/src/slice/mod.rs", "core::slice"),
        ] {
            for _ in 0..2 {
                assert_eq!(paths.module_of(file).as_deref(), Some(module), "{file}");
            }
        }
    }

    #[test]
    fn a_crate_that_was_wholly_inlined_is_known_by_its_folder() {
        let paths = paths();
        for (file, module) in [
            ("/r/cfg-if-1.0.4/src/lib.rs", "cfg_if"),
            ("/r/small-vec-2.0.0-alpha.1/src/a/b.rs", "small_vec::a::b"),
            (
                "/rustc/aa/library/core/src/../../stdarch/crates/core_arch/src/x86/sse2.rs",
                "core_arch::x86::sse2",
            ),
            ("/home/x/.rustup/lib/rustlib/src/rust/library/alloc/src/vec/mod.rs", "alloc::vec"),
        ] {
            assert_eq!(paths.module_of(file).as_deref(), Some(module), "{file}");
        }
    }

    #[test]
    fn paths_that_tell_nothing_give_no_module() {
        for file in [
            "",
            "/",
            "src/store.rs",
            "/ws/target/out/bindings.rs",
            "/ws/other/src/store.rs",
            "/r/miniz_oxide-0.9.1/src/table.in",
            "/r/miniz_oxide-0.9.1/src/two words.rs",
            "../../..",
        ] {
            assert_eq!(paths().module_of(file), None, "{file}");
        }
    }
}
