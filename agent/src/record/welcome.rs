//! The agent's description for clients, and the mappings of its guest's code.

use unikprof_proto::code::capability;
use unikprof_proto::message::{
    MAX_BUILD_ID, MAX_PATH, MAX_PERIOD_NS, MIN_PERIOD_NS, Mapping, Welcome,
};

use crate::agent::Agent;
use crate::count::table::SEGMENTS;
use crate::ground::platform::Platform;
use crate::ground::text::tail;
use crate::stack::caller_table::CallerTable;
use crate::stack::path::MAX_DEPTH;

/// The longest request body, in bytes.
pub const MAX_REQUEST: usize = 1024;

impl<'m, P: Platform + ?Sized> Agent<'m, P> {
    /// The agent's description for a client with this role. `runstate`: whether the platform knows
    /// [runstates](Platform::runstate), which must not be called in an upcall.
    pub(crate) fn welcome(&self, role: u32, runstate: bool) -> Welcome<'m> {
        let config = self.config();
        let platform = self.platform();
        let capabilities = if runstate { capability::RUNSTATE } else { 0 }
            | if config.reachable_when_busy { capability::REACHABLE_WHEN_BUSY } else { 0 }
            | if self.rings().is_some() { capability::RING } else { 0 }
            | match (self.sees_allocations(), self.live()) {
                (false, _) => 0,
                (true, None) => capability::HEAP,
                (true, Some(_)) => capability::HEAP | capability::LIVE,
            };
        #[cfg(feature = "trace")]
        let capabilities = match self.trace {
            Some(_) => capabilities | capability::TRACE,
            None => capabilities,
        };
        Welcome {
            agent_version: env!("CARGO_PKG_VERSION"),
            architecture: ARCHITECTURE,
            platform: tail(config.platform_name, MAX_PATH),
            guest_name: config.guest_name.map(|name| tail(name, MAX_PATH)),
            guest_id: config.guest_id.map(|id| tail(id, MAX_PATH)),
            vcpus: config.vcpus,
            mappings: config.mappings.len() as u32,
            monotonic_ns: platform.now_ns(),
            wall_clock_ns: platform.wall_clock_ns(),
            capabilities,
            min_period_ns: MIN_PERIOD_NS,
            max_period_ns: MAX_PERIOD_NS,
            max_depth: MAX_DEPTH as u32,
            max_request: MAX_REQUEST as u32,
            memory_bytes: self.memory_bytes(),
            segments: SEGMENTS as u32,
            segment_nodes: (self.nodes_per_vcpu() / SEGMENTS) as u32,
            caller_rows: self.callers().map_or(0, CallerTable::room),
            caller_table: self.callers().and_then(CallerTable::checksum),
            role,
            instance: self.instance(),
        }
    }

    /// A mapping by its index.
    pub(crate) fn mapping(&self, index: usize) -> Option<Mapping<'m>> {
        let mapping = self.config().mappings.get(index)?;
        let build_id = mapping.build_id;
        Some(Mapping {
            start: mapping.start,
            end: mapping.end,
            file_offset: mapping.file_offset,
            code_base: self.code().code_base(index)?,
            build_id: build_id.get(..MAX_BUILD_ID).unwrap_or(build_id),
            path: tail(mapping.path, MAX_PATH),
        })
    }
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "x86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "aarch64";
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the agent walks stacks of x86_64 and aarch64");
