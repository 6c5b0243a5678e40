//! One section of call frame information, evaluated.

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, UnwindContext, UnwindOffset, UnwindSection};

use super::image_table::Segment;
use super::processor::Processor;
use super::rule::{Bytes, known_of};
use super::stretches::{RuleRange, resolve_overlaps};

/// How often the bytes of a section may be evaluated: what functions share is evaluated for each.
const MOST_EVALUATIONS: usize = 8;
/// And beside that, for short sections.
const FREE_BYTES: usize = 1 << 16;

/// What a section says.
#[derive(Debug, Default)]
pub(super) struct SectionCalls {
    /// Sorted, each address in one at most.
    pub(super) stretches: Vec<RuleRange>,
    /// Where the functions begin whose code the image holds.
    pub(super) functions: Vec<u64>,
    /// Functions named that lie nowhere in the image's code.
    pub(super) elsewhere: usize,
    /// Functions whose information makes no sense somewhere; from there on nothing is known.
    pub(super) damaged: usize,
    /// Bytes of code for which two functions say different things.
    pub(super) contradicted: u64,
}

/// Why a section cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SectionError {
    /// It breaks its own format.
    Format(gimli::Error),
    /// Its functions share far more instructions than any compiler writes.
    Endless,
}

impl From<gimli::Error> for SectionError {
    fn from(error: gimli::Error) -> SectionError {
        SectionError::Format(error)
    }
}

/// Evaluates a section of `length` bytes. `skip_zero`: a function at address 0 is one that the
/// linker left out. `segments` are sorted by address.
pub(super) fn read<'a, S>(
    section: &S,
    length: usize,
    bases: &BaseAddresses,
    processor: Processor,
    segments: &[Segment],
    skip_zero: bool,
) -> Result<SectionCalls, SectionError>
where
    S: UnwindSection<Bytes<'a>>,
{
    let mut calls = SectionCalls::default();
    let mut context = UnwindContext::new();
    let mut shared = HashMap::new();
    let mut budget = length.saturating_mul(MOST_EVALUATIONS).saturating_add(FREE_BYTES);
    let mut entries = section.entries(bases);
    while let Some(entry) = entries.next()? {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|section, bases, offset| {
            let key: usize = UnwindOffset::into(offset);
            if let Some(cie) = shared.get(&key) {
                return Ok(gimli::CommonInformationEntry::clone(cie));
            }
            let cie = section.cie_from_offset(bases, offset)?;
            shared.insert(key, cie.clone());
            Ok(cie)
        });
        let Ok(function) = parsed else {
            calls.damaged += 1;
            continue;
        };
        let (start, size) = (function.initial_address(), function.len());
        if skip_zero && start == 0 {
            continue;
        }
        let Some(end) = start.checked_add(size) else {
            calls.damaged += 1;
            continue;
        };
        let after = segments.partition_point(|segment| segment.address <= start);
        let segment = after.checked_sub(1).and_then(|at| segments.get(at));
        let Some(segment) = segment.filter(|segment| start < segment.end()) else {
            calls.elsewhere += usize::from(size > 0);
            continue;
        };
        let end = end.min(segment.end());
        let cost = function.entry_len() + function.cie().entry_len();
        budget = budget.checked_sub(cost).ok_or(SectionError::Endless)?;
        calls.functions.push(start);
        let first = calls.stretches.len();
        let return_address = function.cie().return_address_register();
        let mut rows = match function.rows(section, bases, &mut context) {
            Ok(rows) => rows,
            Err(_) => {
                calls.damaged += 1;
                continue;
            }
        };
        loop {
            let row = match rows.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => break,
                Err(_) => {
                    calls.damaged += 1;
                    break;
                }
            };
            let stretch = RuleRange {
                start: row.start_address().max(start),
                end: row.end_address().min(end),
                known: known_of(processor, row, return_address, section),
            };
            push(&mut calls.stretches, first, stretch);
        }
    }
    calls.contradicted = resolve_overlaps(&mut calls.stretches);
    Ok(calls)
}

/// Adds a stretch to those of its function, which begin at `first`.
fn push(stretches: &mut Vec<RuleRange>, first: usize, stretch: RuleRange) {
    if stretch.start >= stretch.end {
        return;
    }
    if stretches.len() > first
        && let Some(last) = stretches.last_mut()
        && last.end == stretch.start
        && last.known == stretch.known
    {
        last.end = stretch.end;
        return;
    }
    stretches.push(stretch);
}
