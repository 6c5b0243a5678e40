//! `xen-demo --kernel`: somebody else's kernel in the lab, by the command alone.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::image;
use crate::xen_profile::harness::{client_at, without_lab};

/// The time for a boot and the kernel's words, on a busy machine.
const WAIT: Duration = Duration::from_secs(600);

/// Ends with its case, and its machine with it.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With two interfaces of which the kernel uses the first. The command prints where its agent is
/// reached, shows what it writes, and ends with Enter.
#[test]
#[ignore = "full: boots a real Xen"]
fn a_kernel_boots_by_the_command_alone() {
    without_lab(|| {
        let demo = Command::new(env!("CARGO_BIN_EXE_lab-demo"))
            .arg("--kernel")
            .arg(image())
            .args(["--hold", "--vif", "ip=10.0.2.50", "--vif", "ip=10.0.2.60"])
            .args(["--port", "7777", "--port", "10.0.2.60:80"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut demo = Demo(demo);
        let said = BufReader::new(demo.0.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || said.lines().try_for_each(|line| sender.send(line.unwrap())));
        let next = |wanted: &str| loop {
            let line = lines.recv_timeout(WAIT);
            let line = line.unwrap_or_else(|error| panic!("no line with {wanted:?}: {error}"));
            if line.contains(wanted) {
                break line;
            }
        };
        let hint = next("unikprof-client connect");
        let address = hint.split_whitespace().nth(2).unwrap();
        next("  10.0.2.60:80 of the guest is 127.0.0.1:");
        next("c-xen: profiler on port 7777");
        let client = client_at(address.parse().unwrap());
        let info = client.connect(&["--json", "info"]).expect_json();
        assert_eq!(info["guest_name"], "own", "{info:#}");
        writeln!(demo.0.stdin.take().unwrap()).unwrap();
        assert!(demo.0.wait().unwrap().success());
    });
}
