//! What `connect` prints for people.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use unikprof_proto::code::{start_flag, state};
use unikprof_proto::message::Peers;

use crate::agent_info::role_name;
use crate::connection::Address;
use crate::printable::Printable;
use crate::profile::{Mapping, Mode, Unit};
use crate::record::{RecorderStatus, Session, Settings, peer_words, rate_text};
use crate::recording::Recording;
use crate::report::units::amount_with_unit;

/// Who the agent is.
pub(super) fn info(session: &Session) -> String {
    let (agent, address, protocol) = (session.agent(), session.address(), session.protocol());
    let mut rows = Rows::default();
    let text = |text: &Option<String>| match text {
        Some(text) => Printable(text).to_string(),
        None => "unknown".into(),
    };
    rows.add("guest", text(&agent.guest_name));
    rows.add("guest id", text(&agent.guest_id));
    rows.add(
        "agent",
        format!(
            "{} at {address}, protocol version {protocol}",
            Printable(&agent.agent_version)
        ),
    );
    rows.add("access", access(session));
    rows.add(
        "platform",
        format!(
            "{}, {}, {}",
            Printable(&agent.platform),
            Printable(&agent.architecture),
            counted(agent.vcpus.into(), "vCPU")
        ),
    );
    rows.add("up", duration(agent.monotonic_ns));
    if let Some(time) = agent.wall_clock_ns.and_then(timestamp) {
        rows.add("clock", format!("{time:.0}"));
    }
    rows.add(
        "memory",
        format!(
            "{} KiB, {} stack nodes for each vCPU",
            agent.memory_bytes.div_ceil(1024),
            agent.nodes_per_vcpu
        ),
    );
    rows.add(
        "rates",
        format!(
            "{} to {} Hz",
            rate_text(agent.max_period_ns),
            rate_text(agent.min_period_ns)
        ),
    );
    rows.add("depth", format!("up to {} frames", agent.max_depth));
    rows.add(
        "callers",
        match (agent.caller_rows, agent.caller_table) {
            (0, _) => "no room for a caller table".into(),
            (rows, None) => format!("room for a table of {rows} rows"),
            (rows, Some(checksum)) => {
                format!("room for a table of {rows} rows; holds table {checksum:08x}")
            }
        },
    );
    rows.add(
        "stolen time",
        yes(agent.tells_runstate(), "told apart", "not told apart"),
    );
    rows.add(
        "busy guest",
        yes(
            agent.reachable_when_busy(),
            "answers also while the guest is stuck in a loop",
            "answers only when the guest polls it",
        ),
    );
    let mut out = rows.0;
    for (at, mapping) in agent.mappings.iter().enumerate() {
        let label = if at == 0 { "mappings" } else { "" };
        let _ = writeln!(out, "{label:<12} {}", mapping_text(mapping));
    }
    out
}

/// What the recorder does.
pub(super) fn status(status: &RecorderStatus, session: &Session) -> String {
    let mut rows = Rows::default();
    let c = &status.counters;
    rows.add("state", state_text(status));
    if status.recording != 0 {
        rows.add(
            "recording",
            format!("{} `{}`", status.recording, Printable(&status.name)),
        );
        let interval = match status.flags & start_flag::FIXED_INTERVAL {
            0 => "random intervals",
            _ => "fixed intervals",
        };
        rows.add(
            "sampling",
            format!(
                "mode {}, {} Hz, {interval}, {} frames",
                status.mode(),
                rate_text(status.period_ns),
                status.depth
            ),
        );
        rows.add(
            "ticks",
            format!(
                "{} = recorded {} + overflow {} + lost {} + masked {} + idle {}",
                c.ticks, c.recorded, c.overflow, c.lost, c.masked, c.idle
            ),
        );
        rows.add(
            "of recorded",
            format!(
                "late {}, truncated {}, broken {}",
                c.late, c.truncated, c.broken
            ),
        );
        rows.add(
            "callers",
            format!(
                "by table {}, by bytes {}, by frame pointer {}, mixed {}",
                c.by_table, c.by_bytes, c.by_frame_pointer, c.mixed
            ),
        );
        if c.blocks != 0 {
            let unit = status.mode().unit();
            rows.add(
                "blocked",
                format!(
                    "{} in {} blocks, {} not counted",
                    amount_with_unit(c.blocked, unit),
                    c.blocks,
                    amount_with_unit(c.blocked_overflow, unit)
                ),
            );
        }
        rows.add("outside", format!("early {}", c.early));
        rows.add(
            "table",
            format!(
                "{} of {} stack nodes used",
                status.nodes_used, status.nodes_capacity
            ),
        );
    }
    rows.add(
        "waiting",
        match status.epochs {
            0 => "nothing to be fetched".into(),
            1 => format!("epoch {}, to be fetched", status.first_epoch),
            epochs => format!("{epochs} epochs from {}, to be fetched", status.first_epoch),
        },
    );
    rows.add(
        "agent",
        format!(
            "{} open, {} of network work, the longest piece {}",
            counted(status.sessions.into(), "session"),
            duration(status.server_ns),
            duration(status.server_longest_ns)
        ),
    );
    rows.add("turned off", peers(&status.peers));
    rows.add("access", access(session));
    rows.0
}

/// What this client may do, and who can read along.
fn access(session: &Session) -> String {
    match session.key() {
        Some(key) => format!(
            "role {} by key {key}; sealed",
            role_name(session.agent().role)
        ),
        None => "open: no key was asked for, and everything travels in the clear".into(),
    }
}

/// What became of connections that were refused or cut.
fn peers(peers: &Peers) -> String {
    let mut parts: Vec<String> = peer_words(peers)
        .into_iter()
        .filter(|(count, _)| *count != 0)
        .map(|(count, words)| format!("{count} {words}"))
        .collect();
    if peers.not_allowed != 0 {
        parts.push(counted(peers.not_allowed, "request") + " not allowed to the role");
    }
    match parts.is_empty() {
        true => "no connection was refused or cut".into(),
        false => format!("since the agent started: {}", parts.join(", ")),
    }
}

/// That a recording was started, and what to do next.
pub(super) fn started(settings: &Settings, recording: u64, address: &Address) -> String {
    let ends = match settings.duration_ns {
        0 => "it goes on until it is stopped".into(),
        ns => format!("it ends after {}", duration(ns)),
    };
    format!(
        "started recording {recording} `{}` at {} Hz; {ends}\n\
         look at it: unikprof-client connect {address} check\n\
         end and fetch it: unikprof-client connect {address} stop\n",
        settings.name,
        rate_text(settings.period_ns)
    )
}

/// What was recorded and where it is.
pub(super) fn recorded(recording: &Recording, files: &[PathBuf], has_names: bool) -> String {
    let profile = &recording.profile;
    let info = profile.recording();
    let c = profile.counters();
    let mut rows = Rows::default();
    let guest = match info.guest_name.as_str() {
        "" => "the guest".into(),
        name => Printable(name).to_string(),
    };
    rows.add(
        "recorded",
        format!(
            "{} of {guest} in {}{}",
            match info.mode.unit() {
                Unit::Samples => format!("{} samples", profile.sample_count()),
                Unit::Nanoseconds => {
                    format!("{} of blocked time", duration(profile.sample_count()))
                }
            },
            duration(info.elapsed_ns),
            match info.mode {
                Mode::OffCpu => ", measured".to_owned(),
                Mode::Wall => format!(
                    ", asked for {} Hz of running and blocked time",
                    rate_text(info.period_ns)
                ),
                Mode::Cpu | Mode::Other(_) => {
                    format!(
                        ", asked for {} Hz of running time",
                        rate_text(info.period_ns)
                    )
                }
            }
        ),
    );
    rows.add(
        "ticks",
        format!(
            "{} = recorded {} + overflow {} + lost {} + masked {} + idle {}",
            c.ticks, c.recorded, c.overflow, c.lost, c.masked, c.idle
        ),
    );
    if let Some(missing) = c.missing {
        rows.add("missing", missing.to_string());
    }
    if let Some(share) = profile.cost_share() {
        rows.add("cost", format!("{:.2} % of running time", share * 100.0));
    }
    for path in files {
        rows.add("wrote", path.display().to_string());
    }
    if let [only] = files
        && only.extension().is_some_and(|ending| ending == "unikprof")
    {
        let image = match has_names {
            true => "",
            false => " --image GUEST.ELF",
        };
        rows.add(
            "look at it",
            format!("unikprof-client report {}{image}", only.display()),
        );
    }
    rows.0
}

/// `1 session`, `2 sessions`.
fn counted(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn state_text(status: &RecorderStatus) -> String {
    let name = status.state_name();
    match (status.state, status.left()) {
        (state::DELAYED, _) => {
            format!(
                "{name}: begins in {:.1} s",
                status.delay_left().as_secs_f64()
            )
        }
        (state::RECORDING, Some(left)) => format!(
            "{name} for {:.1} s, {:.1} s left",
            status.elapsed().as_secs_f64(),
            left.as_secs_f64()
        ),
        (state::RECORDING, None) => {
            format!(
                "{name} for {:.1} s, until stopped",
                status.elapsed().as_secs_f64()
            )
        }
        (state::FINISHED, _) => format!("{name}: `stop` fetches it"),
        _ => name.into(),
    }
}

fn mapping_text(mapping: &Mapping) -> String {
    let build_id = match &mapping.build_id {
        Some(id) => format!("build-id {id}"),
        None => "no build-id".into(),
    };
    format!(
        "{:#x}-{:#x} {} ({build_id})",
        mapping.start,
        mapping.end,
        match mapping.path.as_str() {
            "" => "(no path)".into(),
            path => Printable(path).to_string(),
        }
    )
}

/// Labels and values, one below the other.
#[derive(Default)]
struct Rows(String);

impl Rows {
    fn add(&mut self, label: &str, value: impl AsRef<str>) {
        let _ = writeln!(self.0, "{label:<12} {}", value.as_ref());
    }
}

fn yes(is: bool, yes: &'static str, no: &'static str) -> &'static str {
    if is { yes } else { no }
}

/// A length of time with as much as people read of it.
fn duration(ns: u64) -> String {
    let rounded = match ns {
        0..1_000_000 => ns,
        1_000_000..10_000_000_000 => ns / 1_000_000 * 1_000_000,
        _ => ns / 1_000_000_000 * 1_000_000_000,
    };
    humantime::format_duration(Duration::from_nanos(rounded)).to_string()
}

fn timestamp(unix_ns: u64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(unix_ns)).ok()
}
