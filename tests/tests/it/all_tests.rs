//! Whether the README's one test command runs every test of the workspace.
#![allow(clippy::unwrap_used)]

use std::process::Command;

use serde_json::Value;

/// Cargo leaves out, without a word, a test whose `required-features` nobody in the workspace asks
/// for.
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
            for feature in list(&target["required-features"]) {
                gated += 1;
                assert!(
                    enabled.contains(&feature),
                    "{} of {} needs {feature}, which no member of the workspace enables",
                    target["name"],
                    package["name"]
                );
            }
        }
    }
    assert!(gated > 0, "no test has required features: the query is wrong");
}
