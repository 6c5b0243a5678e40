//! The architecture-specific parts of the walk for aarch64.

use unikprof_proto::caller_table::{Rule, machine};

/// The architecture's number in a caller table file.
pub(super) const MACHINE: u16 = machine::AARCH64;

/// The rule for code whose frame record is at the top of its frame: `x29` points to the caller's `x29`, and the
/// return address is above it.
pub(super) const FRAME_RECORD: Rule = Rule::FRAME_RECORD.with_return_address(1);

/// Where a frame with this canonical frame address has saved its return address; `None` if it is still in the link
/// register.
#[inline]
pub(super) const fn saved_return_address(rule: Rule, cfa: u64) -> Option<u64> {
    match rule.return_address() {
        0 => None,
        words => cfa.checked_sub(words as u64 * 8),
    }
}

/// Whether an address outside all known mappings can be code: aligned, canonical for 48 bits (in either half), and
/// not in the lowest page, because small integers look like addresses there.
pub(super) const fn may_be_code(address: u64) -> bool {
    const PAGE: u64 = 4096;
    let sign = address as i64 >> 48;
    address >= PAGE && address & 3 == 0 && (sign == 0 || sign == -1)
}

/// Unknown for all instructions: the few bytes around one do not determine a frame's state.
pub(super) const fn rule_of_bytes(_: [u8; 5]) -> Rule {
    Rule::UNKNOWN
}
