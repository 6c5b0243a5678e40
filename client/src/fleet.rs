//! Many guests: `serve` answers for each of them what the engines that keep profiles ask for.
//!
//! ```text
//! fleet.toml, target files, URLs ─► config, targets ─► roster: who belongs to the fleet now
//!                                                        │ one thread a guest
//! agent ◄─ contact (status every few seconds) ───────────┤
//! agent ◄─ take (a recording of N seconds) ◄─ http ◄──── Alloy, Parca, collectors, Prometheus, people
//! ```
//!
//! Nothing here has state that could be lost: a recording belongs to the request that asked for it, and ends with it.

mod config;
mod contact;
mod differ;
mod file_name;
#[cfg_attr(not(test), expect(dead_code, reason = "for the collector"))]
mod folder;
mod http;
mod member;
mod metrics;
// Called by what collects.
#[allow(dead_code)]
mod push;
mod record;
mod roster;
mod serve;
mod take;
mod targets;
mod tls;
mod tokens;

pub(crate) use config::{Config, ConfigError};
pub(crate) use record::{FleetRecordError, FleetRecording, FleetRequest, RecordedGuest, record};
pub(crate) use serve::{ServeError, serve};
