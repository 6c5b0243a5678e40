//! The differences between processors in a walk. The walk is generic over [`Architecture`]; guests
//! use [`Native`], and the tests walk stacks of both, the fuzz target too.

use unikprof_proto::caller_table::Rule;

use crate::ground::platform::Registers;

mod aarch64;
#[cfg(any(target_arch = "x86_64", test))]
mod x86_64;

pub(super) use self::aarch64::Aarch64;
#[cfg(any(target_arch = "x86_64", test))]
pub(super) use self::x86_64::X86_64;

/// The processor that this program runs on.
#[cfg(target_arch = "aarch64")]
pub(super) type Native = Aarch64;
/// The processor that this program runs on.
#[cfg(target_arch = "x86_64")]
pub(super) type Native = X86_64;

/// A processor, as far as walks depend on it.
pub(super) trait Architecture: Copy {
    /// The number of the architecture in a caller table file.
    const MACHINE: u16;

    /// The rule for code whose frame record is at the top of its frame: the frame pointer points to
    /// the caller's frame pointer, and the return address is above it.
    const FRAME_RECORD: Rule;

    /// Whether every frame that has a record ends behind it, so that the record alone gives the
    /// caller's stack pointer.
    const RECORD_ENDS_FRAME: bool;

    /// The link register of a frame.
    type Link: Link;

    /// The place of the return address of a frame with this canonical frame address; `None` if the
    /// rule names none.
    fn return_address(rule: Rule, cfa: u64) -> Option<ReturnAddress>;

    /// The address that a saved return address leads to.
    fn target(return_address: u64) -> u64;

    /// Whether an address outside all known mappings can be code.
    fn may_be_code(address: u64) -> bool;

    /// The rule that follows from the byte before an instruction and the four bytes from it on, at
    /// a function's entry or return.
    fn rule_of_bytes(bytes: [u8; 5]) -> Rule;
}

/// The place of a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnAddress {
    /// Saved at this address.
    Saved(u64),
    /// Still in the link register.
    LinkRegister,
}

/// The link register of a frame. Only that of an interrupted function is known: a function that has
/// called another one has saved its own.
pub(super) trait Link: Copy {
    /// The link register of a function that has called another one.
    const SAVED: Self;

    /// The link register of an interrupted function.
    fn of(registers: &Registers) -> Self;

    /// The return address in it, if it is known.
    fn return_address(self) -> Option<u64>;
}
