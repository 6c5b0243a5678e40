//! A caller table on its way from a client to the agent.
//!
//! One is on its way at a time; who begins another ends it. Rows are not answered one by one: what was
//! wrong with them is told at the end.

use unikprof_proto::caller_table::{RunError, decode_run};
use unikprof_proto::code::refusal;
use unikprof_proto::message::{TableEnd, TableRows};

use crate::ground::text::Text;
use crate::record::recorder::Refused;
use crate::stack::caller_table::{CallerTable, Progress, caller_table_bytes};

/// The upload, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Upload {
    /// The id of the last that was begun.
    id: u64,
    is_open: bool,
    rows: u32,
    progress: Progress,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Rows from this one on were expected, and others came.
    Gap(u32),
    Run(RunError),
    /// More rows than were announced.
    TooMany,
}

impl Upload {
    /// Forgets the table that the agent holds and takes another of `rows` rows; answers the upload's id.
    /// Nothing may be recorded.
    pub(crate) fn begin(
        &mut self,
        table: Option<&CallerTable<'_>>,
        rows: u32,
    ) -> Result<u64, Refused> {
        let room = table.map_or(0, CallerTable::room);
        let Some(table) = table.filter(|_| rows <= room) else {
            return Err(Refused {
                code: refusal::TABLE_TOO_LARGE,
                text: Text::format(format_args!(
                    "the caller table has {rows} rows and the agent has room for {room}; give it a \
                     block of {} bytes, or record without the table",
                    caller_table_bytes(rows as usize)
                )),
            });
        };
        *self = Self {
            id: self.id + 1,
            is_open: true,
            rows,
            progress: table.begin().pause(),
            fault: None,
        };
        Ok(self.id)
    }

    /// Takes a run of rows.
    pub(crate) fn rows(&mut self, table: Option<&CallerTable<'_>>, run: &TableRows<'_>) {
        let (Some(table), true) = (table, self.is_open && run.upload == self.id) else {
            return;
        };
        if self.fault.is_some() {
            return;
        }
        if run.first != self.progress.rows() {
            self.fault = Some(Fault::Gap(self.progress.rows()));
            return;
        }
        if run.count > self.rows - self.progress.rows() {
            self.fault = Some(Fault::TooMany);
            return;
        }
        let mut writing = table.go_on(self.progress);
        let decoded = decode_run(self.progress.code(), run.count, run.payload, |row| {
            // There is room: the number of rows was checked against it.
            writing.push(row);
        });
        self.progress = writing.pause();
        self.fault = decoded.err().map(Fault::Run);
    }

    /// Installs the table, if it is whole; answers its rows.
    pub(crate) fn end(
        &mut self,
        table: Option<&CallerTable<'_>>,
        end: &TableEnd,
    ) -> Result<u32, Refused> {
        let refused = |text| {
            Err(Refused {
                code: refusal::BAD_TABLE,
                text,
            })
        };
        let (Some(table), true) = (table, self.is_open && end.upload == self.id) else {
            return refused(Text::from(
                "another client has begun to send its caller table; try again",
            ));
        };
        self.is_open = false;
        let rows = self.progress.rows();
        match self.fault {
            Some(Fault::Gap(row)) => {
                return refused(Text::format(format_args!(
                    "the caller table goes on with row {row}, and other rows came"
                )));
            }
            Some(Fault::Run(error)) => {
                return refused(Text::format(format_args!("after row {rows} {error}")));
            }
            Some(Fault::TooMany) => {
                return refused(Text::format(format_args!(
                    "more caller rows came than the {} announced",
                    self.rows
                )));
            }
            None => {}
        }
        if rows != self.rows || self.progress.checksum() != end.checksum {
            return refused(Text::format(format_args!(
                "{rows} of {} caller rows came, with checksum {:#010x} instead of {:#010x}",
                self.rows,
                self.progress.checksum(),
                end.checksum
            )));
        }
        table.go_on(self.progress).finish();
        Ok(rows)
    }
}
