//! The table of all of a guest's images.

use std::ops::Range;

use unikprof_proto::caller_table::Row;

use super::CallerTable;
use super::error::{CallerTableError, Note};
use super::image_table::{ImageTable, MAX_ROWS};
use super::partial::{Function, PartialTable};
use super::processor::Processor;
use super::stretches::{Detail, RowBuilder, TooManyRows};
use crate::agent_info::{AgentInfo, CodeMap};
use crate::printable::Printable;
use crate::profile::{Architecture, Mapping, Unwind};
use crate::symbols::{SymbolWarning, Symbolizer};

/// What could be made for a guest.
#[derive(Debug, Default)]
pub struct Prepared {
    /// The table, where there is one that the agent has room for.
    pub table: Option<CallerTable>,
    /// The table of which the agent has room for some rows.
    pub partial: Option<PartialTable>,
    /// Where the program's image is missing: the checksum of the table that the agent holds
    /// already, which was linked into the guest or came from another client.
    pub held: Option<u32>,
    /// What the user should know, where callers will be guessed.
    pub notes: Vec<Note>,
}

/// Compiles the images that the symbolizer has or finds for a guest, as far as the agent has room.
///
/// For [`Unwind::Table`] that is the whole table or an error. Otherwise an agent without room for
/// it gets what serves the interrupted function: where a frame record is complete or the program's
/// instructions tell an entry or a return, the agent finds the same caller without a rule. If that
/// does not fit either, the table is partial.
///
/// # Errors
/// [`CallerTableError`]: an image that the user named is not the guest's, or a table is needed and
/// there is none.
pub fn prepare(
    symbolizer: &Symbolizer,
    agent: &AgentInfo,
    unwind: Unwind,
) -> Result<Prepared, CallerTableError> {
    let mut guest = GuestTable::compile(symbolizer, agent)?;
    let chosen = guest.choose(agent, unwind);
    let mut notes = guest.notes;
    let (table, partial, refused) = match chosen {
        Ok(Chosen::Nothing) => (None, None, None),
        Ok(Chosen::Whole(table)) => (Some(table), None, None),
        Ok(Chosen::Partial(table)) => (None, Some(table), None),
        Err(note) => (None, None, Some(note)),
    };
    let is_image_missing =
        notes.iter().chain(&refused).any(|note| matches!(note, Note::NoImage { .. }));
    if is_image_missing && agent.caller_table.is_some() {
        return Ok(Prepared { held: agent.caller_table, ..Prepared::default() });
    }
    match refused {
        Some(note) if unwind == Unwind::Table => return Err(CallerTableError::Needed(note)),
        Some(note) => notes.push(note),
        None => {}
    }
    Ok(Prepared { table, partial, held: None, notes })
}

/// What the agent has room for.
enum Chosen {
    Nothing,
    Whole(CallerTable),
    Partial(PartialTable),
}

struct GuestTable<'a> {
    mappings: &'a CodeMap,
    tables: Vec<ImageTable>,
    /// By mapping: its table's number.
    by_mapping: Vec<Option<usize>>,
    notes: Vec<Note>,
}

impl<'a> GuestTable<'a> {
    fn compile(
        symbolizer: &Symbolizer,
        agent: &'a AgentInfo,
    ) -> Result<GuestTable<'a>, CallerTableError> {
        let mappings: Vec<Mapping> = agent.mappings.iter().cloned().collect();
        let mut guest = GuestTable {
            mappings: &agent.mappings,
            tables: Vec::new(),
            by_mapping: vec![None; mappings.len()],
            notes: Vec::new(),
        };
        let architecture = Architecture::from_name(&agent.architecture);
        let mut warnings = Vec::new();
        let images = symbolizer.images();
        let assignment = images.assign(&mappings, &architecture, &mut warnings)?;
        if Processor::of_guest(&architecture).is_none() {
            guest
                .notes
                .push(Note::Architecture { found: Printable(&agent.architecture).to_string() });
            return Ok(guest);
        }
        for group in &assignment.groups {
            let Some(assigned) = &group.image else {
                if group.mappings.contains(&0) {
                    guest
                        .notes
                        .push(Note::NoImage { program: Printable(group.name()).to_string() });
                }
                continue;
            };
            match ImageTable::compile(assigned.image(), &images.options.debug_dirs) {
                Ok(table) => {
                    for &mapping in &group.mappings {
                        guest.by_mapping[mapping] = Some(guest.tables.len());
                    }
                    guest.tables.push(table);
                }
                Err(error) => guest.notes.push(Note::Image(error)),
            }
        }
        // The others are about names.
        let used = |warning: &SymbolWarning| {
            use SymbolWarning::{Forced, NotVerified};
            matches!(warning, Forced { .. } | NotVerified { .. })
        };
        guest.notes.extend(warnings.into_iter().filter(used).map(Note::Symbols));
        Ok(guest)
    }

    fn rows(&self, detail: Detail) -> Result<Vec<Row>, TooManyRows> {
        let mut rows = RowBuilder::new(detail, MAX_ROWS);
        for ((code_base, mapping), table) in self.mappings.codes().zip(&self.by_mapping) {
            if let Some(table) = table {
                // Agents look at the program's own instructions: a library may be unloaded.
                let is_program = self.by_mapping.first() == Some(&Some(*table));
                rows.set_detail(if is_program {
                    detail
                } else {
                    detail.max(Detail::ByFramePointer)
                });
                self.tables[*table].place(mapping, code_base, &mut rows)?;
            }
        }
        rows.finish()
    }

    /// The ranges of codes that are sent as parts: a run of mappings of one image each, so that a
    /// client that knows other images adds its own.
    fn ranges(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<(usize, Range<u32>)> = Vec::new();
        for ((code_base, mapping), table) in self.mappings.codes().zip(&self.by_mapping) {
            let Some(table) = *table else { continue };
            let length = mapping.end.saturating_sub(mapping.start);
            let end = u64::from(code_base).saturating_add(length);
            let range = code_base..u32::try_from(end).unwrap_or(u32::MAX);
            match ranges.last_mut() {
                Some((last, before)) if *last == table && before.end == range.start => {
                    before.end = range.end;
                }
                _ => ranges.push((table, range)),
            }
        }
        ranges.into_iter().map(|(_, range)| range).collect()
    }

    /// All functions that the images' call frame information names, in the order of their codes.
    fn functions(&self) -> Vec<Function> {
        let program = self.by_mapping.first().copied().flatten();
        let mappings = self.mappings.codes().zip(&self.by_mapping);
        let functions = mappings.flat_map(|((code_base, mapping), table)| {
            let codes = table.map(|table| self.tables[table].functions(mapping, code_base));
            codes.into_iter().flatten().map(move |codes| Function {
                codes,
                is_program: *table == program,
                is_sent: false,
            })
        });
        functions.collect()
    }

    /// The largest table that the agent has room for and that is of use.
    fn choose(&mut self, agent: &AgentInfo, unwind: Unwind) -> Result<Chosen, Note> {
        let full = self.rows(Detail::Full).map_err(|TooManyRows| Note::TooManyRows)?;
        if full.is_empty() {
            return match unwind {
                Unwind::Table => Err(self.why_none()),
                Unwind::FramePointers => Ok(Chosen::Nothing),
            };
        }
        let room = agent.caller_rows as usize;
        let ranges = self.ranges();
        let full = CallerTable::new(full, &ranges);
        if full.rows_sent() <= room {
            return Ok(Chosen::Whole(full));
        }
        let needed = full.rows_sent();
        let no_room = |least| Note::NoRoom { needed, least, room: agent.caller_rows };
        if unwind == Unwind::Table {
            return Err(no_room(None));
        }
        let small = self.rows(Detail::ByInstructions).map_err(|TooManyRows| Note::TooManyRows)?;
        let small = CallerTable::new(small, &ranges);
        if small.rows_sent() <= room && !small.rows().is_empty() {
            return Ok(Chosen::Whole(small));
        }
        // A rule begins with a row, and ends with one.
        if room < 2 || small.rows().is_empty() {
            return Err(no_room(Some(small.rows_sent().min(needed))));
        }
        Ok(Chosen::Partial(PartialTable::new(
            small.rows,
            self.functions(),
            needed,
            agent.caller_rows,
        )))
    }

    /// Why there is no row at all: the note that says most.
    fn why_none(&mut self) -> Note {
        let says_most = |note: &Note| !matches!(note, Note::Symbols(_));
        match self.notes.iter().position(says_most) {
            Some(at) => self.notes.swap_remove(at),
            None => Note::NoImage { program: "the guest's program".into() },
        }
    }
}
