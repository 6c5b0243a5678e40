//! The processors for whose images caller tables are compiled.

use unikprof_proto::caller_table::machine;

use crate::profile::Architecture;

/// A processor whose call frame information becomes rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    /// The names of all, for messages.
    pub(super) const SUPPORTED: &'static str = "x86_64 and aarch64";

    /// The processor that a file is for; `None` for another one, or for one with the other byte
    /// order.
    pub(super) fn of_file<'d>(file: &impl object::Object<'d>) -> Option<Processor> {
        match file.architecture() {
            _ if !file.is_little_endian() => None,
            object::Architecture::X86_64 => Some(Processor::X86_64),
            object::Architecture::Aarch64 => Some(Processor::Aarch64),
            _ => None,
        }
    }

    /// The guest's processor; `None` for another one.
    pub(super) fn of_guest(architecture: &Architecture) -> Option<Processor> {
        match architecture {
            Architecture::X86_64 => Some(Processor::X86_64),
            Architecture::Aarch64 => Some(Processor::Aarch64),
            Architecture::Other(_) => None,
        }
    }

    /// Its number in ELF files and in table files.
    pub(super) fn machine(self) -> u16 {
        match self {
            Processor::X86_64 => machine::X86_64,
            Processor::Aarch64 => machine::AARCH64,
        }
    }

    /// Whose extensions the call frame information may have: on aarch64 the state of signed return
    /// addresses.
    pub(super) fn vendor(self) -> gimli::Vendor {
        match self {
            Processor::X86_64 => gimli::Vendor::Default,
            Processor::Aarch64 => gimli::Vendor::AArch64,
        }
    }
}
