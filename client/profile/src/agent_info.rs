//! Who an agent is: its welcome and its mappings, checked and owned.

use thiserror::Error;
use unikprof_proto::code::{capability, frame_code, role};
use unikprof_proto::message::{self, Welcome};

use crate::printable::Printable;
use crate::profile::{BuildId, Frame, Mapping, SpecialFrame};
use crate::timeline::WallClock;

/// The most mappings taken from one agent; a program has one for each of its libraries.
pub const MAX_MAPPINGS: u32 = 65_536;

/// What an agent says of itself and its guest.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentInfo {
    /// Its version, as it says it.
    pub agent_version: String,
    /// The instruction set, as ELF names it in lower case.
    pub architecture: String,
    /// What the agent runs on: `xen` or `hosted`.
    pub platform: String,
    /// The guest's name, where known.
    pub guest_name: Option<String>,
    /// The guest's id (on Xen its UUID), where known.
    pub guest_id: Option<String>,
    /// How many vCPUs can be sampled.
    pub vcpus: u32,
    /// The guest's monotonic clock at the welcome, in ns.
    pub monotonic_ns: u64,
    /// Nanoseconds since 1970-01-01 UTC at the welcome, where the guest knows.
    pub wall_clock_ns: Option<u64>,
    /// Bits of [`unikprof_proto::code::capability`].
    pub capabilities: u64,
    /// The shortest sampling period accepted, in ns.
    pub min_period_ns: u64,
    /// The longest sampling period accepted, in ns.
    pub max_period_ns: u64,
    /// The greatest depth accepted, in frames.
    pub max_depth: u32,
    /// The longest request body accepted, in bytes.
    pub max_request: u32,
    /// The memory given to the agent, in bytes.
    pub memory_bytes: u64,
    /// How many segments each vCPU's stack nodes are divided into.
    pub segments: u32,
    /// How many stack nodes a segment has room for.
    pub segment_nodes: u32,
    /// How many rows of a caller table there is room for; 0: the agent takes none.
    pub caller_rows: u32,
    /// The checksum of the caller table that it holds.
    pub caller_table: Option<u32>,
    /// What this client may do; see [`unikprof_proto::code::role`].
    pub role: u32,
    /// The agent's instance id; the numbers of recordings, epochs and stacks are unique only within
    /// one.
    pub instance: u64,
    /// The guest's executable mappings.
    pub mappings: CodeMap,
}

impl AgentInfo {
    /// Takes over a welcome; its mappings are still to be added.
    pub fn new(welcome: &Welcome<'_>) -> AgentInfo {
        AgentInfo {
            agent_version: welcome.agent_version.into(),
            architecture: welcome.architecture.into(),
            platform: welcome.platform.into(),
            guest_name: welcome.guest_name.map(Into::into),
            guest_id: welcome.guest_id.map(Into::into),
            vcpus: welcome.vcpus,
            monotonic_ns: welcome.monotonic_ns,
            wall_clock_ns: welcome.wall_clock_ns,
            capabilities: welcome.capabilities,
            min_period_ns: welcome.min_period_ns,
            max_period_ns: welcome.max_period_ns,
            max_depth: welcome.max_depth,
            max_request: welcome.max_request,
            memory_bytes: welcome.memory_bytes,
            segments: welcome.segments,
            segment_nodes: welcome.segment_nodes,
            caller_rows: welcome.caller_rows,
            caller_table: welcome.caller_table,
            role: welcome.role,
            instance: welcome.instance,
            mappings: CodeMap::default(),
        }
    }

    /// Dates by the clock of the client that took this information at `unix_ns` (0: unknown), if the
    /// guest knows none.
    pub fn client_clock(&self, unix_ns: u64) -> WallClock {
        let is_needed = self.wall_clock_ns.is_none() && unix_ns != 0;
        WallClock::new(is_needed.then_some((self.monotonic_ns, unix_ns)))
    }

    /// By how much the guest's clock was ahead of the client's, which was at `unix_ns`.
    pub fn clock_off_ns(&self, unix_ns: i128) -> Option<i128> {
        Some(i128::from(self.wall_clock_ns?) - unix_ns)
    }

    /// Whether running, runnable, blocked and offline time are told apart.
    pub fn tells_runstate(&self) -> bool {
        self.capabilities & capability::RUNSTATE != 0
    }

    /// Whether the agent answers even while the guest is stuck in a loop.
    pub fn reachable_when_busy(&self) -> bool {
        self.capabilities & capability::REACHABLE_WHEN_BUSY != 0
    }

    /// Whether the agent keeps what happened when, and the guest's own events.
    pub fn keeps_time(&self) -> bool {
        self.capabilities & capability::RING != 0
    }

    /// Whether the guest has reported allocations, so that they can be recorded.
    pub fn records_allocations(&self) -> bool {
        self.capabilities & capability::HEAP != 0
    }

    /// Whether the agent has a table of live allocations.
    pub fn follows_live(&self) -> bool {
        self.capabilities & capability::LIVE != 0
    }

    /// Whether the guest allows traces, to clients of the role for them.
    pub fn allows_traces(&self) -> bool {
        self.capabilities & capability::TRACE != 0
    }

    /// How many stack nodes each vCPU has room for.
    pub fn nodes_per_vcpu(&self) -> u64 {
        u64::from(self.segments) * u64::from(self.segment_nodes)
    }

    /// Whether this may be the same guest at a later moment of the same life, and was not suspended
    /// meanwhile.
    pub fn continues(&self, earlier: &AgentInfo) -> bool {
        self.guest_id == earlier.guest_id
            && self.instance == earlier.instance
            && self.mappings == earlier.mappings
            && self.monotonic_ns >= earlier.monotonic_ns
    }
}

/// A role's name; see [`unikprof_proto::code::role`].
pub fn role_name(found: u32) -> String {
    match found {
        role::OPEN => "open".to_owned(),
        role::VIEW => "view".to_owned(),
        role::CONTROL => "control".to_owned(),
        role::TRACE => "trace".to_owned(),
        other => format!("role {other}"),
    }
}

/// The mappings of a guest, and how a frame's code becomes an address.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CodeMap {
    /// In the order of their codes, which do not overlap.
    stretches: Vec<CodeMapping>,
}

#[derive(Debug, Clone, PartialEq)]
struct CodeMapping {
    code_base: u32,
    mapping: Mapping,
}

/// Why a mapping cannot be.
#[expect(missing_docs, reason = "each message says it")]
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MappingError {
    #[error("the mapping of `{path}` has the impossible range {start:#x} to {end:#x}")]
    Empty { path: String, start: u64, end: u64 },
    #[error(
        "the frame codes of the mapping of `{path}` begin at {code_base}; expected at least {free}"
    )]
    Codes { path: String, code_base: u32, free: u64 },
    #[error("the build-id of `{path}` has {length} bytes; the limit is {}", BuildId::MAX_BYTES)]
    BuildId { path: String, length: usize },
    #[error("the guest has {0} mappings; the limit is {MAX_MAPPINGS}")]
    TooMany(u32),
}

/// A frame's code that stands for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("frame code {0:#x} is in no mapping")]
pub struct UnknownCode(pub u32);

impl CodeMap {
    /// How many mappings there are.
    pub fn len(&self) -> usize {
        self.stretches.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.stretches.is_empty()
    }

    /// The mappings, in the order of their codes.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.stretches.iter().map(|s| &s.mapping)
    }

    /// The mappings and the codes of their first addresses, in the order of the codes.
    pub fn codes(&self) -> impl Iterator<Item = (u32, &Mapping)> {
        self.stretches.iter().map(|s| (s.code_base, &s.mapping))
    }

    /// Adds the next mapping.
    pub fn add(&mut self, mapping: &message::Mapping<'_>) -> Result<(), MappingError> {
        let path = || Printable(mapping.path).to_string();
        if mapping.start >= mapping.end {
            return Err(MappingError::Empty {
                path: path(),
                start: mapping.start,
                end: mapping.end,
            });
        }
        let free = self.first_free_code();
        if u64::from(mapping.code_base) < free {
            return Err(MappingError::Codes { path: path(), code_base: mapping.code_base, free });
        }
        let build_id = BuildId::of_file(mapping.build_id)
            .map_err(|_| MappingError::BuildId { path: path(), length: mapping.build_id.len() })?;
        self.stretches.push(CodeMapping {
            code_base: mapping.code_base,
            mapping: Mapping {
                start: mapping.start,
                end: mapping.end,
                file_offset: mapping.file_offset,
                build_id,
                path: mapping.path.into(),
            },
        });
        Ok(())
    }

    /// The same codes where another run of the same program has its mappings: its addresses may
    /// differ.
    pub(crate) fn placed_as(&self, other: &CodeMap) -> Result<CodeMap, String> {
        let what = |mapping: &Mapping| Mapping {
            start: 0,
            end: mapping.end - mapping.start,
            ..mapping.clone()
        };
        let mut left: Vec<&Mapping> = other.iter().collect();
        let mut placed = self.clone();
        for stretch in &mut placed.stretches {
            let wanted = what(&stretch.mapping);
            let found = left.iter().position(|mapping| what(mapping) == wanted);
            let Some(found) = found else {
                return Err(format!(
                    "`{}` is not in the first as it is in the other: another build, or mapped \
                     differently",
                    Printable(&wanted.path)
                ));
            };
            stretch.mapping = left.swap_remove(found).clone();
        }
        match left.first() {
            None => Ok(placed),
            Some(missing) => {
                Err(format!("`{}` is mapped in the first only", Printable(&missing.path)))
            }
        }
    }

    /// What a code in a stack means, where `leaf` says whether it is the interrupted place.
    pub fn frame(&self, code: u32, leaf: bool) -> Result<Frame, UnknownCode> {
        Ok(Frame::Special(match code {
            frame_code::TRUNCATED => SpecialFrame::Truncated,
            frame_code::BROKEN => SpecialFrame::Broken,
            frame_code::UNKNOWN_CODE => SpecialFrame::UnknownCode,
            frame_code::AGENT => SpecialFrame::AgentWork,
            frame_code::BLOCKED => SpecialFrame::Blocked,
            frame_code::LATE => SpecialFrame::Late,
            frame_code::AGED => SpecialFrame::Aged,
            code if code < frame_code::FIRST_ADDRESS => SpecialFrame::Other(code),
            code if code >= frame_code::FIRST_SIZE => return Err(UnknownCode(code)),
            code => {
                let address = self.address(code).ok_or(UnknownCode(code))?;
                return Ok(if leaf { Frame::leaf(address) } else { Frame::caller(address) });
            }
        }))
    }

    /// The address of a code. The one after a mapping's last counts as its own: a call may be its
    /// last instruction.
    fn address(&self, code: u32) -> Option<u64> {
        let after = self.stretches.partition_point(|s| s.code_base <= code);
        let stretch = self.stretches.get(after.checked_sub(1)?)?;
        let address = stretch.mapping.start.checked_add(u64::from(code - stretch.code_base))?;
        (address <= stretch.mapping.end).then_some(address)
    }

    fn first_free_code(&self) -> u64 {
        self.stretches.last().map_or(
            u64::from(frame_code::FIRST_ADDRESS),
            // `add` keeps `start < end`.
            |s| u64::from(s.code_base).saturating_add(s.mapping.end - s.mapping.start),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn mapping(start: u64, end: u64, code_base: u32) -> message::Mapping<'static> {
        message::Mapping {
            start,
            end,
            file_offset: 0x40,
            code_base,
            build_id: &[1, 2],
            path: "/guest",
        }
    }

    #[test]
    fn codes_become_addresses_of_their_mapping() {
        let mut map = CodeMap::default();
        map.add(&mapping(0x10_0000, 0x10_1000, 16)).unwrap();
        map.add(&mapping(0x7f00_0000_0000, 0x7f00_0000_0010, 0x1011)).unwrap();
        assert_eq!(map.frame(16, true), Ok(Frame::leaf(0x10_0000)));
        assert_eq!(map.frame(0x1010, false), Ok(Frame::caller(0x10_1000)));
        assert_eq!(map.frame(0x1012, false), Ok(Frame::caller(0x7f00_0000_0001)));
        assert_eq!(map.frame(0x1022, true), Err(UnknownCode(0x1022)));
        assert_eq!(map.frame(frame_code::AGENT, true), Ok(Frame::Special(SpecialFrame::AgentWork)));
        assert_eq!(map.frame(15, true), Ok(Frame::Special(SpecialFrame::Other(15))));
        assert_eq!(CodeMap::default().frame(16, true), Err(UnknownCode(16)), "no mapping at all");
    }

    #[test]
    fn impossible_mappings_are_refused() {
        let mut map = CodeMap::default();
        assert!(matches!(map.add(&mapping(5, 5, 16)), Err(MappingError::Empty { .. })));
        assert!(matches!(map.add(&mapping(0, 5, 15)), Err(MappingError::Codes { .. })));
        map.add(&mapping(0, 0x100, 16)).unwrap();
        assert!(
            matches!(map.add(&mapping(0, 5, 0x10f)), Err(MappingError::Codes { free: 0x110, .. })),
            "overlapping codes would make an address of two"
        );
        map.add(&mapping(0, u64::MAX, 0x110)).unwrap();
        assert!(matches!(map.add(&mapping(0, 5, u32::MAX)), Err(MappingError::Codes { .. })));
        let long = [0; 65];
        let bad = message::Mapping { build_id: &long, ..mapping(0, 5, 16) };
        assert!(matches!(
            CodeMap::default().add(&bad),
            Err(MappingError::BuildId { length: 65, .. })
        ));
    }
}
