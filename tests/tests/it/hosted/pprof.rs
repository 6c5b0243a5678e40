//! Go's pprof reads what the client writes.

use std::process::Command;

use unikprof_tests::requirement::skip;

use crate::harness::time::{Span, events};
use crate::harness::{Client, Guest, wait_until};

/// Whether there is a Go toolchain; if not, the case is skipped.
pub(crate) fn has_go() -> bool {
    let found = Command::new("go").arg("version").output().is_ok();
    if !found {
        skip("there is no `go` on this machine");
    }
    found
}

/// The output of `go tool pprof` for a file.
pub(crate) fn go_tool_pprof(client: &Client, words: &[&str], file: &str) -> String {
    let output = Command::new("go")
        .args(["tool", "pprof"])
        .args(words)
        .arg(client.path(file))
        .env("HOME", client.path(""))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// The names in its table, most first: flat, flat%, sum%, cum, cum%, name, behind a head.
pub(crate) fn names(table: &str) -> Vec<&str> {
    table
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("flat"))
        .skip(1)
        .filter_map(|line| line.split_whitespace().nth(5))
        .collect()
}

#[test]
#[ignore = "full: records a guest"]
pub(crate) fn go_tool_pprof_names_the_work() {
    if !has_go() {
        return;
    }
    let guest = Guest::start("shares");
    let client = guest.client();
    client.record_samples(1_000, &[]);
    client.report("run.unikprof", &["-o", "run.pb.gz"]).expect_success();
    let table = go_tool_pprof(&client, &["-top"], "run.pb.gz");
    let names = names(&table);
    for (name, found) in ["sixty", "thirty", "ten"].iter().zip(&names) {
        assert!(found.ends_with(name), "{table}");
    }
    assert!(names.len() > 3, "callers are there too:\n{table}");
}

/// Recording, vCPU and span are labels by which Go's pprof tells samples apart; a window is its own
/// profile.
#[test]
#[ignore = "full: records a guest"]
pub(crate) fn go_tool_pprof_knows_the_labels() {
    if !has_go() {
        return;
    }
    let guest = Guest::start("burst");
    let client = guest.client();
    client.must(&["start", "--name", "flight", "-F", "997"]);
    let burst = wait_until("a burst while it was recorded", || {
        Span::since_recording(&events(&client), "batch")
    });
    client.must(&["stop", "-o", "run.unikprof"]);
    let (from, to) = (burst.date(0), burst.date(burst.length_ns()));
    for (file, words) in [
        ("whole.pb.gz", &["--from", "0s"][..]),
        ("counts.pb.gz", &["--whole"]),
        ("window.pb.gz", &["--from", &from, "--to", &to]),
        ("span.pb.gz", &["--in-span", "batch"]),
    ] {
        let words = [words, &["-o", file]].concat();
        client.report("run.unikprof", &words).expect_success();
    }
    let tags = go_tool_pprof(&client, &["-tags"], "whole.pb.gz");
    for word in ["recording: Total", "flight", "vcpu: Total", "span: Total", "batch"] {
        assert!(tags.contains(word), "no {word:?} in:\n{tags}");
    }
    // Counts know no spans.
    let counts = go_tool_pprof(&client, &["-tags"], "counts.pb.gz");
    assert!(counts.contains("flight") && !counts.contains("span:"), "{counts}");
    let focus = ["-top", "-tagfocus", "span=batch"];
    for (words, file) in
        [(&focus[..], "whole.pb.gz"), (&["-top"], "window.pb.gz"), (&["-top"], "span.pb.gz")]
    {
        let table = go_tool_pprof(&client, words, file);
        let names = names(&table);
        assert!(names[0].ends_with("burst::burst"), "{file}:\n{table}");
        assert!(!names.iter().any(|name| name.ends_with("burst::usual")), "{file}:\n{table}");
    }
}
