//! Stretches of code and what is known of them, and how they become rows.

use std::collections::BTreeMap;

use unikprof_proto::caller_table::{Base, Caller, Row, Rule};

/// What is known of a stretch of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// One rule holds in all of it.
    Rule(Rule),
    /// The same, and its instructions tell it by themselves.
    Told(Rule),
    /// Entries of a lazy procedure linkage table, 16 bytes each: from this byte of an entry on, a
    /// word more is on the stack.
    LinkageTable(u8),
    /// Nothing that runs: what fills the room between two functions.
    Padding,
}

/// From `start` up to `end`, which is above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RuleRange {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) known: Known,
}

/// How much of a table is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Detail {
    /// What the interrupted function's caller needs, where the agent looks at instructions: at an
    /// entry or a return they tell it, and where a frame record is complete the frame pointer does.
    ByInstructions,
    /// What the interrupted function's caller needs where only the frame pointer is believed.
    ByFramePointer,
    /// Every rule: frames in the middle of a stack are looked up too.
    Full,
}

impl Known {
    /// An order, of no meaning.
    fn key(self) -> (u8, u32) {
        match self {
            Known::Rule(rule) => (0, rule.0),
            Known::Told(rule) => (1, rule.0),
            Known::LinkageTable(from) => (2, from.into()),
            Known::Padding => (3, 0),
        }
    }
}

/// Whether the frame pointer points to a frame record, the caller's frame pointer and the return
/// address above it: the chain of records leads to the caller then.
fn is_frame_record(rule: Rule) -> bool {
    let Caller::Cfa { base: Base::FramePointer, words, saved_fp: Some(saved) } = rule.caller()
    else {
        return false;
    };
    let is_at_register = words == u16::from(saved);
    rule == Rule::FRAME_RECORD || is_at_register && rule.return_address() + 1 == saved
}

/// Sorts stretches and makes each address lie in one at most; where they contradict each other,
/// nothing is known. Answers how many bytes that concerns.
pub(super) fn resolve_overlaps(stretches: &mut Vec<RuleRange>) -> u64 {
    stretches.sort_by_key(|stretch| stretch.start);
    if stretches.windows(2).all(|pair| pair[0].end <= pair[1].start) {
        return 0;
    }
    let mut resolved: Vec<RuleRange> = Vec::with_capacity(stretches.len());
    let mut contradicted = 0;
    let mut rest = stretches.as_slice();
    while let Some(first) = rest.first() {
        let mut end = first.end;
        let length = rest
            .iter()
            .position(|stretch| {
                let apart = stretch.start >= end;
                end = end.max(stretch.end);
                apart
            })
            .unwrap_or(rest.len());
        let (cluster, after) = rest.split_at(length);
        match cluster {
            [alone] => resolved.push(*alone),
            many => contradicted += sweep(many, &mut resolved),
        }
        rest = after;
    }
    *stretches = resolved;
    contradicted
}

/// Resolves stretches that overlap.
fn sweep(cluster: &[RuleRange], resolved: &mut Vec<RuleRange>) -> u64 {
    let mut edges: Vec<(u64, bool, Known)> =
        cluster.iter().flat_map(|s| [(s.start, true, s.known), (s.end, false, s.known)]).collect();
    edges.sort_by_key(|(at, ..)| *at);
    let mut active: BTreeMap<(u8, u32), (Known, usize)> = BTreeMap::new();
    let mut contradicted = 0;
    let mut from = 0;
    for (at, begins, known) in edges {
        if from < at
            && let Some((_, (only, _))) = active.first_key_value()
        {
            let known = match active.len() {
                1 => *only,
                _ => {
                    contradicted += at - from;
                    Known::Rule(Rule::UNKNOWN)
                }
            };
            resolved.push(RuleRange { start: from, end: at, known });
        }
        from = at;
        let count = &mut active.entry(known.key()).or_insert((known, 0)).1;
        if begins {
            *count += 1;
        } else {
            // Every end follows its start: both are of one stretch, which is not empty.
            *count = count.saturating_sub(1);
        }
        if *count == 0 {
            active.remove(&known.key());
        }
    }
    contradicted
}

/// Adds to `stretches` what `others` know of addresses between them. Both are sorted and free of
/// overlaps.
pub(super) fn fill_gaps(stretches: &mut Vec<RuleRange>, others: &[RuleRange]) {
    if stretches.is_empty() {
        others.clone_into(stretches);
        return;
    }
    let mut added = Vec::new();
    let mut at = 0;
    for other in others {
        let mut start = other.start;
        while stretches.get(at).is_some_and(|s| s.end <= start) {
            at += 1;
        }
        let mut next = at;
        while start < other.end {
            let taken = stretches.get(next);
            let end = taken.map_or(other.end, |s| s.start.min(other.end));
            if start < end {
                added.push(RuleRange { start, end, known: other.known });
            }
            let Some(taken) = taken else { break };
            start = taken.end.max(start);
            next += 1;
        }
    }
    if !added.is_empty() {
        stretches.extend(added);
        stretches.sort_by_key(|stretch| stretch.start);
    }
}

/// Puts rows together from stretches whose codes ascend.
#[derive(Debug)]
pub(super) struct RowBuilder {
    rows: Vec<Row>,
    detail: Detail,
    limit: usize,
    /// The end of the stretch before; codes are 32 bits wide, their end may be one more.
    end: u64,
    last: Rule,
}

/// There are more rows than anybody has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyRows;

impl RowBuilder {
    /// At most `limit` rows.
    pub(super) fn new(detail: Detail, limit: usize) -> RowBuilder {
        RowBuilder { rows: Vec::new(), detail, limit, end: 0, last: Rule::UNKNOWN }
    }

    /// What is wanted of the stretches to come.
    pub(super) fn set_detail(&mut self, detail: Detail) {
        self.detail = detail;
    }

    /// Adds what of `stretches`, sorted by address, lies in `addresses`; its first address has this
    /// code. What would have a code that has been given, or one beyond 32 bits, is left out.
    pub(super) fn add(
        &mut self,
        stretches: &[RuleRange],
        addresses: std::ops::Range<u64>,
        code: u64,
    ) -> Result<(), TooManyRows> {
        let first = stretches.partition_point(|s| s.end <= addresses.start);
        for stretch in &stretches[first..] {
            if stretch.start >= addresses.end {
                break;
            }
            let start = stretch.start.max(addresses.start);
            let end = stretch.end.min(addresses.end);
            let code_of = |address: u64| code.saturating_add(address - addresses.start);
            match stretch.known {
                Known::Rule(rule) => self.run(code_of(start), code_of(end), rule)?,
                Known::Told(rule) => {
                    let rule = match self.detail {
                        Detail::ByInstructions => Rule::UNKNOWN,
                        _ => rule,
                    };
                    self.run(code_of(start), code_of(end), rule)?;
                }
                Known::Padding => self.padding(code_of(start), code_of(end))?,
                Known::LinkageTable(pushed_from) => {
                    let pushed_from = u64::from(pushed_from);
                    let mut at = start;
                    while at < end {
                        let entry = at & !15;
                        let (words, until) = if at - entry < pushed_from {
                            (1, entry + pushed_from)
                        } else {
                            (2, entry.saturating_add(16))
                        };
                        let until = until.min(end);
                        self.run(code_of(at), code_of(until), above_stack_pointer(words))?;
                        at = until;
                    }
                }
            }
        }
        Ok(())
    }

    /// The rows; none says UNKNOWN before anything is known.
    pub(super) fn finish(mut self) -> Result<Vec<Row>, TooManyRows> {
        self.switch(self.end, Rule::UNKNOWN)?;
        Ok(self.rows)
    }

    fn padding(&mut self, start: u64, end: u64) -> Result<(), TooManyRows> {
        // Nothing runs there, and the rule before may go on: as a rule it is that of a return, and
        // holds at the next function's entry as well. It saves two rows of five for each function.
        let rule = if start == self.end { self.last } else { Rule::UNKNOWN };
        self.run(start, end, rule)
    }

    fn run(&mut self, start: u64, end: u64, rule: Rule) -> Result<(), TooManyRows> {
        let start = start.max(self.end);
        if start >= end {
            return Ok(());
        }
        if start > self.end {
            self.switch(self.end, Rule::UNKNOWN)?;
        }
        let rule = match rule {
            rule if self.detail != Detail::Full && is_frame_record(rule) => Rule::UNKNOWN,
            rule => rule,
        };
        self.switch(start, rule)?;
        self.end = end;
        Ok(())
    }

    fn switch(&mut self, code: u64, rule: Rule) -> Result<(), TooManyRows> {
        if rule == self.last {
            return Ok(());
        }
        let Ok(code) = u32::try_from(code) else {
            return Ok(());
        };
        if self.rows.len() >= self.limit {
            return Err(TooManyRows);
        }
        self.rows.push(Row { code, rule });
        self.last = rule;
        Ok(())
    }
}

/// The caller's frame pointer is still in its register, the return address below the CFA.
fn above_stack_pointer(words: u16) -> Rule {
    Rule::new(Caller::Cfa { base: Base::StackPointer, words, saved_fp: None })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PUSHED: Rule = Rule(2 | 2 << 8);

    fn stretch(start: u64, end: u64, rule: Rule) -> RuleRange {
        let known = Known::Rule(rule);
        RuleRange { start, end, known }
    }

    fn rows(detail: Detail, stretches: &[RuleRange]) -> Vec<(u32, Rule)> {
        let mut builder = RowBuilder::new(detail, 100);
        builder.add(stretches, 0..1 << 40, 0).unwrap();
        let rows = builder.finish().unwrap();
        rows.iter().map(|row| (row.code, row.rule)).collect()
    }

    #[test]
    fn gaps_are_unknown_and_equal_neighbours_one_row() {
        let stretches = [
            stretch(0x10, 0x14, Rule::ENTRY),
            stretch(0x14, 0x18, Rule::ENTRY),
            stretch(0x20, 0x30, Rule::FRAME_RECORD),
            stretch(0x30, 0x40, Rule::OUTERMOST),
        ];
        let expected = [
            (0x10, Rule::ENTRY),
            (0x18, Rule::UNKNOWN),
            (0x20, Rule::FRAME_RECORD),
            (0x30, Rule::OUTERMOST),
            (0x40, Rule::UNKNOWN),
        ];
        assert_eq!(rows(Detail::Full, &stretches), expected);
    }

    #[test]
    fn padding_costs_no_row_and_the_smaller_table_drops_what_is_told_without_it() {
        let stretches = [
            RuleRange { start: 0x10, end: 0x11, known: Known::Told(Rule::ENTRY) },
            stretch(0x11, 0x14, PUSHED),
            stretch(0x14, 0x1f, Rule::FRAME_RECORD),
            stretch(0x1f, 0x20, Rule::ENTRY),
            RuleRange { start: 0x20, end: 0x30, known: Known::Padding },
            stretch(0x30, 0x31, Rule::ENTRY),
            // Unknown code that is no padding ends the rule before.
            stretch(0x40, 0x41, Rule::ENTRY),
        ];
        let expected = [
            (0x11, PUSHED),
            (0x14, Rule::UNKNOWN),
            (0x1f, Rule::ENTRY),
            (0x31, Rule::UNKNOWN),
            (0x40, Rule::ENTRY),
            (0x41, Rule::UNKNOWN),
        ];
        assert_eq!(rows(Detail::ByInstructions, &stretches), expected);
        let mut full = [&[(0x10, Rule::ENTRY)], &expected[..]].concat();
        assert_eq!(rows(Detail::ByFramePointer, &stretches), full);
        full[2].1 = Rule::FRAME_RECORD;
        assert_eq!(rows(Detail::Full, &stretches), full);
    }

    #[test]
    fn a_linkage_table_alternates_within_its_entries() {
        let plt = [RuleRange { start: 0x1010, end: 0x1030, known: Known::LinkageTable(11) }];
        let expected = [
            (0x1010, Rule::ENTRY),
            (0x101b, PUSHED),
            (0x1020, Rule::ENTRY),
            (0x102b, PUSHED),
            (0x1030, Rule::UNKNOWN),
        ];
        assert_eq!(rows(Detail::Full, &plt), expected);
        // Cut anywhere, the entry's own beginning decides.
        let mut builder = RowBuilder::new(Detail::Full, 100);
        builder.add(&plt, 0x101c..0x1022, 16).unwrap();
        let codes: Vec<u32> = builder.finish().unwrap().iter().map(|r| r.code).collect();
        assert_eq!(codes, [16, 20, 22]);
    }

    #[test]
    fn overlapping_stretches_leave_what_they_agree_on() {
        let mut stretches = vec![
            stretch(0x30, 0x50, Rule::ENTRY),
            stretch(0x10, 0x20, Rule::ENTRY),
            stretch(0x40, 0x60, Rule::FRAME_RECORD),
            stretch(0x48, 0x4c, Rule::OUTERMOST),
            stretch(0x70, 0x80, PUSHED),
            stretch(0x70, 0x80, PUSHED),
        ];
        assert_eq!(resolve_overlaps(&mut stretches), 0x10);
        let expected = [
            (0x10, Rule::ENTRY),
            (0x20, Rule::UNKNOWN),
            (0x30, Rule::ENTRY),
            (0x40, Rule::UNKNOWN),
            (0x50, Rule::FRAME_RECORD),
            (0x60, Rule::UNKNOWN),
            (0x70, PUSHED),
            (0x80, Rule::UNKNOWN),
        ];
        assert_eq!(rows(Detail::Full, &stretches), expected);
        assert!(stretches.windows(2).all(|p| p[0].end <= p[1].start));
    }

    #[test]
    fn only_gaps_are_filled() {
        let mut stretches =
            vec![stretch(0x10, 0x20, Rule::ENTRY), stretch(0x30, 0x40, Rule::ENTRY)];
        let others =
            [stretch(0x08, 0x18, PUSHED), stretch(0x1c, 0x50, PUSHED), stretch(0x60, 0x70, PUSHED)];
        fill_gaps(&mut stretches, &others);
        let expected = [
            (0x08, PUSHED),
            (0x10, Rule::ENTRY),
            (0x20, PUSHED),
            (0x30, Rule::ENTRY),
            (0x40, PUSHED),
            (0x50, Rule::UNKNOWN),
            (0x60, PUSHED),
            (0x70, Rule::UNKNOWN),
        ];
        assert_eq!(rows(Detail::Full, &stretches), expected);
    }

    #[test]
    fn rows_end_at_their_limits() {
        let many =
            [stretch(0, 1, Rule::ENTRY), stretch(2, 3, Rule::ENTRY), stretch(4, 5, Rule::ENTRY)];
        let mut builder = RowBuilder::new(Detail::Full, 3);
        assert_eq!(builder.add(&many, 0..9, 0), Err(TooManyRows));
        // Codes end at 32 bits, and a code is given once.
        let mut builder = RowBuilder::new(Detail::Full, 9);
        builder.add(&many, 0..9, u64::from(u32::MAX) - 1).unwrap();
        builder.add(&many, 0..9, 7).unwrap();
        let codes: Vec<u32> = builder.finish().unwrap().iter().map(|r| r.code).collect();
        assert_eq!(codes, [u32::MAX - 1, u32::MAX]);
    }
}
