//! `xen-demo --kernel`: somebody else's kernel in the lab, by the command alone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use unikprof_tests::lab::run_or_skip;

use super::image;
use crate::harness::Client;

/// Ends with its case, and its machine with it.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With two interfaces of which the kernel uses the first. The command prints where its agent is reached, shows what it
/// writes, and ends with Enter.
#[test]
fn a_kernel_boots_by_the_command_alone() {
    run_or_skip(|| {
        let demo = Command::new(env!("CARGO_BIN_EXE_xen-demo"))
            .arg("--kernel")
            .arg(image())
            .args(["--hold", "--vif", "ip=10.0.2.50", "--vif", "ip=10.0.2.60"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut demo = Demo(demo);
        let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines();
        let mut next = |wanted: &str| {
            let line = lines
                .by_ref()
                .map(Result::unwrap)
                .find(|line| line.contains(wanted));
            line.unwrap_or_else(|| panic!("no line with {wanted:?}"))
        };
        let hint = next("unikprof-client connect");
        let address = hint.split_whitespace().nth(2).unwrap();
        next("c-xen: profiler on port 7777");
        let info = Client::of(address.parse().unwrap())
            .connect(&["--json", "info"])
            .expect_json();
        assert_eq!(info["guest_name"], "own", "{info:#}");
        writeln!(demo.0.stdin.take().unwrap()).unwrap();
        assert!(demo.0.wait().unwrap().success());
        Ok(())
    });
}
