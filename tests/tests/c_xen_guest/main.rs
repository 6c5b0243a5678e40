//! The whole way with a kernel in C on a real Xen: gcc, the header, the archive with its own TCP, and the kernel's
//! own timer, threads and netfront.
//!
//! Skipped by name where a machine cannot run a lab; with `UNIKPROF_XEN_REQUIRED=1` that is a failure.

#![allow(clippy::unwrap_used)]

mod harness;

use harness::on;

#[test]
fn dev() {
    on("dev", |client| {
        client.record_samples(2000, &["-F","997"]);
        for w in [&["--format","folded"][..], &[][..], &["--json"]] {
            println!("{}", client.report("run.unikprof", w).expect_success().stdout);
        }
        let output = client.command().args(["doctor", "run.unikprof"]).output().unwrap();
        println!("{}", String::from_utf8_lossy(&output.stdout));
        println!("{}", client.connect(&["info"]).stdout);
    });
}
