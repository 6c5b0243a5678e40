//! A caller table of which an agent has room for some rows: those of the functions that are sampled
//! come first.

use std::collections::HashMap;
use std::ops::Range;

use unikprof_proto::caller_table::{MAX_PARTS, Row};

use super::error::Note;
use super::{CallerTable, TablePart, part_of};

/// One of so many parts of the room is kept for functions that begin to run later.
const RESERVED: usize = 4;

/// How often each frame code was interrupted.
pub type Interrupted = HashMap<u32, u64>;

/// The rows of all functions, and which of them an agent was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialTable {
    rows: Vec<Row>,
    /// In the order of their codes, which do not overlap.
    functions: Vec<Function>,
    /// How many rows the agent still has room for, and how many parts.
    room: usize,
    parts: usize,
    /// The rows of the table with frames that instructions and frame pointers tell.
    full: usize,
    /// The rows that the agent has room for in all.
    whole_room: u32,
}

/// The codes of one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) codes: Range<u32>,
    /// Whether it is the program's own, not a library's.
    pub(super) is_program: bool,
    pub(super) is_sent: bool,
}

/// Whether rows are kept for later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// All of the room is used at once: nobody adds rows later.
    Nothing,
    /// Some of it is kept for functions that begin to run later.
    ForLater,
}

impl PartialTable {
    /// Rows in the order of their codes, and the functions that they belong to, for an agent with
    /// so much room. `full` is how many rows the table has whose rows these are the most useful of.
    pub(super) fn new(
        rows: Vec<Row>,
        functions: Vec<Function>,
        full: usize,
        room: u32,
    ) -> PartialTable {
        let mut table = PartialTable {
            rows,
            functions,
            room: room as usize,
            parts: MAX_PARTS,
            full,
            whole_room: room,
        };
        // Frame pointers and instructions tell all of their callers.
        for at in 0..table.functions.len() {
            table.functions[at].is_sent = table.part(at).rows.is_empty();
        }
        table
    }

    /// The table to begin with: the functions that were interrupted, the most often first, then the
    /// program's, then those of libraries. `None` if nothing fits.
    pub fn first(&mut self, interrupted: &Interrupted, reserve: Reserve) -> Option<CallerTable> {
        let room = match reserve {
            Reserve::Nothing => self.room,
            Reserve::ForLater => self.room - self.room / RESERVED,
        };
        let mut order = self.by_samples(interrupted);
        let others = |is_program| {
            let functions = self.functions.iter().enumerate();
            functions
                .filter(move |(_, function)| function.is_program == is_program)
                .map(|(at, _)| at)
        };
        order.extend(others(true));
        order.extend(others(false));
        self.take(&order, room)
    }

    /// The rows of functions that were interrupted and have not been sent, as far as there is room.
    pub fn further(&mut self, interrupted: &Interrupted) -> Option<CallerTable> {
        let order = self.by_samples(interrupted);
        self.take(&order, self.room)
    }

    /// Whether further rows can be sent.
    pub fn has_room(&self) -> bool {
        // A function has a row where its rule begins, and one where it ends.
        self.parts > 0 && self.room >= 2
    }

    /// Sends no more.
    pub fn close(&mut self) {
        self.parts = 0;
    }

    /// Whether `code` lies in a function whose callers the rows that were sent tell.
    pub fn covers(&self, code: u32) -> bool {
        self.function_at(code).is_some_and(|at| self.functions[at].is_sent)
    }

    /// What the user should know: that so many rows were sent.
    pub fn note(&self, sent: usize, reserve: Reserve) -> Note {
        Note::Partial {
            needed: self.full,
            least: self.rows.len(),
            sent,
            room: self.whole_room,
            grows: reserve == Reserve::ForLater,
        }
    }

    fn function_at(&self, code: u32) -> Option<usize> {
        let after = self.functions.partition_point(|it| it.codes.start <= code);
        let at = after.checked_sub(1)?;
        self.functions[at].codes.contains(&code).then_some(at)
    }

    /// The functions that were interrupted, the most often first.
    fn by_samples(&self, interrupted: &Interrupted) -> Vec<usize> {
        let mut samples: HashMap<usize, u64> = HashMap::new();
        for (code, count) in interrupted {
            if let Some(at) = self.function_at(*code) {
                *samples.entry(at).or_default() += count;
            }
        }
        let mut order: Vec<usize> = samples.keys().copied().collect();
        order.sort_by_key(|at| (std::cmp::Reverse(samples[at]), *at));
        order
    }

    fn part(&self, at: usize) -> TablePart {
        part_of(&self.rows, self.functions[at].codes.clone())
    }

    /// Takes the rows of functions in this order, as far as there is room, as one part.
    fn take(&mut self, order: &[usize], room: usize) -> Option<CallerTable> {
        if self.parts == 0 {
            return None;
        }
        let mut taken: HashMap<usize, Vec<Row>> = HashMap::new();
        let mut left = room;
        for &at in order {
            if self.functions[at].is_sent {
                continue;
            }
            let rows = self.part(at).rows;
            // Where a function ends and the next begins at once, one row says both.
            let shared = |before: Option<&Vec<Row>>, after: Option<&Vec<Row>>| {
                let (Some(before), Some(after)) = (before, after) else {
                    return 0;
                };
                usize::from(is_joined(before, after))
            };
            let before = at.checked_sub(1).and_then(|before| taken.get(&before));
            let shared = shared(before, Some(&rows)) + shared(Some(&rows), taken.get(&(at + 1)));
            if let Some(rest) = left.checked_sub(rows.len().saturating_sub(shared)) {
                left = rest;
                self.functions[at].is_sent = true;
                taken.insert(at, rows);
            }
        }
        let mut taken: Vec<(usize, Vec<Row>)> = taken.into_iter().collect();
        taken.sort_by_key(|(at, _)| *at);
        let (first, last) = (taken.first()?.0, taken.last()?.0);
        let codes = self.functions[first].codes.start..self.functions[last].codes.end;
        let mut rows: Vec<Row> = Vec::new();
        for (_, of_function) in &taken {
            if is_joined(&rows, of_function) {
                rows.pop();
            }
            rows.extend(of_function);
        }
        self.room -= rows.len();
        self.parts -= 1;
        Some(CallerTable::new(rows, std::slice::from_ref(&codes)))
    }
}

/// Whether the last row of `before` lies where the first of `after` does.
fn is_joined(before: &[Row], after: &[Row]) -> bool {
    match (before.last(), after.first()) {
        (Some(last), Some(first)) => last.code == first.code,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use unikprof_proto::caller_table::Rule;

    use super::*;

    /// Ten functions of a library and ten of the program behind it, with two rows each.
    fn table(room: u32) -> PartialTable {
        let begin = |at: u32| 16 + at * 16;
        let rows = (0..20).flat_map(|at| {
            let end = begin(at) + 8;
            [(begin(at), Rule::ENTRY), (end, Rule::UNKNOWN)]
        });
        let functions = (0..20).map(|at| Function {
            codes: begin(at)..begin(at + 1),
            is_program: at >= 10,
            is_sent: false,
        });
        let rows = rows.map(|(code, rule)| Row { code, rule }).collect();
        PartialTable::new(rows, functions.collect(), 100, room)
    }

    /// The functions that rows begin, and how many rows there are.
    fn functions(table: Option<CallerTable>) -> (Vec<u32>, usize) {
        let table = table.unwrap();
        let [part] = table.parts() else {
            panic!("one part");
        };
        assert_eq!(part.rows, table.rows());
        let begun = part.rows.iter().filter(|row| row.rule == Rule::ENTRY);
        (begun.map(|row| (row.code - 16) / 16).collect(), part.rows.len())
    }

    /// Samples in the middle of these functions.
    fn interrupted(functions: &[(u32, u64)]) -> Interrupted {
        let codes = functions.iter();
        codes.map(|(at, count)| (16 + at * 16 + 4, *count)).collect()
    }

    #[test]
    fn functions_that_were_interrupted_come_first_then_the_programs() {
        let met = interrupted(&[(3, 1), (15, 9), (19, 5)]);
        let first = |room| functions(table(room).first(&met, Reserve::Nothing));
        assert_eq!(first(4), (vec![15, 19], 4));
        assert_eq!(first(7), (vec![3, 15, 19], 6));
        assert_eq!(first(10), (vec![3, 10, 11, 15, 19], 10));
        assert_eq!(first(26).0, [&[0, 1, 3][..], &(10..20).collect::<Vec<_>>()].concat());
        assert_eq!(first(100).1, 40);
        assert_eq!(table(1).first(&met, Reserve::Nothing), None);
    }

    #[test]
    fn what_is_kept_in_reserve_serves_functions_that_come_later() {
        let mut table = table(16);
        let met = interrupted(&[(15, 9)]);
        let (first, rows) = functions(table.first(&met, Reserve::ForLater));
        assert_eq!((first.clone(), rows), ((10..16).collect(), 12));
        let code = |at: u32| 16 + at * 16;
        assert!(table.covers(code(15)) && !table.covers(code(16)));
        assert!(!table.covers(15) && !table.covers(code(20)), "no function");
        // The hottest of three, of which two fit; what was sent is not sent again.
        let met = interrupted(&[(15, 9), (2, 1), (4, 8), (18, 7)]);
        assert_eq!(functions(table.further(&met)), (vec![4, 18], 4));
        assert!(table.covers(code(18)) && !table.covers(code(2)));
        assert!(!table.has_room());
        assert_eq!(table.further(&met), None);
    }

    #[test]
    fn there_are_no_more_parts_than_an_agent_holds() {
        let mut table = table(1_000);
        let mut parts = 0;
        for at in 0..20 {
            parts += usize::from(table.further(&interrupted(&[(at, 1)])).is_some());
        }
        assert_eq!(parts, MAX_PARTS);
        assert!(!table.has_room());
    }

    /// Functions without a gap share a row, and each row is within the room.
    #[test]
    fn functions_that_join_share_a_row() {
        let function =
            |at: u32| Function { codes: 16 + at..17 + at, is_program: true, is_sent: false };
        let rules = [Rule::ENTRY, Rule::FRAME_RECORD];
        let rows = (0..10).map(|at| Row { code: 16 + at, rule: rules[at as usize % 2] });
        let end = Row { code: 26, rule: Rule::UNKNOWN };
        let rows: Vec<Row> = rows.chain([end]).collect();
        let functions: Vec<Function> = (0..10).map(function).collect();
        for room in 0..=11 {
            let mut table = PartialTable::new(rows.clone(), functions.clone(), 11, room);
            let first = table.first(&Interrupted::new(), Reserve::Nothing);
            let sent = first.map_or(0, |table| table.rows().len());
            assert_eq!(sent, if room < 2 { 0 } else { room as usize });
        }
        let mut table = PartialTable::new(rows.clone(), functions, 11, 11);
        let whole = table.first(&Interrupted::new(), Reserve::Nothing);
        assert_eq!(whole.unwrap().rows(), rows);
    }

    /// Frame pointers and instructions tell the callers of a function without a row.
    #[test]
    fn functions_without_rows_are_covered() {
        let functions = vec![Function { codes: 16..32, is_program: true, is_sent: false }];
        let table = PartialTable::new(Vec::new(), functions, 9, 2);
        assert!(table.covers(20));
    }
}
