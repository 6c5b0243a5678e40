//! The flame graph of README and docs/client.md: `cargo run --release -p unikprof-tests --bin picture` records the
//! demo and writes `docs/flamegraph.svg`.

use std::error::Error;
use std::path::Path;
use std::process::Command;

use unikprof_tests::picture::picture;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let demo = [
        "run",
        "--release",
        "-p",
        "unikprof-client",
        "--",
        "demo",
        "--duration",
        "10s",
    ];
    let status = Command::new("cargo")
        .args(demo)
        .current_dir(&root)
        .status()?;
    if !status.success() {
        return Err(format!("the demo ended with {status}").into());
    }
    let svg = std::fs::read_to_string(root.join("unikprof-demo/demo.svg"))?;
    let picture =
        picture(&svg).ok_or("the demo's flame graph has a form that is not known here")?;
    std::fs::write(root.join("docs/flamegraph.svg"), picture)?;
    Ok(())
}
