//! Caller tables on a real guest: sent by the client, or linked into the program.

use std::fs;

use tempfile::TempDir;
use unikprof_client::profile::Counters;

use crate::harness::Guest;

/// Where callers come from is accounted for, sample by sample.
fn adds_up(counters: &Counters) {
    let ways = counters.by_table + counters.by_bytes + counters.by_frame_pointer;
    assert_eq!(ways, counters.recorded, "{counters:?}");
}

/// The image is beside the client: its table is sent, used, and not sent again.
#[test]
fn a_client_with_the_image_sends_its_table() {
    let guest = Guest::start("shares");
    let client = guest.client();
    let held = || client.connect(&["info", "--json"]).expect_json()["caller_table"].as_u64();
    assert_eq!(held(), None);
    let counters = client.record_samples(200, &[]).profile.counters();
    adds_up(&counters);
    assert!(
        counters.by_table * 10 > counters.recorded * 9,
        "{counters:?}"
    );
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

/// The image is nowhere to be found, as in a recording that somebody else takes: the table that was
/// linked into the guest serves.
#[test]
fn a_table_that_is_linked_in_serves_a_client_without_the_image() {
    let folder = TempDir::with_prefix("unikprof-linked-").unwrap();
    let (program, table) = (folder.path().join("guest"), folder.path().join("callers"));
    fs::copy(Guest::program(), &program).unwrap();
    let image = program.to_str().unwrap();
    let other = Guest::start("shares");
    let output = other
        .client()
        .command()
        .args(["caller-table", image, "-o"])
        .arg(&table)
        .output();
    assert!(output.unwrap().status.success());
    drop(other);

    let guest = Guest::start_with_callers(&program, "shares", &table);
    fs::remove_file(&program).unwrap();
    let client = guest.client();
    let linked = client.connect(&["info", "--json"]).expect_json()["caller_table"].as_u64();
    assert!(linked.is_some());
    let counters = client.record_samples(200, &[]).profile.counters();
    adds_up(&counters);
    assert!(
        counters.by_table * 10 > counters.recorded * 9,
        "{counters:?}"
    );
    let held = client.connect(&["info", "--json"]).expect_json()["caller_table"].as_u64();
    assert_eq!(held, linked, "nothing was sent in its place");
}
