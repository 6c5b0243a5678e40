//! Whether the README's one test command runs every test of the workspace.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use regex_lite::Regex;
use serde_json::Value;

use crate::docs::files;

/// Adds the features that a test program's sources name: `cfg(feature = "...")`.
fn features_in(source: &Path, found: &mut BTreeSet<String>) {
    if source.is_dir() {
        for entry in fs::read_dir(source).unwrap() {
            features_in(&entry.unwrap().path(), found);
        }
    } else if source.extension().is_some_and(|extension| extension == "rs") {
        let text = fs::read_to_string(source).unwrap();
        let without = Regex::new(r#"\bnot\([^)]*feature = "[a-z]"#).unwrap().find(&text);
        assert_eq!(without, None, "{}: never in a run over the workspace", source.display());
        let feature = Regex::new(r#"\bfeature = "([a-z0-9-]+)""#).unwrap();
        found.extend(feature.captures_iter(&text).map(|name| name[1].to_owned()));
    }
}

/// Cargo leaves out, without a word, tests that are gated by a feature which nobody in the workspace
/// asks for: programs by their `required-features`, modules by `cfg`.
#[test]
fn no_test_is_left_out_of_a_run_over_the_workspace() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        // Packages for other platforms are not downloaded for the build of this test.
        .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let members = list(&metadata["workspace_members"]);
    let nodes = list(&metadata["resolve"]["nodes"]);
    let mut gated = 0;
    for package in list(&metadata["packages"]) {
        if !members.contains(&package["id"]) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == package["id"]);
        let enabled = list(&node.unwrap()["features"]);
        for target in list(&package["targets"]) {
            if target["kind"] != serde_json::json!(["test"]) {
                continue;
            }
            let mut features = BTreeSet::new();
            for feature in list(&target["required-features"]) {
                features.insert(feature.as_str().unwrap().to_owned());
            }
            let source = Path::new(target["src_path"].as_str().unwrap());
            let is_folder = source.ends_with("main.rs");
            features_in(if is_folder { source.parent().unwrap() } else { source }, &mut features);
            for feature in features {
                gated += 1;
                assert!(
                    enabled.iter().any(|enabled| *enabled == *feature),
                    "a test in {} of {} needs {feature}, which no member of the workspace enables",
                    target["name"],
                    package["name"]
                );
            }
        }
    }
    assert!(gated > 10, "only {gated} features gate tests: the search is wrong");
}

/// `.ci/full` runs what is ignored, except tests that it skips by these parts of their names: a test
/// with another reason, or skipped by mistake, would be run by nobody.
#[test]
fn an_ignored_test_is_in_the_full_tier_or_is_skipped_there_by_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let script = fs::read_to_string(root.join(".ci/full")).unwrap();
    let by_hand = script.lines().find(|line| line.starts_with("BY_HAND=")).unwrap();
    let skipped: Vec<&str> =
        by_hand.split("--skip ").skip(1).map(|s| s.trim_matches([' ', '"'])).collect();
    let mut sources = Vec::new();
    files(root, &[".rs"], &mut sources);
    let sources: String = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let ignored =
        Regex::new(r#"#\[ignore = "([^"]*)"\]\s*(?:#\[[^\]]*\]\s*)*(?:pub\(crate\) )?fn (\w+)"#);
    let mut count = 0;
    for found in ignored.unwrap().captures_iter(&sources) {
        let (reason, name) = (&found[1], &found[2]);
        let is_skipped = skipped.iter().any(|part| name.contains(part));
        let tier = if is_skipped { "by hand: " } else { "full: " };
        assert!(reason.starts_with(tier), "{name}: expected `{tier}…`, found `{reason}`");
        count += 1;
    }
    assert!(count > 100, "only {count} ignored tests: the search is wrong");
}
