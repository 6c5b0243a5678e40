//! Go's pprof reads what the client writes.

use std::env;
use std::process::Command;

use crate::harness::Guest;

/// Where this is set, a machine without Go fails the test.
const REQUIRE: &str = "UNIKPROF_REQUIRE_GO";

#[test]
fn go_tool_pprof_names_the_work() {
    if Command::new("go").arg("version").output().is_err() {
        assert!(
            env::var_os(REQUIRE).is_none(),
            "{REQUIRE} is set, but there is no `go`"
        );
        eprintln!("skipped go_tool_pprof_names_the_work: there is no `go` on this machine");
        return;
    }
    let guest = Guest::start("shares");
    let client = guest.client();
    client.record_samples(1_000, &[]);
    client
        .report("run.unikprof", &["-o", "run.pb.gz"])
        .expect_success();
    let output = Command::new("go")
        .args(["tool", "pprof", "-top"])
        .arg(client.path("run.pb.gz"))
        .env("HOME", client.path(""))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let table = String::from_utf8(output.stdout).unwrap();
    // Behind the head: flat, flat%, sum%, cum, cum%, name; most first.
    let names: Vec<&str> = table
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("flat"))
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(5))
        .collect();
    for (name, found) in ["sixty", "thirty", "ten"].iter().zip(&names) {
        assert!(found.ends_with(name), "{table}");
    }
    assert!(names.len() > 3, "callers are there too:\n{table}");
}
