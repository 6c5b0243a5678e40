//! Many guests: `serve` answers for each of them what the engines that keep profiles ask for, and
//! `collect` brings them everything.
//!
//! ```text
//! fleet.toml, target files, URLs ─► config, targets ─► roster: who belongs to the fleet now
//!                                                        │ one thread a guest
//! agent ◄─ contact (status every few seconds) ───────────┤
//! agent ◄─ take (a recording of N seconds) ◄─ http ◄──── Alloy, Parca, collectors, Prometheus, people
//! ```
//!
//! `serve` has no state that could be lost: a recording belongs to the request that asked for it,
//! and ends with it.

pub mod cli;
mod collect;
mod config;
mod contact;
mod differ;
mod file_name;
mod folder;
mod http;
mod member;
mod metrics;
mod push;
mod record;
mod roster;
mod serve;
mod shard;
mod take;
mod targets;

pub(crate) use collect::{Audit, CollectError, collect};
pub(crate) use config::Config;
pub(crate) use record::{FleetRecordError, FleetRecording, FleetRequest, RecordedGuest, record};
pub(crate) use serve::serve;
pub(crate) use shard::Shard;
