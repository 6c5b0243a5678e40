//! Caller tables on a real guest: sent by the client, or linked into the program.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use unikprof_profile::profile::Counters;

use crate::harness::{Client, Guest};

/// Asserts that the source of each sample's caller is counted.
fn adds_up(counters: &Counters) {
    let ways = counters.by_table + counters.by_bytes + counters.by_frame_pointer;
    assert_eq!(ways, counters.recorded, "{counters:?}");
}

/// The checksum of the caller table that the agent holds.
fn held(client: &Client) -> Option<u64> {
    client.connect(&["info", "--json"]).expect_json()["caller_table"].as_u64()
}

/// Records; nearly all callers must come from the table.
fn record_by_table(client: &Client) {
    let counters = client.record_samples(200, &[]).profile.counters();
    adds_up(&counters);
    let most = counters.recorded * 9 / 10;
    assert!(counters.by_table > most, "{counters:?}");
}

/// The image is beside the client: its table is sent, used, and not sent again.
#[test]
fn a_client_with_the_image_sends_its_table() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let held = || held(&client);
    assert_eq!(held(), None);
    record_by_table(&client);
    let sent = held();
    assert!(sent.is_some());
    let without = client.record_samples(200, &["--no-caller-table"]);
    let counters = without.profile.counters();
    adds_up(&counters);
    assert_eq!(counters.by_table, 0);
    assert_eq!(held(), sent);
    let every = client.record_samples(200, &["--unwind", "table"]);
    let counters = every.profile.counters();
    adds_up(&counters);
    assert_eq!(held(), sent, "the same image, the same table");
    assert!(counters.mixed * 10 < counters.recorded, "{counters:?}");
}

/// A copy of the guest's program, whose caller table is a file beside it.
struct Linked {
    folder: TempDir,
}

impl Linked {
    fn new() -> Linked {
        let folder = TempDir::with_prefix("unikprof-linked-").unwrap();
        let [program, table] = ["guest", "callers"].map(|name| folder.path().join(name));
        fs::copy(Guest::program(), &program).unwrap();
        let other = Guest::start("shares");
        let [image, table] = [&program, &table].map(|path| path.to_str().unwrap());
        other.client().run(&["caller-table", image, "-o", table]).expect_success();
        Linked { folder }
    }

    fn program(&self) -> PathBuf {
        self.folder.path().join("guest")
    }

    /// The program with the table, which its agent installs at the start.
    fn command(&self) -> Command {
        let mut command = Command::new(self.program());
        command.env("UNIKPROF_TEST_CALLERS", self.folder.path().join("callers"));
        command.args(["shares", "--open"]);
        command
    }
}

/// The image is nowhere to be found, as in a recording that somebody else takes: the table that was
/// linked into the guest serves.
#[test]
#[ignore = "full: records a guest"]
fn a_table_that_is_linked_in_serves_a_client_without_the_image() {
    let program = Linked::new();
    let guest = Guest::spawn(&mut program.command());
    fs::remove_file(program.program()).unwrap();
    let client = guest.client();
    let linked = held(&client);
    assert!(linked.is_some());
    record_by_table(&client);
    let held = held(&client);
    assert_eq!(held, linked, "nothing was sent in its place");
}

/// Samples with `leaf` as the interrupted function: those that `caller` called, and the others.
fn by_caller(client: &Client, leaf: &str, caller: &str) -> (u64, u64) {
    let mut found = (0, 0);
    for (stack, count) in client.folded(&["--no-inlines"]) {
        let mut frames = stack.rsplit(';');
        if frames.next() != Some(leaf) {
            continue;
        }
        if frames.next().is_some_and(|name| name.ends_with(caller)) {
            found.0 += count;
        } else {
            found.1 += count;
        }
    }
    found
}

/// The kernel's code in a process keeps no frame records, and it is in no file that a user could
/// name; the client has the same.
#[test]
#[ignore = "full: records a guest"]
fn callers_of_the_kernels_own_code_are_found() {
    let guest = Guest::start("clock");
    let client = guest.client();
    let counters = client.record_samples(300, &[]).profile.counters();
    adds_up(&counters);
    let (right, wrong) = by_caller(&client, "__vdso_clock_gettime", "clock_gettime");
    assert!(right > 100 && right > 50 * wrong, "{right} right, {wrong} wrong: {counters:?}");
    assert!(counters.by_table > counters.recorded * 9 / 10, "{counters:?}");
    let doctor = client.run(&["doctor", "run.unikprof"]).stdout;
    assert!(!doctor.contains("--image"), "{doctor}");
}
