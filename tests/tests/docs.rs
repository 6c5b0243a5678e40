//! Documentation and sources refer to headings that exist.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The files with one of these extensions below `folder`, except build output and folders with a leading dot.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') || name == "target" {
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
    heading
        .to_lowercase()
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

fn anchors(document: &Path) -> HashSet<String> {
    let text = fs::read_to_string(document).unwrap_or_default();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect()
}

#[test]
fn every_reference_to_a_heading_leads_to_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = Vec::new();
    files(root, &[".md", ".rs", ".h", ".c"], &mut sources);
    let link = Regex::new(r"\]\(([\w./-]*\.md)?#([\w-]+)\)").unwrap();
    let mention = Regex::new(r"\b(docs/[\w/-]+\.md)#([\w-]+)").unwrap();
    let mut known = HashMap::new();
    let (mut checked, mut broken) = (0, Vec::new());
    for source in &sources {
        let text = fs::read_to_string(source).unwrap();
        let links = link.captures_iter(&text).map(|found| {
            let document = found.get(1).map_or_else(
                || source.clone(),
                |path| source.parent().unwrap().join(path.as_str()),
            );
            (document, found[2].to_owned())
        });
        let mentions = mention
            .captures_iter(&text)
            .map(|found| (root.join(&found[1]), found[2].to_owned()));
        for (document, wanted) in links.chain(mentions) {
            checked += 1;
            let headings = known
                .entry(document.clone())
                .or_insert_with(|| anchors(&document));
            if !headings.contains(&wanted) {
                broken.push(format!(
                    "{}: {}#{wanted}",
                    source.display(),
                    document.display()
                ));
            }
        }
    }
    assert!(
        checked > 50,
        "{checked} references are too few: they were not found"
    );
    assert_eq!(broken, [""; 0]);
}
