//! What the walk must know of aarch64.

use unikprof_proto::caller_table::{Rule, machine};

/// The architecture in a caller table's file.
pub(super) const MACHINE: u16 = machine::AARCH64;

/// The rule of code whose frame record lies at the top of its frame: `x29` points to the caller's `x29`, the return
/// address lies above.
pub(super) const FRAME_RECORD: Rule = Rule::FRAME_RECORD.with_return_address(1);

/// The address of the return address of a frame with this canonical frame address; `None` where it is still in the
/// link register.
#[inline]
pub(super) const fn saved_return_address(rule: Rule, cfa: u64) -> Option<u64> {
    match rule.return_address() {
        0 => None,
        words => cfa.checked_sub(words as u64 * 8),
    }
}

/// Whether an address outside all known mappings can be code: an aligned address of either half of a space of 48
/// bits, and not in the lowest page, where small integers lie that look like addresses.
pub(super) const fn may_be_code(address: u64) -> bool {
    const PAGE: u64 = 4096;
    let sign = address as i64 >> 48;
    address >= PAGE && address & 3 == 0 && (sign == 0 || sign == -1)
}

/// Instructions are not read: a frame's state does not follow from the few bytes around one.
pub(super) const fn rule_of_bytes(_: [u8; 5]) -> Rule {
    Rule::UNKNOWN
}
