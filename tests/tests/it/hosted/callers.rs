//! Caller tables on a real guest: sent by the client, or linked into the program.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use unikprof_agent::caller_table_bytes;
use unikprof_client::profile::Counters;
use unikprof_proto::code::message_type;
use unikprof_proto::frame::{self, Frame};
use unikprof_proto::message::TableRows;

use crate::harness::{Client, Guest, Proxy, Then};

/// Where callers come from is accounted for, sample by sample.
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

/// A long upload over a line that breaks again and again would otherwise never end.
#[test]
#[ignore = "full: records a guest"]
fn an_upload_that_was_cut_goes_on_from_there() {
    let guest = Guest::start("shares");
    let proxy = Proxy::to(guest.address());
    // The agent has told by then that the first of these have arrived.
    const FORWARDED: usize = 60;
    proxy.limit_next_behind(message_type::TABLE_ROWS, FORWARDED, Then::Cut);
    let client = Client::of(proxy.address());
    client.must(&["start", "--unwind", "table"]);
    let connections = proxy.requests(message_type::TABLE_ROWS);
    let [cut, rest] = &connections[..] else {
        panic!("{} connections", connections.len());
    };
    let rows = |body: &Vec<u8>| {
        let kind = message_type::TABLE_ROWS;
        let run: TableRows<'_> = frame::decode(&Frame { kind, body }).unwrap();
        (run.first, run.first + run.count)
    };
    let [cut, rest]: [Vec<_>; 2] = [cut, rest].map(|one| one.iter().map(rows).collect());
    assert_eq!((cut.len(), cut[0].0), (FORWARDED, 0));
    let known = proxy.requests(message_type::TABLE_BEGIN)[0].len();
    assert!(known > 1, "the agent has told how far it was");
    // From a row on that the first connection has sent, behind those that the agent had told of.
    let told = cut[FORWARDED / 2].0;
    assert!((told..=cut[FORWARDED - 1].1).contains(&rest[0].0), "{rest:?}");
    // Further parts, of other images, begin with their own first row.
    let goes_on = |pair: &[(u32, u32)]| pair[1].0 == pair[0].1 || pair[1].0 == 0;
    assert!(cut.windows(2).all(goes_on) && rest.windows(2).all(goes_on));
    // The table is as good as one that came in one piece.
    let table = held(&client);
    let direct = Guest::start("shares");
    let other = direct.client();
    other.must(&["start", "--unwind", "table"]);
    let expected = held(&other);
    assert!(table.is_some() && table == expected);
}

/// A copy of the guest's program, whose caller table is a file beside it.
struct Linked {
    folder: TempDir,
    /// What `caller-table --json` prints.
    said: Value,
}

impl Linked {
    fn new() -> Linked {
        let folder = TempDir::with_prefix("unikprof-linked-").unwrap();
        let [program, table] = ["guest", "callers"].map(|name| folder.path().join(name));
        fs::copy(Guest::program(), &program).unwrap();
        let other = Guest::start("shares");
        let [image, table] = [&program, &table].map(|path| path.to_str().unwrap());
        let words = ["caller-table", image, "-o", table, "--json"];
        let said = other.client().run(&words).expect_json();
        Linked { folder, said }
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

/// The client's table has rows for libraries as well, and the linked one is not replaced while a
/// recording runs.
#[test]
#[ignore = "full: records a guest"]
fn beside_a_recording_from_boot_the_linked_table_serves_where_there_is_no_room_for_another() {
    let program = Linked::new();
    let block = program.said["block_bytes"].to_string();
    let mut command = program.command();
    command.env("UNIKPROF_TEST_CALLER_BYTES", block);
    let guest = Guest::spawn(command.args(["--record-at-boot", "flight"]));
    let client = guest.client();
    let linked = held(&client);
    assert!(linked.is_some());
    let said = client.record_until(200, &[]).stderr;
    assert!(said.contains("in the one that it has"), "{said}");
    let counters = client.recording("run.unikprof").profile.counters();
    adds_up(&counters);
    let most = counters.recorded * 9 / 10;
    assert!(counters.by_table > most, "{counters:?}");
    assert_eq!(held(&client), linked);
}

/// Rows for some functions: next to none of the guest's program.
const LITTLE_ROOM: usize = 40;

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

/// Of a table for which there is little room, the rows of what runs are there from the first sample
/// on; those of a function that begins to run later are added meanwhile; and how many samples had
/// rows is told as it was.
#[test]
#[ignore = "full: records a guest"]
fn what_runs_has_its_rows_where_there_is_little_room() {
    const SAMPLES: u64 = 300;
    let mut command = Command::new(Guest::program());
    let room = caller_table_bytes(LITTLE_ROOM).to_string();
    command.env("UNIKPROF_TEST_CALLER_BYTES", room);
    let mut guest = Guest::spawn(command.args(["late", "--open"]));
    let client = guest.client();
    let recording = client.begin(&["record", "--name", "run", "-o", "run.unikprof", "--json"]);
    // Before it there is another, which meets what runs.
    let of_run = |status: &Value| -> u64 {
        let recordings = status["recordings"].as_array().unwrap();
        let run = recordings.iter().find(|one| one["name"] == "run");
        run.map_or(0, |run| run["counters"]["recorded"].as_u64().unwrap())
    };
    client.wait_for_status("samples of the early function", |status| of_run(status) >= SAMPLES);
    let held = || held(&client);
    let first = held();
    assert!(first.is_some());
    guest.tell();
    crate::harness::wait_until("rows of the late function", || (held() != first).then_some(()));
    let added = of_run(&client.status());
    client.wait_for_status("samples of the late function", |status| {
        of_run(status) >= added + SAMPLES
    });
    recording.interrupt();
    let said: Value = serde_json::from_str(&recording.finish().expect_success().stdout).unwrap();

    let (right, wrong) = by_caller(&client, "early_leaf", "late::early_caller");
    assert!(right > SAMPLES / 2, "{right} right, {wrong} wrong");
    assert_eq!(wrong, 0, "the early function had its rows at the start");
    let (right, wrong) = by_caller(&client, "late_leaf", "late::late_caller");
    assert!(right > SAMPLES / 2, "{right} right, {wrong} wrong");
    assert!(wrong > 0, "the late function had its rows at the start");
    let counted = |name: &str| said["counters"][name].as_u64().unwrap();
    let by_table = counted("by_table");
    assert!(
        by_table >= SAMPLES && by_table + wrong <= said["samples"].as_u64().unwrap(),
        "{by_table} of {} are said to be by table, {wrong} were not",
        said["samples"]
    );
}
