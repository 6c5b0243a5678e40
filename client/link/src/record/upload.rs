//! Uploads a caller table: announces each part, sends its rows, whose number received the agent
//! reports, and waits for the confirmation.

use unikprof_proto::caller_table::{MAX_ROW_BYTES, Row, RunEncoder};
use unikprof_proto::frame::MAX_BODY;
use unikprof_proto::message::{TableBegin, TableEnd, TableInstalled, TableReady, TableRows};

use super::RecordError;
use super::session::Attempt;
use crate::connection::{Connection, ConnectionError};
use unikprof_profile::caller_table::{CallerTable, TablePart};
use unikprof_profile::frame_reader::encoded;

const DOING: &str = "sending the caller table";

/// How many bytes of rows are sent before the agent tells how many rows have arrived: what a busy
/// guest takes within one timeout.
const UNANSWERED: usize = 32 << 10;

/// What a run's frame takes beside its rows: upload, first and count as varints of 64 and 32 bits,
/// and the length of the rows, at most [`MAX_BODY`].
const RUN_HEAD: usize = 10 + 5 + 5 + 3;

/// Sends the parts that the agent does not have; returns the checksum of the table that it then
/// holds. May be repeated after a lost connection: the agent tells which rows have arrived, whose
/// number becomes `arrived`.
pub(super) fn upload(
    connection: &mut Connection,
    table: &CallerTable,
    max_request: u32,
    arrived: &mut u64,
) -> Result<u32, Attempt> {
    let before = *arrived;
    let mut held = table.checksum();
    let mut earlier = 0;
    for part in table.parts() {
        let mut count = |rows: u32| *arrived = (*arrived).max(earlier + u64::from(rows));
        let sent = upload_part(connection, part, max_request, &mut count);
        held = sent.map_err(|attempt| attempt.after(*arrived > before))?;
        earlier += u64::from(part.part.rows);
    }
    Ok(held)
}

fn upload_part(
    connection: &mut Connection,
    TablePart { part, rows }: &TablePart,
    max_request: u32,
    count: &mut impl FnMut(u32),
) -> Result<u32, Attempt> {
    let begin =
        TableBegin { first: part.first, end: part.end, rows: part.rows, checksum: part.checksum };
    loop {
        // Announced again, a part is gone on with, and the answer tells how much of it has arrived:
        // less than was sent if another client sends the same.
        connection.send(&begin, DOING)?;
        let TableReady { upload, rows: held } =
            connection.answer("permission to send a caller table", DOING)?;
        count(held);
        let (frames, sent) =
            run_frames(upload, rows, held, max_request).map_err(Attempt::Failed)?;
        connection.send_frames(&frames, DOING)?;
        if sent == part.rows {
            connection.send(&TableEnd { upload }, DOING)?;
            let installed: TableInstalled =
                connection.answer("an installed caller table", DOING)?;
            return Ok(installed.caller_table);
        }
    }
}

/// The next rows behind the first `held`, about [`UNANSWERED`] bytes of them as frames that this
/// agent takes, and how many it then has.
fn run_frames(
    upload: u64,
    rows: &[Row],
    held: u32,
    max_request: u32,
) -> Result<(Vec<u8>, u32), RecordError> {
    let room = (max_request as usize).min(MAX_BODY);
    let mut payload = vec![0; room.saturating_sub(RUN_HEAD)];
    if payload.len() < MAX_ROW_BYTES {
        return Err(RecordError::ShortRequests {
            what: "one row of a caller table",
            limit: max_request,
            needed: RUN_HEAD + MAX_ROW_BYTES,
        });
    }
    let mut frames = Vec::new();
    let mut first = held as usize;
    let last = first.checked_sub(1).and_then(|at| rows.get(at));
    let mut after = last.map_or(0, |row| row.code);
    while frames.len() < UNANSWERED
        && let Some(rest) = rows.get(first..).filter(|rest| !rest.is_empty())
    {
        let mut run = RunEncoder::new(after, &mut payload);
        let mut count = 0;
        for row in rest {
            if !run.has_room() {
                break;
            }
            run.push(*row);
            after = row.code;
            count += 1;
        }
        let length = run.finish();
        let message = TableRows { upload, first: first as u32, count, payload: &payload[..length] };
        frames.extend(encoded(&message).map_err(ConnectionError::in_frame(DOING))?);
        first += count as usize;
    }
    Ok((frames, first as u32))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::caller_table::{Rule, decode_run};
    use unikprof_proto::frame;

    use super::*;

    #[test]
    fn every_row_arrives_in_frames_that_the_agent_takes() {
        // Rows of every length, the longest included.
        let rows: Vec<Row> = (0..1000_u32)
            .map(|at| Row { code: 16 + at * at * 4_000, rule: Rule(u32::MAX >> (at % 30)) })
            .collect();
        for limit in [RUN_HEAD + MAX_ROW_BYTES, 64, 1024, 1 << 20] {
            let (bytes, sent) = run_frames(u64::MAX, &rows, 0, limit as u32).unwrap();
            assert_eq!(sent as usize, rows.len());
            let (mut rest, mut found) = (&bytes[..], Vec::new());
            while let Some(frame) = frame::split(rest).unwrap() {
                assert!(frame.body.len() <= limit.min(MAX_BODY));
                let run: TableRows<'_> = frame::decode(&frame).unwrap();
                assert_eq!((run.upload, run.first), (u64::MAX, found.len() as u32));
                let after = found.last().map_or(0, |row: &Row| row.code);
                decode_run(after, run.count, run.payload, |row| found.push(row)).unwrap();
                rest = &rest[frame.length()..];
            }
            assert!(rest.is_empty());
            assert_eq!(found, rows, "in requests of {limit} bytes");
            // After a lost connection: those that are missing.
            let (bytes, _) = run_frames(1, &rows, 999, limit as u32).unwrap();
            let frame = frame::split(&bytes).unwrap().unwrap();
            assert_eq!(frame.length(), bytes.len());
            let run: TableRows<'_> = frame::decode(&frame).unwrap();
            assert_eq!((run.first, run.count), (999, 1));
            let mut last = Vec::new();
            decode_run(rows[998].code, 1, run.payload, |row| last.push(row)).unwrap();
            assert_eq!(last, rows[999..]);
            let none = run_frames(1, &rows, 1000, limit as u32).unwrap();
            assert_eq!(none, (Vec::new(), 1000));
        }
    }

    #[test]
    fn requests_too_short_for_a_row_are_an_error() {
        let rows = [Row { code: 16, rule: Rule::ENTRY }];
        let limit = (RUN_HEAD + MAX_ROW_BYTES - 1) as u32;
        for limit in [0, limit] {
            let error = run_frames(1, &rows, 0, limit).unwrap_err();
            assert!(matches!(error, RecordError::ShortRequests { .. }), "{error}");
        }
    }
}
