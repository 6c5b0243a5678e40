//! Puts the Rust of the documentation into what surrounds it, for the test `docs` to compile.
#![allow(
    clippy::unwrap_used,
    reason = "a page and its surroundings that do not fit are an error of this package"
)]

#[path = "kit/src/documents.rs"]
#[allow(dead_code, unreachable_pub, reason = "the tests of other packages use the rest")]
mod documents;

use std::path::Path;
use std::{env, fs};

fn main() {
    let folder = env::var("OUT_DIR").unwrap();
    for name in ["hosted", "rust", "rust-more"] {
        let page = &format!("docs/guide/{name}.md");
        let surroundings = Path::new("guides").join(name).with_extension("rs");
        let page_path = documents::root().join(page);
        println!("cargo::rerun-if-changed={}", surroundings.display());
        println!("cargo::rerun-if-changed={}", page_path.display());
        let frame = fs::read_to_string(surroundings).unwrap();
        let code = documents::framed(&frame, page, "rust,ignore");
        fs::write(Path::new(&folder).join(name).with_extension("rs"), code).unwrap();
    }
}
