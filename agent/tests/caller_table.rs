//! A caller table on its way into the agent, and what the samples make of it.
#![allow(clippy::unwrap_used)]

mod fake_guest;

use fake_guest::client::{
    Client, FakeService, download, one_ms, read, refusal_code, service, whole,
};
use fake_guest::{CALLER_ROWS, FakeAgent, tick};
use unikprof_proto::caller_table::{Row, Rule, RunEncoder, checksum};
use unikprof_proto::code::{refusal, start_flag};
use unikprof_proto::frame::Message as _;
use unikprof_proto::message::{
    Epoch, Hello, Pending, Start, Started, Stop, TableBegin, TableEnd, TableInstalled, TableReady,
    TableRows, Welcome,
};

const ENTRY: u32 = 0x40;

/// At [`ENTRY`] a function has no frame yet.
fn table() -> Vec<Row> {
    let row = |offset, rule| Row {
        code: 16 + offset,
        rule,
    };
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

fn begin(client: &mut Client, service: &mut FakeService, rows: u32) -> u64 {
    let frames = client.ask(service, &TableBegin { rows });
    read::<TableReady>(&frames[0]).upload
}

fn send(client: &mut Client, service: &mut FakeService, upload: u64, first: u32, rows: &[Row]) {
    let mut payload = [0; 900];
    let mut encoder = RunEncoder::new(
        first
            .checked_sub(1)
            .map_or(0, |last| table()[last as usize].code),
        &mut payload,
    );
    rows.iter().for_each(|row| encoder.push(*row));
    let length = encoder.finish();
    let run = TableRows {
        upload,
        first,
        count: rows.len() as u32,
        payload: &payload[..length],
    };
    assert_eq!(client.ask(service, &run), [], "rows are not answered");
}

fn end(
    client: &mut Client,
    service: &mut FakeService,
    upload: u64,
    checksum: u32,
) -> Vec<(u16, Vec<u8>)> {
    client.ask(service, &TableEnd { upload, checksum })
}

fn install(client: &mut Client, service: &mut FakeService) -> u32 {
    let rows = table();
    let upload = begin(client, service, rows.len() as u32);
    send(client, service, upload, 0, &rows[..1]);
    send(client, service, upload, 1, &rows[1..]);
    let frames = end(client, service, upload, sum(&rows));
    assert_eq!(read::<TableInstalled>(&frames[0]).rows, 4);
    sum(&rows)
}

fn welcome(client: &mut Client, service: &mut FakeService) -> (u32, Option<u32>) {
    let frames = client.ask(
        service,
        &Hello {
            client: "",
            client_id: 0,
        },
    );
    let welcome: Welcome<'_> = read(&frames[0]);
    (welcome.caller_rows, welcome.caller_table)
}

/// Stacks of one tick at the entry of a function, by the table that was asked for.
fn record(
    agent: &FakeAgent,
    client: &mut Client,
    service: &mut FakeService,
    start: Start<'_>,
) -> (Vec<u32>, [u64; 4]) {
    let frames = client.start(service, start);
    read::<Started>(&frames[0]);
    // The fake's stack begins with a frame record, of which an entry rule sees the first word.
    tick(agent, &[u64::from(ENTRY), 2, 0x2003]);
    let pending: Pending = read(&client.ask(service, &Stop { recording: 0 })[0]);
    let fetch = whole(pending.first_epoch);
    let frames = client.ask(service, &fetch);
    let head: Epoch<'_> = read(&frames[0]);
    assert_eq!(head.caller_table, start.caller_table);
    let got = download(&frames);
    let counters = got.counters;
    assert!(counters.add_up());
    let stack = got.stacks.keys().next().unwrap().clone();
    (
        stack,
        [
            counters.by_table,
            counters.by_bytes,
            counters.by_frame_pointer,
            counters.mixed,
        ],
    )
}

#[test]
fn a_table_is_sent_installed_and_used() {
    let (agent, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let (room, held) = welcome(&mut client, &mut service);
    assert!(room as usize >= CALLER_ROWS && held.is_none());
    let checksum = install(&mut client, &mut service);
    assert_eq!(welcome(&mut client, &mut service).1, Some(checksum));

    let discard = start_flag::DISCARD;
    let by_table = Start {
        caller_table: Some(checksum),
        flags: discard,
        ..one_ms()
    };
    // The word at the stack pointer is a frame pointer, no return address: the rule leads nowhere, and
    // the frame pointer is followed.
    let (stack, ways) = record(agent, &mut client, &mut service, by_table);
    assert_eq!((stack, ways), (vec![ENTRY, 2, 0x2003], [0, 0, 1, 0]));
    let without = Start {
        flags: discard,
        ..one_ms()
    };
    let (_, ways) = record(agent, &mut client, &mut service, without);
    assert_eq!(ways, [0, 0, 1, 0]);
    // Between entries the table says that the frame pointer is right.
    let every = Start {
        flags: discard | start_flag::UNWIND_TABLE,
        ..by_table
    };
    client.start(&mut service, every);
    tick(agent, &[1, 2, 0x2000, 0x2004]);
    let pending: Pending = read(&client.ask(&mut service, &Stop { recording: 0 })[0]);
    let frames = client.ask(&mut service, &whole(pending.first_epoch));
    let counters = download(&frames).counters;
    assert_eq!(
        [counters.by_table, counters.mixed],
        [1, 1],
        "0x2000 is not in the table"
    );
}

#[test]
fn a_table_that_is_not_whole_is_refused_and_none_is_held() {
    let (_, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let rows = table();
    let good = install(&mut client, &mut service);
    let mut refused =
        |send_rows: &dyn Fn(&mut Client, &mut FakeService, u64), checksum, says: &str| {
            let upload = begin(&mut client, &mut service, 4);
            send_rows(&mut client, &mut service, upload);
            let (code, text) = refusal_code(&end(&mut client, &mut service, upload, checksum));
            assert_eq!(code, refusal::BAD_TABLE, "{text}");
            assert!(text.contains(says), "{text}");
            assert_eq!(welcome(&mut client, &mut service).1, None);
        };
    refused(
        &|client, service, upload| send(client, service, upload, 0, &rows[..3]),
        good,
        "3 of 4",
    );
    refused(
        &|client, service, upload| send(client, service, upload, 0, &rows),
        !good,
        "checksum",
    );
    refused(
        &|client, service, upload| send(client, service, upload, 1, &rows[1..]),
        good,
        "row 0",
    );
    refused(
        &|client, service, upload| {
            let run = TableRows {
                upload,
                first: 0,
                count: 2,
                payload: &[16, 2, 0, 2],
            };
            client.ask(service, &run);
        },
        good,
        "out of order",
    );
    refused(
        &|client, service, upload| {
            let five = [&rows[..], &rows[3..]].concat();
            let run = TableRows {
                upload,
                first: 0,
                count: five.len() as u32,
                payload: &[],
            };
            client.ask(service, &run);
        },
        good,
        "announced",
    );
    refused(
        &|client, service, upload| send(client, service, upload + 1, 0, &rows),
        good,
        "0 of 4",
    );
    let frames = client.ask(&mut service, &TableBegin { rows: 1 << 20 });
    let (code, text) = refusal_code(&frames);
    assert_eq!(code, refusal::TABLE_TOO_LARGE);
    assert!(text.contains("10485776 bytes"), "{text}");
}

#[test]
fn a_recording_uses_the_table_that_it_asked_for() {
    let (_, mut service) = service(1);
    let mut client = Client::connect(&mut service);
    let mut start = |caller_table, flags| {
        let start = Start {
            caller_table,
            flags,
            ..one_ms()
        };
        let frames = client.start(&mut service, start);
        (frames[0].0 == Started::TYPE)
            .then_some(())
            .ok_or_else(|| refusal_code(&frames))
    };
    assert_eq!(start(Some(1), 0).unwrap_err().0, refusal::NO_TABLE);
    assert_eq!(
        start(None, start_flag::UNWIND_TABLE).unwrap_err().0,
        refusal::NO_TABLE
    );
    let checksum = install(&mut client, &mut service);
    let start = Start {
        caller_table: Some(!checksum),
        ..one_ms()
    };
    let (code, text) = refusal_code(&client.start(&mut service, start));
    assert_eq!(code, refusal::NO_TABLE);
    assert!(text.contains("another client"), "{text}");

    // Nobody takes it away while it is in use; the one who begins last sends.
    let start = Start {
        caller_table: Some(checksum),
        ..one_ms()
    };
    read::<Started>(&client.start(&mut service, start)[0]);
    let frames = client.ask(&mut service, &TableBegin { rows: 4 });
    assert_eq!(refusal_code(&frames).0, refusal::ALREADY_RECORDING);
    client.ask(&mut service, &Stop { recording: 0 });
    let mut other = Client::connect(&mut service);
    let upload = begin(&mut client, &mut service, 4);
    begin(&mut other, &mut service, 4);
    send(&mut client, &mut service, upload, 0, &table());
    let (code, text) = refusal_code(&end(&mut client, &mut service, upload, checksum));
    assert_eq!(code, refusal::BAD_TABLE);
    assert!(text.contains("another client"), "{text}");
}
