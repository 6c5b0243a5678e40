//! The upload of a caller table, and its effect on samples.

use crate::client::{HELLO, download, one_ms, read, whole};
use crate::fake_guest::{AT_WALK, CALLER_ROWS, Client, FakeAgent, deliver, guest, tick};
use unikprof_proto::caller_table::{Row, Rule, RunEncoder, checksum};
use unikprof_proto::code::{refusal, start_flag};
use unikprof_proto::message::{
    Epoch, Start, Stop, TableBegin, TableEnd, TableInstalled, TableReady, TableRows, TakeSnapshot,
    Welcome,
};

const ENTRY: u32 = 0x40;

fn row(offset: u32, rule: Rule) -> Row {
    Row { code: 16 + offset, rule }
}

/// At [`ENTRY`] a function has no frame yet.
fn table() -> Vec<Row> {
    vec![
        row(0, Rule::FRAME_RECORD),
        row(ENTRY, Rule::ENTRY),
        row(ENTRY + 1, Rule::FRAME_RECORD),
        row(0x1000, Rule::UNKNOWN),
    ]
}

fn sum(rows: &[Row]) -> u32 {
    rows.iter().fold(0, |sum, row| checksum(sum, *row))
}

/// The announcement of these rows, for all their codes.
fn announced(rows: &[Row]) -> TableBegin {
    TableBegin {
        first: rows[0].code,
        end: rows.last().unwrap().code,
        rows: rows.len() as u32,
        checksum: sum(rows),
    }
}

/// Sends the rows of `all` in `range`.
fn send(client: &mut Client, upload: u64, all: &[Row], range: std::ops::Range<usize>) {
    let mut payload = [0; 900];
    let first = range.start as u32;
    let before = range.start.checked_sub(1);
    let mut encoder = RunEncoder::new(before.map_or(0, |last| all[last].code), &mut payload);
    let rows = &all[range];
    rows.iter().for_each(|row| encoder.push(*row));
    let length = encoder.finish();
    let run = TableRows { upload, first, count: rows.len() as u32, payload: &payload[..length] };
    assert_eq!(client.ask(&run), [], "rows are not answered");
}

/// Uploads a part in two runs; returns the checksum of the table that then contains it.
fn add(client: &mut Client, rows: &[Row]) -> u32 {
    let TableReady { upload, rows: held } = client.answer(&announced(rows));
    assert_eq!(held, 0);
    send(client, upload, rows, 0..1);
    send(client, upload, rows, 1..rows.len());
    let installed: TableInstalled = client.answer(&TableEnd { upload });
    assert_eq!(installed.rows as usize, rows.len());
    installed.caller_table
}

fn install(client: &mut Client) -> u32 {
    let checksum = add(client, &table());
    assert_eq!(checksum, sum(&table()));
    checksum
}

fn welcome(client: &mut Client) -> (u32, Option<u32>) {
    let frames = client.ask(&HELLO);
    let welcome: Welcome<'_> = read(&frames[0]);
    (welcome.caller_rows, welcome.caller_table)
}

const fn with_table(checksum: u32) -> Start<'static> {
    Start { caller_table: Some(checksum), ..one_ms() }
}

/// The stack of one tick at the entry of a function, with the requested table.
fn record(agent: &FakeAgent, client: &mut Client, start: Start<'_>) -> (Vec<u32>, [u64; 4]) {
    client.start(start);
    // The fake stack begins with a frame record; an entry rule reads its first word.
    tick(agent, &[u64::from(ENTRY), 2, 0x2003]);
    let pending = client.stop(0);
    let frames = client.ask(&whole(pending.first_epoch));
    let head: Epoch<'_> = read(&frames[0]);
    assert_eq!(head.caller_table, start.caller_table);
    let got = download(&frames);
    let counters = got.counters;
    assert!(counters.add_up());
    let stack = got.stacks.keys().next().unwrap().clone();
    (stack, [counters.by_table, counters.by_bytes, counters.by_frame_pointer, counters.mixed])
}

/// An entry's return address is in a register on aarch64.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_table_is_sent_installed_and_used() {
    let (agent, _, mut client) = guest();
    let (room, held) = welcome(&mut client);
    assert!(room as usize >= CALLER_ROWS && held.is_none());
    let checksum = install(&mut client);
    assert_eq!(welcome(&mut client).1, Some(checksum));

    let discard = start_flag::REPLACE;
    let by_table = Start { caller_table: Some(checksum), flags: discard, ..one_ms() };
    // The word at the stack pointer is a frame pointer and not a return address, so the rule fails
    // and the frame pointer is followed.
    let (stack, ways) = record(agent, &mut client, by_table);
    assert_eq!((stack, ways), (vec![ENTRY, 2, 0x2003], [0, 0, 1, 0]));
    let without = Start { flags: discard, ..one_ms() };
    let (_, ways) = record(agent, &mut client, without);
    assert_eq!(ways, [0, 0, 1, 0]);
    // Between entries the table confirms the frame pointer.
    let every = Start { flags: discard | start_flag::UNWIND_TABLE, ..by_table };
    client.start(every);
    tick(agent, &[1, 2, 0x2000, 0x2004]);
    let pending = client.stop(0);
    let counters = client.fetch(pending.first_epoch).counters;
    assert_eq!([counters.by_table, counters.mixed], [1, 1], "0x2000 is not in the table");
}

#[test]
fn a_table_that_is_not_whole_is_refused_and_none_is_held() {
    let (_, _, mut client) = guest();
    let rows = table();
    install(&mut client);
    // Another part than the installed one, which would not be sent again.
    let another = TableBegin { checksum: !sum(&rows), ..announced(&rows) };
    let mut refused = |says: &str, send_rows: &dyn Fn(&mut Client, u64)| {
        let TableReady { upload, .. } = client.answer(&another);
        send_rows(&mut client, upload);
        let (code, text) = client.refusal(&TableEnd { upload });
        assert_eq!(code, refusal::BAD_TABLE, "{text}");
        assert!(text.contains(says), "{text}");
        assert_eq!(welcome(&mut client).1, None);
    };
    let encoded = |client: &mut Client, upload, count, payload: &[u8]| {
        client.ask(&TableRows { upload, first: 0, count, payload });
    };
    refused("3 of 4", &|client, upload| {
        send(client, upload, &rows, 0..3);
    });
    refused("checksum", &|client, upload| {
        send(client, upload, &rows, 0..4);
    });
    refused("row 0", &|client, upload| {
        send(client, upload, &rows, 1..4);
    });
    refused("0 of 4", &|client, upload| {
        send(client, upload + 1, &rows, 0..4);
    });
    refused("out of order", &|client, upload| {
        encoded(client, upload, 2, &[16, 2, 0, 2]);
    });
    refused("announced", &|client, upload| {
        encoded(client, upload, 5, &[]);
    });
    refused("outside its part", &|client, upload| {
        encoded(client, upload, 1, &[1, 2]);
    });
    let large = TableBegin { rows: 1 << 20, ..announced(&rows) };
    let (code, text) = client.refusal(&large);
    assert_eq!(code, refusal::TABLE_TOO_LARGE);
    assert!(text.contains("10485832 bytes"), "{text}");
}

#[test]
fn a_recording_uses_the_table_that_it_asked_for() {
    let (_, service, mut client) = guest();
    for (caller_table, flags) in [(Some(1), 0), (None, start_flag::UNWIND_TABLE)] {
        let start = Start { caller_table, flags, ..one_ms() };
        assert_eq!(client.refusal(&start).0, refusal::NO_TABLE);
    }
    let checksum = install(&mut client);
    let (code, text) = client.refusal(&with_table(!checksum));
    assert_eq!(code, refusal::NO_TABLE);
    assert!(text.contains("another client"), "{text}");

    // It is not replaced while it is in use, and not sent again; a part for which there is no room
    // is refused.
    client.start(with_table(checksum));
    let overlapping = TableBegin { checksum: 1, ..announced(&table()) };
    let large = TableBegin { rows: welcome(&mut client).0, ..overlapping };
    assert_eq!(client.refusal(&large).0, refusal::ALREADY_RECORDING);
    let held: TableReady = client.answer(&announced(&table()));
    assert_eq!(held.rows, 4);
    let installed: TableInstalled = client.answer(&TableEnd { upload: held.upload });
    assert_eq!(installed.caller_table, checksum);
    client.ask(&Stop { recording: 0 });
    // Only the last upload is valid.
    let mut other = Client::connect(&service);
    let TableReady { upload, .. } = client.answer(&overlapping);
    let another = TableBegin { checksum: 2, ..overlapping };
    other.answer::<TableReady>(&another);
    send(&mut client, upload, &table(), 0..4);
    let (code, text) = client.refusal(&TableEnd { upload });
    assert_eq!(code, refusal::OTHER_UPLOAD);
    assert!(text.contains("another client"), "{text}");
}

/// A part for code that the table does not cover is added while a recording runs, and its ticks use
/// it.
#[test]
fn a_table_is_extended_while_a_recording_uses_it() {
    let (agent, _, mut client) = guest();
    let first = install(&mut client);
    client.start(with_table(first));
    tick(agent, &[0x2001, 2, 0x2003]);
    let more = [row(0x2000, Rule::FRAME_RECORD), row(0x3000, Rule::UNKNOWN)];
    let both = add(&mut client, &more);
    assert_ne!(both, first);
    assert_eq!(welcome(&mut client).1, Some(both));
    tick(agent, &[0x2001, 2, 0x2003]);
    let pending = client.stop(0);
    let frames = client.ask(&whole(pending.first_epoch));
    let head: Epoch<'_> = read(&frames[0]);
    assert_eq!(head.caller_table, Some(first), "as it was at the start");
    let counters = download(&frames).counters;
    assert_eq!([counters.by_table, counters.by_frame_pointer], [1, 1]);
    // The next recording uses both parts.
    let start = |caller_table| Start {
        caller_table: Some(caller_table),
        flags: start_flag::REPLACE,
        ..one_ms()
    };
    let refused = client.refusal(&start(first));
    assert_eq!(refused.0, refusal::NO_TABLE);
    client.start(start(both));
}

/// A client that had no room for all rows sends those of other functions later, whose codes are
/// between the first ones.
#[test]
fn rows_between_those_of_a_part_are_added_while_a_recording_uses_it() {
    let (agent, _, mut client) = guest();
    let function = |offset| [row(offset, Rule::FRAME_RECORD), row(offset + 0x100, Rule::UNKNOWN)];
    let first = [function(0x1000), function(0x4000)].concat();
    let first = add(&mut client, &first);
    client.start(with_table(first));
    let between = [0x2001, 2, 0x2003];
    tick(agent, &between);
    let both = add(&mut client, &function(0x2000));
    assert_ne!(both, first);
    tick(agent, &between);
    // The earlier rows still apply.
    tick(agent, &[0x4001, 2, 0x4003]);
    let pending = client.stop(0);
    let counters = client.fetch(pending.first_epoch).counters;
    assert_eq!([counters.by_table, counters.by_frame_pointer], [2, 1]);
}

/// After a lost connection only the missing rows are sent.
#[test]
fn an_upload_goes_on_where_it_stopped() {
    let (_, service, mut client) = guest();
    let rows = table();
    let TableReady { upload: lost, .. } = client.answer(&announced(&rows));
    send(&mut client, lost, &rows, 0..3);
    assert_eq!(welcome(&mut client).1, None);
    let mut again = Client::connect(&service);
    let ready: TableReady = again.answer(&announced(&rows));
    assert_eq!(ready.rows, 3);
    // Rows that the former connection still sends are ignored.
    send(&mut client, lost, &rows, 3..4);
    send(&mut again, ready.upload, &rows, 3..4);
    let installed: TableInstalled = again.answer(&TableEnd { upload: ready.upload });
    assert_eq!((installed.rows, installed.caller_table), (4, sum(&rows)));
    // A part that was damaged is uploaded from the start.
    let other = TableBegin { checksum: 1, ..announced(&rows) };
    let damaged: TableReady = again.answer(&other);
    send(&mut again, damaged.upload, &rows, 1..2);
    assert_eq!(again.answer::<TableReady>(&other).rows, 0);
}

/// A client replaces the table while a snapshot of a vCPU is under way, which reads it: the rows
/// are not written before the snapshot is taken.
#[test]
fn a_table_is_not_replaced_while_a_snapshot_reads_it() {
    let (agent, _, mut client) = guest();
    add(&mut client, &table());
    let mut other = client.another();
    client.ask(&TakeSnapshot { vcpu: 0, since_ns: u64::MAX });
    let (sender, received) = std::sync::mpsc::channel();
    AT_WALK.set(Some(Box::new(move || {
        let rows = [row(0, Rule::ENTRY), row(0x1000, Rule::UNKNOWN)];
        let meanwhile = other.ask(&announced(&rows));
        sender.send((other, meanwhile.len())).unwrap();
    })));
    deliver(agent, &[1, 2]);
    let (mut other, meanwhile) = received.try_recv().unwrap();
    assert_eq!(meanwhile, 0, "not yet");
    other.advance();
    other.take(1_000);
    let TableReady { rows, .. } = read(&other.frames()[0]);
    assert_eq!(rows, 0);
}
