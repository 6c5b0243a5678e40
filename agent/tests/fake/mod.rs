//! Shared by measuring tests and benches: generated stacks, a platform without clocks for walking
//! them, and a client that counts the samples.
#![allow(
    dead_code,
    reason = "each program that includes this uses a part of it"
)]

pub(crate) mod conversation;
pub(crate) mod platform;
pub(crate) mod stacks;

use unikprof_agent::Config;

/// One vCPU, one recording, [`stacks::MAPPING`].
pub(crate) const CONFIG: Config<'static> = Config {
    vcpus: 1,
    recordings: 1,
    mappings: &[stacks::MAPPING],
    guest_name: None,
    guest_id: None,
    platform_name: "fake",
    reachable_when_busy: false,
};
