//! Uploads of caller table parts.
//!
//! There is one upload at a time, and announcing another part ends it. A client that has lost its
//! connection announces the same part again, and continues after the rows that have arrived. Rows
//! are not answered one by one: errors are reported at the end.

use unikprof_proto::caller_table::{Part, Row, RunError, decode_run};
use unikprof_proto::code::refusal;
use unikprof_proto::message::{TableBegin, TableEnd, TableInstalled, TableReady, TableRows};

use crate::ground::text::Text;
use crate::record::recorder::Refused;
use crate::stack::caller_table::{CallerTable, Progress, caller_table_bytes};

/// The current upload, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// The id of the last upload.
    id: u64,
    state: State,
    /// The table was emptied to be replaced, and a snapshot may still read what it contained.
    is_read: bool,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Closed,
    Open {
        part: Part,
        progress: Progress,
        fault: Option<Fault>,
    },
    /// The part was installed before.
    Installed(Part),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A run did not begin with this row, which was expected.
    Gap(u32),
    Run(RunError),
    /// There are more rows than announced.
    TooMany,
    /// A row is outside the part.
    Outside,
}

impl Upload {
    /// Begins the upload of a part, or continues it. A part that overlaps others replaces the
    /// table. `recording` is the reason why the table cannot be replaced now, if anything is
    /// recorded; then the part is added to the others. `is_read` returns whether a snapshot of a
    /// vCPU may be under way that began before the call: while one may be, the table is not replaced,
    /// and this returns `None`.
    pub(crate) fn begin(
        &mut self,
        table: Option<&CallerTable<'_>>,
        begin: &TableBegin,
        recording: Option<Refused>,
        is_read: impl Fn() -> bool,
    ) -> Result<Option<TableReady>, Refused> {
        let TableBegin { first, end, rows, checksum } = *begin;
        if first >= end {
            return Err(bad(Text::from("the part of the caller table is empty")));
        }
        let part = Part { first, end, rows, checksum };
        let room = table.map_or(0, CallerTable::room);
        let too_large = || Refused {
            code: refusal::TABLE_TOO_LARGE,
            text: Text::format(format_args!(
                "the caller table has {} rows and the agent has room for {}; give it a \
                 block of {} bytes, or record without the table",
                u64::from(rows),
                u64::from(room),
                caller_table_bytes(rows as usize)
            )),
        };
        let table = table.filter(|_| rows <= room).ok_or_else(too_large)?;
        let ready = |id, rows| Some(TableReady { upload: id, rows });
        if table.has(part) {
            self.id += 1;
            self.state = State::Installed(part);
            return Ok(ready(self.id, rows));
        }
        if let State::Open { part: open, progress, fault: None } = self.state
            && open == part
        {
            // Use another id: rows of the former connection may still arrive.
            self.id += 1;
            return Ok(ready(self.id, progress.rows()));
        }
        let replaces = recording.is_none() && table.overlaps(first, end);
        let is_beside = !replaces && !self.is_read;
        let beside = if is_beside { table.begin(first, end, rows) } else { None };
        let writing = match beside {
            Some(writing) => writing,
            None => {
                if !self.is_read {
                    if let Some(recording) = recording {
                        return Err(recording);
                    }
                    table.forget();
                    self.is_read = true;
                }
                if is_read() {
                    return Ok(None);
                }
                self.is_read = false;
                table.begin(first, end, rows).ok_or_else(too_large)?
            }
        };
        self.id += 1;
        self.state = State::Open { part, progress: writing.pause(), fault: None };
        Ok(ready(self.id, 0))
    }

    /// Accepts a run of rows.
    pub(crate) fn rows(&mut self, table: Option<&CallerTable<'_>>, run: &TableRows<'_>) {
        let State::Open { part, progress, fault: fault @ None } = &mut self.state else {
            return;
        };
        let writing = table.and_then(|table| table.go_on(*progress));
        let Some(mut writing) = writing.filter(|_| run.upload == self.id) else {
            return;
        };
        if run.first != progress.rows() {
            *fault = Some(Fault::Gap(progress.rows()));
            return;
        }
        if run.count > part.rows - progress.rows() {
            *fault = Some(Fault::TooMany);
            return;
        }
        let mut outside = None;
        let decoded = decode_run(progress.code(), run.count, run.payload, |row: Row| {
            // There is room: the number of rows was checked against the capacity.
            if outside.is_none() && !writing.push(row) {
                outside = Some(Fault::Outside);
            }
        });
        *progress = writing.pause();
        *fault = outside.or(decoded.err().map(Fault::Run));
    }

    /// Installs the part, if it is complete.
    pub(crate) fn end(
        &mut self,
        table: Option<&CallerTable<'_>>,
        end: &TableEnd,
    ) -> Result<TableInstalled, Refused> {
        let another = || Refused {
            code: refusal::OTHER_UPLOAD,
            text: Text::from("another client has started to upload its caller table; try again"),
        };
        let table = table.filter(|_| end.upload == self.id).ok_or_else(another)?;
        let part = match core::mem::take(&mut self.state) {
            State::Closed => return Err(another()),
            State::Installed(part) => part,
            State::Open { part, progress, fault } => {
                check(part, progress, fault)?;
                table.go_on(progress).ok_or_else(another)?.finish();
                part
            }
        };
        Ok(TableInstalled {
            rows: part.rows,
            caller_table: table.checksum().unwrap_or(part.checksum),
        })
    }
}

/// Checks that all announced rows have arrived.
fn check(part: Part, progress: Progress, fault: Option<Fault>) -> Result<(), Refused> {
    let rows = progress.rows();
    let text = match fault {
        Some(Fault::Gap(row)) => Text::format(format_args!(
            "expected the caller table to continue with row {}, but other rows arrived",
            u64::from(row)
        )),
        Some(Fault::Run(error)) => {
            Text::format(format_args!("after row {} {error}", u64::from(rows)))
        }
        Some(Fault::TooMany) => Text::from("more caller rows arrived than announced"),
        Some(Fault::Outside) => Text::from("a caller row is outside its part"),
        None if rows == part.rows && progress.checksum() == part.checksum => return Ok(()),
        None => Text::format(format_args!(
            "{} of {} caller rows arrived, with checksum {:#010x} instead of {:#010x}",
            u64::from(rows),
            u64::from(part.rows),
            progress.checksum(),
            part.checksum
        )),
    };
    Err(bad(text))
}

fn bad(text: Text) -> Refused {
    Refused { code: refusal::BAD_TABLE, text }
}
